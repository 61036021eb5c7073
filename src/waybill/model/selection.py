"""Selecting consumers: they take matching messages from anywhere in a queue, or get copies.

    consumer.selects    chooses(entry) is asked once for each message, level by level
    consumer.copies     it gets copies, whose outcomes do not change the queue (1.0, 3.5.7)

`waybill.engine.delivery.selections` serves them.
"""

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.entry import Entry, EntryQueue
from waybill.model.leveled_queue import LeveledQueue


class Selection:
    """The position of one consumer: the last sequence that it was asked about, by priority level."""

    def __init__(self, queue: LeveledQueue, consumer: Consumer) -> None:
        self.queue = queue
        self.consumer = consumer
        self.positions: list[i64] = [0 for _ in queue.levels]
        self.copied = Copied()

    def went_back(self, index: i64, sequence: i64) -> None:
        """A message was requeued: offer it again."""
        if not self.consumer.copies and self.positions[index] >= sequence:
            self.positions[index] = sequence - 1


class Copied(EntryQueue):
    """The queue of copies: outcomes have no effect."""

    def accept(self, entry: Entry) -> None:
        pass

    def accept_all(self, entries: list[Entry]) -> None:
        pass

    def reject(self, entry: Entry) -> None:
        pass

    def undeliverable(self, entry: Entry, *, is_settled: bool) -> None:
        pass

    def amend(self, entry: Entry, changes: bytes, *, failed: bool) -> None:
        pass

    def release(self, entry: Entry, *, failed: bool) -> None:
        pass

    def begin_drain(self) -> bool:
        return False
