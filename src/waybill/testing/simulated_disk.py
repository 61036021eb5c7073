"""A disk that injects faults: deterministic, from one seeded source of randomness.

Writes go to the page cache. They survive the death of the process (`kill`), but at a power failure (`lose_power`) each
write since the last sync of its file is kept, lost, torn in the middle, or replaced by zeros or by garbage, in any
combination, so a later write may survive an earlier one. A file or directory that was created, renamed or removed since
its directory was synced may or may not have been.

`waybill.storage.filesystem` describes the methods for files.
"""

import errno
import os
from random import Random
from typing import Final

FATES: Final = ("kept", "kept", "lost", "lost", "torn", "zeroed", "trashed")


class Crash(BaseException):
    """The simulated process died during a disk operation. The code under test must not catch it."""


class ReadFailed(OSError):
    """A read or an open fails: the process may continue."""


class _Node:
    """A file's bytes in the page cache, on the medium as of the last sync, and the changes since then."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        for offset, data in self.changes:
            _change(self.durable, offset, data)
        self.changes = []


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write `data` at an offset; None truncates there."""
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class SimulatedFile:
    """An open file. It is unusable after a crash."""

    def __init__(self, disk: "SimulatedDisk", node: _Node, name: str) -> None:
        self._disk = disk
        self._node = node
        self._name = name
        self._life = disk.life
        self._is_open = True
        disk.open_files += 1
        self._end = len(node.cached)

    def _check(self) -> None:
        if not self._is_open or self._life != self._disk.life:
            raise OSError(errno.EBADF, "the file is closed", self._name)

    def append(self, *pieces: bytes) -> None:
        self._check()
        data = b"".join(pieces)
        disk = self._disk
        node = self._node
        end = self._end
        room = disk.free_space() + len(node.cached) - end
        crashes = disk.step("append", self._name)
        if crashes:
            data = data[: disk.random.randrange(len(data) + 1)]
        written = data[:room]
        self._write(end, written)
        self._end = end + len(written)
        if crashes:
            raise Crash
        if len(written) < len(data):
            raise OSError(errno.ENOSPC, "no space left on the simulated disk", self._name)

    def reserve(self, size: int) -> None:
        self._check()
        disk = self._disk
        crashes = disk.step("reserve", self._name)
        size = min(size, disk.free_space() + len(self._node.cached) - self._end)
        if not crashes or disk.random.random() < 0.5:
            self._write(self._end, bytes(size))
        if crashes:
            raise Crash

    def _write(self, offset: int, data: bytes) -> None:
        _change(self._node.cached, offset, data)
        self._node.changes.append((offset, bytes(data)))

    def read(self, offset: int, size: int) -> bytes:
        self._check()
        self._disk.check_read(self._name, offset, min(size, self._end - offset))
        return bytes(self._node.cached[offset : min(offset + size, self._end)])

    def sync(self) -> None:
        self._check()
        node = self._node
        crashes = self._disk.step("sync", self._name)
        if not crashes or self._disk.random.random() < 0.5:
            node.sync()
        if crashes:
            raise Crash

    def truncate(self, size: int) -> None:
        self._check()
        crashes = self._disk.step("truncate", self._name)
        if not crashes or self._disk.random.random() < 0.5:
            del self._node.cached[size:]
            self._node.changes.append((size, None))
        self._end = size
        if crashes:
            raise Crash

    def size(self) -> int:
        self._check()
        return self._end

    def close(self) -> None:
        if self._is_open and self._life == self._disk.life and len(self._node.cached) > self._end:
            del self._node.cached[self._end :]
            self._node.changes.append((self._end, None))
        if self._is_open and self._life == self._disk.life:
            self._disk.open_files -= 1
        self._is_open = False


class _Entries:
    """Directory entries: those of the running system, and those on the medium. None stands for a directory."""

    def __init__(self) -> None:
        self.seen: dict[str, _Node | None] = {}
        self.durable: dict[str, _Node | None] = {}
        # By directory: the changes since its last sync, each as the new entries of some names.
        self.changes: dict[str, list[dict[str, _Node | str | None]]] = {}

    def change(self, changes: dict[str, "_Node | str | None"]) -> None:
        parent = next(iter(changes)).rpartition("/")[0]
        self.changes.setdefault(parent, []).append(changes)
        self._apply(self.seen, changes)

    def sync(self, directory: str) -> None:
        for changes in self.changes.pop(directory, []):
            self._apply(self.durable, changes)

    def keep(self, name: str, node: _Node | None) -> None:
        self.seen[name] = node
        self.durable[name] = node

    def forget(self, name: str) -> None:
        self.seen.pop(name, None)
        self.durable.pop(name, None)

    def lose(self, random: Random) -> None:
        for directory in list(self.changes):
            pending = self.changes.pop(directory)
            chance = random.choice((0.0, 0.5, 1.0))
            for changes in pending:
                if random.random() < chance:
                    self._apply(self.durable, changes)
        self.durable = {name: node for name, node in self.durable.items() if self._is_reachable(name)}
        self.seen = dict(self.durable)

    def _is_reachable(self, name: str) -> bool:
        parent = name.rpartition("/")[0]
        return not parent or (parent in self.durable and self._is_reachable(parent))

    @staticmethod
    def _apply(entries: dict[str, _Node | None], changes: dict[str, "_Node | str | None"]) -> None:
        for name, node in changes.items():
            if isinstance(node, str):
                entries.pop(name, None)
            else:
                entries[name] = node


class SimulatedDisk:
    """A data directory on a simulated disk.

    `operations` counts changes (append, reserve, sync, truncate, create, make_directory, remove, rename,
    sync_directory). The one with the number `crash_at` raises `Crash` half-way; then `kill` or `lose_power` must be
    called before the disk is used again. `fail_next[operation] = error number` makes the next one of that name fail,
    and the next `failures_left` ones of "read" and "open".
    `open_files` counts the files that this process has open.
    """

    def __init__(self, random: Random, capacity: int = 1 << 40) -> None:
        self.random = random
        self.capacity = capacity
        self.operations = 0
        self.crash_at: int | None = None
        self.fail_next: dict[str, int] = {}
        # How many reads or opens fail, starting with the one that is to fail.
        self.failures_left = 1
        # By file name: the offset of an unreadable byte, and the error number.
        self.bad_places: dict[str, tuple[int, int]] = {}
        self.life = 0
        self.open_files = 0
        # A sync has failed: some data may be only in memory, and is never written.
        self.shows_lost_data = False
        self._is_crashed = False
        self._entries = _Entries()

    # --- faults ---

    def step(self, operation: str, name: str) -> bool:
        """Count an operation. True if the process dies in it; raises OSError if it is to fail."""
        if self._is_crashed:
            raise OSError(errno.EIO, "the simulated process is dead", name)
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            self.crash_at = None
            self._is_crashed = True
            return True
        failure = self.fail_next.pop(operation, 0)
        if failure:
            if operation == "sync":
                self._fail_sync(name)
            raise OSError(failure, os.strerror(failure), name)
        return False

    def check_read(self, name: str, offset: int, size: int) -> None:
        """Raises OSError if a read is to fail. Reads are not counted as operations."""
        self._fail_access("read", name)
        place, failure = self.bad_places.get(name, (-1, 0))
        if offset <= place < offset + size:
            raise ReadFailed(failure, os.strerror(failure), name)

    def _fail_access(self, operation: str, name: str) -> None:
        failure = self.fail_next.get(operation, 0)
        if failure:
            self.failures_left -= 1
            if self.failures_left <= 0:
                del self.fail_next[operation]
            raise ReadFailed(failure, os.strerror(failure), name)

    def _fail_sync(self, name: str) -> None:
        """Lose some data: the system does not write it again, and the next sync succeeds without it."""
        node = self._entries.seen.get(name)
        if node is not None:
            self.shows_lost_data = True
            node.changes = [change for change in node.changes if self.random.random() < 0.5]
            node.sync()

    def kill(self) -> None:
        """The process dies and the system keeps running: all written data is kept."""
        self.life += 1
        self.open_files = 0
        self.crash_at = None
        self._is_crashed = False

    def lose_power(self) -> None:
        """The system loses power: unsynced data may be lost or damaged."""
        self.kill()
        self.shows_lost_data = False
        nodes = list(self._entries.seen.values()) + list(self._entries.durable.values())
        self._entries.lose(self.random)
        for node in nodes:
            if node is not None and node.changes:
                self._decide(node)
        for node in self._entries.seen.values():
            if node is not None:
                node.cached = bytearray(node.durable)

    def _decide(self, node: _Node) -> None:
        random = self.random
        only = random.choice(("any", "any", *FATES))
        for offset, data in node.changes:
            fate = random.choice(FATES) if only == "any" else only
            if data is None:
                if fate == "kept":
                    _change(node.durable, offset, None)
            elif fate == "kept":
                _change(node.durable, offset, data)
            elif fate == "torn":
                _change(node.durable, offset, data[: random.randrange(len(data) + 1)])
            elif fate == "zeroed":
                _change(node.durable, offset, bytes(len(data)))
            elif fate == "trashed":
                _change(node.durable, offset, random.randbytes(len(data)))
        node.changes = []

    def flip_bit(self, name: str, offset: int) -> None:
        """Damage at rest: one bit of the byte at an offset of a file changes, on the medium and in the page cache."""
        node = self._file(name)
        bit = 1 << self.random.randrange(8)
        for content in (node.cached, node.durable):
            if offset < len(content):
                content[offset] ^= bit

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Damage at rest of any kind."""
        node = self._file(name)
        for content in (node.cached, node.durable):
            _change(content, offset, data)

    def cut(self, name: str, size: int) -> None:
        """Damage at rest: a file is cut to `size` bytes."""
        node = self._file(name)
        for content in (node.cached, node.durable):
            del content[size:]

    def lose(self, name: str) -> None:
        """Damage at rest: a file is lost."""
        self._file(name)
        self._entries.forget(name)

    def put_file(self, name: str, data: bytes) -> None:
        """Create a file and its directories, durably."""
        node = _Node()
        node.cached = bytearray(data)
        node.durable = bytearray(data)
        parts = name.split("/")
        for count in range(1, len(parts)):
            self._entries.keep("/".join(parts[:count]), None)
        self._entries.keep(name, node)

    def copy(self) -> "SimulatedDisk":
        """A disk with the same files, all of them durable."""
        other = SimulatedDisk(self.random, self.capacity)
        for name, node in self._entries.seen.items():
            if node is None:
                other._entries.keep(name, None)
            else:
                other.put_file(name, bytes(node.cached))
        return other

    def file_names(self) -> list[str]:
        """All files."""
        return sorted(name for name, node in self._entries.seen.items() if node is not None)

    def content(self, name: str) -> bytes:
        """The content of a file."""
        return bytes(self._file(name).cached)

    # --- the filesystem interface ---

    def _file(self, name: str) -> _Node:
        node = self._entries.seen.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file on the simulated disk", name)
        return node

    def _alter(self, operation: str, name: str, changes: dict[str, _Node | str | None]) -> None:
        crashes = self.step(operation, name)
        if not crashes or self.random.random() < 0.5:
            self._entries.change(changes)
        if crashes:
            raise Crash

    def _check_parent(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        if parent and parent not in self._entries.seen:
            raise FileNotFoundError(errno.ENOENT, "no such directory on the simulated disk", name)

    def create(self, name: str) -> SimulatedFile:
        self._check_parent(name)
        node = self._entries.seen.get(name)
        if node is None:
            node = _Node()
            self._alter("create", name, {name: node})
        else:
            if self.step("create", name):
                raise Crash
            node.cached.clear()
            node.changes.append((0, None))
        return SimulatedFile(self, node, name)

    def open(self, name: str) -> SimulatedFile:
        self._fail_access("open", name)
        return SimulatedFile(self, self._file(name), name)

    def list_directory(self, name: str) -> list[str]:
        prefix = f"{name}/" if name else ""
        names = [entry[len(prefix) :] for entry in self._entries.seen if entry.startswith(prefix)]
        return sorted(entry for entry in names if "/" not in entry)

    def make_directory(self, name: str) -> None:
        self._check_parent(name)
        if name not in self._entries.seen:
            self._alter("make_directory", name, {name: None})

    def remove(self, name: str) -> None:
        if name not in self._entries.seen:
            raise FileNotFoundError(errno.ENOENT, "no such file on the simulated disk", name)
        if self.list_directory(name):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", name)
        self._alter("remove", name, {name: "removed"})

    def rename(self, name: str, new_name: str) -> None:
        self._alter("rename", name, {new_name: self._file(name), name: "removed"})

    def sync_directory(self, name: str) -> None:
        crashes = self.step("sync_directory", name)
        if name and name not in self._entries.seen:
            raise FileNotFoundError(errno.ENOENT, "no such directory on the simulated disk", name)
        if not crashes or self.random.random() < 0.5:
            self._entries.sync(name)
        if crashes:
            raise Crash

    def free_space(self) -> int:
        used = sum(len(node.cached) for node in self._entries.seen.values() if node is not None)
        return max(self.capacity - used, 0)
