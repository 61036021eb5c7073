"""Starts a coroutine immediately, as part of a task, and keeps the task only if the coroutine waits.

A handler that never waits needs no iteration of the event loop, and so no task of its own. But code that it calls may
use the current task (`asyncio.timeout` does), so there must be one from its first step on. Python 3.12 has eager tasks
for this. On older versions, a spare task stands in: its own coroutine is suspended, until one of the coroutines that
were started in its name has to wait. Then the task continues with that one.

    started, done at once       -> Ended; the spare task serves the next one
    started, waits              -> the spare task, which now is the task of this coroutine
    no job waits in this turn   -> the spare task ends; the next turn makes another

The next coroutine must not see what one has set in its context: in that case, the spare task is abandoned.
"""

from __future__ import annotations

import asyncio
import sys
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar, copy_context
from typing import Any, Final, Generic, Self, TypeVar

V = TypeVar("V")
T = TypeVar("T")

FirstStep = Callable[[Coroutine[Any, Any, object], Any], object]


class Ended:
    """A coroutine that has ended without waiting, with a result or an error."""

    __slots__ = ("error", "result")

    def __init__(self, result: object, error: BaseException | None = None) -> None:
        self.result = result
        self.error = error

    @classmethod
    def of(cls, future: asyncio.Future[object]) -> Self:
        """Copy the outcome of a future."""
        if future.cancelled():
            return cls(None, asyncio.CancelledError())
        error = future.exception()
        if error is None:
            return cls(future.result())
        return cls(None, tellable(error.__cause__ if type(error) is HandlerExit and error.__cause__ else error))

    def release(self) -> None:
        """Forget the traceback of an error: it has frames that have this outcome, a cycle with the job's arguments."""
        if self.error is not None:
            BaseException.with_traceback(self.error, None)

    def future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[object]:
        """Return a future with this outcome."""
        future = loop.create_future()
        if isinstance(self.error, asyncio.CancelledError):
            future.cancel()
        elif self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.result)
        return future


class HandlerExit(Exception):
    """Stands for the SystemExit or KeyboardInterrupt of a coroutine: raised in a task, they would end the loop."""


def tellable(error: BaseException) -> BaseException:
    """Return an exception that can be inspected: itself, unless code of its class fails."""
    try:
        isinstance(error, HandlerExit)
        _ = error.__cause__, error.__traceback__, type(error).__name__
    except BaseException:  # noqa: BLE001 - that code is a handler's
        return RuntimeError("the handler raised an exception that cannot be inspected")
    return error


_NOTHING: Final = Ended(None)
"""The outcome of most coroutines. It is never changed, so all share it."""


class Starter(Generic[V]):
    """Starts coroutines, each with its own value of a context variable."""

    def __init__(self, loop: asyncio.AbstractEventLoop, variable: ContextVar[V]) -> None:
        """Each coroutine sees `variable` with the value that is passed at its start."""
        self._loop = loop
        self._variable = variable
        self._spare: _Spare | None = None

    def start(self, coroutine: Coroutine[Any, Any, object], value: V) -> Ended | asyncio.Future[object]:
        """Run a coroutine up to its first wait. Must not be called from within a task."""
        if sys.version_info >= (3, 12):
            token = self._variable.set(value)
            try:
                task = asyncio.Task(_contained(coroutine), loop=self._loop, eager_start=True)
            finally:
                self._variable.reset(token)
            return Ended.of(task) if task.done() else task
        spare = self._spare
        if spare is None or spare.is_taken:
            self._spare = spare = _Spare(self._loop, self._variable)
        ended = spare.run(self._first_step, coroutine, value)
        if ended is None:
            self._spare = None
            return spare.task
        if not spare.is_clean():
            self._spare = None
        return ended

    def _first_step(self, coroutine: Coroutine[Any, Any, object], value: V) -> object:
        self._variable.set(value)
        return coroutine.send(None)


class _Spare:
    """A task that may adopt a coroutine that was started in its name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, variable: ContextVar[V]) -> None:
        self._loop = loop
        self.is_taken = False
        self._coroutine: Coroutine[Any, Any, object] | None = None
        self._awaited: object = None
        self._context = context = copy_context()
        self._inherited = [(inherited, value) for inherited, value in context.items() if inherited is not variable]
        self._size = len(self._inherited) + 1
        driver = self._drive()
        # It is suspended at its first `yield` now, so a cancellation before its first iteration reaches it there.
        next(driver)
        self.task: asyncio.Task[object] = asyncio.Task(driver, loop=loop, context=context)

    def run(self, first_step: FirstStep, coroutine: Coroutine[Any, Any, object], value: object) -> Ended | None:
        """Run the first step of a coroutine; None if it waits, and the task has adopted it."""
        _enter_task(self._loop, self.task)
        try:
            self._awaited = self._context.run(first_step, coroutine, value)
        except StopIteration as stop:
            return _NOTHING if stop.value is None else Ended(stop.value)
        except BaseException as error:  # noqa: BLE001 - whatever a job raises, it is the job that has failed
            return Ended(None, tellable(error))
        finally:
            _leave_task(self._loop, self.task)
        self._coroutine = coroutine
        self.is_taken = True
        return None

    def is_clean(self) -> bool:
        """Return whether the coroutines so far have left the context unchanged."""
        context = self._context
        if len(context) != self._size:
            return False
        return not self._inherited or all(context[var] is value for var, value in self._inherited)

    @types.coroutine
    def _drive(self) -> Generator[Any, None, object]:
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:  # noqa: BLE001 - a cancellation, which is the coroutine's
            error = raised
        self.is_taken = True
        coroutine = self._coroutine
        if coroutine is None:
            return None
        awaited = self._awaited
        # The task keeps the traceback of an error, with this frame: a cycle.
        del self
        try:
            if error is not None:
                awaited = coroutine.throw(error)
            while True:
                try:
                    yield awaited
                except BaseException as raised:  # noqa: BLE001 - whatever it is, it is for the coroutine
                    awaited = coroutine.throw(raised)
                else:
                    awaited = coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        except (KeyboardInterrupt, SystemExit) as raised:
            raise HandlerExit from raised


async def _contained(coroutine: Coroutine[Any, Any, object]) -> object:
    try:
        return await coroutine
    except (KeyboardInterrupt, SystemExit) as raised:
        raise HandlerExit from raised


def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Call a function whose outcome goes to a future, which would not accept StopIteration and never complete."""
    try:
        return call(*arguments)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error
