"""A queue of waiting requests in which a crowd does not delay others.

Addresses take turns, so an address with thousands of connections delays another one by a single request. Requests of
one address are taken in order of arrival. In a crowd, every second one is the newest instead; otherwise, all requests
that arrive after a crowd would wait for the whole of it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

CROWD: Final = 500
"""More waiting requests of one address than this are a crowd."""

T = TypeVar("T")


class _Line(Generic[T]):
    """The waiting requests of one address."""

    __slots__ = ("_is_newest_next", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[T] = deque()
        self._is_newest_next = False

    def take(self) -> T:
        is_newest = self._is_newest_next and len(self.waiting) > CROWD
        self._is_newest_next = not is_newest
        return self.waiting.pop() if is_newest else self.waiting.popleft()


class FairLine(Generic[T]):
    """The waiting requests of all addresses."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        """By address. The first one is served next."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, address: str, one: T) -> None:
        """Add a request. Those without an address are treated as of one address."""
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _Line()
        line.waiting.append(one)
        self._count += 1

    def take(self) -> T:
        """Take the next request. Raises IndexError if there is none."""
        if not self._lines:
            raise IndexError("no request is waiting")
        address = next(iter(self._lines))
        line = self._lines.pop(address)
        self._count -= 1
        taken = line.take()
        if line.waiting:
            self._lines[address] = line
        return taken
