"""Serves consumers that take matching messages from anywhere in a queue, or get copies (`waybill.model.selection`).

Other consumers take from the head, see `consumers`.
"""

from typing import Final

from waybill.engine.delivery.consumers import serve
from waybill.model.entry import Entry
from waybill.model.leveled_queue import LeveledQueue
from waybill.model.paging import empty
from waybill.model.priority_level import PriorityLevel
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.model.selection import UNIT_BITS, Selection

LOWEST_PRIORITY: Final = -(1 << 62)


def serve_selections(queue: LeveledQueue, selections: list[Selection]) -> bool:
    """Serve selecting consumers: before others of their priority, after those of higher priorities.

    False if a message has to wait for the store, or for the next turn, and consumers of lower priority with it.
    """
    if queue.uses_priorities:
        selections = sorted(selections, key=_serving_order)
    for selection in selections:
        if queue.runtime.work_left <= 0:
            queue.runtime.put_off(queue)
            return False
        consumer = selection.consumer
        if queue.uses_priorities and not consumer.copies and not serve(queue, consumer.priority + 1):
            return False
        if queue.ready_count > 0:
            _offer(selection)
    queue.runtime.work_left -= len(selections) >> 4
    return True


def _serving_order(selection: Selection) -> tuple[bool, int]:
    """Copies first: they take nothing from other consumers. Then by priority."""
    return not selection.consumer.copies, -int(selection.consumer.priority)


def _offer(selection: Selection) -> None:
    """Deliver what the consumer chooses, while it has credit."""
    consumer = selection.consumer
    while consumer.is_active:
        if not consumer.has_credit():
            consumer.is_active = False
            return
        if not _offer_next(selection):
            return


def _offer_next(selection: Selection) -> bool:
    """Deliver the next message that the consumer chooses. False if there is none now."""
    queue = selection.queue
    consumer = selection.consumer
    if selection.has_seen_all:
        return False
    queue.runtime.work_left -= len(queue.levels) >> UNIT_BITS
    is_blocked = False
    for index in range(len(queue.levels) - 1, -1, -1):
        level = queue.levels[index]
        while True:
            if queue.runtime.work_left <= 0:
                queue.runtime.put_off(queue)
                return False
            entry = level.first_after(selection.positions[index])
            if entry is None:
                is_blocked = is_blocked or level.is_blocked
                break
            # A consumer that has seen all messages is not charged: otherwise, many of them would use up every turn.
            queue.runtime.work_left -= 1
            if not consumer.copies and queue.is_persistent and entry.sequence > queue.delivery_recorder.limit:
                queue.delivery_recorder.ask(entry.sequence)
                return False
            if consumer.counts_size and not consumer.has_credit_for(entry):
                consumer.is_active = False
                return False
            selection.positions[index] = entry.sequence
            is_expired = 0.0 < entry.expires_at <= queue.runtime.now
            if not is_expired and consumer.chooses(entry):
                queue.runtime.work_left -= entry.message.size // BYTES_PER_UNIT
                if consumer.copies:
                    _copy(selection, entry)
                else:
                    _take(selection, level, entry)
                return True
    if not is_blocked:
        selection.seen_to = queue.next_sequence
    return False


def _take(selection: Selection, level: PriorityLevel, entry: Entry) -> None:
    queue = selection.queue
    consumer = selection.consumer
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


def _copy(selection: Selection, entry: Entry) -> None:
    copy = Entry(selection.copied, entry.message, entry.sequence)
    copy.delivery_count = entry.delivery_count
    copy.redelivered = entry.redelivered
    copy.expires_at = entry.expires_at
    if not selection.consumer.no_ack:
        selection.consumer.unsettled_count += 1
    selection.consumer.deliver(copy)
    # Copies are not counted.
    empty(copy)
