"""Which deliveries of a channel are settled, and the fewest frames that acknowledge some.

Delivery tags count up from 1, so all tags below a mark are settled, except for a few gaps. Gaps are kept as ranges, so
there are never more of them than unsettled deliveries, even if one delivery is never settled or the server's tags jump.
The server closes a channel on which a tag is settled twice; here a second settlement is detected before it is sent.

One acknowledgement with `multiple` may replace many only if each delivery below it is settled or among the many:
exactly those below the first gap.
"""

from bisect import bisect_right

from mypy_extensions import i64


class Acknowledgements:
    """The settlement of one channel's deliveries."""

    def __init__(self) -> None:
        self._high: i64 = 1
        """No tag from here on is settled."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        """The gaps below it, in order: tags from a start up to, not including, the end beside it."""

    @property
    def low(self) -> int:
        """All tags below are settled."""
        return self._starts[0] if self._starts else self._high

    @property
    def gap_count(self) -> int:
        """How many ranges of unsettled tags lie below a settled one."""
        return len(self._starts)

    def settle(self, tag: i64) -> bool:
        """Record that `tag` is settled. False if it already was."""
        if tag == self._high:
            self._high = tag + 1
            return True
        if tag > self._high:
            self._starts.append(self._high)
            self._ends.append(tag)
            self._high = tag + 1
            return True
        return bool(self._starts) and self._fill(tag)

    def settle_up_to(self, tag: i64) -> bool:
        """Record that all up to `tag` are settled. False, and nothing is recorded, if `tag` itself already was."""
        if not self.settle(tag):
            return False
        starts, ends = self._starts, self._ends
        index = bisect_right(starts, tag)
        # `tag` is in no gap now, so the gaps before this index end below it.
        del starts[:index]
        del ends[:index]
        return True

    def compact(self, tags: list[int]) -> tuple[int, list[int]]:
        """Split `tags`, settled but not yet sent, into one to acknowledge with `multiple` (0: none) and the others."""
        low: i64 = self.low
        below = 0
        count = 0
        others = []
        for tag in tags:
            if tag >= low:
                others.append(tag)
            else:
                count += 1
                below = max(below, tag)
        if count == 1:
            others.append(below)
            below = 0
        return below, others

    def _fill(self, tag: i64) -> bool:
        """Remove `tag` from its gap. False if it is in none."""
        starts, ends = self._starts, self._ends
        index = bisect_right(starts, tag) - 1
        if index < 0 or tag >= ends[index]:
            return False
        start, end = starts[index], ends[index]
        if start == tag:
            if end == tag + 1:
                del starts[index]
                del ends[index]
            else:
                starts[index] = tag + 1
        elif end == tag + 1:
            ends[index] = tag
        else:
            ends[index] = tag
            starts.insert(index + 1, tag + 1)
            ends.insert(index + 1, end)
        return True
