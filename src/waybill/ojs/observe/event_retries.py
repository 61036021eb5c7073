"""When events are published again that a broker has not taken, and what the log says about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from waybill.client.errors import ChannelClosed

FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 15.0
LOGGED_SECONDS: Final = 60.0

_log = logging.getLogger("waybill.ojs.events")


class EventRetries:
    """The log has a failure once a minute. A broker that refuses events is asked less and less often."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self.has_failed = False
        self.pause_seconds = FIRST_SECONDS
        """How long to wait before the next try."""
        self.refusal: str | None = None
        """Why the broker refuses events, None if it does not."""
        self._clock = clock
        self._quiet_until = 0.0

    def note(self, error: BaseException | None) -> None:
        """Note that events were not published."""
        self.refusal = str(error) if isinstance(error, ChannelClosed) else None
        now = self._clock()
        if not self.has_failed or now >= self._quiet_until:
            _log.warning("events cannot be published and are buffered: %r", error)
            self._quiet_until = now + LOGGED_SECONDS
        self.has_failed = True

    def begin(self) -> None:
        """Note that it is tried again."""
        if self.refusal is not None:
            self.pause_seconds = min(2 * self.pause_seconds, MOST_SECONDS)

    def end(self) -> None:
        """Note that events are published again."""
        _log.info("events are published again")
        self.has_failed = False
        self.refusal = None
        self.pause_seconds = FIRST_SECONDS
