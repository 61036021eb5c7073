"""What is declared: virtual hosts, exchanges, queues, bindings, users. A small log, all of it in memory as well.

One record is MessagePack: [kind, key, value or nil if it is undefined, next id]. When most of the log is history, it is
replaced by a new file with what is defined now; its number in the file header is one higher.
"""

from decimal import Decimal
from typing import Final

import msgspec
from mypy_extensions import i64

from waybill.storage.commit import DiskCommit, Replacement, Write
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
from waybill.storage.record import DEFINE, KIND_OFFSET, RECORD_HEAD_SIZE, record_length, small_record
from waybill.storage.report import Damage, RecoveryReport

NAME: Final = "definitions.log"
REPLACEMENT_NAME: Final = "definitions.log.new"
HISTORY_RECORDS: Final = 1000  # so many superseded records are kept, whatever their share

DECIMAL_EXTENSION: Final = 1
TEXT_EXTENSION: Final = 2  # text with bytes in it that are not UTF-8
TABLE_EXTENSION: Final = 3  # a table with such text for a key, as a list of keys and values


def encode_definition(kind: str, key: str, value: dict[str, object] | None, next_id: i64) -> bytes:
    """A DEFINE record. TypeError if `value` holds what an AMQP field table cannot."""
    return small_record(DEFINE, msgspec.msgpack.encode([_packable(kind), _packable(key), _packable(value), next_id]))


def _packable(value: object) -> object:
    """The same with extensions for what MessagePack would refuse or not give back."""
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


class Definitions:
    """The definitions of one data directory. `next_id` is the next id to give out."""

    def __init__(self, filesystem: Filesystem) -> None:
        self.filesystem = filesystem
        self.next_id: i64 = 1
        self._values: dict[str, dict[str, dict[str, object]]] = {}
        self._pieces: list[bytes] = []
        self._record_count: i64 = 0
        self._log = LogFile("", NAME, DEFINITIONS, 1)

    def recover(self, report: RecoveryReport) -> None:
        """Read the log, cut off a torn end, and sync it."""
        names = self.filesystem.list_directory("")
        if REPLACEMENT_NAME in names:
            self.filesystem.remove(REPLACEMENT_NAME)
        if NAME not in names:
            return
        file = self.filesystem.open(NAME)
        head = file.read(0, FILE_HEADER_SIZE)
        number = int.from_bytes(head[16:24], "big", signed=True) if len(head) >= 24 else 1
        reader = LogReader(file, number)
        is_header_good = check_file_header(NAME, head, DEFINITIONS, number)
        if not is_header_good:
            if reader.size <= FILE_HEADER_SIZE or reader.find_batch(FILE_HEADER_SIZE) == reader.size:
                report.torn_bytes += int(reader.size)
                file.close()
                return
            report.damage.append(Damage(NAME, 0, "the file header is bad"))
        end = self._scan(reader, report)
        if end < reader.size:
            report.torn_bytes += int(reader.size - end)
            file.truncate(end)
        file.sync()
        self.filesystem.sync_directory("")
        self._log = LogFile("", NAME, DEFINITIONS, number)
        self._log.file = file
        self._log.is_begun = True
        self._log.size = end
        self._log.durable_size = end

    def _scan(self, reader: LogReader, report: RecoveryReport) -> i64:
        offset: i64 = FILE_HEADER_SIZE
        known_durable: i64 = -1
        while offset < reader.size:
            is_whole = reader.load(offset)
            if not is_whole or reader.bad_count > 0:
                if known_durable < 0:
                    known_durable = LogReader(reader.file, reader.number).highest_durable(offset)
                if known_durable <= (reader.number << 32) | offset:
                    return offset
                if not is_whole:
                    reader.salvage(offset)
                report.damage.append(Damage(NAME, int(offset), "definitions are bad and missing"))
            for index in reader.records:
                if index >= 0 and reader.data[index + KIND_OFFSET] == DEFINE:
                    self._apply(reader.data, index)
            offset = reader.end_offset
        return offset

    def _apply(self, data: bytes, index: i64) -> None:
        record = data[index + RECORD_HEAD_SIZE : index + record_length(data, index, len(data))]
        kind, key, value, next_id = msgspec.msgpack.decode(record, ext_hook=_unpack_extension)
        self._set(kind, key, value)
        self.next_id = max(self.next_id, next_id)

    def _set(self, kind: str, key: str, value: dict[str, object] | None) -> None:
        self._record_count += 1
        if value is None:
            self._values.get(kind, {}).pop(key, None)
        else:
            self._values.setdefault(kind, {})[key] = value

    def define(self, kind: str, key: str, value: dict[str, object] | None) -> None:
        """Set, replace or (None) remove a definition, in memory now and on disk with the next commit."""
        self._pieces.append(encode_definition(kind, key, value, self.next_id))
        self._set(kind, key, value)

    def items(self, kind: str) -> list[tuple[str, dict[str, object]]]:
        """Keys and values of a kind, in the order in which the keys were first defined."""
        return list(self._values.get(kind, {}).items())

    @property
    def has_pending(self) -> bool:
        """Whether the next commit has something to write."""
        return bool(self._pieces)

    def take_batch(self, commit: DiskCommit) -> LogFile | None:
        """Hand what is pending to a commit. Returns the log if it has to be synced in time."""
        if not self._pieces:
            return None
        pieces = self._pieces
        self._pieces = []
        live = sum(len(values) for values in self._values.values())
        log = self._log
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
        log = self._log
        log.number += 1
        records = [
            encode_definition(kind, key, value, self.next_id)
            for kind, values in self._values.items()
            for key, value in values.items()
        ]
        body = b"".join(records)
        self._record_count = len(records)
        header = batch_header((log.number << 32) | FILE_HEADER_SIZE, 0, len(body))
        log.size = FILE_HEADER_SIZE + BATCH_HEADER_SIZE + len(body)
        log.durable_size = 0
        commit.replacements.append(Replacement(log, file_header(DEFINITIONS, log.number) + header + body))

    def close(self) -> None:
        self._log.close()
