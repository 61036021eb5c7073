"""Recovery of the message log when a node starts.

All segments are read once, in order, and every checksum is checked. Bad bytes beyond the highest position known to be
durable are cut off with everything that follows, which may depend on what was lost. Before that position they are
damage, which is reported and skipped.

If only the process died and not the machine, what was read may be in the page cache only. It is synced before it is
used: otherwise a power failure could undo what consumers were told after the restart.
"""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.storage.log import FILE_HEADER_SIZE, JOURNAL, LogReader, check_file_header
from waybill.storage.manifest import Extent, Manifest
from waybill.storage.marks import ENTIRE_QUEUE, Mark, Purge
from waybill.storage.message_log import MessageLog
from waybill.storage.queue_table import NOWHERE, QueueTable
from waybill.storage.record import (
    ATOMIC_BEGIN,
    ATOMIC_END,
    CLEAN,
    GIVEN,
    KIND_OFFSET,
    MARK,
    PURGE,
    PUT,
    RECORD_HEAD_SIZE,
    REFERENCE,
    REQUEUE,
    SETTLE,
    SPILL,
    START,
    VOID,
    record_length,
)
from waybill.storage.report import MISSING, RecoveryReport, cut_short
from waybill.storage.segment import DIRECTORY, MAX_SEGMENT_OFFSET, Requeued, Segment, segment_numbers

NO_MARK: Final = Mark()


class Recovery:
    """Reads the segments of `log` and fills it. `tables`: the live messages by queue."""

    def __init__(self, log: MessageLog, report: RecoveryReport, manifest: Manifest) -> None:
        self.log = log
        self.report = report
        # Files that the manifest lists and that are missing or cut.
        self.lost: list[Extent] = []
        self._manifest = manifest
        self._marked_durable: i64 = manifest.durable_in(DIRECTORY)
        self.tables: dict[int, QueueTable] = {}
        self._files: list[Segment] = []
        self._readers: list[LogReader] = []
        self._known_durable: i64 = -1
        self._group: list[int] = []
        self._is_in_group = False
        self._is_group_bad = False

    def run(self) -> None:
        """Read everything, then cut off a torn end. Nothing is changed before all has been read."""
        files = [self._open(number) for number in segment_numbers(self.log.filesystem)]
        self._files = files
        self._compare({segment.log.name: segment for segment in files})
        cut: tuple[int, int] | None = None
        for index, reader in enumerate(self._readers):
            offset = self._scan(files[index], index, reader)
            if offset >= 0:
                cut = (index, offset)
                break
        if cut is not None:
            self._cut(files, cut[0], cut[1])
        self._finish(files)

    def _open(self, number: int) -> Segment:
        segment = Segment(number)
        segment.is_from_before = True
        segment.sealed_batch = 0
        segment.log.is_begun = True
        self.log.open_logs.seal(segment.log)
        reader = LogReader(self.log.open_logs.file(segment.log), number)
        segment.log.size = reader.size
        self._readers.append(reader)
        return segment

    def _compare(self, files: dict[str, Segment]) -> None:
        """Find files that are missing or cut."""
        for extent in self._manifest.within(DIRECTORY):
            segment = files.get(extent.name)
            if segment is None:
                self.report.damaged(extent.name, 0, MISSING)
                self.lost.append(extent)
            elif segment.log.size < extent.size:
                self.report.damaged(extent.name, int(segment.log.size), cut_short(segment.log.size, extent.size))
                segment.is_damaged = True
                self.lost.append(extent)

    def _scan(self, segment: Segment, index: i64, reader: LogReader) -> i64:
        """Read one segment. Returns the offset at which the log ends, or -1 if it continues."""
        name = segment.log.name
        self.log.segments[segment.number] = segment
        reader.file = self.log.open_logs.file(segment.log)
        if not check_file_header(name, reader.file.read(0, FILE_HEADER_SIZE), JOURNAL, segment.number):
            if not self._was_durable(index, 0):
                return 0
            self._damaged(segment, 0, "the file header is bad")
        offset: i64 = FILE_HEADER_SIZE
        while offset < reader.size:
            is_whole = reader.load(offset)
            if not is_whole or reader.bad_count > 0:
                if not self._was_durable(index, offset):
                    return offset
                if not is_whole:
                    reader.salvage(offset)
                    self._damaged(segment, offset, "a batch header is bad")
                if reader.bad_count > 0:
                    self._damaged(segment, offset, f"{reader.bad_count} records of a batch are bad")
            self._apply_batch(segment, reader)
            offset = reader.end_offset
        reader.data = b""
        return -1

    def _damaged(self, segment: Segment, offset: i64, detail: str) -> None:
        segment.is_damaged = True
        self.report.damaged(segment.log.name, int(offset), detail)

    def _was_durable(self, index: i64, offset: i64) -> bool:
        """Whether data at an offset of the segment with that index had been synced."""
        position = (self._readers[index].number << 32) | offset
        if position < self._marked_durable:
            return True
        if self._known_durable < 0:
            open_logs = self.log.open_logs
            reader = self._readers[index]
            # A reader of its own: the other one has a batch in its window.
            highest = LogReader(reader.file, reader.number).highest_durable(max(offset, FILE_HEADER_SIZE))
            for segment, other in zip(self._files[index + 1 :], self._readers[index + 1 :], strict=True):
                other.file = open_logs.file(segment.log)
                highest = max(highest, other.highest_durable(FILE_HEADER_SIZE))
            reader.file = open_logs.file(self._files[index].log)
            self._known_durable = highest
        if self._known_durable > position or self._readers[index].is_flipped(offset):
            return True
        unreadable = self._readers[index].unreadable
        if unreadable is not None:
            # It may be readable another time: do not cut it off.
            raise unreadable
        return False

    def _cut(self, files: list[Segment], index: int, offset: int) -> None:
        """The log ends at an offset of the segment with that index."""
        filesystem = self.log.filesystem
        segment = files[index]
        self.report.torn_bytes += self._readers[index].torn_bytes(offset)
        for later in files[index + 1 :]:
            self.report.torn_bytes += int(later.log.size)
        # From the end, so that a crash in the middle leaves a log with a torn end again.
        for later in reversed(files[index + 1 :]):
            self.log.open_logs.close(later.log)
            filesystem.remove(later.log.name)
            filesystem.sync_directory(DIRECTORY)
        del files[index + 1 :]
        if offset <= FILE_HEADER_SIZE:
            self.log.open_logs.close(segment.log)
            filesystem.remove(segment.log.name)
            del files[index]
            self.log.segments.pop(segment.number, None)
        else:
            self.log.open_logs.file(segment.log).truncate(offset)
            segment.log.size = offset

    def _finish(self, files: list[Segment]) -> None:
        log = self.log
        for segment in files:
            log.open_logs.file(segment.log).sync()
            if segment.live == 0:
                log.retire(segment)
                segment.dead_batch = 0
        if self._readers:
            log.filesystem.sync_directory(DIRECTORY)
        log.durable_position = self._marked_durable
        if files:
            log.durable_position = max(log.durable_position, (files[-1].number << 32) | files[-1].log.size)
        for queue_id, mark in list(log.marks.items()):
            table = self._table(queue_id)
            table.highest = max(table.highest, mark.given_up_to, mark.delivering_up_to)
            up_to = max(mark.delivering_up_to, mark.redelivered_up_to)
            log.marks[queue_id] = Mark(
                # New messages have higher sequences: no earlier mark applies to them.
                redelivered_up_to=up_to,
                given_up_to=table.highest,
                redelivered=[sequence for sequence in mark.redelivered if sequence > up_to],
            )
        self.report.segments = len(files)
        self.report.messages = sum(int(table.live) for table in self.tables.values())
        # Do not use the number of a lost segment again.
        last = max(self._readers[-1].number if self._readers else 0, self._marked_durable >> 32)
        log.start_segment(last + 1)

    # --- records ---

    def _apply_batch(self, segment: Segment, reader: LogReader) -> None:
        data = reader.data
        self._is_in_group = False
        for index in reader.records:
            kind: i64 = VOID if index < 0 else data[index + KIND_OFFSET]
            if kind == VOID:
                self._is_group_bad = True
            elif kind == ATOMIC_BEGIN:
                if self._is_in_group:
                    self._is_group_bad = True
                    self._end_group(segment, reader)
                self._is_in_group = True
                self._is_group_bad = False
                self._group = []
            elif kind == ATOMIC_END:
                self._end_group(segment, reader)
            elif self._is_in_group:
                self._group.append(index)
            else:
                self._apply(segment, reader, index, kind)
        if self._is_in_group:
            self._is_group_bad = True
            self._end_group(segment, reader)

    def _end_group(self, segment: Segment, reader: LogReader) -> None:
        """End a damaged section: its messages stay, and what it settled comes back. That may include the lost record.

        A section that a crash interrupted never gets here: the end of the log is cut off batch by batch.
        """
        data = reader.data
        self._is_in_group = False
        for index in self._group:
            kind = data[index + KIND_OFFSET]
            if not self._is_group_bad or kind not in (SETTLE, PURGE):
                self._apply(segment, reader, index, kind)
        self._group = []

    def _apply(self, segment: Segment, reader: LogReader, index: i64, kind: i64) -> None:
        data = reader.data
        self.report.is_clean = kind == CLEAN
        if kind == PUT:
            if reader.base + index <= MAX_SEGMENT_OFFSET:
                self._put(segment, data, index, (segment.number << 32) | (reader.base + index))
        elif kind == SETTLE:
            stop = index + record_length(data, index, len(data))
            for at in range(index + RECORD_HEAD_SIZE, stop, 16):
                self._remove(segment, read_i64_be(data, at), read_i64_be(data, at + 8))
        elif kind == REFERENCE:
            origin = index - read_i64_be(data, index + 32)
            # The record that it refers to was bad, or repair has replaced it.
            if (reader.bad_count == 0 or origin in reader.records) and data[origin + KIND_OFFSET] == PUT:
                self._put(segment, data, index, (segment.number << 32) | (reader.base + origin))
        elif kind == REQUEUE:
            self._requeue(segment, data, index)
        elif kind == PURGE:
            self._purge(segment, data, index)
        elif kind == MARK:
            values = self._integers(data, index)
            last = self.log.marks.get(values[0], NO_MARK)
            self.log.marks[values[0]] = Mark(
                delivering_up_to=values[1],
                redelivered_up_to=values[2],
                given_up_to=last.given_up_to,
                redelivered=values[3:],
            )
        elif kind == GIVEN:
            queue_id, given_up_to = self._integers(data, index)
            self.log.marks.setdefault(queue_id, Mark()).given_up_to = given_up_to
        elif kind == SPILL:
            segment.put_count += 1
        elif kind == START:
            # The marks in force follow.
            self.log.marks.clear()

    def _integers(self, data: bytes, index: i64) -> list[int]:
        stop = index + record_length(data, index, len(data))
        return [int(read_i64_be(data, at)) for at in range(index + RECORD_HEAD_SIZE, stop, 8)]

    def _table(self, queue_id: i64) -> QueueTable:
        table = self.tables.get(queue_id)
        if table is None:
            table = QueueTable()
            self.tables[queue_id] = table
        return table

    def _put(self, segment: Segment, data: bytes, index: i64, location: i64) -> None:
        old = self._table(read_i64_be(data, index + 16)).add(read_i64_be(data, index + 24), location)
        segment.live += 1
        segment.put_count += 1
        if old != NOWHERE:
            # Compaction had copied it, and the original was not removed yet.
            original = self.log.segments[old >> 32]
            original.live -= 1
            if original.moved is None:
                original.moved = {}
            original.moved[old & 0xFFFFFFFF] = location
            segment.depend_on(original.number)

    def _remove(self, segment: Segment, queue_id: i64, sequence: i64) -> None:
        location = self._table(queue_id).remove(sequence)
        if location != NOWHERE:
            holder = self.log.segments[location >> 32]
            holder.live -= 1
            holder.add_dead(queue_id, sequence)
            if holder.requeued:
                holder.requeued.pop((queue_id, sequence), None)
            segment.depend_on(holder.number)

    def _requeue(self, segment: Segment, data: bytes, index: i64) -> None:
        start = index + RECORD_HEAD_SIZE
        queue_id = read_i64_be(data, start)
        sequence = read_i64_be(data, start + 8)
        count = read_i64_be(data, start + 16)
        changes = data[start + 24 : index + record_length(data, index, len(data))]
        location = self._table(queue_id).location(sequence)
        if location != NOWHERE:
            holder = self.log.segments[location >> 32]
            holder.requeued[queue_id, sequence] = Requeued(count, changes)
            segment.depend_on(holder.number)

    def _purge(self, segment: Segment, data: bytes, index: i64) -> None:
        values = self._integers(data, index)
        queue_id, up_to = values[0], values[1]
        purge = Purge(up_to, values[2:], segment.number)
        self.log.purges[queue_id] = purge
        table = self._table(queue_id)
        if up_to >= ENTIRE_QUEUE:
            self.log.marks.pop(queue_id, None)
        else:
            table.highest = max(table.highest, up_to)
        for sequence in table.sequences_up_to(up_to):
            if sequence not in purge.kept:
                self._remove(segment, queue_id, sequence)
