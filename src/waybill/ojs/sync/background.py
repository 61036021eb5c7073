"""The event loop of this process for callers without one: on a thread of its own, never shared over a fork.

A forked child has no thread but the one that forked, and shares its parent's sockets. So what the parent has made is
set aside in the child, untouched: to close it there would take the connection from the parent. The child begins anew
with its first call.
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
"""How long the end of a process waits for a broker that does not answer."""


class Client(Protocol):
    """What lives in the loop, and is closed at the end of the process."""

    async def close(self) -> None:
        """Wait for what is on its way, and disconnect."""
        ...


ClientT = TypeVar("ClientT", bound=Client)


class Background:
    """A loop and the clients that live in it, each under the object that it stands for."""

    def __init__(self) -> None:
        self._thread = LoopThread()
        self._lock = threading.Lock()
        self._clients: dict[object, Client] = {}
        if multiprocessing.parent_process() is not None:
            # A child of multiprocessing may leave without what atexit knows.
            Finalize(self, self.close, exitpriority=1)

    def client(self, owner: object, make: Callable[[], ClientT], fits: Callable[[ClientT], bool]) -> ClientT:
        """Return the client of `owner`; one that does not fit any more is closed, and another one made."""
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
        """Run `work` in the loop, in a copy of the caller's context; its result or exception."""
        return self._thread.call(work)

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Begin to run `work` in the loop; what is returned waits for it."""
        thread = self._thread
        future = thread.start(work)
        return lambda: thread.result(future)

    def forget(self, owner: object) -> None:
        """Close the client of `owner`, if there is one."""
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
    global _current  # noqa: PLW0603 - one for the process is what it is for
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
    """Close all that is open, at the end of the process."""
    global _current
    with _lock:
        last, _current = _current, None
    if last is not None:
        last.close()


def _begin_anew() -> None:
    """Set aside what the parent has made: in a child that was just forked."""
    global _current, _lock  # noqa: PLW0603 - see `background`
    # Another thread may have held it while this one forked.
    _lock = threading.Lock()
    if _current is not None:
        _set_aside.append(_current)
        _current = None


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
