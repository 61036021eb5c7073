"""The messages of all queues, in one log of segments. This is the part of the journal that is hot.

What is put or settled becomes pieces of the current batch; a location is known at once, because the batch will be
written in one go at a place that is known already. Settled messages are collected and written as one record, for their
order among the batch's other records does not matter: recovery puts before it settles.

Three things are kept alive beyond a segment's death. Settles, by `Segment.dependencies`. Which queues are being
delivered from, by writing all marks again at the beginning of each segment. And the owner's locations, which stay valid
when compaction has moved a message: `Segment.moved` leads from the old place to the new one.
"""

from array import array
from types import TracebackType
from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from waybill.model.entry import NO_LOCATION, Entry
from waybill.model.errors import DamagedMessage, ReadPostponed
from waybill.model.message import Address, Message, MessageFormat
from waybill.model.store import AtomicSection
from waybill.storage.commit import CommittingStore, DiskCommit, Write
from waybill.storage.filesystem import File, Filesystem
from waybill.storage.log import BATCH_HEADER_SIZE, FILE_HEADER_SIZE, batch_header
from waybill.storage.open_logs import OpenLogs
from waybill.storage.read_faults import PASSING, ReadFaults
from waybill.storage.record import (
    ATOMIC_BEGIN,
    ATOMIC_END,
    GIVEN,
    KIND_OFFSET,
    MARK,
    MAX_RECORD_BYTES,
    PURGE,
    PUT,
    RECORD_HEAD_SIZE,
    REFERENCE,
    SETTLE,
    SPILL,
    START,
    AddressWriter,
    RecordReader,
    integers,
    message_record,
    record_is_whole,
    record_length,
    small_record,
)
from waybill.storage.segment import FORGOTTEN, MAX_SEGMENT_OFFSET, Requeued, Segment

SETTLE_RECORD_BYTES: Final = 4096  # 256 settles: little is lost with one damaged record
# A batch of so little costs mostly its sync, which a file that need not grow halves. Large ones would be written twice.
SMALL_BATCH_BYTES: Final = 16 << 10
RESERVE_BYTES: Final = 256 << 10
NEAR_READ_BYTES: Final = 8 << 10
SEQUENTIAL_READ_BYTES: Final = 256 << 10
SEQUENTIAL_GAP_BYTES: Final = 64 << 10


class Mark:
    """What is known of a queue's messages having been delivered before.

    Those up to the sequence `redelivered_up_to` and those in `redelivered` were; a crash makes it those up to
    `delivering_up_to`, too. Messages of former processes were delivered up to `given_up_to`, which is of use when they
    are all gone: their sequences are not given again.
    """

    def __init__(
        self,
        *,
        delivering_up_to: i64 = -1,
        redelivered_up_to: i64 = -1,
        given_up_to: i64 = -1,
        redelivered: list[int] | None = None,
    ) -> None:
        self.delivering_up_to: i64 = delivering_up_to
        self.redelivered_up_to: i64 = redelivered_up_to
        self.given_up_to: i64 = given_up_to
        self.redelivered = redelivered or []

    def record(self, queue_id: i64) -> bytes:
        """As it is written."""
        head = [queue_id, self.delivering_up_to, self.redelivered_up_to]
        octets = small_record(MARK, integers(head + self.redelivered))
        if self.given_up_to >= 0:
            octets += small_record(GIVEN, integers([queue_id, self.given_up_to]))
        return octets


class Purge:
    """The latest purge of a queue, and the segment that has its record."""

    def __init__(self, up_to: i64, kept: list[int], segment: i64) -> None:
        self.up_to: i64 = up_to
        self.kept = set(kept)
        self.segment: i64 = segment

    def record(self, queue_id: i64) -> bytes:
        """As it is written."""
        return small_record(PURGE, integers([queue_id, self.up_to, *sorted(self.kept)]))


class _LoggedSection(AtomicSection):
    """Between two records of the log. An exception ends it like any other end, because memory has what was done."""

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


class MessageLog(CommittingStore):
    """The part of the store that keeps messages of queues."""

    def __init__(
        self, filesystem: Filesystem, formats: list[MessageFormat], segment_bytes: i64, open_logs_max: i64
    ) -> None:
        self.frees_memory = True
        self.faults = ReadFaults()
        self.saves_space = False
        self.filesystem = filesystem
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
        self.reader = RecordReader(formats)
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
        self._window: bytes = b""
        self._window_base: i64 = 0

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
            raise OverflowError("more than 4 GiB wait to be committed")
        self._offset = offset + message_record(
            self._scratch, kind, queue_id, sequence, message, self._last_encoded, self._pieces
        )
        head = self.head
        head.live += 1
        head.put_count += 1
        return self._base | offset

    def put_reference(self, queue_id: i64, sequence: i64, location: i64) -> None:
        if location < self._base + self._batch_offset:
            raise ValueError("only a message of the current batch can be put for another queue")
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
        # Most are of the segment of the one before, and then there is little to do for each.
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
        """One holder of the record at `location` less."""
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
        """The last holder of anything in a sealed segment is gone."""
        if segment.is_present:
            self.bury(segment)
        else:
            self._drop(segment)

    def bury(self, segment: Segment) -> None:
        """Nobody needs what is in a sealed segment: remove it as soon as that is durable."""
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

    def locate(self, location: i64) -> i64:
        """Where the record at a location that was given out is now."""
        segment = self.segments[location >> 32]
        while segment.moved is not None:
            copy = segment.moved.get(location & 0xFFFFFFFF)
            if copy is None:
                break
            location = copy
            segment = self.segments[location >> 32]
        return location

    def requeue(self, queue_id: i64, sequence: i64, location: i64, delivery_count: i64, changes: bytes) -> None:
        number = self.locate(location) >> 32
        requeued = Requeued(delivery_count, changes)
        self.segments[number].requeued[queue_id, sequence] = requeued
        self.head.depend_on(number)
        self._append(requeued.record(queue_id, sequence))

    def purge(self, queue_id: i64, up_to_sequence: i64, kept: list[int]) -> None:
        last = self.purges.get(queue_id)
        if last is not None and last.up_to > up_to_sequence:
            # The latest purge has to tell all, because only that one is kept.
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

    def atomic(self) -> AtomicSection:
        return self._atomic

    @property
    def is_in_atomic_section(self) -> bool:
        return self._atomic.depth > 0

    def mark_atomic(self, kind: int) -> None:
        """A section begins or ends here: settles from outside of it must not move into it, nor the other way."""
        self._flush_settles()
        self._append(small_record(kind, b""))

    # --- for recovery and reclaim ---

    def append_record(self, record: bytes) -> None:
        """Add a small record to the current batch."""
        self._append(record)

    def append_copy(self, record: bytes, holders: list[tuple[int, int]]) -> i64:
        """Add a record with a message once more, for its holders. Returns the copy's location."""
        location = self._base | self._offset
        self._append(record)
        for queue_id, sequence in holders[1:]:
            distance = self._base + self._offset - location
            self._append(small_record(REFERENCE, integers([queue_id, sequence, distance])))
        self.head.live += len(holders)
        self.head.put_count += len(holders)
        return location

    def start_segment(self, number: i64) -> None:
        """Make a new segment the head. It begins with all marks that hold: no older segment is needed for them."""
        segment = Segment(number)
        self.segments[number] = segment
        self.head = segment
        self._base = number << 32
        self._batch_offset = FILE_HEADER_SIZE + BATCH_HEADER_SIZE
        self._offset = self._batch_offset
        self._append(small_record(START, b""))
        for queue_id, mark in self.marks.items():
            self._append(mark.record(queue_id))
        # Marks may be larger than a whole segment. Were they counted, each segment would be full from the beginning,
        # and the next one would begin at once, without end.
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
            # The next segment must not exist before this one is durable. A crash could otherwise keep the younger and
            # lose the end of the older without a trace, because it may be lost at the border of two batches.
            self.is_sync_wanted = True
            self.start_segment(full.number + 1)
            if full.live == 0:
                self.bury(full)

    def _to_reserve(self, size: i64) -> i64:
        """How much to reserve behind a batch of that size: nothing beyond what fills the segment, so none stays."""
        log = self.head.log
        if size > SMALL_BATCH_BYTES or log.size <= log.reserved_size or self.saves_space:
            return 0
        log.reserved_size = min(log.size + RESERVE_BYTES, self.segment_bytes)
        return log.reserved_size - log.size

    def take_removable(self) -> list[Segment]:
        """The segments that nobody needs any more, now that what says so is durable."""
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
        """A segment's file is gone for good."""
        self.open_logs.close(segment.log)
        segment.is_present = False
        if segment.live == 0:
            self._drop(segment)
        for queue_id in [queue_id for queue_id, purge in self.purges.items() if purge.segment == segment.number]:
            del self.purges[queue_id]

    # --- reading ---

    def note_damage(self, segment: Segment, offset: i64, detail: str) -> None:
        """Something in a segment cannot be read: it stays, and the operator hears of it."""
        segment.is_damaged = True
        self.faults.damaged(segment.log.name, offset, detail)

    def read_all(self, locations: "array[int]") -> list[Message | None]:
        messages: list[Message | None] = []
        while len(messages) < len(locations):
            # Backlogs lie in order, so nearly always the next ones are in the window as well.
            self.reader.whole_messages(self._window, self._window_base, locations, messages)
            if len(messages) < len(locations):
                try:
                    messages.append(self.read(locations[len(messages)]))
                except DamagedMessage:
                    messages.append(None)
        return messages

    def read(self, location: i64) -> Message:
        segment = self.segments[location >> 32]
        if not segment.is_present:
            location = self.locate(location)
            segment = self.segments[location >> 32]
        return self.read_record(segment, location)

    def read_record(self, segment: Segment, location: i64) -> Message:
        """The message in the record at `location`, which is in `segment`."""
        index = location - self._window_base
        length = self._length_in_window(index)
        if length < RECORD_HEAD_SIZE or not record_is_whole(self._window, index, length):
            # It is not in the window, or was read badly: what the disk says now is what counts.
            self._move_window(segment, location)
            index = location - self._window_base
            length = self._length_in_window(index)
        data = self._window
        if length < RECORD_HEAD_SIZE or not record_is_whole(data, index, length):
            self.note_damage(segment, location & 0xFFFFFFFF, "the record fails its checksum")
            raise DamagedMessage(f"the record at {location >> 32}:{location & 0xFFFFFFFF} fails its checksum")
        kind = data[index + KIND_OFFSET]
        if kind not in (PUT, SPILL):
            raise DamagedMessage(f"there is no message at {location >> 32}:{location & 0xFFFFFFFF}")
        return self.reader.message(data, index, length)

    def _length_in_window(self, index: i64) -> i64:
        """Length of the record at `index` of the window; -1 if it is not all there."""
        if index < 0 or index >= len(self._window):
            return -1
        return record_length(self._window, index, len(self._window))

    def _move_window(self, segment: Segment, location: i64) -> None:
        """Read the surroundings of a record: much, if the last reads were just before it."""
        gap = location - self._window_base - len(self._window)
        is_near = -SEQUENTIAL_GAP_BYTES <= gap <= SEQUENTIAL_GAP_BYTES
        offset = location & 0xFFFFFFFF
        size: i64 = SEQUENTIAL_READ_BYTES if is_near and self._window else NEAR_READ_BYTES
        try:
            data = self._read_from(self.open_logs.file(segment.log), offset, size)
        except OSError as error:
            if not self.faults.is_final(segment.log.name, offset, error):
                raise ReadPostponed(str(error)) from None
            self.note_damage(segment, offset, f"the record cannot be read: {error}")
            raise DamagedMessage(f"the record at {location >> 32}:{offset} cannot be read: {error}") from None
        self._window = data
        self._window_base = location

    def _read_from(self, file: File, offset: i64, size: i64) -> bytes:
        """So much from an offset on, but at least a whole record."""
        try:
            data = file.read(offset, size)
        except OSError as error:
            if error.errno in PASSING:
                raise
            # It may be a neighbour that cannot be read.
            data = file.read(offset, RECORD_HEAD_SIZE)
            size = len(data)
        if len(data) == size:
            wanted = record_length(data, 0, MAX_RECORD_BYTES)
            if wanted > size:
                data = file.read(offset, wanted)
        return data
