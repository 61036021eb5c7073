"""What each subscription of webhooks may have open and in progress, so that none takes the place of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

MOST_OPEN: Final = 10_000
MOST_OPEN_BYTES: Final = 64 * 1024 * 1024
"""The maximum of all open deliveries together: each subscription has an equal share."""
FILL: Final = 200
"""How many events of a backlog are opened at a time."""
MOST_DUE_EACH: Final = 200
"""Due deliveries of one subscription that are remembered."""
AT_ONCE: Final = 40
AT_ONCE_EACH: Final = 5
"""The maximum for one subscription: a slow endpoint must not delay the others."""
MOST_SLOW: Final = 400
"""Slow deliveries in progress, which take no place of AT_ONCE: many slow endpoints must not delay the others either.

From half of it on, a subscription that has one gets no other.
"""
SLOW_SECONDS: Final = 1.0


class OpenDeliveries:
    """The number and the size of the open deliveries of each subscription."""

    def __init__(self, subscription_count: Callable[[], int]) -> None:
        self.counts: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self._subscription_count = subscription_count

    def add(self, subscription: str, size: int) -> None:
        """Count an open delivery."""
        self.counts[subscription] += 1
        self.sizes[subscription] += size

    def end(self, subscription: str, size: int) -> None:
        """Count no longer a delivery that has ended."""
        self.counts[subscription] -= 1
        self.sizes[subscription] -= size
        if self.counts[subscription] <= 0:
            del self.counts[subscription], self.sizes[subscription]

    def has_room(self, subscription: str, size: int) -> bool:
        """Whether a subscription may have another open delivery. One is always allowed."""
        subscriptions = max(self._subscription_count(), 1)
        return not self.counts[subscription] or (
            self.counts[subscription] < MOST_OPEN // subscriptions
            and self.sizes[subscription] + size <= MOST_OPEN_BYTES // subscriptions
        )

    def room(self, subscription: str) -> int:
        """Return how many events of a backlog to open: none as long as there is room for few."""
        share = max(MOST_OPEN // max(self._subscription_count(), 1), 1)
        room = min(share - self.counts[subscription], FILL)
        return room if room >= min(FILL, (share + 1) // 2) and self.has_room(subscription, 0) else 0


class DueDeliveries:
    """The deliveries that are due: subscriptions take turns."""

    def __init__(self) -> None:
        self.busy: Counter[str] = Counter()
        """The number of deliveries in progress by subscription, without the slow ones."""
        self.slow: Counter[str] = Counter()
        """The number of those that have been in progress for SLOW_SECONDS."""
        self._slow_keys: set[str] = set()
        self.failing: set[str] = set()
        """Subscriptions whose last delivery failed. Each may have one in progress, and all of them half of AT_ONCE."""
        self._keys: dict[str, dict[str, None]] = {}
        """By subscription. The first one is next."""

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def add(self, key: str, subscription: str) -> None:
        """Remember a delivery, unless so many are remembered that a later look will find it."""
        keys = self._keys.setdefault(subscription, {})
        if len(keys) < MOST_DUE_EACH:
            keys[key] = None

    def take(self) -> tuple[str, str] | None:
        """Return the key and the subscription of the next delivery to send, None if there is none; it is in progress.

        Call `done` when it is not any more, and `is_slow` if it lasts longer than SLOW_SECONDS.
        """
        slow = self.slow.total()
        too_slow = max(slow - MOST_SLOW, 0)
        if self.busy.total() + too_slow >= AT_ONCE:
            return None
        failing = sum(count for one, count in self.busy.items() if one in self.failing)
        may_fail = failing + too_slow < AT_ONCE // 2
        for subscription in list(self._keys):
            is_failing = subscription in self.failing
            in_progress = self.busy[subscription] + self.slow[subscription]
            takes_turns = is_failing or (slow >= MOST_SLOW // 2 and self.slow[subscription])
            if in_progress >= (1 if takes_turns else AT_ONCE_EACH) or (is_failing and not may_fail):
                continue
            keys = self._keys.pop(subscription)
            key = next(iter(keys))
            del keys[key]
            if keys:
                self._keys[subscription] = keys
            self.busy[subscription] += 1
            return key, subscription
        return None

    def is_slow(self, key: str, subscription: str) -> None:
        """Note that a delivery in progress is slow: another one gets its place."""
        self._slow_keys.add(key)
        _subtract(self.busy, subscription)
        self.slow[subscription] += 1

    def done(self, key: str, subscription: str) -> None:
        """Note that a delivery is not in progress any more."""
        was_slow = key in self._slow_keys
        self._slow_keys.discard(key)
        _subtract(self.slow if was_slow else self.busy, subscription)


def _subtract(counts: Counter[str], subscription: str) -> None:
    counts[subscription] -= 1
    if not counts[subscription]:
        del counts[subscription]
