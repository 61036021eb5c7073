"""`waybill store`: check a data directory, and repair damage in it."""

import os
from collections.abc import Callable
from errno import EACCES, EPERM, EROFS
from pathlib import Path
from typing import Final

import click
import msgspec

from waybill.cli.byte_progress import byte_progress
from waybill.cli.echo import echo
from waybill.model.errors import DefinitionsLost, UnsupportedStoreVersion
from waybill.node.node import FORMATS
from waybill.storage.check import CheckReport, check, repair
from waybill.storage.rebuild import rebuild
from waybill.transport.disk import (
    FILE_FLAGS,
    LOCK_NAME,
    DataDirectoryInUse,
    DirectoryLock,
    DiskFile,
    DiskFilesystem,
    open_file,
)

DAMAGED: Final = 1
UNREADABLE: Final = 2
directory_argument = click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")


class CannotRead(click.ClickException):
    """The directory cannot be read, or a broker uses it."""

    exit_code = UNREADABLE


@click.group()
def command() -> None:
    """Check or repair a data directory while no broker uses it.

    Exit codes: 0 no damage (or repaired), 1 damage, 2 the directory cannot be read, is not a data directory, or is
    in use by a broker.
    """


@command.command("check")
@directory_argument
@json_option
def check_command(directory: Path, *, as_json: bool) -> None:
    """Read everything in DIRECTORY and compare the checksums.

    Changes nothing: the directory may be a read-only backup.
    """
    report = _examine(directory, check, changes=False)
    _show(report, as_json=as_json, is_repaired=False)
    if report.damage:
        raise click.exceptions.Exit(DAMAGED)


@command.command("repair")
@directory_argument
@json_option
def repair_command(directory: Path, *, as_json: bool) -> None:
    """Remove damaged records from DIRECTORY. Their content is lost; everything else stays."""
    _show(_examine(directory, repair, changes=True), as_json=as_json, is_repaired=True)


@command.command("rebuild")
@directory_argument
@click.option("--yes", is_flag=True, help="Confirm that the remaining definitions are moved aside.")
@json_option
def rebuild_command(directory: Path, *, yes: bool, as_json: bool) -> None:
    """Create new definitions for the messages in DIRECTORY.

    For a directory that has lost its own, and has no backup. Queues and streams are named `recovered.ID` in the virtual
    host `/`. There are no users: import them with `waybill definitions import`. The old definitions file, if any, is
    kept as `definitions.log.lost`.
    """
    if not yes:
        raise click.UsageError("This moves aside all remaining names, users and permissions: confirm with --yes.")
    lock = _lock(directory, changes=True)
    try:
        queues, streams = rebuild(DiskFilesystem(directory), list(FORMATS))
    except (OSError, DefinitionsLost, UnsupportedStoreVersion) as error:
        raise CannotRead(_error_text(directory, error)) from None
    finally:
        if lock is not None:
            lock.release()
    if as_json:
        echo(msgspec.json.encode({"queues": queues, "streams": streams}))
        return
    for name, count in queues.items():
        echo(f"{name}: {count:,} messages")
    for name in streams:
        echo(f"{name}: a stream")
    echo("no user is defined: import users with `waybill definitions import`")


def _error_text(directory: Path, error: Exception) -> str:
    """The file name and text of an OS error, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return f"{directory}: {error}"
    return f"{error.filename or directory}: {error.strerror}"


def _lock(directory: Path, *, changes: bool) -> DirectoryLock | None:
    """Lock out brokers. Returns None on a read-only file system if only reading: no broker can run there."""
    try:
        return DirectoryLock(directory)
    except DataDirectoryInUse as error:
        raise CannotRead(str(error)) from None
    except OSError as error:
        if changes or error.errno not in {EROFS, EACCES, EPERM} or (directory / LOCK_NAME).exists():
            raise CannotRead(_error_text(directory, error)) from None
        return None


def _examine(directory: Path, work: Callable[[DiskFilesystem], CheckReport], *, changes: bool) -> CheckReport:
    lock = _lock(directory, changes=changes)
    try:
        with byte_progress("reading", _size(directory)) as when_read:
            flags = FILE_FLAGS if changes else FILE_FLAGS & ~os.O_RDWR
            return work(WatchedFilesystem(directory, flags, when_read))
    except (OSError, DefinitionsLost, UnsupportedStoreVersion) as error:
        raise CannotRead(_error_text(directory, error)) from None
    finally:
        if lock is not None:
            lock.release()


def _size(directory: Path) -> int:
    """Bytes to read, for the progress bar."""
    logs = [path for pattern in ("*.log", "messages/*.log", "streams/*/*.log") for path in directory.glob(pattern)]
    return sum(path.lstat().st_size for path in logs)


class WatchedFilesystem(DiskFilesystem):
    """A disk that reports how much was read. Its files are opened with `flags`."""

    def __init__(self, root: Path, flags: int, when_read: Callable[[int], None]) -> None:
        super().__init__(root)
        self._directory = root
        self._flags = flags
        self._when_read = when_read

    def open(self, name: str) -> DiskFile:
        """Open a file that reports its reads."""
        return WatchedFile(open_file(self._directory / name, self._flags), self._when_read)


class WatchedFile(DiskFile):
    """See `WatchedFilesystem`."""

    __slots__ = ("_when_read",)

    def __init__(self, descriptor: int, when_read: Callable[[int], None]) -> None:
        super().__init__(descriptor)
        self._when_read = when_read

    def read(self, offset: int, size: int) -> bytes:
        data = super().read(offset, size)
        self._when_read(len(data))
        return data


def _show(report: CheckReport, *, as_json: bool, is_repaired: bool) -> None:
    if as_json:
        echo(msgspec.json.encode({**msgspec.to_builtins(report), "repaired": is_repaired and bool(report.damage)}))
        return
    echo(f"{report.files} files, {report.bytes:,} bytes, {report.batches:,} batches, {report.records:,} records")
    if report.torn_bytes:
        echo(f"{report.torn_bytes:,} bytes at the ends of files were not completely written: they were never")
        echo("confirmed, and the next start cuts them off")
    for damage in report.damage:
        echo(f"damaged: {damage.name} at {damage.offset}: {damage.detail}")
    if not report.damage:
        echo("no damage")
    elif is_repaired:
        echo(f"repaired: replaced {len(report.damage)} damaged places with empty records")
