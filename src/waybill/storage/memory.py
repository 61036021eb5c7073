"""A store without a disk: everything is lost with the process, and every wait ends with the next commit."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from types import TracebackType

from mypy_extensions import i64

from waybill.model.entry import NO_LOCATION, Entry
from waybill.model.message import Message
from waybill.model.store import AtomicSection, CommitWaiter, MessageStore, StoredMessage, StoredStream, StreamRecord
from waybill.storage.commit import Commit, CommittingStore


class _CountedSection(AtomicSection):
    """Nothing outlives the process, so a section is only counted."""

    def __init__(self) -> None:
        self.depth: i64 = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1


class MemoryMessages(MessageStore):
    """Keeps no durable messages: their queues hold them.

    A location is valid only as long as its message may be read back.
    """

    def __init__(self) -> None:
        self.frees_memory = False
        self.batch: i64 = 1
        self.written_batch: i64 = 0
        self.durable_batch: i64 = 0
        self._next_location: i64 = 1
        self._messages: dict[int, Message] = {}
        self._holders: dict[int, int] = {}
        self._atomic = _CountedSection()
        self.has_news = False

    def put(self, queue_id: i64, sequence: i64, message: Message) -> i64:
        location = self._next_location
        self._next_location = location + 1
        self._messages[location] = message
        self.has_news = True
        return location

    def put_reference(self, queue_id: i64, sequence: i64, location: i64) -> None:
        if location not in self._messages:
            raise ValueError("only a message of the current batch can be put into another queue")
        self._holders[location] = self._holders.get(location, 1) + 1

    def spill(self, message: Message) -> i64:
        return self.put(0, 0, message)

    def settle(self, queue_id: i64, sequence: i64, location: i64) -> None:
        self.forget(location)

    def settle_all(self, queue_id: i64, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.location != NO_LOCATION:
                self.forget(entry.location)

    def forget(self, location: i64) -> None:
        if self._holders:
            count = self._holders.pop(location, 1)
            if count > 1:
                if count > 2:
                    self._holders[location] = count - 1
                return
        del self._messages[location]

    def requeue(self, queue_id: i64, sequence: i64, location: i64, delivery_count: i64, changes: bytes) -> None:
        pass

    def purge(self, queue_id: i64, up_to_sequence: i64, kept: list[int]) -> None:
        pass

    def mark_delivering(self, queue_id: i64, up_to_sequence: i64) -> None:
        pass

    def atomic(self) -> AtomicSection:
        return self._atomic

    @property
    def is_in_atomic_section(self) -> bool:
        return self._atomic.depth > 0

    def read(self, location: i64) -> Message:
        return self._messages[location]

    def read_all(self, locations: "array[int]") -> list[Message | None]:
        return [self._messages[location] for location in locations]

    def remove_queue(self, queue_id: i64) -> None:
        pass

    def clear(self) -> None:
        """Forget all of them."""
        self._messages.clear()


class MemoryStore(CommittingStore):
    """A `Store` that behaves like the journal while the process lives."""

    def __init__(self) -> None:
        self._log = MemoryMessages()
        self.messages = self._log
        self._next_id: i64 = 1
        self._definitions: dict[str, dict[str, dict[str, object]]] = {}
        self._streams: dict[int, MemoryStream] = {}
        self._waiters: list[CommitWaiter] = []
        self._marks: list[int] = []
        self._is_running = False

    @property
    def has_failed(self) -> bool:
        return False

    @property
    def is_unmarked(self) -> bool:
        return False

    def save_space(self, *, is_needed: bool) -> None:
        pass

    def define(self, kind: str, key: str, value: dict[str, object]) -> None:
        self._definitions.setdefault(kind, {})[key] = value

    def undefine(self, kind: str, key: str) -> None:
        self._definitions.get(kind, {}).pop(key, None)

    def definitions(self, kind: str) -> Iterable[tuple[str, dict[str, object]]]:
        return list(self._definitions.get(kind, {}).items())

    def recovered(self, queue_id: i64) -> Iterator[StoredMessage]:
        return iter(())

    def next_sequence(self, queue_id: i64) -> i64:
        return 0

    def remove_unclaimed(self) -> int:
        return 0

    def unclaimed(self) -> tuple[dict[int, int], list[int]]:
        return {}, []

    def new_id(self) -> i64:
        given = self._next_id
        self._next_id = given + 1
        return given

    def stream(self, stream_id: i64, segment_bytes: i64) -> StoredStream:
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = MemoryStream(self._log, segment_bytes)
            self._streams[stream_id] = stream
        return stream

    def remove_stream(self, stream_id: i64) -> None:
        self._streams.pop(stream_id, None)

    def wait(self, waiter: CommitWaiter, mark: i64) -> None:
        self._waiters.append(waiter)
        self._marks.append(mark)

    @property
    def pending_bytes(self) -> int:
        return 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiters or self._log.has_news)

    def begin_commit(self) -> Commit | None:
        if self._is_running or self._log.is_in_atomic_section or not self.has_work:
            return None
        self._log.has_news = False
        self._is_running = True
        commit = Commit(self._log.batch)
        commit.waiters = self._waiters
        commit.marks = self._marks
        for stream in self._streams.values():
            stream.taken()
        self._waiters = []
        self._marks = []
        self._log.batch += 1
        return commit

    def end_commit(self, commit: Commit) -> None:
        self._is_running = False
        self._log.written_batch = commit.batch
        self._log.durable_batch = commit.batch
        for stream in self._streams.values():
            stream.committed()

    def maintain(self, now: float) -> bool:
        return False

    def close(self, *, clean: bool = True, redelivered: dict[int, list[int]] | None = None) -> None:
        self._log.clear()


class _Chunk:
    """Records that retention drops together, like a segment on disk."""

    def __init__(self, first_offset: i64) -> None:
        self.first_offset: i64 = first_offset
        self.size: i64 = 0
        self.records: list[StreamRecord] = []


class MemoryStream(StoredStream):
    """A stream in memory."""

    def __init__(self, messages: MemoryMessages, segment_bytes: i64) -> None:
        self._messages = messages
        self.segment_bytes: i64 = segment_bytes
        self.first_offset = 0
        self.next_offset = 0
        self.committed_offset = 0
        self._taken_offset: i64 = 0
        self._chunks: list[_Chunk] = [_Chunk(0)]

    def append(self, message: Message, timestamp_ms: i64) -> i64:
        offset = self.next_offset
        chunk = self._chunks[-1]
        if chunk.size >= self.segment_bytes:
            chunk = _Chunk(offset)
            self._chunks.append(chunk)
        chunk.records.append(StreamRecord(offset, timestamp_ms, message))
        chunk.size += message.size
        self.next_offset = offset + 1
        self._messages.has_news = True
        return offset

    def taken(self) -> None:
        """A commit has begun."""
        self._taken_offset = self.next_offset

    def committed(self) -> None:
        """The commit has ended."""
        self.committed_offset = self._taken_offset

    def read(self, offset: i64, max_count: i64, max_bytes: i64) -> list[StreamRecord]:
        records: list[StreamRecord] = []
        offset = max(offset, self.first_offset)
        while offset < self.committed_offset and len(records) < max_count and max_bytes > 0:
            chunk = self._chunk_of(offset)
            record = chunk.records[offset - chunk.first_offset]
            records.append(record)
            max_bytes -= record.message.size
            offset += 1
        return records

    def _chunk_of(self, offset: i64) -> _Chunk:
        low = 0
        high = len(self._chunks)
        while high - low > 1:
            middle = (low + high) // 2
            if self._chunks[middle].first_offset <= offset:
                low = middle
            else:
                high = middle
        return self._chunks[low]

    def offset_at(self, timestamp_ms: i64) -> i64:
        for chunk in self._chunks:
            if chunk.records and chunk.records[-1].timestamp_ms >= timestamp_ms:
                index = bisect_left([record.timestamp_ms for record in chunk.records], timestamp_ms)
                return chunk.records[index].offset
        return self.next_offset

    def retain(self, max_bytes: i64, max_age_ms: i64, now_ms: i64) -> None:
        while len(self._chunks) > 1:
            oldest = self._chunks[0]
            is_too_old = max_age_ms >= 0 and oldest.records[-1].timestamp_ms < now_ms - max_age_ms
            if not is_too_old and not (max_bytes >= 0 and self.size() > max_bytes):
                break
            self._chunks.pop(0)
            self.first_offset = self._chunks[0].first_offset

    def size(self) -> i64:
        total: i64 = 0
        for chunk in self._chunks:
            total += chunk.size
        return total
