"""Selecting consumers: they take matching messages from anywhere in a queue, or get copies.

    consumer.selects    chooses(entry) is asked once for each message, level by level
    consumer.copies     it gets copies, whose outcomes do not change the queue (1.0, 3.5.7)

Other consumers take from the head, see `dispatch`.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.dispatch import serve
from waybill.model.entry import Entry, EntryQueue
from waybill.model.leveled_queue import LeveledQueue
from waybill.model.paging import empty
from waybill.model.priority_level import PriorityLevel
from waybill.model.runtime import BYTES_PER_UNIT

LOWEST_PRIORITY: Final = -(1 << 62)


def serve_selections(queue: LeveledQueue, selections: "list[Selection]") -> bool:
    """Serve selecting consumers: before others of their priority, after those of higher priorities.

    False if a message has to wait for the store, and consumers of lower priority with it.
    """
    if queue.uses_priorities:
        selections = sorted(selections, key=_serving_order)
    for selection in selections:
        consumer = selection.consumer
        if queue.uses_priorities and not consumer.copies and not serve(queue, consumer.priority + 1):
            return False
        if queue.ready_count > 0:
            selection.offer()
    queue.runtime.work_left -= len(selections) >> 4
    return True


def _serving_order(selection: "Selection") -> tuple[bool, int]:
    """Copies first: they take nothing from other consumers. Then by priority."""
    return not selection.consumer.copies, -int(selection.consumer.priority)


class Selection:
    """The position of one consumer: the last sequence that it was asked about, by priority level."""

    def __init__(self, queue: LeveledQueue, consumer: Consumer) -> None:
        self.queue = queue
        self.consumer = consumer
        self.positions: list[i64] = [0 for _ in queue.levels]
        self._copied = Copied()

    def offer(self) -> None:
        """Deliver what the consumer chooses, while it has credit."""
        consumer = self.consumer
        while consumer.is_active:
            if not consumer.has_credit():
                consumer.is_active = False
                return
            if not self._offer_next():
                return

    def _offer_next(self) -> bool:
        """Deliver the next message that the consumer chooses. False if there is none now."""
        queue = self.queue
        consumer = self.consumer
        for index in range(len(queue.levels) - 1, -1, -1):
            level = queue.levels[index]
            while True:
                if queue.runtime.work_left <= 0:
                    queue.runtime.put_off(queue)
                    return False
                entry = level.first_after(self.positions[index])
                if entry is None:
                    break
                # A consumer that has seen all messages is not charged: otherwise, many of them would use up every turn.
                queue.runtime.work_left -= 1
                if not consumer.copies and queue.is_persistent and entry.sequence > queue.delivery_recorder.limit:
                    queue.delivery_recorder.ask(entry.sequence)
                    return False
                if consumer.counts_size and not consumer.has_credit_for(entry):
                    consumer.is_active = False
                    return False
                self.positions[index] = entry.sequence
                is_expired = 0.0 < entry.expires_at <= queue.runtime.now
                if not is_expired and consumer.chooses(entry):
                    queue.runtime.work_left -= entry.message.size // BYTES_PER_UNIT
                    if consumer.copies:
                        self._copy(entry)
                    else:
                        self._take(level, entry)
                    return True
        return False

    def _take(self, level: PriorityLevel, entry: Entry) -> None:
        queue = self.queue
        consumer = self.consumer
        queue.extract(level, entry)
        if consumer.no_ack:
            consumer.deliver(entry)
            queue.remove(entry)
            queue.delivered_no_ack += 1
            return
        queue.unsettled_count += 1
        if queue.keeps_track:
            queue.handed_out([entry])
        queue.delivered += 1
        consumer.unsettled_count += 1
        consumer.deliver(entry)
        if queue.runtime.pages_out():
            queue.page_out([entry], consumer)

    def _copy(self, entry: Entry) -> None:
        copy = Entry(self._copied, entry.message, entry.sequence)
        copy.delivery_count = entry.delivery_count
        copy.redelivered = entry.redelivered
        copy.expires_at = entry.expires_at
        if not self.consumer.no_ack:
            self.consumer.unsettled_count += 1
        self.consumer.deliver(copy)
        # Copies are not counted.
        empty(copy)

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

    def drain(self) -> None:
        pass
