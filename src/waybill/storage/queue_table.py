"""The messages of one queue during recovery: 16 bytes each, however large they are."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

NOWHERE: Final = -1


class QueueTable:
    """Sequences and locations of one queue's live messages.

    Sequences nearly always come in ascending order. Others (compaction has moved them behind newer ones) are kept
    apart.
    """

    def __init__(self) -> None:
        self._sequences: array[int] = array("q")
        self._locations: array[int] = array("q")
        self._late: dict[int, int] = {}
        self._last: i64 = -1
        self._cursor: i64 = 0
        self.highest: i64 = -1
        self.live: i64 = 0

    def add(self, sequence: i64, location: i64) -> i64:
        """Record where a message is. Returns its former location, or `NOWHERE`."""
        if sequence > self._last:
            self._last = sequence
            self.highest = max(self.highest, sequence)
            self._sequences.append(sequence)
            self._locations.append(location)
            self.live += 1
            return NOWHERE
        index = self._index(sequence)
        if index < 0:
            old: i64 = self._late.get(sequence, NOWHERE)
            self._late[sequence] = location
        else:
            old = self._locations[index]
            self._locations[index] = location
        if old == NOWHERE:
            self.live += 1
        return old

    def location(self, sequence: i64) -> i64:
        """Where a live message is, or `NOWHERE`."""
        index = self._index(sequence)
        if index < 0:
            return self._late.get(sequence, NOWHERE)
        return self._locations[index]

    def remove(self, sequence: i64) -> i64:
        """Forget a message. Returns where it was, or `NOWHERE`."""
        self.highest = max(self.highest, sequence)
        index = self._index(sequence)
        if index < 0:
            location: i64 = self._late.pop(sequence, NOWHERE)
        else:
            location = self._locations[index]
            self._locations[index] = NOWHERE
            self._cursor = index + 1
        if location != NOWHERE:
            self.live -= 1
        return location

    def _index(self, sequence: i64) -> i64:
        # Most queues are consumed in order: the next one to remove is often the one after the last.
        cursor = self._cursor
        sequences = self._sequences
        if cursor < len(sequences) and sequences[cursor] == sequence:
            return cursor
        index = bisect_left(sequences, sequence)
        if index < len(sequences) and sequences[index] == sequence:
            return index
        return -1

    def sequences_up_to(self, limit: i64) -> list[int]:
        """The sequences of live messages that are not above `limit`."""
        return [sequence for sequence, _ in self.pairs() if sequence <= limit]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Sequence and location of all live messages, in order."""
        if self._late:
            pairs = [pair for pair in zip(self._sequences, self._locations, strict=True) if pair[1] != NOWHERE]
            pairs.extend(self._late.items())
            pairs.sort()
            yield from pairs
            return
        for sequence, location in zip(self._sequences, self._locations, strict=True):
            if location != NOWHERE:
                yield sequence, location
