"""Texts for which memory has no room: they are in a temporary file, which ends with the process.

Whoever holds a text holds a mark in its place. SQLite keeps the texts in a file that is made when it is needed, in the
directory for temporary files (`SQLITE_TMPDIR`, `TMPDIR`, or `/var/tmp`), has no name there, and is neither synced nor
recovered.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from waybill.ojs.errors import DatabaseUnusable

ROOM_BYTES: Final = 64 * 1024 * 1024
LARGE_BYTES: Final = 16 * 1024
"""A text of more bytes does not take the room of many others: writing it to the file costs less than its job."""
IN_FILE: Final = b"\0"
"""A mark begins with it. No JSON does."""

CACHE_KIB: Final = 4096
_DIRECTORIES: Final = ("SQLITE_TMPDIR", "TMPDIR")
_LASTING: Final = "/var/tmp"  # noqa: S108 - mkstemp makes the name
"""On a disk, where /tmp is often in memory."""

_log = logging.getLogger("waybill.ojs.coordinator")


class Overflow:
    """Keeps texts in memory as far as there is room, the others in a file. One thread at a time may use it."""

    def __init__(self, room: int = ROOM_BYTES, mark: Callable[[bytes], bytes] | None = None) -> None:
        """Texts of `room` bytes have room in memory, and half as many of those that are needed soon.

        `mark` returns what to hold for one in the file, after IN_FILE.
        """
        self._room = room
        self._mark = mark
        self._used = 0
        self._file: sqlite3.Connection | None = None
        self._refused_size = 0
        """The bytes of the last text that could not be written, 0 if as many were written since."""

    def close(self) -> None:
        """Forget all texts."""
        self._used = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def keep(self, key: str, text: bytes, *, is_needed_soon: bool = False) -> bytes:
        """Keep a new text, and return what to hold for it.

        A text that cannot be written is held, whatever its size: see `require_room`.
        """
        size = len(text)
        room = self._room + self._room // 2 if is_needed_soon else self._room
        if (size > LARGE_BYTES or self._used + size > room) and self._write(key, text):
            return IN_FILE if self._mark is None else IN_FILE + self._mark(text)
        self._used += size
        return text

    def require_room(self) -> None:
        """Raise DatabaseUnusable if texts cannot be written, and there are already many of them in memory."""
        if not self.is_full:
            return
        if not self._write("", bytes(self._refused_size)):
            raise DatabaseUnusable(f"the temporary file of the job state cannot be written. {_MAKE_ROOM}")
        self.drop("", IN_FILE)

    @property
    def is_full(self) -> bool:
        """Whether texts could not be written, and there are many of them in memory."""
        return self._refused_size > 0 and self._used > self._room

    def text(self, key: str, held: bytes) -> bytes:
        """Return the text that was kept. Raises DatabaseUnusable if the file cannot be read."""
        return self._read(key) if held.startswith(IN_FILE) else held

    def drop(self, key: str, held: bytes) -> None:
        """Forget a text."""
        if not held.startswith(IN_FILE):
            self._used -= len(held)
        elif self._file is not None:
            try:
                self._file.execute("DELETE FROM texts WHERE key = ?", (key,))
            except sqlite3.Error as error:
                self._failed(error)

    def _write(self, key: str, text: bytes) -> bool:
        try:
            if self._file is None:
                self._file = _new_file()
            # A text that could not be deleted may be there.
            self._file.execute("INSERT OR REPLACE INTO texts VALUES (?, ?)", (key, text))
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            self._refused_size = max(len(text), 1)
            return False
        if len(text) >= self._refused_size:
            self._refused_size = 0
        return True

    def _read(self, key: str) -> bytes:
        try:
            row = None if self._file is None else self._file.execute("SELECT text FROM texts WHERE key = ?", (key,))
            found = None if row is None else row.fetchone()
        except sqlite3.Error as error:
            raise DatabaseUnusable(f"{_UNREADABLE}: {error}. {_WAY_OUT}") from error
        if found is None:
            raise DatabaseUnusable(f"{_UNREADABLE}: the job is missing. {_WAY_OUT}")
        return bytes(found[0])

    def _failed(self, error: sqlite3.Error | OSError) -> None:
        if not self._refused_size:
            text = "the temporary file of the job state cannot be written, so its jobs stay in memory: %s. %s"
            _log.error(text, error, _MAKE_ROOM)


_UNREADABLE: Final = "the temporary file of the job state cannot be read"
_MAKE_ROOM: Final = "Make room in its directory (SQLITE_TMPDIR, TMPDIR or /var/tmp)"
_WAY_OUT: Final = "Restart this process: it rebuilds the state from the event stream"


def _new_file() -> sqlite3.Connection:
    """Make a file without a name. Raises sqlite3.Error or OSError.

    It is no temporary database of SQLite: one of these writes late, and no text in it can be read once a write has
    failed.
    """
    directory = next((one for one in map(os.environ.get, _DIRECTORIES) if one), _LASTING)
    descriptor, path = tempfile.mkstemp(prefix="waybill-", dir=directory if Path(directory).is_dir() else None)
    os.close(descriptor)
    try:
        file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=3)
        file.execute("PRAGMA locking_mode = EXCLUSIVE")
        file.execute("PRAGMA page_size = 8192")
        file.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        file.execute("PRAGMA synchronous = OFF")
        # Without the journal, a full disk would damage the file; a cache that spills into it would make reads fail.
        file.execute("PRAGMA journal_mode = MEMORY")
        file.execute("PRAGMA cache_spill = OFF")
        file.execute("CREATE TABLE texts (key TEXT PRIMARY KEY, text BLOB)")
    finally:
        Path(path).unlink()
    return file
