"""Records deliveries of durable queues before they happen, so that `redelivered` is right after a crash."""

from typing import Final

from mypy_extensions import i64

from waybill.model.queue import Queue
from waybill.model.store import CommitWaiter

# After a crash, up to this many undelivered messages may be flagged as redelivered: about those of 50 ms.
MIN_DELIVERY_WINDOW: Final = 16
MAX_DELIVERY_WINDOW: Final = 16_384
DELIVERY_WINDOW_SECONDS: Final = 0.05


class DeliveryRecorder(CommitWaiter):
    """Allows deliveries of a durable queue up to `limit`, a sequence that the store has recorded.

    After a crash, messages up to the recorded sequence are flagged as redelivered. The limit runs ahead of the
    deliveries, so that a busy queue rarely waits, by a number that keeps wrong flags few on a quiet queue.
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
        """Ask the store to record a limit beyond `sequence`, unless that is on its way."""
        if sequence <= self._asked_for and self.is_waiting:
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
        """Deliveries have reached `sequence`: ask for a higher limit before they reach the present one."""
        if sequence + self._window // 2 > self.limit:
            self.ask(sequence)

    def committed(self, mark: i64) -> None:
        self.limit = mark
        self.queue.runtime.mark_dirty(self.queue)
