"""The consumers of a queue that may have credit, in line: the first gets the next message and goes to the end.

Those of a higher priority stand in a line of their own, which comes first. Whatever happens to one consumer costs the
same however many there are: one that leaves is only marked, and stepped over when it comes to the front.
"""

import heapq
from collections import OrderedDict, deque
from typing import Final

from mypy_extensions import i64

from waybill.model.consumer import Consumer

# Marked ones are taken out when there are so many, and more than others.
STALE_MAX: Final = 64
# The front of every line in which nobody stands; nothing is ever added to it. An empty deque has 760 octets.
NOBODY: Final[deque[Consumer]] = deque()


def consumers_in_order(*, has_single: bool) -> dict[Consumer, None]:
    """An empty register of consumers; if only the first of them is served, one that finds its first at once.

    A plain dict looks at the places of all who have left before it.
    """
    return OrderedDict() if has_single else {}


class ConsumerLine:
    """`front` is the line of the highest priority: never empty while somebody stands in line."""

    def __init__(self) -> None:
        self.front = NOBODY
        self._lines: dict[int, deque[Consumer]] = {}
        self._order: list[int] = []
        self._stale: i64 = 0

    @property
    def is_single(self) -> bool:
        """Whether exactly one consumer stands in line."""
        return len(self.front) == 1 and len(self._order) == 1

    def append(self, consumer: Consumer) -> None:
        """Put a consumer at the end of the line of its priority."""
        priority = int(consumer.priority)
        line = self._lines.get(priority)
        if line is None:
            line = deque()
            self._lines[priority] = line
            heapq.heappush(self._order, -priority)
            self.front = self._lines[-self._order[0]]
        line.append(consumer)

    def drop_first(self) -> None:
        """The first consumer has no credit any more, or has left."""
        front = self.front
        front.popleft()
        if not front:
            self._next_line()

    def left(self) -> None:
        """A consumer that stood in line is not active any more."""
        self._stale += 1
        if self._stale > STALE_MAX and self._stale * 2 > sum(map(len, self._lines.values())):
            self._stale = 0
            staying = [consumer for priority in sorted(self._lines) for consumer in self._lines[priority]]
            self.clear()
            for consumer in staying:
                if consumer.is_active and not consumer.selects:
                    self.append(consumer)

    def clear(self) -> None:
        self.front = NOBODY
        self._lines = {}
        self._order = []

    def _next_line(self) -> None:
        order = self._order
        while order:
            line = self._lines[-order[0]]
            if line:
                self.front = line
                return
            del self._lines[-heapq.heappop(order)]
        self.front = NOBODY
