"""Runs coroutines in the background, and their plain functions in the thread that waits for them.

So a plain handler runs in the thread of the test, and sees its database transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from waybill.ojs.sync.background import background

T = TypeVar("T")

_Call = tuple[Context, Callable[[], object], "Future[object]"]
_caller: ContextVar[SimpleQueue[_Call | None] | None] = ContextVar("waybill_caller", default=None)


def call_from_here(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in the loop of this process, and its calls of `run_in_caller` in this thread."""
    calls: SimpleQueue[_Call | None] = SimpleQueue()

    async def run() -> T:
        try:
            return await work
        finally:
            calls.put(None)

    token = _caller.set(calls)
    try:
        result = background().start(run())
    finally:
        _caller.reset(token)
    while (call := calls.get()) is not None:
        context, function, future = call
        try:
            future.set_result(context.run(function))
        except BaseException as error:  # noqa: BLE001 - passed on to the coroutine
            future.set_exception(error)
    return result()


async def run_in_caller(function: Callable[[], T]) -> T:
    """Call a plain function in the thread that waits for this coroutine; in a new thread if none does."""
    calls = _caller.get()
    context = copy_context()
    if calls is None:
        return await asyncio.get_running_loop().run_in_executor(None, context.run, function)
    future: Future[Any] = Future()
    calls.put((context, function, future))
    result: T = await asyncio.wrap_future(future)
    return result
