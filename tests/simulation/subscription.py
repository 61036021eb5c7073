"""What a consumer may expect of the order and the number of its deliveries."""

from dataclasses import dataclass, field

from tests.simulation.message import NEVER, Copy
from tests.simulation.queues import QueueSpec
from tests.simulation.violation import Violation


@dataclass(eq=False)
class Subscription:
    """One consumer, from consume to its end.

    `newest_number`: the newest first delivery, by publishing channel and priority. `newest_route`: by priority, when
    the youngest message delivered so far cannot have been routed yet. `passed_sent_after`: by priority, the latest
    moment from which on the broker sent a message of a lower one.

    `since`: when it was known to stand. `last_at`: its latest delivery. `superseded_at`: since when another was seen to
    be the single active consumer. `passed_over_at`: when another one of lower priority was seen to be served, though
    this one takes any number.
    """

    queue: QueueSpec
    prefetch: int
    no_ack: bool
    name: str
    priority: int = 0
    takes_any_number: bool = False
    outstanding: int = 0
    since: float = NEVER
    last_at: float = NEVER
    superseded_at: float = NEVER
    passed_over_at: float = NEVER
    newest_number: dict[tuple[str, int], int] = field(default_factory=dict)
    newest_route: dict[int, float] = field(default_factory=dict)
    passed_sent_after: dict[int, float] = field(default_factory=dict)

    def took(self, copy: Copy, now: float, sent_after: float, *, redelivered: bool) -> None:
        """Check a delivery."""
        if not self.no_ack:
            self.outstanding += 1
            if self.prefetch and self.outstanding > self.prefetch:
                raise Violation("credit holds", f"{self.name} has {self.outstanding} of {self.prefetch}")
        if sent_after >= self.superseded_at:
            raise Violation("one consumer is active", f"{self.name} got {copy} after another one had taken over")
        self.last_at = now
        if not redelivered and copy.queue.levels:
            self._check_order(copy, sent_after)

    def _check_order(self, copy: Copy, sent_after: float) -> None:
        message, level = copy.message, copy.level
        newest = self.newest_number.get((message.channel, level), -1)
        if message.number <= newest:
            raise Violation("a queue is first in, first out", f"{self.name} got {copy} after number {newest}")
        self.newest_number[message.channel, level] = message.number
        if message.confirmed_at < self.newest_route.get(level, -1.0):
            raise Violation("a queue is first in, first out", f"{self.name} got {copy} after one published later")
        self.newest_route[level] = max(self.newest_route.get(level, -1.0), message.routed_after)
        if copy.queue.levels > 1:
            if message.confirmed_at < self.passed_sent_after.get(level, -1.0):
                raise Violation("higher priorities come first", f"{self.name} got {copy} after a lower one")
            for higher in range(level + 1, copy.queue.levels):
                self.passed_sent_after[higher] = max(self.passed_sent_after.get(higher, -1.0), sent_after)

    def answered(self, asked_at: float) -> None:
        """It still stands: the broker has answered a question asked on its channel at that time."""
        if self.passed_over_at <= asked_at:
            raise Violation("higher consumer priorities come first", f"{self.name} was passed over")


class Consumers:
    """All consumers of all queues, to compare them with each other."""

    def __init__(self) -> None:
        self._by_queue: dict[str, list[Subscription]] = {}

    def add(self, subscription: Subscription, now: float) -> None:
        subscription.since = now
        self._by_queue.setdefault(subscription.queue.name, []).append(subscription)

    def remove(self, subscription: Subscription) -> None:
        others = self._by_queue.get(subscription.queue.name, [])
        if subscription in others:
            others.remove(subscription)

    def delivered(self, subscription: Subscription, now: float, sent_after: float) -> None:
        """The broker has sent a message to one consumer, at some time from `sent_after` on."""
        for other in self._by_queue.get(subscription.queue.name, []):
            if other is subscription:
                continue
            if subscription.queue.single_active and other.last_at <= sent_after:
                other.superseded_at = min(other.superseded_at, now)
            outranks = other.priority > subscription.priority and not subscription.queue.single_active
            if outranks and other.takes_any_number and other.since <= sent_after:
                other.passed_over_at = min(other.passed_over_at, now)
