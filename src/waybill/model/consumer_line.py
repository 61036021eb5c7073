"""Round-robin among the consumers of a queue that may have credit: the first gets a message and goes to the end.

Each priority has a line of its own; the highest is served first. All operations take constant time on average: a
consumer that leaves is only marked, and skipped when it reaches the front.
"""

import heapq
from collections import OrderedDict, deque
from typing import Final

from mypy_extensions import i64

from waybill.model.consumer import Consumer

# Marked consumers are removed once there are more than this, and more than unmarked ones.
STALE_MAX: Final = 64
# The front of every empty line: an empty deque takes 760 bytes. Never add to it.
NOBODY: Final[deque[Consumer]] = deque()


def consumers_in_order(*, has_single: bool) -> dict[Consumer, None]:
    """An empty register of consumers. `has_single`: only the first is served, so finding it takes constant time.

    A plain dict would search the slots of all consumers that have left.
    """
    return OrderedDict() if has_single else {}


class ConsumerLine:
    """`front` is the line of the highest priority. It is empty only if all lines are."""

    def __init__(self) -> None:
        self.front = NOBODY
        self._lines: dict[int, deque[Consumer]] = {}
        self._order: list[int] = []
        self._stale: i64 = 0
        self._count: i64 = 0

    @property
    def is_single(self) -> bool:
        """Whether exactly one consumer is in line."""
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
        self._count += 1

    def drop_first(self) -> None:
        """Remove the first consumer: it is out of credit, or has left."""
        front = self.front
        front.popleft()
        self._count -= 1
        if not front:
            self._next_line()

    def left(self) -> None:
        """Mark that a consumer in line is no longer active."""
        self._stale += 1
        if self._stale > STALE_MAX and self._stale * 2 > self._count:
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
        self._count = 0

    def _next_line(self) -> None:
        order = self._order
        while order:
            line = self._lines[-order[0]]
            if line:
                self.front = line
                return
            del self._lines[-heapq.heappop(order)]
        self.front = NOBODY
