"""What ends in a queue with a great many messages or consumers: as much of it a turn as there is room for."""

from typing import TYPE_CHECKING, Final

from waybill.model.consumer import Consumer
from waybill.model.entry import NO_LOCATION
from waybill.model.lane import Removed
from waybill.model.runtime import Chore

if TYPE_CHECKING:
    from waybill.model.queue import Queue

REMOVAL_STEP: Final = 256
FAREWELL_UNITS: Final = 2


class Removal(Chore):
    """Removes messages that wait in a queue no more. They are gone for everybody from the beginning on."""

    def __init__(self, queue: "Queue", removed: list[Removed], count: int) -> None:
        self.count = count
        self._queue = queue
        self._removed = removed

    def work(self) -> bool:
        queue = self._queue
        runtime = queue.runtime
        store = queue.store
        settles = not queue.is_deleted
        deduplication = queue.deduplication
        while self._removed and runtime.work_left > 0:
            removed = self._removed[-1].take(REMOVAL_STEP)
            if not removed:
                self._removed.pop()
                continue
            runtime.work_left -= 1 + (len(removed) >> 3)
            for sequence, location, is_stored in removed:
                if deduplication is not None:
                    deduplication.forget(sequence)
                if is_stored and settles:
                    store.settle(queue.id, sequence, location)
                elif location != NO_LOCATION:
                    store.forget(location)
        return not self._removed


class Farewell(Chore):
    """Tells the consumers of a queue that it is gone."""

    def __init__(self, queue: "Queue", consumers: list[Consumer]) -> None:
        self._queue = queue
        self._consumers = consumers
        consumers.reverse()

    def work(self) -> bool:
        runtime = self._queue.runtime
        while self._consumers and runtime.work_left > 0:
            runtime.work_left -= FAREWELL_UNITS
            self._queue.tell_gone(self._consumers.pop())
        return not self._consumers
