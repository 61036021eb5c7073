"""Changes of a running node from outside of its connections: administration, publishing by hand."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from waybill.broker.commit_loop import CommitLoop
from waybill.node.node import Chore, Node
from waybill.transport.clock import Clock

T = TypeVar("T")


class Stopped(Exception):
    """The broker has stopped before a change was durable."""


class Changes:
    """Makes changes between the turns of a node, on its event loop."""

    def __init__(self, node: Node, commit_loop: CommitLoop, clock: Clock) -> None:
        self._node = node
        self._commit_loop = commit_loop
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()

    async def perform(self, change: Callable[[Node], T]) -> T:
        """Call `change`; return what it returns once that is durable, and once it is done if it is a chore.

        Raises what `change` raises, and `Stopped`.
        """
        runtime = self._node.runtime
        self.update_time()
        runtime.begin_read()
        try:
            result = change(self._node)
            if isinstance(result, Chore):
                ended = self._future()
                runtime.begin(_Watched(result, ended))
                self._commit_loop.work()
                await ended
        finally:
            # Changes made before the error take effect, too.
            self._commit_loop.work()
        durable = self._future()
        self._node.when_durable(lambda: _end(durable))
        self._commit_loop.work()
        await durable
        return result

    def begin(self, change: Callable[[Node], T]) -> T:
        """Call `change` and return its result immediately, before it is durable. Raises what `change` raises."""
        self.update_time()
        self._node.runtime.begin_read()
        try:
            return change(self._node)
        finally:
            # Changes made before the error take effect, too.
            self._commit_loop.work()

    def update_time(self) -> None:
        """Update the node's time, for changes that need nothing else. Each turn does so, too."""
        self._node.runtime.now = self._clock.now()

    def stop(self) -> None:
        """Fail all waiters: nothing more becomes durable."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(Stopped("the broker has stopped"))

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future


class _Watched(Chore):
    """A chore with a waiter for its end."""

    def __init__(self, chore: Chore, ended: asyncio.Future[None]) -> None:
        self._chore = chore
        self._ended = ended

    def work(self) -> bool:
        if not self._chore.work():
            return False
        _end(self._ended)
        return True


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
