"""The deadlines of one queue: of the first message that expires, and of its own life without consumers."""

from typing import TYPE_CHECKING

from waybill.model.queue_policy import NO_LIMIT
from waybill.model.timers import Timer

if TYPE_CHECKING:
    from waybill.model.queue import Queue


class ExpiryTimer(Timer):
    """Wakes a queue when the first message of a lane expires."""

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        self.armed_at: float = 0.0

    def arm(self, at: float) -> None:
        if self.armed_at == 0.0 or at < self.armed_at:
            self.armed_at = at
            self.queue.runtime.timers.schedule(at, self)

    def fire(self, now: float) -> None:
        if 0.0 < self.armed_at <= now:
            self.armed_at = 0.0
            if not self.queue.is_deleted:
                self.queue.expire_due(now)


class DisuseTimer(Timer):
    """Removes a queue with `x-expires` that nobody has consumed from or declared for that long."""

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        self.deadline: float = 0.0

    def restart(self) -> None:
        queue = self.queue
        if queue.policy.expires_ms != NO_LIMIT:
            self.deadline = queue.runtime.now + queue.policy.expires_ms / 1000.0
            queue.runtime.timers.schedule(self.deadline, self)

    def fire(self, now: float) -> None:
        if now >= self.deadline and not self.queue.is_deleted and not self.queue.consumers:
            self.queue.host.queue_unused(self.queue)
