"""Which deliveries of a channel are settled, and the fewest frames that acknowledge some.

Delivery tags count up from 1, so the settled ones are all below a low mark plus a few beyond it. The server closes a
channel on which a tag is settled twice; here a second settlement is found out before it is sent.

One acknowledgement with `multiple` may replace many only if each delivery below it is settled or among the many:
exactly those below the low mark.
"""

from mypy_extensions import i64


class Acknowledgements:
    """The settlement of one channel's deliveries."""

    def __init__(self) -> None:
        self.low: i64 = 1
        """All tags below are settled."""
        self._ahead: set[int] = set()

    def settle(self, tag: i64) -> bool:
        """Note that `tag` is settled; False if it was."""
        if tag == self.low:
            self.low = tag + 1
            if self._ahead:
                self._absorb()
            return True
        if tag < self.low or tag in self._ahead:
            return False
        self._ahead.add(tag)
        return True

    def settle_up_to(self, tag: i64) -> bool:
        """Note that all up to `tag` are settled; False, and nothing is noted, if `tag` itself was."""
        if tag < self.low or tag in self._ahead:
            return False
        self.low = tag + 1
        self._ahead = {other for other in self._ahead if other > tag}
        self._absorb()
        return True

    def compact(self, tags: list[int]) -> tuple[int, list[int]]:
        """Split `tags`, settled but not yet sent, into one to acknowledge with `multiple` (0: none) and the others."""
        low = self.low
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

    def _absorb(self) -> None:
        while self.low in self._ahead:
            self._ahead.discard(self.low)
            self.low += 1
