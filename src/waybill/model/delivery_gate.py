"""How far the deliveries of a durable queue may go before the store knows of them."""

from typing import Final

from mypy_extensions import i64

from waybill.model.queue import Queue
from waybill.model.store import CommitWaiter

# How many messages beyond the last delivered one a crash may flag as redelivered without need: those of such a moment.
MIN_DELIVERY_WINDOW: Final = 16
MAX_DELIVERY_WINDOW: Final = 16_384
DELIVERY_WINDOW_SECONDS: Final = 0.05


class DeliveryGate(CommitWaiter):
    """Holds deliveries of a durable queue back until the store knows how far they may go.

    Only then can a crash be answered honestly: what consumers may have seen comes back flagged as redelivered, and what
    they cannot have seen does not. Messages are allowed some ahead, as many as go within a moment, so that a busy queue
    hardly ever waits and a quiet one has few that are flagged for nothing.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.limit: i64 = 0
        self._asked_for: i64 = 0
        self._window: i64 = MIN_DELIVERY_WINDOW
        self._asked_at: float = 0.0

    @property
    def is_waiting(self) -> bool:
        return self._asked_for > self.limit

    def ask(self, sequence: i64) -> None:
        """Make the limit move beyond `sequence`."""
        if self._asked_for > self.limit:
            return
        now = self.queue.runtime.now
        elapsed = now - self._asked_at
        if elapsed < DELIVERY_WINDOW_SECONDS / 2:
            self._window = min(self._window * 2, MAX_DELIVERY_WINDOW)
        elif elapsed > DELIVERY_WINDOW_SECONDS * 2:
            self._window = max(self._window // 2, MIN_DELIVERY_WINDOW)
        self._asked_at = now
        self._asked_for = sequence + self._window
        self.queue.messages.mark_delivering(self.queue.id, self._asked_for)
        self.queue.store.wait(self, self._asked_for)

    def went_to(self, sequence: i64) -> None:
        """Deliveries have come to `sequence`: ask for more in time."""
        if sequence + self._window // 2 > self.limit:
            self.ask(sequence)

    def committed(self, mark: i64) -> None:
        self.limit = mark
        self.queue.runtime.mark_dirty(self.queue)
