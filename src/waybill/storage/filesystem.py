"""The disk that storage needs: `transport.disk` has the real one, `testing.simulated_disk` one that injects faults.

Names are relative to the data directory and use `/`. Every method may raise `OSError`. The store never retries after
one: a disk that failed a sync may have dropped the data, and yet report the next sync as a success.

Nothing here is durable by itself: bytes are after `File.sync`, and a file that was created, renamed or removed is
after `Filesystem.sync_directory` of the directory that it is in.

Both are protocols, so that a disk need not import storage. Calls are rare, so their cost does not matter.
"""

from typing import Protocol


class File(Protocol):
    """An open file: appended to, read anywhere. Reads may run on one thread while an append runs on another."""

    def append(self, *pieces: bytes) -> None:
        """Append all of the pieces, in order."""

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`: fewer at the end of the file, and only there."""

    def reserve(self, size: int) -> None:
        """Write `size` zeros behind the end, as far as there is room, for appends to overwrite.

        A sync is then cheaper than after the file grew. The end does not move; after a crash, reserved bytes are part
        of the file. `close` frees it.
        """

    def sync(self) -> None:
        """Make everything appended so far durable."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes. Durable after the next sync."""

    def size(self) -> int:
        """Bytes in the file."""

    def close(self) -> None:
        """Close the file. Nothing may be called after that."""


class Filesystem(Protocol):
    """A data directory."""

    def create(self, name: str) -> File:
        """Open a new, empty file; an older one of that name is emptied."""

    def open(self, name: str) -> File:
        """Open a file that exists."""

    def list_directory(self, name: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""

    def make_directory(self, name: str) -> None:
        """Make a directory unless it exists."""

    def remove(self, name: str) -> None:
        """Remove a file, or an empty directory."""

    def rename(self, name: str, new_name: str) -> None:
        """Give a file a new name, in one step replacing a file that has it."""

    def sync_directory(self, name: str) -> None:
        """Make the entries of a directory durable ("" is the data directory itself)."""

    def free_space(self) -> int:
        """Free space in bytes."""
