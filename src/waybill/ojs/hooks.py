"""Hooks: functions that are called when jobs and workers start and end. They cannot change the job.

    @jobs.hooks.on_discard
    async def page(moment: Moment) -> None:
        await pager.send(f"{moment.type} {moment.id} is given up: {moment.error.message}")

A plain function is called in the worker's event loop and should return soon; a coroutine runs beside the jobs. What
a hook raises is logged, and hurts no job. What has to wrap a job, or to change it, is middleware.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from waybill.ojs.job_context import JobContext
from waybill.ojs.spec.envelope import Envelope, ErrorRecord
from waybill.ojs.spec.nesting import shown

T = TypeVar("T")
HookResult = TypeVar("HookResult", bound="Awaitable[None] | None")

STOP_SECONDS: Final = 10.0
"""How long a worker that ends waits for its hooks."""

_log = logging.getLogger("waybill.ojs.hooks")


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened to a job in one attempt."""

    envelope: Envelope
    queue: str
    attempt: int
    """From 1; 0 for a message that could not be read as a job."""
    job: JobContext | None = None
    """The job as its handler knows it; None if the attempt was not begun here."""
    result: object = None
    """What the handler has returned, in `on_success`."""
    duration_seconds: float = 0.0
    error: ErrorRecord | None = None
    """Why the attempt has failed, in `on_failure`, `on_retry` and `on_discard`."""
    exception: BaseException | None = None
    """What the handler has raised, in `on_failure`; None if the worker has ended the attempt."""
    retry_in_seconds: float | None = None
    """When the next attempt begins, in `on_retry`."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.envelope.id

    @property
    def type(self) -> str:
        """The job's type."""
        return self.envelope.type


class HookList(list[Callable[[T], object]]):
    """The hooks of one kind, in the order of their registration: a decorator that adds one.

    A list, as every job asks whether there are any.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __call__(self, hook: Callable[[T], HookResult]) -> Callable[[T], HookResult]:
        """Register a plain or an async function. Workers that start later call it."""
        self.append(hook)
        return hook


class Hooks:
    """The hooks of an application (`Jobs.hooks`)."""

    def __init__(self) -> None:
        self.on_start = HookList[Moment]("on_start")
        """An attempt is about to begin."""
        self.on_success = HookList[Moment]("on_success")
        """A handler has returned."""
        self.on_failure = HookList[Moment]("on_failure")
        """An attempt has failed, whatever follows."""
        self.on_retry = HookList[Moment]("on_retry")
        """The broker has confirmed the next attempt of a job that failed."""
        self.on_discard = HookList[Moment]("on_discard")
        """A job, or a message that is none, has ended without success."""
        self.on_worker_start = HookList[Any]("on_worker_start")
        """A `Worker` is connected and takes jobs next; it waits for these hooks."""
        self.on_worker_stop = HookList[Any]("on_worker_stop")
        """A `Worker` has done its last job, and is still connected; it waits for these hooks, up to ten seconds."""


class HookCalls:
    """Calls the hooks for one worker."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, hooks: HookList[T], moment: T, about: str = "") -> None:
        """Call the hooks of a kind. Raises nothing."""
        for hook in tuple(hooks):
            try:
                answer = hook(moment)
                if inspect.isawaitable(answer):
                    task = asyncio.ensure_future(self._end(hooks.name, answer, about))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            except BaseException:  # noqa: BLE001 - whatever a hook does, the job goes on
                _log.exception("a hook of %s failed%s", hooks.name, about)

    def about(self, hooks: HookList[Moment], moment: Moment) -> None:
        """Call the hooks of a kind for a job. Raises nothing."""
        self.tell(hooks, moment, f" for job {shown(moment.id)}")

    async def worker(self, hooks: HookList[Any], worker: object) -> None:
        """Call the hooks of a kind for a worker, one after the other, and wait for each. Raises nothing."""
        for hook in tuple(hooks):
            try:
                answer = hook(worker)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # noqa: BLE001 - a hook may raise anything
                _log.exception("a hook of %s failed", hooks.name)

    async def drain(self) -> None:
        """Wait for the hooks that still run; end them if that takes too long."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _end(self, name: str, answer: Awaitable[object], about: str) -> None:
        try:
            await answer
        except Exception:  # noqa: BLE001 - a hook may raise anything
            _log.exception("a hook of %s failed%s", name, about)
