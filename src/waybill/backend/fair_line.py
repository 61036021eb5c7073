"""A line in which no crowd stands before everybody else.

Addresses take turns, so that one with thousands of connections delays another one by a single request. Of one address,
those that wait are taken in the order of their arrival; in a crowd, alternately with the newest: otherwise, all that
come after a crowd would wait for the whole of it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

CROWD: Final = 500
"""More than this many in line are a crowd."""

T = TypeVar("T")


class _Line(Generic[T]):
    """What waits from one address."""

    __slots__ = ("_is_newest_next", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[T] = deque()
        self._is_newest_next = False

    def take(self) -> T:
        is_newest = self._is_newest_next and len(self.waiting) > CROWD
        self._is_newest_next = not is_newest
        return self.waiting.pop() if is_newest else self.waiting.popleft()


class FairLine(Generic[T]):
    """All that waits."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        """By address; it is the first one's turn."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, address: str, one: T) -> None:
        """Put one in line. Those without an address have one line."""
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _Line()
        line.waiting.append(one)
        self._count += 1

    def take(self) -> T:
        """Take the next one. Raises IndexError if there is none."""
        if not self._lines:
            raise IndexError("nobody is in line")
        address = next(iter(self._lines))
        line = self._lines.pop(address)
        self._count -= 1
        taken = line.take()
        if line.waiting:
            self._lines[address] = line
        return taken
