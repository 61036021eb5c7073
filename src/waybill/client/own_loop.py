"""Objects that belong to one event loop, and say so when they are used from elsewhere."""

import asyncio
from typing import Final

from waybill.client.errors import WrongEventLoop

# What asyncio.get_running_loop() asks, which raises where no loop runs.
running_loop: Final = asyncio._get_running_loop  # noqa: SLF001 - documented for this use


def wrong_loop(what: str) -> WrongEventLoop:
    """Return the error for a use of something from another event loop, or from a thread without one."""
    return WrongEventLoop(
        f"{what} belongs to another event loop, whose thread has to use it: from a thread, call "
        "asyncio.run_coroutine_threadsafe(..., loop).result() with that loop, and not asyncio.run; "
        "or open one of your own in this loop"
    )
