"""SIGTERM and Ctrl-C, which stop a long-running command."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from waybill.client.service import Service


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set from now on, instead of ending the process."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


@contextlib.asynccontextmanager
async def started_unless_stopped(service: Service, stopping: asyncio.Event) -> AsyncIterator[bool]:
    """Start a service, and close it at the end. Yields False if `stopping` was set before the start was over."""
    starting = asyncio.ensure_future(service.start())
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        starting.cancel()
        await asyncio.wait({starting})
    if starting.cancelled():
        yield False
        return
    await starting
    try:
        yield True
    finally:
        await service.close()
