"""Looking through a data directory that no broker works on, and repairing what is damaged in it.

`check` changes nothing. `repair` cannot bring anything back: it puts empty records where bad ones were, so that the
damage is not met again at each start, and leaves everything else where it is. A torn end is neither's concern: the next
start cuts it off.
"""

from dataclasses import dataclass, field

from mypy_extensions import i64

from waybill.storage.definitions import NAME as DEFINITIONS_NAME
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import (
    BATCH_HEADER_SIZE,
    DEFINITIONS,
    FILE_HEADER_SIZE,
    JOURNAL,
    STREAM,
    LogReader,
    batch_header,
    check_file_header,
    file_header,
)
from waybill.storage.record import RECORD_HEAD_SIZE, VOID, record_is_whole, record_length, small_record
from waybill.storage.report import Damage
from waybill.storage.segment import DIRECTORY as MESSAGES_DIRECTORY
from waybill.storage.stream import DIRECTORY as STREAMS_DIRECTORY
from waybill.storage.stream import NUMBER_MASK


@dataclass
class CheckReport:
    """What is in a data directory. `torn_bytes` at the ends of files were never confirmed to anybody."""

    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    torn_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True)
class _LogName:
    """A log file, with what its header has to say. Files of one `group` follow each other."""

    name: str
    purpose: int
    number: int
    group: str


def check(filesystem: Filesystem) -> CheckReport:
    """Read every file of a data directory. Raises OSError, and UnsupportedStoreVersion."""
    report = CheckReport()
    for names in _groups(filesystem):
        durable = _highest_durable(filesystem, names)
        for log in names:
            _check_log(filesystem, log, durable, report)
    return report


def repair(filesystem: Filesystem) -> CheckReport:
    """Take the damaged records out of a data directory. Returns what `check` found before.

    Raises OSError, and UnsupportedStoreVersion. A file is replaced in one step, so a crash leaves the old or the new.
    """
    report = check(filesystem)
    damaged = {damage.name for damage in report.damage}
    for names in _groups(filesystem):
        durable = _highest_durable(filesystem, names)
        for log in names:
            if log.name in damaged:
                _repair_log(filesystem, log, durable)
    return report


def _groups(filesystem: Filesystem) -> list[list[_LogName]]:
    groups: list[list[_LogName]] = []
    if DEFINITIONS_NAME in filesystem.list_directory(""):
        file = filesystem.open(DEFINITIONS_NAME)
        number = int.from_bytes(file.read(16, 8), "big", signed=True)
        file.close()
        groups.append([_LogName(DEFINITIONS_NAME, DEFINITIONS, number, "")])
    groups.append(_logs_in(filesystem, MESSAGES_DIRECTORY, JOURNAL))
    for name in filesystem.list_directory(STREAMS_DIRECTORY):
        # Only the last file of a stream can be torn, so each stands for itself.
        groups.extend([log] for log in _logs_in(filesystem, f"{STREAMS_DIRECTORY}/{name}", STREAM))
    return groups


def _logs_in(filesystem: Filesystem, directory: str, purpose: int) -> list[_LogName]:
    names = [name for name in filesystem.list_directory(directory) if name.endswith(".log") and name[:-4].isdigit()]
    return [_LogName(f"{directory}/{name}", purpose, int(name[:-4]) & NUMBER_MASK, directory) for name in names]


def _highest_durable(filesystem: Filesystem, names: list[_LogName]) -> i64:
    # Each header knows of all that was durable before it: the newest file with a good one knows most.
    for log in reversed(names):
        file = filesystem.open(log.name)
        highest = LogReader(file, log.number).highest_durable(FILE_HEADER_SIZE)
        file.close()
        if highest > 0:
            return highest
    return 0


def _check_log(filesystem: Filesystem, log: _LogName, durable: i64, report: CheckReport) -> None:
    file = filesystem.open(log.name)
    reader = LogReader(file, log.number)
    report.files += 1
    report.bytes += int(reader.size)
    if not check_file_header(log.name, file.read(0, FILE_HEADER_SIZE), log.purpose, log.number):
        if durable <= log.number << 32:
            report.torn_bytes += reader.torn_bytes(0)
            file.close()
            return
        report.damage.append(Damage(log.name, 0, "the file header is bad"))
    offset: i64 = FILE_HEADER_SIZE
    while offset < reader.size:
        is_whole = reader.load(offset)
        if not is_whole or reader.bad_count > 0:
            if durable <= (log.number << 32) | offset:
                report.torn_bytes += reader.torn_bytes(offset)
                break
            if not is_whole:
                reader.salvage(offset)
                report.damage.append(Damage(log.name, int(offset), "a batch header is bad"))
            if reader.bad_count > 0:
                detail = f"{reader.bad_count} records of a batch are bad"
                report.damage.append(Damage(log.name, int(offset), detail))
        report.batches += 1
        report.records += len(reader.records) - int(reader.bad_count)
        offset = reader.end_offset
    file.close()


def _repair_log(filesystem: Filesystem, log: _LogName, durable: i64) -> None:
    file = filesystem.open(log.name)
    reader = LogReader(file, log.number)
    replacement = filesystem.create(log.name + ".new")
    replacement.append(file_header(log.purpose, log.number))
    offset: i64 = FILE_HEADER_SIZE
    while offset < reader.size:
        is_whole = reader.load(offset)
        if (not is_whole or reader.bad_count > 0) and durable <= (log.number << 32) | offset:
            # The torn end stays as it is.
            replacement.append(file.read(offset, int(reader.size - offset)))
            break
        known_durable: i64 = reader.durable if is_whole else 0
        if not is_whole:
            reader.salvage(offset)
        size = reader.end_offset - offset - BATCH_HEADER_SIZE
        if size < RECORD_HEAD_SIZE:
            # Too little room for a header and a record: it stays as it is, and is stepped over at each start.
            replacement.append(file.read(offset, int(reader.end_offset - offset)))
            offset = reader.end_offset
            continue
        records = file.read(offset + BATCH_HEADER_SIZE, int(size))
        body = _without_bad(records)
        replacement.append(batch_header((log.number << 32) | offset, known_durable, len(body)) + body)
        offset = reader.end_offset
    replacement.sync()
    replacement.close()
    file.close()
    filesystem.rename(log.name + ".new", log.name)
    filesystem.sync_directory(log.name.rpartition("/")[0])


def _without_bad(records: bytes) -> bytes:
    """The records of a batch, with an empty one wherever one is bad: same bytes, same places otherwise."""
    pieces: list[bytes] = []
    index: i64 = 0
    end: i64 = len(records)
    while index < end:
        length = record_length(records, index, end)
        if length > 0 and record_is_whole(records, index, length):
            pieces.append(records[index : index + length])
        else:
            following = record_length(records, index + length, end) if length > 0 else -1
            if length < 0 or not (
                index + length == end or (following > 0 and record_is_whole(records, index + length, following))
            ):
                length = end - index
            if length < RECORD_HEAD_SIZE:
                pieces.append(records[index:])
                break
            pieces.append(small_record(VOID, bytes(length - RECORD_HEAD_SIZE)))
        index += length
    return b"".join(pieces)
