"""The manifest: which files a data directory has, and how much of each is durable for certain.

It tells damage from the torn end that a crash leaves, and shows which files are missing. It is written when the store
has been idle for a moment, from time to time under load, before any file is removed, and at a clean stop; each time as
a whole, replacing the old one, after a sync of all files that it lists. In between files only grow, so it stays true.

    file header, see `log` (its number is 1 after a clean stop, else 0)
    batch header
    one MANIFEST record: the next id, then for each file
        2 bytes   length of its name
        ...       name
        8 bytes   number of the file
        8 bytes   bytes that are durable
        8 bytes   of a stream's file: the offset after the last message that was in the stream
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from waybill.storage.filesystem import Filesystem
from waybill.storage.log import (
    BATCH_HEADER_SIZE,
    FILE_HEADER_SIZE,
    MANIFEST_FILE,
    LogFile,
    batch_header,
    batch_size,
    check_file_header,
    file_header,
    knows_manifest,
    numbers_in,
)
from waybill.storage.record import (
    KIND_OFFSET,
    MANIFEST,
    MAX_NUMBER,
    RECORD_HEAD_SIZE,
    record_is_whole,
    record_length,
    small_record,
)
from waybill.storage.segment import MAX_SEGMENTS, NUMBER_DIGITS

NAME: Final = "manifest"
MAX_BYTES: Final = 256 << 20  # two million files
REPLACEMENT_NAME: Final = "manifest.new"


class Extent:
    """A manifest's entry for one file."""

    def __init__(self, name: str, number: i64, size: i64, next_offset: i64) -> None:
        self.name = name
        self.number: i64 = number
        self.size: i64 = size
        self.next_offset: i64 = next_offset

    @property
    def position(self) -> i64:
        """The position up to which the file was durable, in the form of batch headers."""
        return (self.number << 32) | self.size

    def encoded(self) -> bytes:
        """The entry as it is written."""
        name = self.name.encode()
        writer = BytesWriter()
        writer.append(len(name) >> 8)
        writer.append(len(name) & 0xFF)
        writer.write(name)
        write_i64_be(writer, self.number)
        write_i64_be(writer, self.size)
        write_i64_be(writer, self.next_offset)
        return writer.getvalue()


class Manifest:
    """The manifest as read. Empty without a file (`is_present` is False) and with a bad one (`is_bad` is True)."""

    def __init__(self) -> None:
        self.is_present = False
        self.is_bad = False
        self.is_clean = False
        self.next_id: i64 = 0
        self.extents: dict[str, Extent] = {}

    def size_of(self, name: str) -> i64:
        """How much of a file is known to be durable."""
        extent = self.extents.get(name)
        return 0 if extent is None else extent.size

    def durable_in(self, directory: str) -> i64:
        """The position up to which the successive files of a directory are durable."""
        position: i64 = 0
        for extent in self.within(directory):
            position = max(position, extent.position)
        return position

    def within(self, directory: str) -> list[Extent]:
        """The files of a directory, in order."""
        prefix = f"{directory}/"
        return [self.extents[name] for name in sorted(self.extents) if name.startswith(prefix)]


def encode_manifest(next_id: i64, extents: list[bytes], *, is_clean: bool) -> bytes:
    """The whole file."""
    writer = BytesWriter()
    write_i64_be(writer, next_id)
    writer.write(b"".join(extents))
    record = small_record(MANIFEST, writer.getvalue())
    number: i64 = 1 if is_clean else 0
    position = (number << 32) | FILE_HEADER_SIZE
    return file_header(MANIFEST_FILE, number) + batch_header(position, 0, len(record)) + record


def extent_of(log: LogFile, next_offset: i64 = 0) -> bytes:
    """An entry for all of a file. It is cached until the file grows."""
    if log.extent_size != log.size or next_offset != log.extent_offset:
        log.extent = Extent(log.name, log.number, log.size, next_offset).encoded()
        log.extent_size = log.size
        log.extent_offset = next_offset
    return log.extent


def write_manifest(filesystem: Filesystem, data: bytes) -> None:
    """Replace the old manifest by `encode_manifest`'s data, durably."""
    file = filesystem.create(REPLACEMENT_NAME)
    try:
        file.append(data)
        file.sync()
    finally:
        file.close()
    filesystem.rename(REPLACEMENT_NAME, NAME)
    filesystem.sync_directory("")


def lacks_manifest(filesystem: Filesystem) -> bool:
    """Whether there are files of a version that keeps a manifest. For a directory without one."""
    names = ["definitions.log"]
    names.extend(f"messages/{name}" for name in filesystem.list_directory("messages"))
    for stream in filesystem.list_directory("streams"):
        names.extend(f"streams/{stream}/{name}" for name in filesystem.list_directory(f"streams/{stream}"))
    top = filesystem.list_directory("")
    for name in names:
        if name.endswith(".log") and ("/" in name or name in top):
            file = filesystem.open(name)
            try:
                if knows_manifest(file.read(0, FILE_HEADER_SIZE)):
                    return True
            finally:
                file.close()
    return False


def read_manifest(filesystem: Filesystem) -> Manifest:
    """Read the manifest. Raises OSError, and UnsupportedStoreVersion."""
    manifest = Manifest()
    if NAME not in filesystem.list_directory(""):
        return manifest
    manifest.is_present = True
    file = filesystem.open(NAME)
    try:
        size = file.size()
        data = file.read(0, size) if size <= MAX_BYTES else b""
    finally:
        file.close()
    if not _read(manifest, data):
        manifest.is_bad = True
        manifest.extents.clear()
        manifest.next_id = 0
        manifest.is_clean = False
    return manifest


def _read(manifest: Manifest, data: bytes) -> bool:
    head = FILE_HEADER_SIZE + BATCH_HEADER_SIZE
    if len(data) < head + RECORD_HEAD_SIZE + 8:
        return False
    number = read_i64_be(data, 16)
    if not check_file_header(NAME, data[:FILE_HEADER_SIZE], MANIFEST_FILE, number):
        return False
    length = record_length(data, head, len(data))
    if batch_size(data, FILE_HEADER_SIZE) != length or length != len(data) - head:
        return False
    if not record_is_whole(data, head, length) or data[head + KIND_OFFSET] != MANIFEST:
        return False
    manifest.is_clean = number == 1
    at = head + RECORD_HEAD_SIZE
    manifest.next_id = read_i64_be(data, at)
    at += 8
    while at < len(data):
        name_end = at + 2 + (data[at] << 8 | data[at + 1]) if at + 2 <= len(data) else len(data)
        if name_end + 24 > len(data):
            return False
        name = data[at + 2 : name_end].decode("utf-8", "replace")
        extent = Extent(
            name, read_i64_be(data, name_end), read_i64_be(data, name_end + 8), read_i64_be(data, name_end + 16)
        )
        if not _may_be(extent):
            return False
        manifest.extents[name] = extent
        at = name_end + 24
    return 0 <= manifest.next_id <= MAX_NUMBER


def _may_be(extent: Extent) -> bool:
    """Whether it is the name of a store's file: names from a manifest are used to open and make files."""
    if not (0 <= extent.number <= MAX_SEGMENTS and extent.size >= 0 and 0 <= extent.next_offset <= MAX_NUMBER):
        return False
    directory, _, name = extent.name.rpartition("/")
    if directory == "":
        return name == "definitions.log"
    if directory == "messages":
        return numbers_in([name], NUMBER_DIGITS, MAX_SEGMENTS) != []
    parent, _, stream_id = directory.partition("/")
    is_id = stream_id.isascii() and stream_id.isdigit() and len(stream_id) < 20 and stream_id == str(int(stream_id))
    return parent == "streams" and is_id and numbers_in([name], 20, MAX_NUMBER) != []
