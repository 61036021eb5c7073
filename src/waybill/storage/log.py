"""One log file: a header, then batches of records. Journal segments, streams and definitions all are such files.

File header, 32 bytes:

    0   8  magic "WAYBILL" and a zero byte
    8   4  major version, then minor version, 2 bytes each
    12  4  what the log is for
    16  8  number of the file
    24  8  xxh3-64 of the bytes before

Batch header, 40 bytes, then the records. One batch is one write:

    0   8  magic
    8   8  position: where this header is (number of the file << 32 | offset)
    16  8  durable: up to this position everything was known to be durable when the header was made
    24  8  bytes of records
    32  8  xxh3-64 of the bytes before

`durable` lets recovery tell two kinds of bad bytes apart. Beyond the highest `durable` that it finds, they are the torn
end that a crash leaves: never confirmed, and cut off. Before it, the disk has lost data that it had synced: damage,
which is reported and skipped.

A minor version may add kinds of records that an older reader can skip. Files of a newer major version are refused.
"""

from errno import EAGAIN, EINTR, EIO, ENOMEM
from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64
from xxhash import xxh3_64_digest

from waybill.model.errors import UnsupportedStoreVersion
from waybill.storage.filesystem import File, Filesystem
from waybill.storage.record import (
    MAX_RECORD_BYTES,
    RECORD_HEAD_SIZE,
    is_flipped,
    lacks_end,
    mended_length,
    record_fits,
    record_is_whole,
    record_length,
)

FILE_MAGIC: Final = b"WAYBILL\0"
BATCH_MAGIC: Final = b"\xf7WBatch\n"
VERSION_MAJOR: Final = 1
VERSION_MINOR: Final = 1  # 0 had no manifest
FILE_HEADER_SIZE: Final = 32
BATCH_HEADER_SIZE: Final = 40

JOURNAL: Final = 1
DEFINITIONS: Final = 2
STREAM: Final = 3
MANIFEST_FILE: Final = 4

WINDOW_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096
# Errors that may concern one page only. After any other error, reading another page is pointless.
PAGE_ERRORS: Final = (EIO, EINTR, EAGAIN, ENOMEM)


def file_header(purpose: i64, number: i64) -> bytes:
    """The first bytes of a log file."""
    writer = BytesWriter()
    writer.write(FILE_MAGIC)
    write_i32_be(writer, (VERSION_MAJOR << 16) | VERSION_MINOR)
    write_i32_be(writer, i32(purpose))
    write_i64_be(writer, number)
    head = writer.getvalue()
    return head + xxh3_64_digest(head)


def batch_header(position: i64, durable: i64, size: i64) -> bytes:
    """The header of a batch with `size` bytes of records."""
    writer = BytesWriter()
    writer.write(BATCH_MAGIC)
    write_i64_be(writer, position)
    write_i64_be(writer, durable)
    write_i64_be(writer, size)
    head = writer.getvalue()
    return head + xxh3_64_digest(head)


def batch_size(data: bytes, index: i64) -> i64:
    """Bytes of records behind the batch header at `index`, or -1 if it is not a good one."""
    if (
        data[index : index + 8] != BATCH_MAGIC
        or xxh3_64_digest(data[index : index + 32]) != data[index + 32 : index + 40]
    ):
        return -1
    return read_i64_be(data, index + 24)


class LogFile:
    """A log file as its writer knows it. The first commit that writes to it creates it.

    `size`: bytes in the file once all commits begun so far are written. `durable_size`: how much of it is known to be
    durable. `reserved_size`: up to where zeros are reserved on disk.
    """

    def __init__(self, directory: str, name: str, purpose: i64, number: i64) -> None:
        self.directory = directory
        self.name = f"{directory}/{name}" if directory else name
        self.purpose: i64 = purpose
        self.number: i64 = number
        self.file: File | None = None
        self.is_begun = False
        self.is_dirty = False
        self.is_sealed = False  # closed and opened again by `OpenLogs`
        self.size: i64 = FILE_HEADER_SIZE
        self.durable_size: i64 = 0
        self.reserved_size: i64 = 0
        # Its entry in the manifest, for a size and, if it is a stream's, the next offset.
        self.extent = b""
        self.extent_size: i64 = -1
        self.extent_offset: i64 = -1

    def append(self, filesystem: Filesystem, pieces: list[bytes]) -> None:
        """Write a batch, after the header if it is the first."""
        if self.file is None:
            self.file = filesystem.create(self.name)
            self.file.append(file_header(self.purpose, self.number), *pieces)
        else:
            self.file.append(*pieces)

    def opened(self) -> File:
        """The open file."""
        if self.file is None:
            msg = f"{self.name} is not open"
            raise RuntimeError(msg)
        return self.file

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def check_file_header(name: str, data: bytes, purpose: i64, number: i64) -> bool:
    """Whether a log file's header is intact. Raises UnsupportedStoreVersion for a newer major version."""
    if len(data) < FILE_HEADER_SIZE or data[:8] != FILE_MAGIC or xxh3_64_digest(data[:24]) != data[24:32]:
        return False
    major = read_i32_be(data, 8) >> 16
    if major > VERSION_MAJOR:
        raise UnsupportedStoreVersion(
            f"{name} has format version {major}, and this version of waybill reads {VERSION_MAJOR} and older: "
            "use the version that wrote it, or a newer one"
        )
    return i64(read_i32_be(data, 12)) == purpose and read_i64_be(data, 16) == number


def flipped_header(data: bytes, digest_at: i64) -> bytes | None:
    """A header with its one wrong bit corrected: its bytes up to a digest, and the digest. None if more is wrong."""
    octets = bytearray(data[: digest_at + 8])
    if len(octets) < digest_at + 8:
        return None
    for index in range(len(octets)):
        for bit in range(8):
            octets[index] ^= 1 << bit
            tried = bytes(octets)
            if xxh3_64_digest(tried[:digest_at]) == tried[digest_at:]:
                return None if lacks_end(data, tried) else tried
            octets[index] ^= 1 << bit
    return None


def numbers_in(names: list[str], width: int, limit: int) -> list[int]:
    """The numbers of the log files among the names of a directory, in order. Other files are ignored."""
    found: list[int] = []
    for name in names:
        stem = name[:-4]
        if name.endswith(".log") and stem.isascii() and stem.isdigit() and len(stem) <= 20:
            number = int(stem)
            if name == f"{number:0{width}d}.log" and number < limit:
                found.append(number)
    return sorted(found)


def knows_manifest(data: bytes) -> bool:
    """Whether a file with this header was made by a version that keeps a manifest."""
    return (
        len(data) >= FILE_HEADER_SIZE
        and xxh3_64_digest(data[:24]) == data[24:32]
        and read_i32_be(data, 8) & 0xFFFF >= 1
    )


class LogReader:
    """Reads a log file batch by batch. Indexes are into `data`, a window of the file that begins at `base`.

    After `load(offset)` has returned True: `records` has the index of each record's first byte, or -1 for a bad one;
    `bad_count` is their number, `bad` their ranges; `end_offset` is where the next batch should be.

    Pages that the disk cannot read count as zeros, which match no checksum; `unreadable` is the last such error.
    """

    def __init__(self, file: File, number: i64) -> None:
        self.file = file
        self.number: i64 = number
        self.size: i64 = file.size()
        self.data: bytes = b""
        self.base: i64 = 0
        self.records: list[int] = []
        self.bad_count: i64 = 0
        self.bad: list[tuple[int, int]] = []
        self.durable: i64 = 0
        self.end_offset: i64 = 0
        self.unreadable: OSError | None = None

    def read(self, offset: i64, size: i64) -> bytes:
        """Like `File.read`, with zeros for pages that the disk cannot read."""
        try:
            return self.file.read(offset, size)
        except OSError as error:
            self.unreadable = error
        end = min(offset + size, self.size)
        pieces: list[bytes] = []
        while offset < end:
            count = min(PAGE_BYTES - offset % PAGE_BYTES, end - offset)
            try:
                pieces.append(self.file.read(offset, count))
            except OSError as error:
                if error.errno not in PAGE_ERRORS:
                    raise
                pieces.append(bytes(count))
            offset += count
        return b"".join(pieces)

    def _require(self, offset: i64, size: i64) -> bool:
        """Load `size` bytes from `offset` into the window. False if the file ends before."""
        if offset + size > self.size:
            return False
        if offset < self.base or offset + size > self.base + len(self.data):
            wanted: i64 = max(size, WINDOW_BYTES)
            self.data = self.read(offset, wanted)
            self.base = offset
        return size <= len(self.data)

    def torn_bytes(self, offset: i64) -> int:
        """How much was written from `offset` on, where the log ends: space that is only reserved has zeros."""
        while self.size > offset:
            start = max(offset, self.size - WINDOW_BYTES)
            written = len(self.read(start, self.size - start).rstrip(b"\0"))
            if written > 0:
                return int(start - offset) + written
            self.size = start
        return 0

    def load_header(self, offset: i64) -> bool:
        """Read the batch header at `offset`. False if there is no whole batch."""
        if not self._require(offset, BATCH_HEADER_SIZE):
            return False
        data = self.data
        start = offset - self.base
        size = batch_size(data, start)
        if size < 0 or read_i64_be(data, start + 8) != (self.number << 32) | offset:
            return False
        self.durable = read_i64_be(data, start + 16)
        if size > self.size - offset - BATCH_HEADER_SIZE:
            return False
        self.end_offset = offset + BATCH_HEADER_SIZE + size
        return True

    def load(self, offset: i64) -> bool:
        """Read the batch at `offset` and check its records. False if there is no whole header."""
        if not self.load_header(offset):
            return False
        self._require(offset, self.end_offset - offset)
        self._check_records(offset + BATCH_HEADER_SIZE - self.base, self.end_offset - self.base)
        return True

    def salvage(self, offset: i64) -> None:
        """After `load` has failed: the whole records behind the header that should have been at `offset`.

        `end_offset` is then the next place with a good batch header, or the end of the file.
        """
        first = offset + BATCH_HEADER_SIZE
        size = self._flipped_size(offset)
        if size >= 0:
            self.end_offset = first + size
        else:
            # A header within a whole record is part of a message.
            self.end_offset = self.find_batch(self._end_of_whole_records(first, offset + 1))
        self.records = []
        self.bad_count = 0
        self.bad = []
        if first < self.end_offset and self._require(first, self.end_offset - first):
            self._check_records(first - self.base, self.end_offset - self.base)

    def is_flipped(self, offset: i64) -> bool:
        """Whether one wrong bit is all that `load` found wrong at an offset. 0: the file header.

        Then the whole batch was on disk, and the disk has changed it since: it is damage, not a torn end.
        """
        if offset == 0:
            return flipped_header(self.read(0, FILE_HEADER_SIZE), FILE_HEADER_SIZE - 8) is not None
        if not self.load(offset):
            return self._flipped_size(offset) >= 0
        if self.bad_count != 1:
            return False
        start, stop = self.bad[0]
        return is_flipped(self.data[start:stop], is_last=stop >= self.end_offset - self.base)

    def _flipped_size(self, offset: i64) -> i64:
        """Bytes of records behind a batch header that has one wrong bit, or -1."""
        header = flipped_header(self.read(offset, BATCH_HEADER_SIZE), BATCH_HEADER_SIZE - 8)
        if header is None or read_i64_be(header, 8) != (self.number << 32) | offset:
            return -1
        size = batch_size(header, 0)
        return size if size <= self.size - offset - BATCH_HEADER_SIZE else -1

    def _end_of_whole_records(self, offset: i64, otherwise: i64) -> i64:
        """Where the whole records that begin at an offset end; `otherwise` if there are none."""
        while self._require(offset, RECORD_HEAD_SIZE):
            length = record_length(self.data, offset - self.base, offset - self.base + MAX_RECORD_BYTES)
            if length < 0 or not self._require(offset, length):
                break
            if not record_is_whole(self.data, offset - self.base, length):
                break
            offset += length
            otherwise = offset
        return otherwise

    def find_batch(self, offset: i64) -> i64:
        """The first good batch header at or after `offset`; the file's size if there is none."""
        while offset < self.size:
            window = self.read(offset, WINDOW_BYTES)
            found = window.find(BATCH_MAGIC)
            while found >= 0:
                if self.load_header(offset + found):
                    return offset + found
                found = window.find(BATCH_MAGIC, found + 1)
            # The magic may cross the border of two windows.
            offset += max(len(window) - 7, 1)
        return self.size

    def highest_durable(self, offset: i64) -> i64:
        """The highest `durable` of all good batch headers at or after `offset`; 0 if there is none."""
        highest: i64 = 0
        offset = self.find_batch(offset)
        while offset < self.size:
            highest = max(highest, self.durable)
            following = self.end_offset
            offset = following if self.load_header(following) else self.find_batch(following)
        return highest

    def _check_records(self, index: i64, end: i64) -> None:
        records: list[int] = []
        self.bad_count = 0
        self.bad = []
        data = self.data
        while index < end:
            length = record_length(data, index, end)
            if length > 0 and record_is_whole(data, index, length) and record_fits(data, index, length):
                records.append(index)
            else:
                records.append(-1)
                self.bad_count += 1
                true_length = mended_length(data, index, end)
                if true_length > 0:
                    length = true_length
                elif length < 0 or not self._continues(index + length, end):
                    # Its length cannot be trusted either, so the rest of the batch is lost.
                    self.bad.append((index, end))
                    break
                self.bad.append((index, index + length))
            index += length
        self.records = records

    def _continues(self, index: i64, end: i64) -> bool:
        if index == end:
            return True
        length = record_length(self.data, index, end)
        return length > 0 and record_is_whole(self.data, index, length)
