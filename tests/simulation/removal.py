"""Why a message may be in its queue no more though nobody settled it: policies, purges, the end of its queue."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation.message import NEVER, Copy
from tests.simulation.queues import QueueSpec
from tests.simulation.violation import Violation

# Clocks of messages are kept in milliseconds.
ROUNDING_S = 0.002

EXPIRED = "expired"
REJECTED = "rejected"
MAX_LENGTH = "maxlen"
DELIVERY_LIMIT = "delivery_limit"


class Contents:
    """All copies that were ever meant for one queue.

    `departures` counts what ends deliveries unseen: channels and connections that end, and what they recover.
    """

    def __init__(self, queue: QueueSpec) -> None:
        self.queue = queue
        self.copies: list[Copy] = []
        self.departures = 0

    def has_room(self, copy: Copy) -> bool:
        """Whether the queue can never have been too full for this message."""
        queue = self.queue
        others = [other for other in self.copies if other is not copy and not self._is_older(other, copy)]
        if queue.max_length is not None and len(others) >= queue.max_length:
            return False
        size = len(copy.message.body) + sum(len(other.message.body) for other in others)
        return queue.max_bytes is None or size <= queue.max_bytes

    def could_be_full(self) -> bool:
        """Whether it may refuse a message now."""
        queue = self.queue
        if queue.max_length is not None and len(self.copies) > queue.max_length:
            return True
        return queue.max_bytes is not None and sum(len(copy.message.body) for copy in self.copies) > queue.max_bytes

    @staticmethod
    def _is_older(other: Copy, copy: Copy) -> bool:
        return other.message.confirmed_at < copy.message.routed_after

    def reasons(self, copy: Copy, now: float) -> list[str]:
        """Why the broker may have taken the message out, by the names that `x-first-death-reason` has for them."""
        reasons = []
        if copy.message.sent_at + copy.ttl_s <= now + ROUNDING_S:
            reasons.append(EXPIRED)
        if copy.reject_sent:
            reasons.append(REJECTED)
        if self.queue.is_limited and not (copy.message.is_confirmed if self.queue.refuses else self.has_room(copy)):
            reasons.append(MAX_LENGTH)
        limit = self.queue.delivery_limit
        if limit is not None and copy.deliveries + self.departures > limit:
            reasons.append(DELIVERY_LIMIT)
        return reasons

    def check_death(self, copy: Copy, reason: object, now: float) -> None:
        """A client got the message as a dead letter, with the reason that the broker gives."""
        if reason not in self.reasons(copy, now):
            raise Violation("a message dies of a reason", f"{copy}: {reason}")

    def check_count(self, count: int, most_unsettled: int, *, has_restarted: bool) -> None:
        """The broker says that so many messages wait. A start brings back all that was out, until the next publish.

        `most_unsettled` were out when a life of the node ended, or at any time where a queue refuses what is too much:
        what came back stays in it. Not all of them got to a client.
        """
        limit = self.queue.max_length
        if limit is None or self.queue.is_stream:
            return
        returned = 0
        if self.queue.refuses or has_restarted:
            returned = max(sum(copy.deliveries > 0 for copy in self.copies) + self.departures, most_unsettled)
        if count > limit + returned:
            raise Violation("a queue keeps to its limit", f"{self.queue.name}: {count} of {limit}")


def check_delivery_count(copy: Copy, *, has_crashed: bool) -> None:
    limit = copy.queue.delivery_limit
    if limit is not None and copy.deliveries - copy.free_deliveries > limit + 1 and not has_crashed:
        raise Violation("a poisonous message goes out of the way", f"{copy} came {copy.deliveries} times")


def check_age(copy: Copy, sent_after: float) -> None:
    """A message was sent to a client at some time from `sent_after` on."""
    if copy.message.confirmed_at + copy.ttl_s + ROUNDING_S < sent_after:
        raise Violation("nothing expired is delivered", f"{copy}, {copy.ttl_s} s after it was confirmed")


@dataclass(eq=False)
class Removal:
    """A purge or a delete: asked for at `asked_at`, over at `ended_at`, and uncertain in between."""

    queue: QueueSpec
    deletes: bool
    asked_at: float
    ended_at: float = NEVER


class Removals:
    """All purges and deletes of a run."""

    def __init__(self) -> None:
        self._pending: list[Removal] = []

    def begin(self, queue: QueueSpec, copies: Iterable[Copy], now: float, *, deletes: bool) -> Removal:
        for copy in copies:
            copy.may_be_gone = True
        removal = Removal(queue, deletes, now)
        self._pending.append(removal)
        return removal

    def carried_out(self, removal: Removal, copies: Iterable[Copy], now: float) -> None:
        """The broker has said that it is done. A delete is over only once the queue is there again: `end`."""
        for copy in copies:
            was_waiting = copy.message.confirmed_at <= removal.asked_at and copy.deliveries == 0
            if was_waiting:
                copy.gone_at = min(copy.gone_at, now)

    def end(self, removal: Removal, at: float) -> None:
        removal.ended_at = min(removal.ended_at, at)

    def is_under_way(self, queue: QueueSpec, now: float) -> bool:
        """Whether a message that is sent to that queue now may be taken away."""
        self._pending = [removal for removal in self._pending if removal.ended_at > now]
        return any(removal.queue is queue for removal in self._pending)


def check_gone(copy: Copy, sent_after: float, *, redelivered: bool) -> None:
    """What was purged was delivered to nobody; a flag says that it was on its way to somebody who got lost."""
    if copy.gone_at <= sent_after and not redelivered:
        raise Violation("what was purged does not come back", str(copy))


@dataclass
class Binding:
    """The binding of a roaming queue, as the one client knows it that binds and unbinds. `version` grows with each try.

    `is_bound` is None while nobody knows.
    """

    is_bound: bool | None = False
    version: int = 1

    def changes(self) -> None:
        self.is_bound = None
        self.version += 1

    def changed(self, *, is_bound: bool) -> None:
        self.is_bound = is_bound
        self.version += 1
