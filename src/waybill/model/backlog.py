"""Messages of a priority level that are on disk, reduced to what is needed to read them back."""

from array import array
from collections import deque
from typing import Final

from mypy_extensions import i64

from waybill.model.entry import Entry
from waybill.model.runtime import Runtime

CHUNK_LENGTH: Final = 2048
"""Chunks of fewer messages cost 5 to 10 % more CPU to consume, as the allocator finds its free memory in pieces."""
CHUNK_BYTES: Final = 2 << 20


class Chunk:
    """Entries reduced to what is needed to read them back. Either all or none of them are redelivered."""

    def __init__(self, entries: list[Entry]) -> None:
        self.sequences = array("q", [entry.sequence for entry in entries])
        self.locations = array("q", [entry.location for entry in entries])
        expiries = [entry.expires_at for entry in entries]
        self.expiries = array("d", expiries) if any(expiries) else None
        self.sizes = array("q", [entry.message.size for entry in entries])
        counts = [entry.delivery_count for entry in entries]
        self.delivery_counts = array("q", counts) if any(counts) else None
        # Entries whose messages consumers have changed: the store has the original.
        changed = {entry.sequence: entry for entry in entries if entry.changes}
        self.changed: dict[int, Entry] | None = changed or None
        self.are_stored = entries[0].is_stored
        self.redelivered = entries[0].redelivered

    @property
    def is_plain(self) -> bool:
        """Whether `restore` has nothing to do."""
        return self.expiries is None and self.delivery_counts is None and self.changed is None

    def restore(self, entry: Entry, index: i64) -> None:
        """Set the expiry, failed deliveries and changes of an entry that was read back."""
        if self.expiries is not None:
            entry.expires_at = self.expiries[index]
        if self.delivery_counts is not None:
            entry.delivery_count = self.delivery_counts[index]
        changed = self.changed.get(entry.sequence) if self.changed is not None else None
        if changed is not None:
            entry.message = changed.message
            entry.changes = changed.changes

    def remove(self, index: int) -> None:
        del self.sequences[index]
        del self.locations[index]
        if self.expiries is not None:
            del self.expiries[index]
        del self.sizes[index]
        if self.delivery_counts is not None:
            del self.delivery_counts[index]


def chunks_of(entries: list[Entry]) -> list[Chunk]:
    """Entries in order, as chunks of at most `CHUNK_LENGTH`, and of `CHUNK_BYTES` unless one entry is larger."""
    chunks: list[Chunk] = []
    start = 0
    size: i64 = 0
    for index in range(len(entries)):
        entry = entries[index]
        first = entries[start]
        is_full = index - start >= CHUNK_LENGTH or size + entry.message.size > CHUNK_BYTES
        if index > start and (is_full or entry.is_stored != first.is_stored or entry.redelivered != first.redelivered):
            chunks.append(Chunk(entries[start:index]))
            start = index
            size = 0
        size += entry.message.size
    if entries:
        chunks.append(Chunk(entries[start:]))
    return chunks


class Removed:
    """The entries of a level that was emptied."""

    def __init__(self, runtime: Runtime, lists: list[list[Entry]], head: deque[Entry], backlog: deque[Chunk]) -> None:
        self._runtime = runtime
        self._lists = lists
        self._head = head
        self._backlog = backlog

    def take(self, count: int) -> list[tuple[int, int, bool]]:
        """Sequence, location and `is_stored` of at least `count` entries, or of all if there are fewer."""
        taken: list[tuple[int, int, bool]] = []
        while len(taken) < count and (self._head or self._lists):
            if self._head:
                entry = self._head.popleft()
            elif self._lists[-1]:
                entry = self._lists[-1].pop()
            else:
                self._lists.pop()
                continue
            self._runtime.memory_bytes -= entry.message.size
            taken.append((int(entry.sequence), int(entry.location), entry.is_stored))
        while len(taken) < count and self._backlog:
            chunk = self._backlog.popleft()
            for sequence, location in zip(chunk.sequences, chunk.locations, strict=True):
                taken.append((sequence, location, chunk.are_stored))
        return taken
