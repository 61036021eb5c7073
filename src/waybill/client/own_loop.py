"""The check that an object is used from its own event loop."""

import asyncio
from typing import Final

from waybill.client.errors import WrongEventLoop

# The base of asyncio.get_running_loop(), which raises without a loop.
running_loop: Final = asyncio._get_running_loop  # noqa: SLF001 - documented for this use


def wrong_loop(what: str) -> WrongEventLoop:
    """The error for using an object from another event loop, or from a thread without one."""
    return WrongEventLoop(
        f"{what} belongs to another event loop and must be used in its thread: from another thread, call "
        "asyncio.run_coroutine_threadsafe(..., loop).result() with that loop, and not asyncio.run; "
        "or open one of your own in this loop"
    )


def has_moved(loop: asyncio.AbstractEventLoop | None, what: str) -> bool:
    """Whether `loop` is closed, as after `asyncio.run`, so that its object can begin anew in the running one.

    Raises WrongEventLoop if another loop is running and `loop` is not closed.
    """
    if loop is None or loop is running_loop():
        return False
    if not loop.is_closed():
        raise wrong_loop(what)
    return True
