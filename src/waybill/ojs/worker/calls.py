"""Calls handlers: in the loop, in a thread, or in a process, with middleware and resources.

The call of a job type is composed once, when the worker starts, so running a job needs no decisions.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from waybill.ojs.handler import AnyHandler
from waybill.ojs.job_context import JobContext, current
from waybill.ojs.middleware.chain import Call, Middleware, compose
from waybill.ojs.resources import Resources
from waybill.ojs.worker.eager_task import Ended, Starter, in_thread

if TYPE_CHECKING:
    from waybill.ojs.worker.process_pool import ProcessPool

_Invoke = Callable[[list[object]], Coroutine[Any, Any, object]]
Start = Callable[[JobContext], Ended | asyncio.Future[object]]
"""Starts the handler of a job, which becomes the current job; a handler that never waits has then ended."""


class Calls:
    """The calls of a worker's handlers."""

    def __init__(
        self,
        handlers: Mapping[str, AnyHandler],
        middleware: Sequence[Middleware],
        resources: Resources,
        thread_count: int,
        processes: ProcessPool | None,
    ) -> None:
        """Pass `processes` if a handler runs in one."""
        self.processes = processes
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        self._starter: Starter[JobContext | None] = Starter(self._loop, current)
        self._threads = ThreadPoolExecutor(max_workers=thread_count, thread_name_prefix="waybill-job")
        self.by_type = {kind: self._start_of(handler, middleware) for kind, handler in handlers.items()}

    def close(self) -> None:
        """Close the processes, and the threads that are idle."""
        if self.processes is not None:
            self.processes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_of(self, handler: AnyHandler, middleware: Sequence[Middleware]) -> Start:
        start = self._starter.start
        is_ready = handler.runs_in_process or self._resources.has_all(handler.function)
        if not middleware and handler.is_async and is_ready:
            invoke = cast("_Invoke", handler.arguments.caller(self._resources.bind(handler.function)))
            return lambda job: start(invoke(job.envelope.args), job)
        call = self._call_of(handler)
        if middleware:
            wrapped = compose(middleware, call)
            return lambda job: start(_coroutine(wrapped(job)), job)
        if not is_ready:
            return lambda job: start(_coroutine(call(job)), job)
        return _with_current(cast("Callable[[JobContext], asyncio.Future[object]]", call))

    def _call_of(self, handler: AnyHandler) -> Call:
        """Return a function that calls a handler with its job's arguments and resources, wherever it runs."""
        if handler.runs_in_process and self.processes is not None:
            return functools.partial(self.processes.run, handler)
        if not self._resources.has_all(handler.function):
            return functools.partial(self._late_call, handler)
        function = handler.arguments.caller(self._resources.bind(handler.function))
        return _async_call(function) if handler.is_async else self._thread_call(function)

    async def _late_call(self, handler: AnyHandler, job: JobContext) -> object:
        """Call a handler of another worker's queue, whose resources were not created here before its first job."""
        await self._resources.open(handler.function)
        return await self._call_of(handler)(job)

    def _thread_call(self, function: Callable[..., object]) -> Callable[[JobContext], asyncio.Future[object]]:
        def call(job: JobContext) -> asyncio.Future[object]:
            # The thread sees the context of the job, in particular current_job().
            context = copy_context()
            return self._loop.run_in_executor(self._threads, in_thread, context.run, function, job.envelope.args)

        return call


def _coroutine(awaitable: object) -> Coroutine[Any, Any, object]:
    """Await the return value of an `async def`, or of such a middleware."""
    return cast("Coroutine[Any, Any, object]", awaitable)


def _with_current(call: Callable[[JobContext], asyncio.Future[object]]) -> Start:
    """Set the current job for work in a thread, which copies the context."""

    def start(job: JobContext) -> asyncio.Future[object]:
        token = current.set(job)
        try:
            return call(job)
        finally:
            current.reset(token)

    return start


def _async_call(function: Callable[..., object]) -> Call:
    def call(job: JobContext) -> Awaitable[object]:
        return cast("Awaitable[object]", function(job.envelope.args))

    return call
