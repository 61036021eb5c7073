"""Delivers a stream to its readers, in rounds: each reader gets what its credit and the turn allow."""

from typing import Final

from waybill.model.entry import Entry
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.model.stream import Stream

# The bytes that a reader may leave unsettled while memory is short.
KEPT_WHEN_SHORT_BYTES: Final = 1 << 20


def serve_readers(stream: Stream) -> None:
    """Continue the round of an earlier turn, or serve all readers in a new one."""
    is_rest = bool(stream.waiting)
    if not is_rest:
        _begin_round(stream)
    _serve_round(stream)
    # Readers may have come, or got credit, after a round began that took several turns.
    if is_rest and not stream.waiting and _can_continue(stream):
        _begin_round(stream)
        _serve_round(stream)


def _begin_round(stream: Stream) -> None:
    stream.waiting = list(stream.readers.values())
    stream.waiting.reverse()


def _can_continue(stream: Stream) -> bool:
    """Whether a reader with credit has something to read."""
    end = stream.log.committed_offset
    return not stream.retry.is_waiting and any(
        reader.consumer.is_active
        and reader.consumer.has_credit()
        and (reader.index < len(reader.records) or reader.next_offset < end)
        for reader in stream.readers.values()
    )


def _serve_round(stream: Stream) -> None:
    """Deliver to the readers that still wait in this round, until the turn is over."""
    runtime = stream.runtime
    while stream.waiting:
        if runtime.work_left <= 0:
            runtime.put_off(stream)
            return
        runtime.work_left -= 1
        reader = stream.waiting[-1]
        consumer = reader.consumer
        while consumer.is_active:
            if runtime.work_left <= 0:
                runtime.put_off(stream)
                return
            is_short = runtime.memory_bytes > runtime.memory_limit_bytes
            if not consumer.has_credit() or (
                is_short and consumer.unsettled_count * reader.kept_bytes > KEPT_WHEN_SHORT_BYTES
            ):
                consumer.is_active = False
                if is_short:
                    stream.forget_records(reader)
                break
            if reader.index >= len(reader.records) and not stream.read_ahead(reader):
                break
            record = reader.records[reader.index]
            wanted = reader.filter
            if wanted is not None:
                runtime.work_left -= record.message.header_units()
            entry: Entry | None = None
            if wanted is None or wanted.matches(record.message):
                entry = Entry(stream, record.message, record.offset)
                if consumer.counts_size and not consumer.has_credit_for(entry):
                    consumer.is_active = False
                    break
            reader.index += 1
            reader.next_offset = record.offset + 1
            if entry is None:
                runtime.work_left -= 1
                continue
            runtime.work_left -= 1 + record.message.size // BYTES_PER_UNIT
            stream.unsettled_count += 1
            stream.delivered += 1
            consumer.unsettled_count += 1
            consumer.deliver(entry)
            reader.kept_bytes = entry.message.size
            runtime.memory_bytes += reader.kept_bytes
        stream.waiting.pop()
