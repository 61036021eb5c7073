"""Streams: append-only logs of messages with consecutive offsets, each in a directory of its own.

A file is named after the first offset in it. An index in memory leads from offsets and times to places in the file,
one entry for about 64 KiB. It is built from the batch headers when a file is first read, so opening a large stream
reads only its last file, the only one that a crash can have torn.
"""

from bisect import bisect_right
from typing import Final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from waybill.model.errors import ReadPostponed
from waybill.model.message import Message
from waybill.model.store import StoredStream, StreamRecord
from waybill.storage.commit import DiskCommit, Write
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import (
    BATCH_HEADER_SIZE,
    FILE_HEADER_SIZE,
    STREAM,
    LogFile,
    LogReader,
    batch_header,
    batch_size,
    check_file_header,
    numbers_in,
)
from waybill.storage.manifest import Extent, extent_of
from waybill.storage.open_logs import OpenLogs
from waybill.storage.read_faults import TRIES_MAX, ReadFaults
from waybill.storage.record import (
    ENTRY,
    KIND_OFFSET,
    MAX_NUMBER,
    RECORD_HEAD_SIZE,
    VOID,
    AddressWriter,
    RecordReader,
    mended_length,
    message_record,
    record_is_whole,
    record_length,
)
from waybill.storage.report import MISSING, RecoveryReport, cut_short
from waybill.storage.stream_segment import INDEX_BYTES, OFFSET_DIGITS, Place, StreamSegment

READ_BYTES: Final = 256 << 10
MAX_PLACES: Final = 64


class DiskStream(StoredStream):
    """A stream on disk. It adds itself to `busy` when it has something for the next commit."""

    def __init__(
        self,
        filesystem: Filesystem,
        open_logs: OpenLogs,
        reader: RecordReader,
        stream_id: i64,
        segment_bytes: i64,
        busy: "list[DiskStream]",
        faults: ReadFaults,
    ) -> None:
        self._faults = faults
        self.filesystem = filesystem
        self._open_logs = open_logs
        self.stream_id: i64 = stream_id
        self.segment_bytes: i64 = segment_bytes
        self.is_new = True
        self._busy = busy
        self.is_busy = False
        self._retired: list[LogFile] = []
        self._reader = reader
        self._addresses = AddressWriter()
        self._scratch = BytesWriter()
        self._pieces: list[bytes] = []
        self._pending_bytes: i64 = 0
        self._pending_timestamp_ms: i64 = 0
        self._batch_first: i64 = 0
        self._taken_offset: i64 = 0
        self._places: dict[int, Place] = {}
        self._segments: list[StreamSegment] = [StreamSegment(stream_id, 0)]
        # Manifest entries of files that are missing or cut, by name.
        self.lost: dict[str, Extent] = {}
        self._marked: dict[str, Extent] = {}
        self._known_end: i64 = 0
        self.first_offset = 0
        self.next_offset = 0
        self.committed_offset = 0

    # --- opening ---

    def recover(self, names: list[str] | None, extents: list[Extent], report: RecoveryReport) -> None:
        """Open the files of the stream's directory; None: there is none. `extents`: their manifest entries."""
        firsts = numbers_in(names or [], OFFSET_DIGITS, MAX_NUMBER)
        self.is_new = names is None
        for extent in extents:
            self._known_end = max(self._known_end, extent.next_offset)
            self._marked[extent.name] = extent
        if not firsts:
            self._note_missing(set(), report)
            self._begin_at(self._known_end)
            return
        self._segments = [StreamSegment(self.stream_id, first) for first in firsts]
        for segment in self._segments:
            log = segment.log
            if segment is self._segments[-1]:
                log.file = self.filesystem.open(log.name)
            else:
                self._open_logs.seal(log)
            log.size = self._open_logs.file(log).size()
            log.is_begun = True
            segment.is_indexed = False
        self.first_offset = firsts[0]
        self.next_offset = firsts[-1]
        self._note_missing({segment.log.name for segment in self._segments}, report)
        self._recover_last(report)
        if self._known_end > self.next_offset:
            # Readers may know the offsets of what is lost: no other message may get them.
            self._begin_at(self._known_end)
        self.committed_offset = self.next_offset
        self._taken_offset = self.next_offset
        self._batch_first = self.next_offset

    def _note_missing(self, names: set[str], report: RecoveryReport) -> None:
        """Report files that are missing or cut."""
        for segment in self._segments:
            extent = self._marked.pop(segment.log.name, None)
            if extent is not None and segment.log.name in names:
                segment.marked_size = extent.size
                if segment.log.size < extent.size:
                    report.damaged(
                        extent.name, int(segment.log.size), cut_short(int(segment.log.size), int(extent.size))
                    )
                    self.lost[extent.name] = extent
        for extent in self._marked.values():
            if extent.name not in names:
                report.damaged(extent.name, 0, MISSING)
                self.lost[extent.name] = extent
        self._marked = {}

    def _begin_at(self, offset: i64) -> None:
        """Continue in a new file, from an offset on."""
        if offset == 0:
            return
        segment = StreamSegment(self.stream_id, offset)
        last = self._segments[-1]
        if last.log.is_begun:
            self._open_logs.seal(last.log)
            segment.last_timestamp_ms = last.last_timestamp_ms
            self._segments.append(segment)
        else:
            self._segments = [segment]
            self.first_offset = offset
        self.next_offset = offset
        self.committed_offset = offset
        self._taken_offset = offset
        self._batch_first = offset

    def _recover_last(self, report: RecoveryReport) -> None:
        segment = self._segments[-1]
        file = segment.log.opened()
        name = segment.log.name
        reader = LogReader(file, segment.log.number)
        known_durable: i64 = -1
        marked_durable: i64 = (segment.log.number << 32) | segment.marked_size
        if not check_file_header(name, reader.read(0, FILE_HEADER_SIZE), STREAM, segment.log.number):
            if segment.marked_size == 0 and reader.find_batch(FILE_HEADER_SIZE) == reader.size:
                if reader.unreadable is not None:
                    raise reader.unreadable
                self._begin_again(segment, report)
                return
            report.damaged(name, 0, "the file header is bad")
        offset: i64 = FILE_HEADER_SIZE
        while offset < reader.size:
            is_whole = reader.load(offset)
            if not is_whole or reader.bad_count > 0:
                if known_durable < 0:
                    known_durable = LogReader(file, segment.log.number).highest_durable(offset)
                    known_durable = max(known_durable, marked_durable)
                if known_durable <= (segment.log.number << 32) | offset and not reader.is_flipped(offset):
                    if reader.unreadable is not None:
                        raise reader.unreadable
                    report.torn_bytes += int(reader.size - offset)
                    file.truncate(offset)
                    break
                if not is_whole:
                    reader.salvage(offset)
                report.damaged(name, int(offset), "records of a stream are bad and missing")
            self._learn(segment, reader, offset)
            offset = reader.end_offset
        segment.is_indexed = True
        segment.log.size = max(offset, FILE_HEADER_SIZE)
        segment.log.durable_size = segment.log.size
        file.sync()
        self.filesystem.sync_directory(segment.log.directory)

    def _begin_again(self, segment: StreamSegment, report: RecoveryReport) -> None:
        """A crash interrupted the first batch of the last file: start that file again."""
        report.torn_bytes += int(segment.log.size)
        segment.log.close()
        self.filesystem.remove(segment.log.name)
        self.filesystem.sync_directory(segment.log.directory)
        self._segments[-1] = StreamSegment(self.stream_id, segment.first_offset)

    def _learn(self, segment: StreamSegment, reader: LogReader, place: i64) -> None:
        first = True
        for index in reader.records:
            if index < 0 or reader.data[index + KIND_OFFSET] != ENTRY:
                continue
            timestamp_ms = read_i64_be(reader.data, index + 16)
            offset = read_i64_be(reader.data, index + 24)
            if first:
                segment.add_to_index(offset, timestamp_ms, place)
                first = False
            segment.last_timestamp_ms = timestamp_ms
            self.next_offset = max(self.next_offset, offset + 1)

    def _index(self, segment: StreamSegment) -> None:
        """Build the index of a file from its batch headers."""
        if segment.is_indexed:
            return
        reader = LogReader(self._open_logs.file(segment.log), segment.log.number)
        try:
            self._build_index(segment, reader)
        except OSError:
            segment.offsets = []
            segment.timestamps = []
            segment.places = []
            raise
        segment.is_indexed = True

    def _build_index(self, segment: StreamSegment, reader: LogReader) -> None:
        place: i64 = FILE_HEADER_SIZE
        while place < reader.size:
            if not reader.load_header(place):
                place = reader.find_batch(place + 1)
                continue
            if not segment.places or place - segment.places[-1] >= INDEX_BYTES or reader.end_offset >= reader.size:
                reader.load(place)
                self._learn(segment, reader, place)
            place = reader.end_offset

    # --- appending ---

    def append(self, message: Message, timestamp_ms: i64) -> i64:
        offset = self.next_offset
        if not self._pieces:
            self._batch_first = offset
            self._pending_timestamp_ms = timestamp_ms
            self._become_busy()
        encoded = self._addresses.encode(message.address)
        self._pending_bytes += message_record(
            self._scratch, ENTRY, timestamp_ms, offset, message, encoded, self._pieces
        )
        self.next_offset = offset + 1
        self._segments[-1].last_timestamp_ms = timestamp_ms
        return offset

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet taken by a commit."""
        return int(self._pending_bytes)

    def _become_busy(self) -> None:
        if not self.is_busy:
            self.is_busy = True
            self._busy.append(self)

    def take_batch(self, commit: DiskCommit) -> LogFile | None:
        """Hand what was appended to a commit. Returns the file to be synced."""
        if not self._pieces:
            return None
        segment = self._segments[-1]
        if segment.log.size >= self.segment_bytes:
            timestamp_ms = segment.last_timestamp_ms
            # A batch of a stream is taken only after the one before was synced.
            self._open_logs.seal(segment.log)
            segment = StreamSegment(self.stream_id, self._batch_first)
            segment.last_timestamp_ms = timestamp_ms
            self._segments.append(segment)
        log = segment.log
        place = log.size
        durable = (log.number << 32) | log.durable_size if log.durable_size else 0
        pieces = [batch_header((log.number << 32) | place, durable, self._pending_bytes)]
        pieces.extend(self._pieces)
        commit.writes.append(Write(log, pieces, BATCH_HEADER_SIZE + self._pending_bytes))
        log.size = place + BATCH_HEADER_SIZE + self._pending_bytes
        segment.add_to_index(self._batch_first, self._pending_timestamp_ms, place)
        self._pieces = []
        self._pending_bytes = 0
        self._taken_offset = self.next_offset
        return log

    def committed(self) -> None:
        """The commit that took the last batch is durable."""
        self.committed_offset = self._taken_offset

    # --- reading ---

    def read(self, offset: i64, max_count: i64, max_bytes: i64) -> list[StreamRecord]:
        records: list[StreamRecord] = []
        offset = max(offset, self.first_offset)
        while not records and offset < self.committed_offset:
            place = self._places.pop(offset, None)
            if place is None:
                place = self._find_patiently(offset)
            # If damage leaves nothing readable in a file, the next one has the next record.
            try:
                offset = self._read_on(place, offset, max_count, max_bytes, records)
            except OSError as error:
                if not records:
                    self._read_failed(place.segment, offset, error)
        return records

    def _read_failed(self, segment: StreamSegment, offset: i64, error: OSError) -> None:
        """Raises ReadPostponed until it is clear that a page of a file is unreadable."""
        if segment.is_unreadable or not self._faults.is_final(segment.log.name, offset, error):
            raise ReadPostponed(str(error)) from None
        segment.is_unreadable = True
        self._faults.damaged(segment.log.name, offset, f"messages of a stream cannot be read: {error}")

    def _piece(self, segment: StreamSegment, offset: i64, size: i64) -> bytes:
        file = self._open_logs.file(segment.log)
        if segment.is_unreadable:
            return LogReader(file, segment.log.number).read(offset, size)
        return file.read(offset, size)

    def _segment_of(self, offset: i64) -> i64:
        firsts = [int(segment.first_offset) for segment in self._segments]
        return max(bisect_right(firsts, offset) - 1, 0)

    def _find_patiently(self, offset: i64) -> Place:
        try:
            return self._find(offset)
        except OSError as error:
            raise ReadPostponed(str(error)) from None

    def _find(self, offset: i64) -> Place:
        segment = self._segments[self._segment_of(offset)]
        self._index(segment)
        entry = bisect_right(segment.offsets, offset) - 1
        place: i64 = segment.places[entry] if entry >= 0 else FILE_HEADER_SIZE
        return Place(segment, place, place)

    def _read_on(self, place: Place, offset: i64, max_count: i64, max_bytes: i64, records: list[StreamRecord]) -> i64:
        """Collect records from a place on, up to the end of the file. Returns the offset to continue from."""
        segment = place.segment
        file = self._open_logs.file(segment.log)
        limit = self.committed_offset
        at = place.at
        batch_end = place.batch_end
        size: i64 = min(max(max_bytes + BATCH_HEADER_SIZE + RECORD_HEAD_SIZE, 4096), READ_BYTES)
        data = self._piece(segment, at, size)
        base = at
        while len(records) < max_count and max_bytes > 0 and offset < limit:
            needed: i64 = BATCH_HEADER_SIZE if at == batch_end else RECORD_HEAD_SIZE
            if at - base + needed > len(data):
                data = self._piece(segment, at, READ_BYTES)
                base = at
                if len(data) < needed:
                    return self._after(segment, offset)
            if at == batch_end:
                size = batch_size(data, at - base)
                if size < 0:
                    reader = LogReader(file, segment.log.number)
                    reader.salvage(at)
                    batch_end = reader.end_offset
                    at = min(at + BATCH_HEADER_SIZE, batch_end)
                else:
                    at += BATCH_HEADER_SIZE
                    batch_end = at + size
                continue
            length = record_length(data, at - base, at - base + (batch_end - at))
            if length > 0 and at - base + length > len(data):
                data = self._piece(segment, at, max(length, READ_BYTES))
                base = at
            if length < 0 or not record_is_whole(data, at - base, length) or data[at - base + KIND_OFFSET] != ENTRY:
                if length < 0 or data[at - base + KIND_OFFSET] != VOID:
                    self._faults.damaged(segment.log.name, at, "a message of a stream fails its checksum")
                at = _after_bad(self._piece(segment, at, batch_end - at), at, batch_end, length)
                continue
            found = read_i64_be(data, at - base + 24)
            if found >= offset:
                message = self._reader.message(data, at - base, length)
                records.append(StreamRecord(found, read_i64_be(data, at - base + 16), message))
                max_bytes -= length
                offset = found + 1
            at += length
        if len(self._places) >= MAX_PLACES:
            self._places.clear()
        self._places[offset] = Place(segment, at, batch_end)
        return offset

    def _after(self, segment: StreamSegment, offset: i64) -> i64:
        """Where to continue when a file has ended without the record at `offset`."""
        index = self._segments.index(segment)
        if index + 1 < len(self._segments):
            return max(offset, self._segments[index + 1].first_offset)
        return self.committed_offset

    def offset_at(self, timestamp_ms: i64) -> i64:
        reason = ""
        for _ in range(TRIES_MAX):
            try:
                return self._offset_at(timestamp_ms)
            except (OSError, ReadPostponed) as error:
                # No read_again follows here, unlike for messages: retry at once, a few times.
                reason = str(error)
        raise ReadPostponed(reason)

    def _offset_at(self, timestamp_ms: i64) -> i64:
        for segment in self._segments:
            self._index(segment)
            if segment.last_timestamp_ms < timestamp_ms:
                continue
            entry = bisect_right(segment.timestamps, timestamp_ms - 1) - 1
            offset: i64 = segment.offsets[entry] if entry >= 0 else segment.first_offset
            while offset < self.committed_offset:
                for record in self.read(offset, 1000, READ_BYTES):
                    if record.timestamp_ms >= timestamp_ms:
                        return record.offset
                    offset = record.offset + 1
        # Uncommitted records cannot be read yet, but a reader must not miss them.
        is_later = self._segments[-1].last_timestamp_ms < timestamp_ms
        return self.next_offset if is_later else self.committed_offset

    # --- retention ---

    def retain(self, max_bytes: i64, max_age_ms: i64, now_ms: i64) -> None:
        while len(self._segments) > 1:
            oldest = self._segments[0]
            # Keep a file with durable records: the next start continues from its offsets.
            if self._segments[1].first_offset >= self.committed_offset:
                break
            is_too_much = max_bytes >= 0 and self.size() > max_bytes
            if not is_too_much:
                if max_age_ms < 0:
                    break
                try:
                    self._index(oldest)
                except OSError as error:
                    self._faults.operator_log.warning("a read failed", f"{oldest.log.name}: {error}. It stays for now")
                    break
                if oldest.last_timestamp_ms >= now_ms - max_age_ms:
                    break
            self._segments.pop(0)
            self.lost.pop(oldest.log.name, None)
            self._retired.append(oldest.log)
            self._become_busy()
            self.first_offset = self._segments[0].first_offset
            self._places.clear()

    def size(self) -> i64:
        total: i64 = 0
        for segment in self._segments:
            total += segment.log.size
        return total

    def extents(self) -> list[bytes]:
        """The stream's entries in the manifest. All that was appended must have been taken by a commit."""
        begun = [segment.log for segment in self._segments if segment.log.is_begun]
        entries = [
            extent_of(log, self._taken_offset if log is begun[-1] else 0) for log in begun if log.name not in self.lost
        ]
        entries.extend(extent.encoded() for extent in self.lost.values())
        return entries

    def take_retired(self) -> list[LogFile]:
        """The files that retention has dropped since the last call. A commit removes them."""
        retired = self._retired
        self._retired = []
        return retired

    def logs(self) -> list[LogFile]:
        """All files of the stream, those to be removed included."""
        return self._retired + [segment.log for segment in self._segments]

    def close(self) -> None:
        """Close the files."""
        for log in self.logs():
            log.close()


def _after_bad(data: bytes, at: i64, batch_end: i64, length: i64) -> i64:
    """Where to continue behind a bad record of that supposed length. `data`: the rest of its batch."""
    true_length = mended_length(data, 0, len(data))
    if true_length > 0:
        return at + true_length
    return batch_end if length < 0 else at + length
