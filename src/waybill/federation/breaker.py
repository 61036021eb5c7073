"""A circuit breaker: stops requests to a failing region, and probes whether it is back (ojs-federation section 8.2).

          threshold reached            cooldown is over
CLOSED ───────────────────────► OPEN ◄──────────────────► HALF-OPEN
  ▲                                         failure           │
  └───────────────────────────────────────────────────────────┘
                              success
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half-open"


class CircuitBreaker:
    """The breaker of one region. After `allow` has returned True, call `succeeded`, `failed` or `gave_up`."""

    def __init__(
        self, failure_threshold: int, cooldown_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns seconds."""
        self.failure_count = 0
        """Consecutive failures."""
        self._threshold = failure_threshold
        self._cooldown_seconds = cooldown_seconds
        self._clock = clock
        self._opened_at: float | None = None
        self._is_probing = False

    @property
    def state(self) -> str:
        """Return closed, open or half-open."""
        if self._opened_at is None:
            return CLOSED
        return OPEN if self._clock() < self._opened_at + self._cooldown_seconds else HALF_OPEN

    @property
    def is_ready(self) -> bool:
        """Whether `allow` would return True."""
        state = self.state
        return state == CLOSED or (state == HALF_OPEN and not self._is_probing)

    def allow(self) -> bool:
        """Whether a request may be sent. In the half-open state it is the only probe."""
        if not self.is_ready:
            return False
        self._is_probing = self.state == HALF_OPEN
        return True

    def succeeded(self) -> None:
        """Record an answer. Answers to requests sent before the breaker opened do not count."""
        if self.state == OPEN:
            return
        self.failure_count = 0
        self._opened_at = None
        self._is_probing = False

    def failed(self) -> None:
        """Record a failure. Late failures do not prolong the cooldown."""
        self.failure_count += 1
        if self.state == OPEN:
            return
        if self._opened_at is not None or self.failure_count >= self._threshold:
            self._opened_at = self._clock()
        self._is_probing = False

    def gave_up(self) -> None:
        """Record that a request was cancelled, which says nothing about the region."""
        self._is_probing = False
