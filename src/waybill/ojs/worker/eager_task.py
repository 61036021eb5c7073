"""Starts a coroutine immediately, as part of a task, and keeps the task only if the coroutine waits.

A handler that never waits needs no turn of the loop, and so no task of its own. But what it calls may ask for the task
that it runs in (`asyncio.timeout` does), so there has to be one from its first step on. Python 3.12 has eager tasks for
this. Before that, a spare task lends its name: its coroutine stands still until one of those that were started in its
name has to wait, and then goes on with that one.

    started, done at once       -> Ended; the spare task serves the next one
    started, waits              -> the spare task, which now is the task of this coroutine
    nobody waits in this turn   -> the spare task ends; the next turn makes another

What a coroutine sets in its context is not to be seen by the next one: the spare task is left then.
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
        """Take the outcome of a future."""
        if future.cancelled():
            return cls(None, asyncio.CancelledError())
        error = future.exception()
        if error is None:
            return cls(future.result())
        return cls(None, tellable(error.__cause__ if type(error) is HandlerExit and error.__cause__ else error))

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
    """Stands for the SystemExit or KeyboardInterrupt of a coroutine: out of a task, they would end the loop."""


def tellable(error: BaseException) -> BaseException:
    """Return an exception that can be inspected: itself, unless code of its class fails."""
    try:
        isinstance(error, HandlerExit)
        _ = error.__cause__, error.__traceback__, type(error).__name__
    except BaseException:  # noqa: BLE001 - that code is a handler's
        return RuntimeError("the handler raised an exception that cannot be inspected")
    return error


_NOTHING: Final = Ended(None)
"""How most coroutines end: read only, so one serves for all."""


class Starter(Generic[V]):
    """Starts coroutines, each with its own value of a context variable."""

    def __init__(self, loop: asyncio.AbstractEventLoop, variable: ContextVar[V]) -> None:
        """`variable` is seen by each coroutine with the value that is given at its start."""
        self._loop = loop
        self._variable = variable
        self._spare: _Spare | None = None

    def start(self, coroutine: Coroutine[Any, Any, object], value: V) -> Ended | asyncio.Future[object]:
        """Run a coroutine up to its first wait. Called from outside of all tasks."""
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
    """A task that may become that of a coroutine which was started in its name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, variable: ContextVar[V]) -> None:
        self._loop = loop
        self.is_taken = False
        self._coroutine: Coroutine[Any, Any, object] | None = None
        self._awaited: object = None
        self._context = context = copy_context()
        self._inherited = [(inherited, value) for inherited, value in context.items() if inherited is not variable]
        self._size = len(self._inherited) + 1
        driver = self._drive()
        # It stands at its first `yield` now: a cancellation before its first turn finds it there.
        next(driver)
        self.task: asyncio.Task[object] = asyncio.Task(driver, loop=loop, context=context)

    def run(self, first_step: FirstStep, coroutine: Coroutine[Any, Any, object], value: object) -> Ended | None:
        """Run the first step of a coroutine; None if it waits, and the task is its task from now on."""
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
        """Say whether the coroutines so far have left the context as it was."""
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
    """Call something whose result or error a future is to take: it would take no StopIteration, and never be done."""
    try:
        return call(*arguments)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error
