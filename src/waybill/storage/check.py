"""Checks a data directory that no broker uses, and repairs damage in it.

`check` changes nothing. `repair` cannot restore messages: it replaces damaged records by empty ones, so that starts no
longer report them, and leaves everything else in place. The manifest no longer lists files that are missing or cut.
Definitions with one wrong bit are corrected; worse damage is left to `rebuild`. Both ignore a torn end: the next start
cuts it off.
"""

from dataclasses import dataclass, field
from errno import ENOENT
from typing import Final

from mypy_extensions import i64

from waybill.model.errors import DefinitionsLost
from waybill.storage.definitions import NAME as DEFINITIONS_NAME
from waybill.storage.definitions import REMEDY, file_number, missing_end
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
    numbers_in,
)
from waybill.storage.manifest import NAME as MANIFEST_NAME
from waybill.storage.manifest import Extent, Manifest, encode_manifest, lacks_manifest, read_manifest, write_manifest
from waybill.storage.record import (
    MAX_NUMBER,
    RECORD_HEAD_SIZE,
    VOID,
    mended,
    mended_length,
    record_is_whole,
    record_length,
    small_record,
)
from waybill.storage.report import MISSING, Damage, cut_short
from waybill.storage.segment import DIRECTORY as MESSAGES_DIRECTORY
from waybill.storage.segment import Segment, segment_numbers
from waybill.storage.stream_segment import DIRECTORY as STREAMS_DIRECTORY
from waybill.storage.stream_segment import NUMBER_MASK, OFFSET_DIGITS, stream_ids

NO_STORE: Final = "this is not the data directory of a broker: use the directory given to the broker by --data-dir"


@dataclass
class CheckReport:
    """The contents of a data directory. `torn_bytes` at the ends of files were never confirmed."""

    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    torn_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True)
class _LogName:
    """A log file, with the contents of its header."""

    name: str
    purpose: int
    number: int


def check(filesystem: Filesystem) -> CheckReport:
    """Read every file of a data directory. Raises OSError, and UnsupportedStoreVersion."""
    report = CheckReport()
    manifest = read_manifest(filesystem)
    _check_manifest(filesystem, manifest, report)
    for names in _groups(filesystem, manifest):
        durable = _highest_durable(filesystem, names, manifest)
        for log in names:
            _check_log(filesystem, log, durable, manifest, report)
    return report


def _check_manifest(filesystem: Filesystem, manifest: Manifest, report: CheckReport) -> None:
    """Whether the manifest is undamaged, and every file that it lists exists."""
    if manifest.is_bad:
        report.damage.append(Damage(MANIFEST_NAME, 0, "the manifest is bad"))
    elif manifest.is_present:
        report.files += 1
    elif lacks_manifest(filesystem):
        report.damage.append(Damage(MANIFEST_NAME, 0, MISSING))
    for extent in manifest.extents.values():
        directory, _, name = extent.name.rpartition("/")
        if directory and name not in filesystem.list_directory(directory):
            report.damage.append(Damage(extent.name, 0, MISSING))
    is_used = any(filesystem.list_directory(name) for name in (MESSAGES_DIRECTORY, STREAMS_DIRECTORY))
    if DEFINITIONS_NAME not in filesystem.list_directory(""):
        if is_used or DEFINITIONS_NAME in manifest.extents:
            report.damage.append(Damage(DEFINITIONS_NAME, 0, MISSING))
        elif not manifest.is_present:
            raise FileNotFoundError(ENOENT, NO_STORE)


def check_versions(filesystem: Filesystem) -> None:
    """Raise UnsupportedStoreVersion if any file is of a version that cannot be read, FileNotFoundError without any."""
    manifest = read_manifest(filesystem)
    groups = _groups(filesystem, manifest)
    if not (manifest.is_present or any(groups)):
        raise FileNotFoundError(ENOENT, NO_STORE)
    for names in groups:
        for log in names:
            file = filesystem.open(log.name)
            try:
                check_file_header(log.name, file.read(0, FILE_HEADER_SIZE), log.purpose, log.number)
            finally:
                file.close()


def repair(filesystem: Filesystem) -> CheckReport:
    """Take the damaged records out of a data directory. Returns what `check` found before.

    Raises OSError, and UnsupportedStoreVersion. A file is replaced in one step, so a crash leaves the old or the new.
    """
    report = check(filesystem)
    damaged = {damage.name for damage in report.damage}
    if not damaged:
        return report
    if DEFINITIONS_NAME not in filesystem.list_directory(""):
        raise DefinitionsLost(f"{DEFINITIONS_NAME} is missing, and repair cannot restore it. {REMEDY}")
    manifest = read_manifest(filesystem)
    _keep_stream_ends(filesystem, manifest)
    entries: list[bytes] = []
    for names in _groups(filesystem, manifest):
        durable = _highest_durable(filesystem, names, manifest)
        for log in names:
            if log.name in damaged:
                _repair_log(filesystem, log, durable)
            entries.append(_entry(filesystem, log, manifest))
    # From here on, missing or cut files are no longer looked for.
    write_manifest(filesystem, encode_manifest(manifest.next_id, entries, is_clean=False))
    return report


def _keep_stream_ends(filesystem: Filesystem, manifest: Manifest) -> None:
    """Begin another file where a stream's last one is missing or cut: readers may know the lost offsets."""
    for extent in manifest.within(STREAMS_DIRECTORY):
        directory, _, name = extent.name.rpartition("/")
        names = filesystem.list_directory(directory)
        following = f"{extent.next_offset:020d}.log"
        if extent.next_offset == 0 or (names and names[-1] >= following):
            continue
        if name in names:
            file = filesystem.open(extent.name)
            size = file.size()
            file.close()
            if size >= extent.size:
                continue
        filesystem.make_directory(directory)
        filesystem.sync_directory(STREAMS_DIRECTORY)
        file = filesystem.create(f"{directory}/{following}")
        file.append(file_header(STREAM, extent.next_offset & NUMBER_MASK))
        file.sync()
        file.close()
        filesystem.sync_directory(directory)


def _entry(filesystem: Filesystem, log: _LogName, manifest: Manifest) -> bytes:
    """The manifest's entry for a file as it is now."""
    file = filesystem.open(log.name)
    size = file.size()
    file.close()
    known = manifest.extents.get(log.name)
    if known is None or known.number != log.number:
        return Extent(log.name, log.number, 0, 0).encoded()
    return Extent(log.name, log.number, min(int(known.size), size), known.next_offset).encoded()


def _groups(filesystem: Filesystem, manifest: Manifest) -> list[list[_LogName]]:
    groups: list[list[_LogName]] = []
    if DEFINITIONS_NAME in filesystem.list_directory(""):
        file = filesystem.open(DEFINITIONS_NAME)
        number = file_number(file.read(0, FILE_HEADER_SIZE), manifest.extents.get(DEFINITIONS_NAME))
        file.close()
        groups.append([_LogName(DEFINITIONS_NAME, DEFINITIONS, number)])
    groups.append([_LogName(Segment(number).log.name, JOURNAL, number) for number in segment_numbers(filesystem)])
    for stream_id in stream_ids(filesystem):
        # Only the last file of a stream can be torn, so each stream is a series of its own.
        directory = f"{STREAMS_DIRECTORY}/{stream_id}"
        for offset in numbers_in(filesystem.list_directory(directory), OFFSET_DIGITS, MAX_NUMBER):
            name = f"{directory}/{offset:0{OFFSET_DIGITS}d}.log"
            groups.append([_LogName(name, STREAM, offset & NUMBER_MASK)])
    return groups


def _highest_durable(filesystem: Filesystem, names: list[_LogName], manifest: Manifest) -> i64:
    marked: i64 = 0
    for log in names:
        extent = manifest.extents.get(log.name)
        if extent is not None and extent.number == log.number:
            marked = max(marked, extent.position)
        if log.purpose == DEFINITIONS and log.number > 1:
            # It has taken the place of another file, with all of its first batch.
            marked = max(marked, (i64(log.number) << 32) | (FILE_HEADER_SIZE + 1))
    # Each header records what was durable before it: the newest file with a good one knows most.
    for log in reversed(names):
        file = filesystem.open(log.name)
        highest = LogReader(file, log.number).highest_durable(FILE_HEADER_SIZE)
        file.close()
        if highest > 0:
            return max(highest, marked)
    return marked


def _check_size(log: _LogName, size: int, extent: Extent | None, report: CheckReport) -> None:
    if log.purpose == DEFINITIONS:
        lacking = missing_end(extent, log.number, size)
        if lacking or size < FILE_HEADER_SIZE:
            report.damage.append(Damage(log.name, size, lacking or "the file is empty"))
    elif extent is not None and size < extent.size:
        report.damage.append(Damage(log.name, size, cut_short(size, int(extent.size))))


def _check_log(filesystem: Filesystem, log: _LogName, durable: i64, manifest: Manifest, report: CheckReport) -> None:
    file = filesystem.open(log.name)
    reader = LogReader(file, log.number)
    report.files += 1
    report.bytes += int(reader.size)
    _check_size(log, int(reader.size), manifest.extents.get(log.name), report)
    if not check_file_header(log.name, reader.read(0, FILE_HEADER_SIZE), log.purpose, log.number):
        if durable <= i64(log.number) << 32 and not manifest.is_clean and not reader.is_flipped(0):
            report.torn_bytes += reader.torn_bytes(0)
            file.close()
            return
        report.damage.append(Damage(log.name, 0, "the file header is bad"))
    offset: i64 = FILE_HEADER_SIZE
    while offset < reader.size:
        is_whole = reader.load(offset)
        if not is_whole or reader.bad_count > 0:
            if durable <= (log.number << 32) | offset and not reader.is_flipped(offset):
                torn_bytes = reader.torn_bytes(offset)
                report.torn_bytes += torn_bytes
                if torn_bytes and manifest.is_clean:
                    report.damage.append(Damage(log.name, int(offset), "there is data in space that was never written"))
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
        is_unknown = durable <= (log.number << 32) | offset
        if (not is_whole or reader.bad_count > 0) and is_unknown and not reader.is_flipped(offset):
            # The torn end stays as it is.
            replacement.append(file.read(offset, int(reader.size - offset)))
            break
        known_durable: i64 = reader.durable if is_whole else 0
        if not is_whole:
            reader.salvage(offset)
        size = reader.end_offset - offset - BATCH_HEADER_SIZE
        if reader.end_offset == reader.size and size < RECORD_HEAD_SIZE:
            break
        if size < RECORD_HEAD_SIZE:
            # Too short for a header and a record: it stays as it is, and is skipped at each start.
            replacement.append(file.read(offset, int(reader.end_offset - offset)))
            offset = reader.end_offset
            continue
        records = file.read(offset + BATCH_HEADER_SIZE, int(size))
        body = _without_bad(records, is_mended=log.purpose == DEFINITIONS, is_last=reader.end_offset == reader.size)
        replacement.append(batch_header((log.number << 32) | offset, known_durable, len(body)) + body)
        offset = reader.end_offset
    replacement.sync()
    replacement.close()
    file.close()
    filesystem.rename(log.name + ".new", log.name)
    filesystem.sync_directory(log.name.rpartition("/")[0])


def _without_bad(records: bytes, *, is_mended: bool, is_last: bool) -> bytes:
    """The records of a batch, with an empty one in place of each bad one. All others keep their bytes and places.

    `is_last`: nothing follows, so a rest too short for a record is dropped. `is_mended`: a record with one wrong bit is
    corrected instead. Raises DefinitionsLost if more is wrong.
    """
    pieces: list[bytes] = []
    index: i64 = 0
    end: i64 = len(records)
    while index < end:
        length = record_length(records, index, end)
        if length > 0 and record_is_whole(records, index, length):
            pieces.append(records[index : index + length])
        else:
            following = record_length(records, index + length, end) if length > 0 else -1
            true_length = mended_length(records, index, end)
            if true_length > 0:
                length = true_length
            elif length < 0 or not (
                index + length == end or (following > 0 and record_is_whole(records, index + length, following))
            ):
                length = end - index
            if is_mended:
                record = mended(records[index : index + length])
                if record is None:
                    raise DefinitionsLost(f"{DEFINITIONS_NAME} is damaged beyond repair. {REMEDY}")
                pieces.append(record)
                index += length
                continue
            if length < RECORD_HEAD_SIZE and is_last:
                break
            if length < RECORD_HEAD_SIZE:
                pieces.append(records[index:])
                break
            pieces.append(small_record(VOID, bytes(length - RECORD_HEAD_SIZE)))
        index += length
    return b"".join(pieces)
