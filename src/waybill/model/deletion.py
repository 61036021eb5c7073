"""Deletion of a queue or exchange: first its bindings, over several turns if there are many, then the entity.

Only the peer that deletes an entity with a hundred thousand bindings waits for it. Auto-delete exchanges that lose
their last binding are put in a list, without recursion: a chain of them may have any length.
"""

from itertools import islice
from typing import Final

from mypy_extensions import i64

from waybill.model.binding import Binding
from waybill.model.delay import DelayHost
from waybill.model.exchange import Exchange
from waybill.model.queue import Queue
from waybill.model.runtime import CountedChore, Runtime

BATCH: Final = 256
UNBIND_UNITS: Final = 2


class DeletionHost(DelayHost):
    """What a deletion needs of its virtual host."""

    runtime: Runtime

    def drop_binding(self, binding: Binding) -> Exchange | None:
        """Remove a binding if it still exists. Returns an auto-delete exchange that lost its last binding."""
        raise NotImplementedError

    def drop_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange without bindings if it still exists."""
        raise NotImplementedError

    def move_to_alternate(self, queue: Queue, count: i64) -> i64:
        """Send messages of a queue to its alternate exchange. Returns how many are left for the next turn."""
        raise NotImplementedError

    def drop_queue(self, queue: Queue) -> int:
        """Remove a queue without bindings if it still exists. Returns how many messages were ready."""
        raise NotImplementedError


class Deletion(CountedChore):
    """Deletes a queue, exchanges, or a binding with its auto-delete exchange. `count`: messages that were ready."""

    def __init__(self, host: DeletionHost, queue: Queue | None, exchanges: list[Exchange]) -> None:
        super().__init__(0)
        self._host = host
        self._queue = queue
        self._exchanges = exchanges
        self._batch: list[Binding] = []
        # How many messages are to go to the alternate exchange; negative before that is known.
        self._moving: i64 = -1

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, and later its exchange if that is auto-delete and has no other."""
        orphan = self._host.drop_binding(binding)
        if orphan is not None:
            self._exchanges.append(orphan)

    def work(self) -> bool:
        runtime = self._host.runtime
        while self._queue is not None or self._exchanges or self._batch:
            if runtime.work_left <= 0:
                return False
            if self._batch:
                runtime.work_left -= UNBIND_UNITS
                self.unbind(self._batch.pop())
            elif self._exchanges:
                exchange = self._exchanges[-1]
                self._batch = list(islice(exchange.bindings.values(), BATCH))
                self._batch += islice(exchange.incoming.values(), BATCH)
                if not self._batch:
                    self._exchanges.pop()
                    self._host.drop_exchange(exchange)
            elif self._queue is not None:
                queue = self._queue
                self._batch = list(islice(queue.bindings.values(), BATCH))
                if not self._batch and self._has_moved(queue):
                    self._queue = None
                    self.count += self._host.drop_queue(queue)
        return True

    def _has_moved(self, queue: Queue) -> bool:
        """Send the messages of a queue with an alternate exchange there. False if that takes another turn."""
        if queue.policy.alternate_exchange is None or queue.is_deleted:
            return True
        if self._moving < 0:
            if not queue.has_moved_deliveries():
                return False
            self._moving = queue.ready_count
            self.count = int(queue.ready_count)
        self._moving = self._host.move_to_alternate(queue, self._moving)
        return self._moving == 0 and queue.has_moved_deliveries()
