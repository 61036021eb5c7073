"""The event loop of this process for callers without one: in its own thread, never shared across a fork.

A forked child has only the forking thread, and shares its parent's sockets. So the child ignores the parent's objects:
closing them would close the parent's connections. The child starts anew with its first call.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any, Final, Protocol, TypeVar

from waybill.client import ClientError
from waybill.client.loop_thread import LoopThread
from waybill.client.own_loop import running_loop

T = TypeVar("T")

EXIT_SECONDS: Final = 5.0
"""How long the exit of a process waits for a broker that does not answer."""


class Client(Protocol):
    """An object in the loop that is closed at the exit of the process."""

    async def close(self) -> None:
        """Wait for pending work, and disconnect."""
        ...


ClientT = TypeVar("ClientT", bound=Client)


class Background:
    """A loop and its clients, by owner."""

    def __init__(self) -> None:
        self._thread = LoopThread()
        self._lock = threading.Lock()
        self._clients: dict[object, Client] = {}
        if multiprocessing.parent_process() is not None:
            # Children of multiprocessing may exit without running atexit handlers.
            Finalize(self, self.close, exitpriority=1)

    def client(self, owner: object, make: Callable[[], ClientT], fits: Callable[[ClientT], bool]) -> ClientT:
        """Return the client of `owner`; an outdated one is closed and replaced."""
        with self._lock:
            known: Any = self._clients.get(owner)
            if known is not None and fits(known):
                found: ClientT = known
                return found
            made = self._clients[owner] = make()
        if known is not None:
            self.call(known.close())
        return made

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop, in a copy of the caller's context; returns its result or raises its exception."""
        return self._thread.call(work)

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Start `work` in the loop; returns a function that waits for it."""
        thread = self._thread
        future = thread.start(work)
        return lambda: thread.result(future)

    def forget(self, owner: object) -> None:
        """Close the client of `owner`, if any."""
        with self._lock:
            client = self._clients.pop(owner, None)
        if client is not None:
            self.call(client.close())

    def close(self) -> None:
        """Close all clients and end the loop."""
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        try:
            if clients and not self._thread.stopped:
                with suppress(ClientError, TimeoutError, OSError):
                    self._thread.call(_close_all(clients))
        finally:
            self._thread.stop()


async def _close_all(clients: list[Client]) -> None:
    async with asyncio.timeout(EXIT_SECONDS):
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)


_lock = threading.Lock()
_current: Background | None = None
_set_aside: Final[list[Background]] = []


def background() -> Background:
    """Return the loop of this process; it starts with the first call."""
    global _current  # noqa: PLW0603 - one per process
    with _lock:
        if _current is None:
            _current = Background()
        return _current


def started() -> Background | None:
    """Return the loop of this process if it has started."""
    return _current


def in_a_loop() -> bool:
    """Whether the caller would block an event loop by waiting."""
    return running_loop() is not None


def _close() -> None:
    """Close all clients at the exit of the process."""
    global _current
    with _lock:
        last, _current = _current, None
    if last is not None:
        last.close()


def _begin_anew() -> None:
    """Ignore the parent's objects in a forked child."""
    global _current, _lock  # noqa: PLW0603 - see `background`
    # Another thread may have held the lock during the fork.
    _lock = threading.Lock()
    if _current is not None:
        _set_aside.append(_current)
        _current = None


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
