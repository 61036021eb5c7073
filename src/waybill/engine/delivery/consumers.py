"""Delivery of a queue's messages to its consumers, round-robin, as far as their credit goes.

`serve` is the hot path of every delivery. A single consumer without special needs gets a run of messages at a time, all
others one message.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.death_headers import EXPIRED
from waybill.model.entry import Entry
from waybill.model.leveled_queue import LeveledQueue
from waybill.model.priority_level import PriorityLevel
from waybill.model.runtime import BYTES_PER_UNIT

MAX_SEQUENCE: Final = (1 << 62) - 1


def serve(queue: LeveledQueue, lowest: i64) -> bool:
    """Deliver to the consumers of at least this priority that do not select, as far as their credit goes.

    False if the next message has to wait for the store (`DeliveryRecorder`), or for the next turn.
    """
    line = queue.line
    if queue.ready_count == 0 or not line.front:
        return True
    runtime = queue.runtime
    recorder = queue.delivery_recorder
    is_persistent = queue.is_persistent
    level = queue.level
    last: i64 = 0
    is_free = True
    while queue.ready_count > 0:
        if runtime.work_left <= 0:
            runtime.put_off(queue)
            is_free = False
            break
        front = line.front
        if not front or front[0].priority < lowest:
            break
        consumer = front[0]
        if not consumer.is_active or consumer.selects or not consumer.has_credit():
            _step_over(queue, consumer)
            continue
        if len(front) == 1 and not queue.uses_priorities and _deliver_run(queue, consumer):
            continue
        if queue.has_levels:
            level = queue.first_level()
        entry = level.pop() or queue.load(level)
        if entry is None:
            if level.is_blocked:
                break
            continue
        if is_persistent and entry.sequence > recorder.limit:
            level.push_front(entry)
            recorder.ask(entry.sequence)
            is_free = False
            break
        if consumer.counts_size and _is_too_large(queue, level, consumer, entry):
            continue
        front.rotate(-1)
        last = entry.sequence
        _deliver_one(queue, consumer, entry, runtime.now)
    if is_persistent and last != 0:
        recorder.went_to(last)
    if queue.ready_count > 0:
        queue.arm_expiry()
    return is_free


def _step_over(queue: LeveledQueue, consumer: Consumer) -> None:
    """The first consumer in line has no credit, selects, or has left."""
    if consumer.is_active and not consumer.selects:
        queue.runtime.work_left -= 1
        consumer.is_active = False
    queue.line.drop_first()


def _is_too_large(queue: LeveledQueue, level: PriorityLevel, consumer: Consumer, entry: Entry) -> bool:
    """Whether the credit of the first consumer in line does not cover a message, which is put back then."""
    if consumer.has_credit_for(entry):
        return False
    level.push_front(entry)
    _step_over(queue, consumer)
    return True


def _deliver_one(queue: LeveledQueue, consumer: Consumer, entry: Entry, now: float) -> None:
    size = entry.message.size
    queue.runtime.work_left -= 1 + size // BYTES_PER_UNIT
    queue.ready_count -= 1
    queue.ready_bytes -= queue.counted(entry.message) if queue.counts_bodies else size
    if entry.expires_at > 0.0 and entry.expires_at <= now and not _lives_for_now(entry):
        queue.kill(entry, EXPIRED)
        return
    if entry.redelivered:
        queue.count_redelivered(1)
    if consumer.no_ack:
        queue.delivered_no_ack += 1
        consumer.deliver(entry)
        queue.remove(entry)
        return
    queue.delivered += 1
    queue.unsettled_count += 1
    if queue.keeps_track:
        queue.handed_out([entry])
    consumer.unsettled_count += 1
    consumer.deliver(entry)
    if queue.runtime.pages_out():
        queue.page_out([entry], consumer)


def _deliver_run(queue: LeveledQueue, consumer: Consumer) -> bool:
    """Deliver a run of ordinary messages to the only consumer with credit.

    False if the first message must be delivered alone.
    """
    if queue.has_levels or queue.counts_bodies:
        return False
    allowance = consumer.allowance()
    if allowance < 2:
        return False
    level = queue.level
    before = level.head_bytes
    last = queue.delivery_recorder.limit if queue.is_persistent else MAX_SEQUENCE
    run = level.pop_run(allowance, last, queue.runtime.now)
    count: i64 = len(run)
    if count == 0:
        return False
    size = before - level.head_bytes
    queue.ready_count -= count
    queue.ready_bytes -= size
    queue.runtime.work_left -= 1 + (count >> 1) + size // BYTES_PER_UNIT
    if consumer.no_ack:
        queue.delivered_no_ack += count
    else:
        queue.delivered += count
        queue.unsettled_count += count
        if queue.keeps_track:
            queue.handed_out(run)
        consumer.unsettled_count += count
    taken = consumer.deliver_all(run)
    if taken < count:
        _take_back(queue, consumer, run[int(taken) :])
        run = run[: int(taken)]
    if queue.awaiting_redelivery > 0:
        _count_redelivered(queue, run)
    if consumer.no_ack:
        queue.remove_all(run)
    elif queue.runtime.pages_out():
        queue.page_out(run, consumer)
    if queue.is_persistent:
        queue.delivery_recorder.went_to(run[-1].sequence)
    return True


def _take_back(queue: LeveledQueue, consumer: Consumer, rest: list[Entry]) -> None:
    """The credit of a consumer did not cover the end of its run: as if it had not been taken."""
    level = queue.level
    before = level.head_bytes
    for entry in rest:
        level.push_front(entry)
    count: i64 = len(rest)
    queue.ready_count += count
    queue.ready_bytes += level.head_bytes - before
    if consumer.no_ack:
        queue.delivered_no_ack -= count
    else:
        queue.delivered -= count
        queue.unsettled_count -= count
        if queue.keeps_track:
            queue.handed_back(rest)
        consumer.unsettled_count -= count


def _count_redelivered(queue: LeveledQueue, run: list[Entry]) -> None:
    count: i64 = 0
    for entry in run:
        if entry.redelivered:
            count += 1
    queue.count_redelivered(count)


def _lives_for_now(entry: Entry) -> bool:
    """Whether its time to live is 0: it goes to a consumer that has credit now, or to none."""
    return entry.expires_at == entry.message.published_at and not entry.redelivered
