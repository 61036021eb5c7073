"""Deleting a queue or an exchange: first its bindings go, as many a turn as there is room for, and then it goes itself.

So whoever deletes what a hundred thousand bindings lead to waits for it, and nobody else does. Exchanges that delete
themselves with their last binding are followed in a list: a chain of them may be of any length.
"""

from itertools import islice
from typing import TYPE_CHECKING, Final

from waybill.model.binding import Binding
from waybill.model.exchange import Exchange
from waybill.model.queue import Queue
from waybill.model.runtime import CountedChore

if TYPE_CHECKING:
    from waybill.model.virtual_host import VirtualHost

BATCH: Final = 256
UNBIND_UNITS: Final = 2


class Deletion(CountedChore):
    """Of a queue, of exchanges, or of a single binding with what goes with it. `count`: messages that waited."""

    def __init__(self, host: "VirtualHost", queue: Queue | None, exchanges: list[Exchange]) -> None:
        super().__init__(0)
        self._host = host
        self._queue = queue
        self._exchanges = exchanges
        self._batch: list[Binding] = []

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, and later on an exchange that goes with it."""
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
                if not self._batch:
                    self._queue = None
                    self.count = self._host.drop_queue(queue)
        return True
