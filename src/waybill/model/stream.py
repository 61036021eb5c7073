"""A stream: a queue that keeps consumed messages. Any number of consumers read from any offset, at their own pace."""

from datetime import datetime
from typing import Final

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.entry import Entry
from waybill.model.errors import InvalidArgument, NotImplementedHere, PreconditionFailed, ReadPostponed, ResourceRefused
from waybill.model.message import Message
from waybill.model.queue import Queue, QueueHost
from waybill.model.queue_arguments import NO_LIMIT, parse_age_ms
from waybill.model.read_retry import ReadRetry
from waybill.model.runtime import CountedChore, Runtime
from waybill.model.store import CommitWaiter, StoredStream, StreamRecord
from waybill.model.stream_filter import StreamFilter
from waybill.model.timers import Timer

READ_COUNT: Final = 512
READ_BYTES: Final = 256 << 10
# Of the CPU of a turn.
READ_UNITS: Final = 8
RECORDS_PER_UNIT_BITS: Final = 3
DEFAULT_SEGMENT_BYTES: Final = 64 << 20
RETENTION_INTERVAL_S: Final = 1.0
MAX_RETENTION_INTERVAL_S: Final = 60.0


class StreamReader:
    """One consumer's position in a stream, and the records read ahead for it."""

    def __init__(self, consumer: Consumer, offset: i64, wanted: StreamFilter | None) -> None:
        self.consumer = consumer
        self.filter = wanted
        self.next_offset: i64 = offset
        self.records: list[StreamRecord] = []
        self.index: i64 = 0
        self.records_bytes: i64 = 0
        # The memory that its last delivery holds until it is settled.
        self.kept_bytes: i64 = 0


class Stream(Queue):
    """Append-only; delivery removes nothing, settlement only gives credit back, requeueing does not exist."""

    is_append_only = True
    stores_transient = True

    def __init__(
        self, host: QueueHost, runtime: Runtime, name: str, queue_id: i64, arguments: dict[str, object]
    ) -> None:
        super().__init__(
            host, runtime, name, queue_id, durable=True, auto_delete=False, owner=None, arguments=arguments
        )
        policy = self.policy
        segment_bytes = policy.max_segment_bytes if policy.max_segment_bytes != NO_LIMIT else DEFAULT_SEGMENT_BYTES
        self.log: StoredStream = runtime.store.stream(queue_id, segment_bytes)
        self.readers: dict[Consumer, StreamReader] = {}
        # Readers that are still to be served in this round (`waybill.engine.delivery.readers`), the next one last.
        self.waiting: list[StreamReader] = []
        self._pending_commit = False
        self._retention = _RetentionTimer(self)
        if self.is_retaining:
            self._retention.arm()
        self._waiter = _StreamWaiter(self)
        self.retry = ReadRetry(runtime, self)
        self._counted_bytes: i64 = 0
        self.first_sequence = self.log.next_offset
        runtime.stream_count += 1

    @property
    def message_count(self) -> int:
        return int(self.log.committed_offset - self.log.first_offset)

    def published_count(self) -> i64:
        return self.log.next_offset - self.first_sequence

    def publish(self, message: Message, location: i64) -> i64:
        self.log.append(message, i64(int(message.published_at * 1000.0)))
        if not self._pending_commit:
            self._pending_commit = True
            self.store.wait(self._waiter, 0)
        return location

    def appended(self) -> None:
        """All appends so far are durable: wake the readers, and start retention."""
        if self.is_deleted:
            # No commit will include what it still has, so it must not wait for one.
            return
        self._count_memory()
        # Messages published during that commit are part of the next one, which readers must be told of as well.
        self._pending_commit = self.log.next_offset > self.log.committed_offset
        if self._pending_commit:
            self.store.wait(self._waiter, 0)
        if not self._retention.is_armed and self.is_retaining:
            self._retention.arm()
        if self.readers:
            self.runtime.mark_dirty(self)

    @property
    def is_retaining(self) -> bool:
        """Whether the stream has a limit of age or size."""
        return self.policy.max_length_bytes != NO_LIMIT or self.policy.max_age_ms != NO_LIMIT

    def retain(self) -> None:
        """Drop old segments beyond the limits."""
        self.log.retain(self.policy.max_length_bytes, self.policy.max_age_ms, i64(int(self.runtime.now * 1000.0)))
        self._count_memory()

    def _count_memory(self) -> None:
        """Without a disk, a stream takes memory until retention frees it."""
        if not self.messages.frees_memory:
            size = self.log.size()
            self.runtime.memory_bytes += size - self._counted_bytes
            self._counted_bytes = size

    def subscribe(self, consumer: Consumer, start: object, wanted: StreamFilter | None = None) -> None:
        """Add a consumer that begins at `start`: "first", "last", "next", an offset, a time or an interval ("7D")."""
        if consumer.no_ack:
            raise NotImplementedHere(f"stream '{self.name}' needs acknowledgements: they are its readers' credit")
        reader = StreamReader(consumer, self._offset_of(start), wanted)
        self.add_consumer(consumer)
        self.readers[consumer] = reader

    def _offset_of(self, start: object) -> i64:
        log = self.log
        if start == "first":
            return log.first_offset
        if start == "last":
            return max(log.first_offset, log.committed_offset - 1)
        if start is None or start == "next":
            return log.next_offset
        if isinstance(start, int) and not isinstance(start, bool):
            return max(log.first_offset, i64(min(max(start, 0), int(log.next_offset))))
        if isinstance(start, datetime):
            return self._offset_at(i64(int(start.timestamp() * 1000.0)))
        age_ms = parse_age_ms(start) if isinstance(start, str) else None
        if age_ms is None:
            raise InvalidArgument(f"invalid arg 'x-stream-offset': {start!r}")
        return self._offset_at(i64(int(self.runtime.now * 1000.0) - age_ms))

    def _offset_at(self, timestamp_ms: i64) -> i64:
        try:
            return self.log.offset_at(timestamp_ms)
        except ReadPostponed as error:
            raise ResourceRefused(f"stream '{self.name}' cannot be searched now: {error}; try again") from None

    def begin_drain(self) -> bool:
        return True

    def forget_records(self, reader: StreamReader) -> None:
        """Drop the records that were read ahead. They are read again when needed."""
        self.runtime.memory_bytes -= reader.records_bytes
        reader.records_bytes = 0
        reader.records = []
        reader.index = 0

    def read_ahead(self, reader: StreamReader) -> bool:
        """Read the next records for a reader. False if there are none now."""
        log = self.log
        self.forget_records(reader)
        reader.next_offset = max(reader.next_offset, log.first_offset)
        if reader.next_offset >= log.committed_offset:
            return False
        if self.retry.is_waiting:
            return False
        try:
            reader.records = log.read(reader.next_offset, READ_COUNT, READ_BYTES)
        except ReadPostponed:
            self.retry.wait()
            return False
        self.retry.succeeded()
        self.runtime.work_left -= READ_UNITS + (len(reader.records) >> RECORDS_PER_UNIT_BITS)
        size: i64 = 0
        for record in reader.records:
            size += record.message.size
        reader.records_bytes = size
        self.runtime.memory_bytes += size
        return bool(reader.records)

    def consumer_removed(self, consumer: Consumer) -> None:
        reader = self.readers.pop(consumer, None)
        if reader is not None:
            # Freeing the records that were read for it takes time, too.
            self.runtime.work_left -= len(reader.records) >> RECORDS_PER_UNIT_BITS
            self.forget_records(reader)
        consumer.is_active = False

    def activate(self, consumer: Consumer) -> None:
        consumer.is_active = True
        self.runtime.mark_dirty(self)

    def accept(self, entry: Entry) -> None:
        self.unsettled_count -= 1
        self.runtime.memory_bytes -= entry.message.size

    def accept_all(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.accept(entry)

    def reject(self, entry: Entry) -> None:
        self.accept(entry)

    def undeliverable(self, entry: Entry, *, is_settled: bool) -> None:
        self.accept(entry)

    def amend(self, entry: Entry, changes: bytes, *, failed: bool) -> None:
        pass

    def release(self, entry: Entry, *, failed: bool) -> None:
        self.accept(entry)

    def take(self, no_ack: bool) -> Entry | None:
        raise NotImplementedHere(f"stream '{self.name}' cannot be polled: consume from an offset of it")

    def begin_purge(self) -> CountedChore:
        raise PreconditionFailed(f"stream '{self.name}' cannot be purged")

    def discard(self) -> int:
        for reader in self.readers.values():
            self.forget_records(reader)
        self.readers.clear()
        self.runtime.stream_count -= 1
        self.runtime.memory_bytes -= self._counted_bytes
        self._counted_bytes = 0
        self.is_deleted = True
        self.messages.remove_queue(self.id)
        self.cancel_consumers()
        count = self.message_count
        self.store.remove_stream(self.id)
        return count


class _StreamWaiter(CommitWaiter):
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def committed(self, mark: i64) -> None:
        self.stream.appended()


class _RetentionTimer(Timer):
    """Drops old segments a while after the first append since the last run; with a maximum age, repeatedly."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.is_armed = False

    def arm(self) -> None:
        self.is_armed = True
        interval_s = RETENTION_INTERVAL_S
        max_age_ms = self.stream.policy.max_age_ms
        if self.stream.policy.max_length_bytes == NO_LIMIT:
            interval_s = max(interval_s, min(max_age_ms / 10_000, MAX_RETENTION_INTERVAL_S))
        runtime = self.stream.runtime
        runtime.timers.schedule(runtime.now + interval_s, self)

    def fire(self, now: float) -> None:
        self.is_armed = False
        stream = self.stream
        if stream.is_deleted:
            return
        stream.retain()
        if stream.policy.max_age_ms != NO_LIMIT and stream.message_count:
            self.arm()
