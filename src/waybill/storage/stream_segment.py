"""One file of a stream, with its index, and the names that streams have in a data directory."""

from typing import Final

from mypy_extensions import i64

from waybill.storage.filesystem import Filesystem
from waybill.storage.log import STREAM, LogFile
from waybill.storage.record import MAX_NUMBER

DIRECTORY: Final = "streams"
NUMBER_MASK: Final = 0x7FFFFFFF
OFFSET_DIGITS: Final = 20
INDEX_BYTES: Final = 64 << 10


def stream_ids(filesystem: Filesystem) -> list[int]:
    """The streams that have a directory."""
    names = [name for name in filesystem.list_directory(DIRECTORY) if name.isascii() and name.isdigit()]
    return [
        int(name) for name in names if len(name) <= OFFSET_DIGITS and name == str(int(name)) and int(name) < MAX_NUMBER
    ]


class StreamSegment:
    """One file of a stream. `offsets`, `timestamps` and `places` are its index: the starts of some of its batches."""

    def __init__(self, stream_id: i64, first_offset: i64) -> None:
        self.first_offset: i64 = first_offset
        self.log = LogFile(
            f"{DIRECTORY}/{stream_id}", f"{first_offset:0{OFFSET_DIGITS}d}.log", STREAM, first_offset & NUMBER_MASK
        )
        self.is_indexed = True
        self.marked_size: i64 = 0
        # A page of it is unreadable, and skipped.
        self.is_unreadable = False
        self.last_timestamp_ms: i64 = -1
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.places: list[int] = []

    def add_to_index(self, offset: i64, timestamp_ms: i64, place: i64) -> None:
        """Index the batch that begins here if the last indexed one is far away."""
        if not self.places or place - self.places[-1] >= INDEX_BYTES:
            self.offsets.append(offset)
            self.timestamps.append(timestamp_ms)
            self.places.append(place)


class Place:
    """A reader's place: the byte of a file where an offset is, and the end of its batch."""

    def __init__(self, segment: StreamSegment, at: i64, batch_end: i64) -> None:
        self.segment = segment
        self.at: i64 = at
        self.batch_end: i64 = batch_end
