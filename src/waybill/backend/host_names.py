"""Looks up hosts in threads that hold up nothing else, neither other hosts nor the end of the process.

The threads of an event loop are few, and each waits as long as a name server that does not answer: 30 s and more.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Final

MOST_AT_ONCE: Final = 256


class HostNames:
    """Looks up the addresses of hosts: several hosts at the same time, each of them once at a time."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Return the addresses of a host.

        Raises OSError, also if too many hosts are looked up already, and ValueError.
        """
        task = self._tasks.get(host)
        if task is None:
            if len(self._tasks) >= MOST_AT_ONCE:
                raise OSError(f"cannot look up {host}: {MOST_AT_ONCE} other hosts are still being looked up")
            task = self._tasks[host] = asyncio.get_running_loop().create_task(_look_up(host))
            task.add_done_callback(lambda ended: self._end(host, ended))
        return await asyncio.shield(task)

    def _end(self, host: str, task: asyncio.Task[list[str]]) -> None:
        del self._tasks[host]
        if not task.cancelled():
            # Those who asked may have stopped waiting: an error that nobody takes would be logged.
            task.exception()


async def _look_up(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def end(addresses: list[str], error: Exception | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def look_up() -> None:
        addresses, failed = [], None
        try:
            addresses = [str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        except (OSError, ValueError) as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # The loop may have been closed.
            loop.call_soon_threadsafe(end, addresses, failed)

    threading.Thread(target=look_up, name="waybill-host-name", daemon=True).start()
    return await found
