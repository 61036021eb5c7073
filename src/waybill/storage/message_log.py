"""The messages of all queues, in one log of segments. Every message passes through here.

What is put or settled becomes pieces of the current batch. Locations are known at once, as it is known where the batch
will be written. Settles are collected and written as one record: their order among the other records of the
batch does not matter, because recovery applies puts first.

Three things outlive a segment's removal. Settles, by `Segment.dependencies`. Delivery marks, which are all written
again at the beginning of each segment. And locations of messages that compaction has moved: `Segment.moved` leads from
the old place to the new one.
"""

from array import array
from types import TracebackType
from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from waybill.model.entry import NO_LOCATION, Entry
from waybill.model.message import Address, Message, MessageFormat
from waybill.model.store import AtomicSection, MessageStore
from waybill.storage.commit import DiskCommit, Write
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import BATCH_HEADER_SIZE, FILE_HEADER_SIZE, batch_header
from waybill.storage.marks import ENTIRE_QUEUE, Mark, Purge
from waybill.storage.message_reader import MessageReader
from waybill.storage.open_logs import OpenLogs
from waybill.storage.read_faults import ReadFaults
from waybill.storage.record import (
    ATOMIC_BEGIN,
    ATOMIC_END,
    PUT,
    REFERENCE,
    SETTLE,
    SPILL,
    START,
    AddressWriter,
    RecordReader,
    integers,
    message_record,
    small_record,
)
from waybill.storage.segment import FORGOTTEN, MAX_SEGMENT_OFFSET, Requeued, Segment

SETTLE_RECORD_BYTES: Final = 4096  # 256 settles: little is lost with one damaged record
# Reserve space for small batches only: it halves the cost of their sync. Large ones would be written twice.
SMALL_BATCH_BYTES: Final = 16 << 10
RESERVE_BYTES: Final = 256 << 10


class _LoggedSection(AtomicSection):
    """A section that begins and ends with a record of the log. An exception ends it too: memory has what was done."""

    def __init__(self, log: "MessageLog") -> None:
        self.depth: i64 = 0
        self._log = log

    def __enter__(self) -> None:
        if self.depth == 0:
            self._log.mark_atomic(ATOMIC_BEGIN)
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        if self.depth == 0:
            self._log.mark_atomic(ATOMIC_END)


class MessageLog(MessageStore):
    """Keeps the messages of queues in segments. `reading` reads them back."""

    def __init__(
        self, filesystem: Filesystem, formats: list[MessageFormat], segment_bytes: i64, open_logs_max: i64
    ) -> None:
        self.frees_memory = True
        self.filesystem = filesystem
        self.faults = ReadFaults()
        self.saves_space = False
        self.open_logs = OpenLogs(filesystem, open_logs_max)
        self.segment_bytes: i64 = segment_bytes
        self.batch: i64 = 1
        self.written_batch: i64 = 0
        self.durable_batch: i64 = 0
        self.segments: dict[int, Segment] = {}
        self.dying: list[Segment] = []
        self.marks: dict[int, Mark] = {}
        self.purges: dict[int, Purge] = {}
        self.durable_position: i64 = 0
        self.is_sync_wanted = False
        self.records = RecordReader(formats)
        self._addresses = AddressWriter()
        self._last_address: Address | None = None
        self._last_encoded: bytes = b""
        self._pieces: list[bytes] = []
        self._settles = BytesWriter()
        self._scratch = BytesWriter()
        self._atomic = _LoggedSection(self)
        self.head = Segment(0)
        self._base: i64 = 0
        self._batch_offset: i64 = 0
        self._full_at: i64 = 0
        self._offset: i64 = 0
        self._last_released = self.head
        self.reading = MessageReader(self.segments, self.open_logs, self.records, self.faults)

    # --- putting ---

    def put(self, queue_id: i64, sequence: i64, message: Message) -> i64:
        return self._put_message(PUT, queue_id, sequence, message)

    def spill(self, message: Message) -> i64:
        return self._put_message(SPILL, 0, 0, message)

    def _put_message(self, kind: i64, queue_id: i64, sequence: i64, message: Message) -> i64:
        address = message.address
        if address is not self._last_address:
            self._last_encoded = self._addresses.encode(address)
            self._last_address = address
        offset = self._offset
        if offset > MAX_SEGMENT_OFFSET:
            raise OverflowError("more than 4 GiB are waiting for a commit")
        self._offset = offset + message_record(
            self._scratch, kind, queue_id, sequence, message, self._last_encoded, self._pieces
        )
        head = self.head
        head.live += 1
        head.put_count += 1
        return self._base | offset

    def put_reference(self, queue_id: i64, sequence: i64, location: i64) -> None:
        if location < self._base + self._batch_offset:
            raise ValueError("only a message of the current batch can be put into another queue")
        distance = self._base + self._offset - location
        self._append(small_record(REFERENCE, integers([queue_id, sequence, distance])))
        self.head.live += 1
        self.head.put_count += 1

    def _append(self, record: bytes) -> None:
        self._pieces.append(record)
        self._offset += len(record)

    # --- settling ---

    def settle(self, queue_id: i64, sequence: i64, location: i64) -> None:
        settles = self._settles
        write_i64_be(settles, queue_id)
        write_i64_be(settles, sequence)
        if len(settles) >= SETTLE_RECORD_BYTES:
            self._flush_settles()
        segment = self._last_released
        number = location >> 32
        if segment.number == number and segment.moved is None and segment.live > 1 and not segment.requeued:
            # Most settles are of the segment of the one before: `_release` without its cases.
            segment.live -= 1
            dead = segment.dead
            write_i64_be(dead, queue_id)
            write_i64_be(dead, sequence)
            if self.head.last_dependency != number:
                self.head.depend_on(number)
        else:
            self._release(location, queue_id, sequence)

    def settle_all(self, queue_id: i64, entries: list[Entry]) -> None:
        settles = BytesWriter()
        segment = self._last_released
        number = segment.number
        # Most are of the segment of the one before, and cost little then.
        is_simple = segment.moved is None and segment.live > len(entries) and not segment.requeued
        count: i64 = 0
        for entry in entries:
            sequence = entry.sequence
            if not entry.is_stored or not is_simple or entry.location >> 32 != number:
                self._settle_or_forget(queue_id, entry)
                continue
            write_i64_be(settles, queue_id)
            write_i64_be(settles, sequence)
            count += 1
        if count > 0:
            octets = settles.getvalue()
            self._settles.write(octets)
            segment.dead.write(octets)
            segment.live -= count
            self.head.depend_on(number)
        if len(self._settles) >= SETTLE_RECORD_BYTES:
            self._flush_settles()

    def _settle_or_forget(self, queue_id: i64, entry: Entry) -> None:
        if entry.is_stored:
            self.settle(queue_id, entry.sequence, entry.location)
        elif entry.location != NO_LOCATION:
            self.forget(entry.location)

    def forget(self, location: i64) -> None:
        self._release(location, FORGOTTEN, location & 0xFFFFFFFF)

    def _release(self, location: i64, queue_id: i64, sequence: i64) -> None:
        """Remove one holder of the record at `location`."""
        number = location >> 32
        segment = self._last_released
        if segment.number != number:
            segment = self.segments[number]
            self._last_released = segment
        segment.live -= 1
        if segment.moved is not None:
            copy = segment.moved.get(location & 0xFFFFFFFF)
            if copy is not None:
                if segment.live == 0:
                    self._let_go(segment)
                if segment.left_behind and (queue_id, sequence) in segment.left_behind:
                    segment.left_behind.remove((queue_id, sequence))
                    return
                self._release(copy, queue_id, copy & 0xFFFFFFFF if queue_id == FORGOTTEN else sequence)
                return
        segment.add_dead(queue_id, sequence)
        if segment.requeued:
            segment.requeued.pop((queue_id, sequence), None)
        self.head.depend_on(number)
        if segment.live == 0 and segment is not self.head:
            self._let_go(segment)

    def _let_go(self, segment: Segment) -> None:
        """Remove a sealed segment that has lost its last holder."""
        if segment.is_present:
            self.retire(segment)
        else:
            self._drop(segment)

    def retire(self, segment: Segment) -> None:
        """Remove a sealed segment without live messages, as soon as that is durable."""
        if not (segment.is_leaving or segment.is_damaged) and segment not in self.dying:
            segment.dead_batch = self.batch
            self.dying.append(segment)

    def _drop(self, segment: Segment) -> None:
        self.segments.pop(segment.number, None)
        if self._last_released is segment:
            self._last_released = self.head

    def _flush_settles(self) -> None:
        if len(self._settles) > 0:
            self._append(small_record(SETTLE, self._settles.getvalue()))
            self._settles.truncate(0)

    def requeue(self, queue_id: i64, sequence: i64, location: i64, delivery_count: i64, changes: bytes) -> None:
        number = self.reading.locate(location) >> 32
        requeued = Requeued(delivery_count, changes)
        self.segments[number].requeued[queue_id, sequence] = requeued
        self.head.depend_on(number)
        self._append(requeued.record(queue_id, sequence))

    def purge(self, queue_id: i64, up_to_sequence: i64, kept: list[int]) -> None:
        last = self.purges.get(queue_id)
        if last is not None and last.up_to > up_to_sequence:
            # Only the latest purge is kept, so it must include the earlier ones.
            kept = kept + [sequence for sequence in last.kept if sequence > up_to_sequence]
            up_to_sequence = last.up_to
        purge = Purge(up_to_sequence, kept, self.head.number)
        self.purges[queue_id] = purge
        self._append(purge.record(queue_id))

    def mark_delivering(self, queue_id: i64, up_to_sequence: i64) -> None:
        mark = self.marks.get(queue_id)
        if mark is None:
            mark = Mark()
            self.marks[queue_id] = mark
        if mark.delivering_up_to < up_to_sequence:
            mark.delivering_up_to = up_to_sequence
            self._append(mark.record(queue_id))

    def remove_queue(self, queue_id: i64) -> None:
        self.purge(queue_id, ENTIRE_QUEUE, [])
        self.marks.pop(queue_id, None)

    def replace_marks(self, redelivered: dict[int, list[int]]) -> None:
        """At a clean stop, record exactly which messages were delivered before: by queue, their sequences."""
        for queue_id in sorted(set(self.marks) | set(redelivered)):
            last = self.marks.get(queue_id, Mark())
            mark = Mark(
                given_up_to=max(last.given_up_to, last.delivering_up_to), redelivered=redelivered.get(queue_id, [])
            )
            self.marks[queue_id] = mark
            self._append(mark.record(queue_id))

    def read(self, location: i64) -> Message:
        return self.reading.read(location)

    def read_all(self, locations: "array[int]") -> list[Message | None]:
        return self.reading.read_all(locations)

    def atomic(self) -> AtomicSection:
        return self._atomic

    @property
    def is_in_atomic_section(self) -> bool:
        return self._atomic.depth > 0

    def mark_atomic(self, kind: int) -> None:
        """Begin or end a section: settles must not move into it, or out of it."""
        self._flush_settles()
        self._append(small_record(kind, b""))

    # --- for recovery and reclaim ---

    def append_record(self, record: bytes) -> None:
        """Add a small record to the current batch."""
        self._append(record)

    def append_copy(self, record: bytes, holders: list[tuple[int, int]]) -> i64:
        """Copy a record with a message, for its holders. Returns the copy's location."""
        location = self._base | self._offset
        self._append(record)
        for queue_id, sequence in holders[1:]:
            distance = self._base + self._offset - location
            self._append(small_record(REFERENCE, integers([queue_id, sequence, distance])))
        self.head.live += len(holders)
        self.head.put_count += len(holders)
        return location

    def start_segment(self, number: i64) -> None:
        """Make a new segment the head. It begins with all marks in force, so no older segment is needed for them."""
        segment = Segment(number)
        self.segments[number] = segment
        self.head = segment
        self._base = number << 32
        self._batch_offset = FILE_HEADER_SIZE + BATCH_HEADER_SIZE
        self._offset = self._batch_offset
        self._append(small_record(START, b""))
        for queue_id, mark in self.marks.items():
            self._append(mark.record(queue_id))
        # Marks may be larger than a whole segment. If they counted, each segment would be full from the beginning, and
        # the next one would begin at once, without end.
        self._full_at = self.segment_bytes + self._offset - self._batch_offset

    # --- committing ---

    def batch_bytes(self) -> i64:
        """Bytes of records in the current batch."""
        return self._offset - self._batch_offset + len(self._settles)

    def take_batch(self, commit: DiskCommit) -> None:
        """Hand the pieces of the batch to a commit, and begin the next one, in a new segment if this one is full."""
        self._flush_settles()
        size = self._offset - self._batch_offset
        if size == 0:
            return
        log = self.head.log
        start = self._batch_offset - BATCH_HEADER_SIZE
        pieces = [batch_header(self._base | start, self.durable_position, size)]
        pieces.extend(self._pieces)
        log.size = self._offset
        commit.writes.append(Write(log, pieces, BATCH_HEADER_SIZE + size, self._to_reserve(size)))
        self._pieces = []
        self._batch_offset = self._offset + BATCH_HEADER_SIZE
        self._offset = self._batch_offset
        if log.size >= self._full_at:
            full = self.head
            full.sealed_batch = commit.batch
            # The next segment must not exist before this one is durable. Otherwise a crash could keep the newer one and
            # lose whole batches from the end of the older one without a trace.
            self.is_sync_wanted = True
            self.start_segment(full.number + 1)
            if full.live == 0:
                self.retire(full)

    def _to_reserve(self, size: i64) -> i64:
        """How much to reserve behind a batch of that size: at most what fills the segment, so none is left over."""
        log = self.head.log
        if size > SMALL_BATCH_BYTES or log.size <= log.reserved_size or self.saves_space:
            return 0
        log.reserved_size = min(log.size + RESERVE_BYTES, self.segment_bytes)
        return log.reserved_size - log.size

    def take_removable(self) -> list[Segment]:
        """The segments to remove once the records that make them obsolete are durable."""
        removable: list[Segment] = []
        for segment in self.dying:
            if segment.dead_batch > self.durable_batch or segment.sealed_batch >= self.durable_batch:
                continue
            for number in list(segment.dependencies):
                other = self.segments.get(number)
                if other is None or not other.is_present:
                    segment.dependencies.discard(number)
            if not segment.dependencies:
                removable.append(segment)
        for segment in removable:
            segment.is_leaving = True
            self.dying.remove(segment)
        return removable

    def removed(self, segment: Segment) -> None:
        """Forget a segment whose file is removed."""
        self.open_logs.close(segment.log)
        segment.is_present = False
        if segment.live == 0:
            self._drop(segment)
        for queue_id in [queue_id for queue_id, purge in self.purges.items() if purge.segment == segment.number]:
            del self.purges[queue_id]
