"""The timers of a queue: the expiry of its messages, and its own when it is unused."""

from waybill.model.queue import Queue
from waybill.model.queue_arguments import NO_LIMIT
from waybill.model.timers import Timer


class ExpiryTimer(Timer):
    """Wakes a queue when the first message of a level expires."""

    def __init__(self, queue: Queue) -> None:
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

    def is_stale(self, at: float) -> bool:
        return self.queue.is_deleted or at != self.armed_at


class DisuseTimer(Timer):
    """Deletes a queue with `x-expires` that was not consumed, declared or polled for that long."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.deadline: float = 0.0
        self.armed_at: float = 0.0

    def restart(self) -> None:
        queue = self.queue
        if queue.policy.expires_ms != NO_LIMIT:
            self.deadline = queue.runtime.now + queue.policy.expires_ms / 1000.0
            self._arm()

    def _arm(self) -> None:
        """Schedule a check. One that comes too early is scheduled again, so that using the queue needs no new timer."""
        if self.armed_at == 0.0 or self.deadline < self.armed_at:
            self.armed_at = self.deadline
            self.queue.runtime.timers.schedule(self.deadline, self)

    def fire(self, now: float) -> None:
        queue = self.queue
        if queue.is_deleted or not 0.0 < self.armed_at <= now:
            return
        self.armed_at = 0.0
        if queue.consumers or queue.policy.expires_ms == NO_LIMIT:
            return
        if now >= self.deadline:
            queue.host.queue_unused(queue)
        else:
            self._arm()

    def is_stale(self, at: float) -> bool:
        return self.queue.is_deleted or at != self.armed_at
