"""Hooks: functions that are called when jobs and workers start and end. They cannot change the job.

    @jobs.hooks.on_discard
    async def page(moment: Moment) -> None:
        await pager.send(f"{moment.type} {moment.id} was discarded: {moment.error.message}")

Plain functions are called in the worker's event loop and should return quickly; coroutines run concurrently with jobs.
Errors of hooks are logged, and do not affect jobs. To wrap or change jobs, use middleware.
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
"""How long a stopping worker waits for its hooks."""

_log = logging.getLogger("waybill.ojs.hooks")


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of a job in one attempt."""

    envelope: Envelope
    queue: str
    attempt: int
    """The number of the attempt, from 1; 0 for a message that is not a valid job."""
    job: JobContext | None = None
    """The context of the job; None if the attempt was not started here."""
    result: object = None
    """The result of the handler, in `on_success`."""
    duration_seconds: float = 0.0
    error: ErrorRecord | None = None
    """The error record of the attempt, in `on_failure`, `on_retry` and `on_discard`."""
    exception: BaseException | None = None
    """The exception of the handler, in `on_failure`; None if the worker has ended the attempt."""
    retry_in_seconds: float | None = None
    """The delay of the next attempt, in `on_retry`."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.envelope.id

    @property
    def type(self) -> str:
        """The job's type."""
        return self.envelope.type


class HookList(list[Callable[[T], object]]):
    """The hooks of one kind, in the order of registration. Calling it as a decorator adds one.

    It is a list, so that jobs can quickly check whether there are any.
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
        """An attempt has failed, whether it is retried or not."""
        self.on_retry = HookList[Moment]("on_retry")
        """The broker has confirmed the next attempt of a job that failed."""
        self.on_discard = HookList[Moment]("on_discard")
        """A job has ended without success, or a message was not a valid job."""
        self.on_worker_start = HookList[Any]("on_worker_start")
        """A `Worker` is connected and about to take jobs; it waits for these hooks."""
        self.on_worker_stop = HookList[Any]("on_worker_stop")
        """A `Worker` has finished its last job and is still connected; it waits for these hooks, up to ten seconds."""


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
            except BaseException:  # noqa: BLE001 - an error of a hook must not affect the job
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
        """Wait for running hooks; cancel them if that takes too long."""
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
