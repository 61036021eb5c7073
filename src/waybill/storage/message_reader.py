"""Reads messages back from the log. Most reads are sequential, so they share one window that moves along."""

from array import array
from typing import Final

from mypy_extensions import i64

from waybill.model.errors import DamagedMessage, ReadPostponed
from waybill.model.message import Message
from waybill.storage.filesystem import File
from waybill.storage.open_logs import OpenLogs
from waybill.storage.read_faults import PASSING, ReadFaults
from waybill.storage.record import (
    KIND_OFFSET,
    MAX_RECORD_BYTES,
    PUT,
    RECORD_HEAD_SIZE,
    SPILL,
    RecordReader,
    record_is_whole,
    record_length,
)
from waybill.storage.segment import Segment

NEAR_READ_BYTES: Final = 8 << 10
SEQUENTIAL_READ_BYTES: Final = 256 << 10
SEQUENTIAL_GAP_BYTES: Final = 64 << 10


class MessageReader:
    """Reads from `segments`, which the log fills. `records` turns records into messages."""

    def __init__(
        self, segments: dict[int, Segment], open_logs: OpenLogs, records: RecordReader, faults: ReadFaults
    ) -> None:
        self.segments = segments
        self._open_logs = open_logs
        self._records = records
        self._faults = faults
        self._window: bytes = b""
        self._window_base: i64 = 0

    def locate(self, location: i64) -> i64:
        """The present place of the record at a location."""
        segment = self.segments[location >> 32]
        while segment.moved is not None:
            copy = segment.moved.get(location & 0xFFFFFFFF)
            if copy is None:
                break
            location = copy
            segment = self.segments[location >> 32]
        return location

    def note_damage(self, segment: Segment, offset: i64, detail: str) -> None:
        """Report a segment with an unreadable part, and keep it."""
        segment.is_damaged = True
        self._faults.damaged(segment.log.name, offset, detail)

    def read_all(self, locations: "array[int]") -> list[Message | None]:
        messages: list[Message | None] = []
        while len(messages) < len(locations):
            # Backlogs are in order, so the next ones are nearly always in the window as well.
            self._records.whole_messages(self._window, self._window_base, locations, messages)
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
            # It is not in the window, or fails its checksum there: read it from the disk.
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
        return self._records.message(data, index, length)

    def _length_in_window(self, index: i64) -> i64:
        """Length of the record at `index` of the window; -1 if it is incomplete."""
        if index < 0 or index >= len(self._window):
            return -1
        return record_length(self._window, index, len(self._window))

    def _move_window(self, segment: Segment, location: i64) -> None:
        """Read a record and what follows it: more of that if the last reads were near."""
        gap = location - self._window_base - len(self._window)
        is_near = -SEQUENTIAL_GAP_BYTES <= gap <= SEQUENTIAL_GAP_BYTES
        offset = location & 0xFFFFFFFF
        size: i64 = SEQUENTIAL_READ_BYTES if is_near and self._window else NEAR_READ_BYTES
        try:
            data = self._read_from(self._open_logs.file(segment.log), offset, size)
        except OSError as error:
            if not self._faults.is_final(segment.log.name, offset, error):
                raise ReadPostponed(str(error)) from None
            self.note_damage(segment, offset, f"the record cannot be read: {error}")
            raise DamagedMessage(f"the record at {location >> 32}:{offset} cannot be read: {error}") from None
        self._window = data
        self._window_base = location

    def _read_from(self, file: File, offset: i64, size: i64) -> bytes:
        """Read that many bytes from an offset on, and at least a whole record."""
        try:
            data = file.read(offset, size)
        except OSError as error:
            if error.errno in PASSING:
                raise
            # Perhaps only a neighbour is unreadable.
            data = file.read(offset, RECORD_HEAD_SIZE)
            size = len(data)
        if len(data) == size:
            wanted = record_length(data, 0, MAX_RECORD_BYTES)
            if wanted > size:
                data = file.read(offset, wanted)
        return data
