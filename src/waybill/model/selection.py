"""Selecting consumers: they take matching messages from anywhere in a queue, or get copies.

    consumer.selects    chooses(entry) is asked once for each message, level by level
    consumer.copies     it gets copies, whose outcomes do not change the queue (1.0, 3.5.7)

`waybill.engine.delivery.selections` serves them.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.entry import Entry, EntryQueue
from waybill.model.leveled_queue import LeveledQueue

POSITION_BYTES: Final = 40
"""The memory of a consumer's position in one priority level."""
UNIT_BITS: Final = 4
UNSEEN: Final = 0


class Selection:
    """The position of one consumer: the last sequence that it was asked about, by priority level.

    `seen_to`: the queue's next sequence when the consumer had been asked about every message, or `UNSEEN`.
    """

    def __init__(self, queue: LeveledQueue, consumer: Consumer) -> None:
        self.queue = queue
        self.consumer = consumer
        self.positions: list[i64] = [0 for _ in queue.levels]
        self.seen_to: i64 = UNSEEN
        self.copied = Copied()

    @property
    def has_seen_all(self) -> bool:
        return self.seen_to == self.queue.next_sequence


class Selections:
    """The selecting consumers of one queue.

    Returned messages are noted, and offered again all at once: with thousands of consumers, a look at each of them for
    each message would take seconds.
    """

    def __init__(self, queue: LeveledQueue) -> None:
        self._queue = queue
        self._of: dict[Consumer, Selection] = {}
        # The lowest returned sequence by level.
        self._returned: dict[i64, i64] = {}
        # More levels than one are many.
        self._footprint: i64 = (len(queue.levels) - 1) * POSITION_BYTES

    def __len__(self) -> int:
        return len(self._of)

    def add(self, consumer: Consumer) -> None:
        self._of[consumer] = Selection(self._queue, consumer)
        self._count(self._footprint)

    def remove(self, consumer: Consumer) -> None:
        if self._of.pop(consumer, None) is not None:
            self._count(-self._footprint)

    def clear(self) -> None:
        self._count(-self._footprint * len(self._of))
        self._of.clear()

    def _count(self, size: i64) -> None:
        self._queue.footprint += size
        self._queue.runtime.add_footprint(size)

    def went_back(self, index: i64, sequence: i64) -> None:
        """A message was requeued: offer it again."""
        lowest = self._returned.get(index)
        if lowest is None or sequence < lowest:
            self._returned[index] = sequence

    def to_serve(self) -> list[Selection]:
        """All of them, at positions before the messages that were requeued."""
        selections = list(self._of.values())
        if self._returned:
            returned = list(self._returned.items())
            self._returned = {}
            self._queue.runtime.work_left -= (len(selections) * len(returned)) >> UNIT_BITS
            for selection in selections:
                selection.seen_to = UNSEEN
                if not selection.consumer.copies:
                    _turn_back(selection.positions, returned)
        return selections

    def positions_of(self, consumer: Consumer) -> list[i64]:
        """How far a consumer has looked, by level; empty for one that does not select."""
        selection = self._of.get(consumer)
        return [] if selection is None else selection.positions

    def set_positions(self, consumer: Consumer, positions: list[i64]) -> None:
        """Restore the positions of a consumer, if the queue has as many levels as then."""
        selection = self._of.get(consumer)
        if selection is not None and len(positions) == len(selection.positions):
            selection.positions = positions
            selection.seen_to = UNSEEN


def _turn_back(positions: list[i64], returned: list[tuple[i64, i64]]) -> None:
    for index, sequence in returned:
        if positions[index] >= sequence:
            positions[index] = sequence - 1


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
