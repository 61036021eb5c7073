"""Removes the messages of a purged or deleted queue, over several turns if there are many."""

from typing import Final

from waybill.model.backlog import Removed
from waybill.model.deduplication import Deduplication
from waybill.model.entry import NO_LOCATION
from waybill.model.queue import Queue
from waybill.model.runtime import CountedChore

REMOVAL_STEP: Final = 256


class Removal(CountedChore):
    """Removes messages that were already taken out of a queue's levels, so no consumer gets them."""

    def __init__(self, queue: Queue, deduplication: Deduplication | None, removed: list[Removed], count: int) -> None:
        super().__init__(count)
        self._queue = queue
        self._deduplication = deduplication
        self._removed = removed

    def work(self) -> bool:
        queue = self._queue
        runtime = queue.runtime
        messages = queue.messages
        settles = not queue.is_deleted
        deduplication = self._deduplication
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
                    messages.settle(queue.id, sequence, location)
                elif location != NO_LOCATION:
                    messages.forget(location)
        return not self._removed
