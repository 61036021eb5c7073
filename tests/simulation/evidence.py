"""What a client knows of the settles that it sent: they are processed once something sent later is answered."""

from collections import deque

from tests.simulation.ledger import Ledger
from tests.simulation.message import Copy


class SettleEvidence:
    """The settles of one channel or session, in the order in which they were sent."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        # `_settles[0]` is number `_base` of all.
        self._settles: deque[Copy] = deque()
        self._base = 0

    @property
    def count(self) -> int:
        """How many were sent so far."""
        return self._base + len(self._settles)

    def sent(self, copy: Copy) -> None:
        copy.settle_sent = True
        self._settles.append(copy)

    def are_processed(self, count: int, now: float, *, durably: bool) -> None:
        """The broker has answered something that this client sent after its first `count` settles."""
        for index in range(count - self._base):
            self.ledger.settled(self._settles[index], now, durably=durably)
        if durably:
            while self._base < count:
                self._settles.popleft()
                self._base += 1
