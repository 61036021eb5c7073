"""The real disk: a data directory for the store, the thread that syncs it, and the lock that protects it.

`DiskFilesystem` and `DiskFile` implement `waybill.storage.filesystem` without importing it.
"""

import asyncio
import contextlib
import fcntl
import os
import queue
import stat
import sys
import threading
from collections.abc import Callable
from errno import EINVAL, ELOOP
from pathlib import Path
from typing import Final, TypeAlias

from mypy_extensions import mypyc_attr

Job: TypeAlias = Callable[[], None]
Done: TypeAlias = Callable[[BaseException | None], None]

LOCK_NAME: Final = "lock"
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
HURRIED_SWITCH_INTERVAL_S: Final = 0.0001
PIECES_AT_ONCE: Final = os.sysconf("SC_IOV_MAX")
# Through a symbolic link, a store that runs as root could be made to write to any file.
FILE_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@mypyc_attr(native_class=False)
class DataDirectoryInUse(OSError):
    """Another process uses the data directory."""


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a regular file. Raises OSError, also for a link or a pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno != ELOOP:
            raise
        raise OSError(ELOOP, "it is a symbolic link, which the store does not follow", str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISDIR(mode):
        os.close(descriptor)
        raise OSError(EINVAL, "it is not a regular file", str(path))
    return descriptor


@mypyc_attr(allow_interpreted_subclasses=True)
class DiskFile:
    """An open file. `read` may run on one thread while `append` runs on another."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = os.fstat(descriptor).st_size
        self._reserved_end = 0

    def append(self, *pieces: bytes) -> None:
        """Append all of the pieces, in order."""
        end = self._end
        if len(pieces) == 1:
            size = len(pieces[0])
            if os.pwrite(self._descriptor, pieces[0], end) == size:
                self._end = end + size
                return
        for first in range(0, len(pieces), PIECES_AT_ONCE):
            some = pieces[first : first + PIECES_AT_ONCE]
            size = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, end)
            # The kernel writes at most 2 GiB at once, and less when the disk is nearly full.
            if written < size:
                with memoryview(b"".join(some)) as rest:
                    while written < size:
                        written += os.pwrite(self._descriptor, rest[written:], end + written)
            end += size
        self._end = end

    def reserve(self, size: int) -> None:
        """Write `size` zeros behind the end, as far as there is room, for appends to overwrite. `close` cuts them."""
        self._reserved_end = self._end + size
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, bytes(size), self._end)

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`: fewer at the end of the file, and only there."""
        # Reserved space is not read: a reader that caches it would miss later appends.
        size = min(size, self._end - offset)
        if size <= 0:
            return b""
        data = os.pread(self._descriptor, size, offset)
        while data and len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def sync(self) -> None:
        """Make everything appended so far durable."""
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file. Durable after the next sync."""
        os.ftruncate(self._descriptor, size)
        self._end = size

    def size(self) -> int:
        """Bytes in the file, up to its end."""
        return self._end

    def close(self) -> None:
        """Give the descriptor back."""
        if self._reserved_end > self._end:
            os.ftruncate(self._descriptor, self._end)
        os.close(self._descriptor)


@mypyc_attr(allow_interpreted_subclasses=True)
class DiskFilesystem:
    """A data directory. Names are relative to it; every method raises OSError."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str) -> DiskFile:
        """Open a new, empty file; an older one of that name is emptied."""
        return DiskFile(open_file(self._root / name, FILE_FLAGS | os.O_CREAT | os.O_TRUNC))

    def open(self, name: str) -> DiskFile:
        """Open a file that exists."""
        return DiskFile(open_file(self._root / name, FILE_FLAGS))

    def list_directory(self, name: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""
        try:
            return sorted(os.listdir(self._root / name))
        except FileNotFoundError:
            return []

    def make_directory(self, name: str) -> None:
        """Make a directory unless it exists."""
        (self._root / name).mkdir(mode=0o700, exist_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file, or an empty directory."""
        path = self._root / name
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()

    def rename(self, name: str, new_name: str) -> None:
        """Give a file a new name, in one step replacing a file that has it."""
        (self._root / name).replace(self._root / new_name)

    def sync_directory(self, name: str) -> None:
        """Make the entries of a directory durable ("" is the data directory itself)."""
        descriptor = os.open(self._root / name, DIRECTORY_FLAGS)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_space(self) -> int:
        """Free space in bytes."""
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize


class DirectoryLock:
    """Keeps other processes out of a data directory, until it is released or this process dies.

    Raises DataDirectoryInUse, with the id of the process that holds it.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_NAME
        self._descriptor = -1
        while self._descriptor < 0:
            self._descriptor = self._try(root)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _try(self, root: Path) -> int:
        descriptor = open_file(self._path, FILE_FLAGS | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise DataDirectoryInUse(f"{root} is in use by process {holder}: stop it first") from error
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                return descriptor
        except FileNotFoundError:
            pass
        # The last owner has just removed the lock file, and another process may have locked a new one.
        os.close(descriptor)
        return -1

    def release(self) -> None:
        """Release the lock and remove its file. A second call does nothing."""
        if self._descriptor >= 0:
            # On a disk that has failed, the file stays, and nobody holds it.
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


@mypyc_attr(native_class=False)
class CommitThread:
    """A thread that does blocking jobs in order, so that the event loop does not wait for a disk.

    It needs the interpreter lock for a moment before and after each system call. A thread that waits for the lock asks
    for it after `sys.getswitchinterval()`, and again from the beginning whenever it was released meanwhile. An event
    loop whose rounds are shorter than that may keep it from the thread for seconds: then `hurry` makes the interval
    shorter. It is not always short, because each request for the lock wakes the thread once more (4 % of CPU, measured
    with 1 KiB messages that are published and consumed).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._interval = 0.0
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="waybill commit", daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run `job` on the thread, then call `done` on the loop, with the exception if there was one."""
        self._jobs.put((job, done))

    def hurry(self) -> None:
        """Let the thread have the interpreter lock soon, until `calm`."""
        if self._interval == 0.0:
            self._interval = sys.getswitchinterval()
            sys.setswitchinterval(min(self._interval, HURRIED_SWITCH_INTERVAL_S))

    def calm(self) -> None:
        """Restore the switch interval of the process."""
        if self._interval > 0.0:
            sys.setswitchinterval(self._interval)
            self._interval = 0.0

    def close(self) -> None:
        """Finish the jobs submitted so far and end the thread. Blocks until then."""
        self._jobs.put(None)
        self._thread.join()
        self.calm()

    def _run(self) -> None:
        while (task := self._jobs.get()) is not None:
            job, done = task
            failure: BaseException | None = None
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - passed to `done`
                failure = error
            # If the loop was closed without waiting, nobody waits for the result.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(done, failure)
