"""Definitions: virtual hosts, exchanges, queues, bindings, users. A small log, all of it in memory as well.

A record is MessagePack: [kind, key, value or nil if it is undefined, next id]. When most of the log is history, a new
file with the present definitions replaces it; the number in its file header is one higher.

The file is made before any other, and an unreadable record is never skipped: it may revoke a user's rights, or define a
queue of a million messages. A single wrong bit in a record is found by trying all of them.
"""

from decimal import Decimal
from typing import Final

import msgspec
from mypy_extensions import i64

from waybill.model.errors import DefinitionsLost
from waybill.storage.commit import DiskCommit, FileReplacement, Write, replace_file
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import (
    BATCH_HEADER_SIZE,
    DEFINITIONS,
    FILE_HEADER_SIZE,
    LogFile,
    LogReader,
    batch_header,
    check_file_header,
    file_header,
)
from waybill.storage.manifest import Extent
from waybill.storage.record import (
    DEFINE,
    KIND_OFFSET,
    MAX_NUMBER,
    RECORD_HEAD_SIZE,
    mended,
    record_length,
    small_record,
)
from waybill.storage.report import RecoveryReport, cut_short

NAME: Final = "definitions.log"
REPLACEMENT_NAME: Final = "definitions.log.new"
HISTORY_RECORDS: Final = 1000  # up to so many superseded records are kept, whatever their share
# The ids that were deleted last: their messages may still exist, and are to be removed.
DELETED: Final = "deleted"
DELETED_IDS: Final = 4096
MAX_REPLACEMENTS: Final = 0x7FFFFFFF
ID_FIELDS: Final = ("id", "delay_id", "records")
REMEDY: Final = (
    "Put the file back from a backup and run `waybill store repair` on the directory; or let `waybill store rebuild "
    "--yes` make definitions for the messages that are there, without any user."
)

DECIMAL_EXTENSION: Final = 1
TEXT_EXTENSION: Final = 2  # text that contains bytes that are not UTF-8
TABLE_EXTENSION: Final = 3  # a table with such text for a key, as a list of keys and values


def encode_definition(kind: str, key: str, value: dict[str, object] | None, next_id: i64) -> bytes:
    """A DEFINE record. TypeError if `value` holds what an AMQP field table cannot."""
    return small_record(DEFINE, msgspec.msgpack.encode([_packable(kind), _packable(key), _packable(value), next_id]))


def _packable(value: object) -> object:
    """The value with extensions for what MessagePack refuses or would not restore."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return msgspec.msgpack.Ext(TEXT_EXTENSION, value.encode("utf-8", "surrogateescape"))
        return value
    if isinstance(value, Decimal):
        return msgspec.msgpack.Ext(DECIMAL_EXTENSION, str(value).encode())
    if isinstance(value, dict):
        pairs = [(_packable(key), _packable(item)) for key, item in value.items()]
        if any(isinstance(key, msgspec.msgpack.Ext) for key, _ in pairs):
            return msgspec.msgpack.Ext(TABLE_EXTENSION, msgspec.msgpack.encode(pairs))
        return dict(pairs)
    if isinstance(value, (list, tuple)):
        return [_packable(item) for item in value]
    return value


def _unpack_extension(code: int, data: memoryview) -> object:
    if code == DECIMAL_EXTENSION:
        return Decimal(bytes(data).decode())
    if code == TEXT_EXTENSION:
        return bytes(data).decode("utf-8", "surrogateescape")
    if code == TABLE_EXTENSION:
        return dict(msgspec.msgpack.decode(bytes(data), ext_hook=_unpack_extension))
    raise ValueError(f"unknown extension {code} in a definition")


def _decoded(record: bytes) -> tuple[str, str, dict[str, object] | None, int]:
    """Kind, key, value and next id. Raises what the decoder raises, and ValueError."""
    fields = msgspec.msgpack.decode(record, ext_hook=_unpack_extension)
    if not isinstance(fields, list) or len(fields) != 4:
        raise ValueError("it is not a list of four")
    kind, key, value, next_id = fields
    if not isinstance(kind, str) or not isinstance(key, str) or not (value is None or isinstance(value, dict)):
        raise ValueError("its kind, key and value have wrong types")
    if not isinstance(next_id, int) or not 0 <= next_id <= MAX_NUMBER:
        raise ValueError("its next id is out of range")
    return kind, key, value, next_id


def file_number(head: bytes, extent: Extent | None) -> int:
    """The number of the file with this header, which may be bad."""
    number = int.from_bytes(head[16:24], "big", signed=True) if len(head) >= 24 else 1
    if extent is not None and not check_file_header(NAME, head, DEFINITIONS, number):
        return int(extent.number)
    # No other number leaves room for offsets in a position: such a header is bad.
    return number if 1 <= number <= MAX_REPLACEMENTS else 1


def missing_end(extent: Extent | None, number: i64, size: i64) -> str:
    """An error text if a file of that number and size is less than the manifest lists; else empty."""
    if extent is None or number > extent.number:
        return ""
    if number < extent.number:
        return f"{NAME} is older than the one that the manifest lists"
    return f"{NAME}: {cut_short(int(size), int(extent.size))}" if size < extent.size else ""


class Definitions:
    """The definitions of one data directory. `next_id` is the next id to give out."""

    def __init__(self, filesystem: Filesystem) -> None:
        self.filesystem = filesystem
        self.next_id: i64 = 1
        self._values: dict[str, dict[str, dict[str, object]]] = {}
        self._pieces: list[bytes] = []
        self.pending_bytes: i64 = 0
        self._record_count: i64 = 0
        self.log = LogFile("", NAME, DEFINITIONS, 1)
        # Ids of the queues, streams and the like that were deleted last.
        self.deleted_ids: dict[int, None] = {}

    def recover(self, report: RecoveryReport, extent: Extent | None, *, is_used: bool) -> None:
        """Read the log, cut off a torn end, and sync it. Create it in a new data directory.

        `extent`: what the manifest knows of it; `is_used`: there are messages or streams. Raises DefinitionsLost.
        """
        filesystem = self.filesystem
        names = filesystem.list_directory("")
        if REPLACEMENT_NAME in names:
            filesystem.remove(REPLACEMENT_NAME)
        if NAME not in names:
            if extent is not None or is_used:
                raise DefinitionsLost(f"{NAME} is missing: it defines all queues, exchanges and users. {REMEDY}")
            self.begin()
            return
        file = filesystem.open(NAME)
        self.log.file = file
        head = file.read(0, FILE_HEADER_SIZE)
        number = file_number(head, extent)
        self.log.number = number
        reader = LogReader(file, number)
        if not check_file_header(NAME, head, DEFINITIONS, number):
            if reader.size <= FILE_HEADER_SIZE or reader.find_batch(FILE_HEADER_SIZE) == reader.size:
                if extent is not None or is_used:
                    raise DefinitionsLost(f"{NAME} is empty: it defined all queues, exchanges and users. {REMEDY}")
                report.torn_bytes += int(reader.size)
                self.begin()
                return
            report.damaged(NAME, 0, "the file header is bad")
        lacking = missing_end(extent, number, reader.size)
        if lacking:
            raise DefinitionsLost(f"{lacking}: the last definitions are lost. {REMEDY}")
        end = self._scan(reader, report, 0 if extent is None else extent.position)
        if reader.unreadable is not None:
            raise reader.unreadable
        if end > FILE_HEADER_SIZE and self._record_count == 0:
            raise DefinitionsLost(f"{NAME} contains records, but no definitions: it is another file. {REMEDY}")
        if end < reader.size:
            report.torn_bytes += int(reader.size - end)
            file.truncate(end)
        file.sync()
        self.filesystem.sync_directory("")
        self.log.is_begun = True
        self.log.size = end
        self.log.durable_size = end

    def begin(self) -> None:
        """Begin the log of a new data directory, before any file that depends on it."""
        log = self.log
        replace_file(self.filesystem, FileReplacement(log, file_header(DEFINITIONS, log.number)))
        log.is_begun = True
        log.durable_size = log.size

    def _scan(self, reader: LogReader, report: RecoveryReport, marked_durable: i64) -> i64:
        offset: i64 = FILE_HEADER_SIZE
        known_durable: i64 = -1
        while offset < reader.size:
            is_whole = reader.load(offset)
            if not is_whole or reader.bad_count > 0:
                if known_durable < 0:
                    known_durable = LogReader(reader.file, reader.number).highest_durable(offset)
                    known_durable = max(known_durable, marked_durable)
                    if reader.number > 1:
                        # It has taken the place of another file, with all of its first batch.
                        known_durable = max(known_durable, (reader.number << 32) | (FILE_HEADER_SIZE + 1))
                if known_durable <= (reader.number << 32) | offset and not reader.is_flipped(offset):
                    return offset
                if not is_whole:
                    reader.salvage(offset)
                    report.damaged(NAME, int(offset), "a batch header is bad")
            bad = 0
            for index in reader.records:
                if index >= 0:
                    self._apply(reader.data, index)
                    continue
                start, stop = reader.bad[bad]
                bad += 1
                record = mended(reader.data[start:stop])
                if record is None:
                    raise DefinitionsLost(f"{NAME} is damaged at {reader.base + start}. {REMEDY}")
                self._apply(record, 0)
                report.damaged(NAME, int(reader.base + start), "a definition has one wrong bit; it is read as written")
            offset = reader.end_offset
        return offset

    def _apply(self, data: bytes, index: i64) -> None:
        if data[index + KIND_OFFSET] != DEFINE:
            return
        record = data[index + RECORD_HEAD_SIZE : index + record_length(data, index, len(data))]
        try:
            kind, key, value, next_id = _decoded(record)
            if kind == DELETED:
                self._note_all_deleted(value)
            else:
                self._set(kind, key, value)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise DefinitionsLost(f"{NAME} has an invalid definition: {error}. {REMEDY}") from error
        self.next_id = max(self.next_id, next_id)

    def _note_all_deleted(self, value: dict[str, object] | None) -> None:
        numbers = value["ids"] if value is not None else None
        if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
            raise ValueError("deleted ids must be a list of integers")
        for number in numbers:
            self._note_deleted(number)

    def _set(self, kind: str, key: str, value: dict[str, object] | None) -> None:
        self._record_count += 1
        if value is None:
            old = self._values.get(kind, {}).pop(key, None)
            if old is not None:
                for name in ID_FIELDS:
                    number = old.get(name)
                    if isinstance(number, int) and number > 0:
                        self._note_deleted(number)
        else:
            self._values.setdefault(kind, {})[key] = value

    def _note_deleted(self, number: int) -> None:
        self.deleted_ids[number] = None
        if len(self.deleted_ids) > DELETED_IDS:
            del self.deleted_ids[next(iter(self.deleted_ids))]

    def define(self, kind: str, key: str, value: dict[str, object] | None) -> None:
        """Set, replace or (None) remove a definition, in memory now and on disk with the next commit."""
        record = encode_definition(kind, key, value, self.next_id)
        self._pieces.append(record)
        self.pending_bytes += len(record)
        self._set(kind, key, value)

    def items(self, kind: str) -> list[tuple[str, dict[str, object]]]:
        """Keys and values of a kind, in the order in which the keys were first defined."""
        return list(self._values.get(kind, {}).items())

    @property
    def has_pending(self) -> bool:
        """Whether the next commit has something to write."""
        return bool(self._pieces)

    def take_batch(self, commit: DiskCommit) -> LogFile | None:
        """Hand what is pending to a commit. Returns the log if it must be synced."""
        if not self._pieces:
            return None
        pieces = self._pieces
        self._pieces = []
        self.pending_bytes = 0
        live = sum(len(values) for values in self._values.values())
        log = self.log
        if log.is_begun and self._record_count > 2 * live + HISTORY_RECORDS:
            self._replace(commit)
            return None
        size: i64 = sum(len(piece) for piece in pieces)
        start = log.size
        durable = (log.number << 32) | log.durable_size if log.durable_size else 0
        pieces.insert(0, batch_header((log.number << 32) | start, durable, size))
        log.size = start + BATCH_HEADER_SIZE + size
        commit.writes.append(Write(log, pieces, BATCH_HEADER_SIZE + size))
        return log

    def _replace(self, commit: DiskCommit) -> None:
        log = self.log
        log.number += 1
        records = [
            encode_definition(kind, key, value, self.next_id)
            for kind, values in self._values.items()
            for key, value in values.items()
        ]
        if self.deleted_ids:
            records.append(encode_definition(DELETED, DELETED, {"ids": list(self.deleted_ids)}, self.next_id))
        body = b"".join(records)
        self._record_count = len(records)
        header = batch_header((log.number << 32) | FILE_HEADER_SIZE, 0, len(body))
        log.size = FILE_HEADER_SIZE + BATCH_HEADER_SIZE + len(body)
        log.durable_size = 0
        commit.replacements.append(FileReplacement(log, file_header(DEFINITIONS, log.number) + header + body))

    def close(self) -> None:
        self.log.close()
