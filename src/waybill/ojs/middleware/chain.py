"""The chain itself: a middleware is a coroutine function that gets the job and what is inside of it.

async def timing(job: JobContext, call: Call) -> object:
    started = monotonic()
    try:
        return await call(job)
    finally:
        print(job.type, monotonic() - started)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from waybill.ojs.job_context import JobContext

Call = Callable[[JobContext], Awaitable[object]]
Middleware = Callable[[JobContext, Call], Awaitable[object]]


def compose(middleware: Sequence[Middleware], innermost: Call) -> Call:
    """Wrap `innermost` so that the first middleware is the outermost. Made once a handler, not once a job."""
    call = innermost
    for layer in reversed(middleware):
        call = _wrap(layer, call)
    return call


def _wrap(layer: Middleware, inner: Call) -> Call:
    def call(job: JobContext) -> Awaitable[object]:
        return layer(job, inner)

    return call
