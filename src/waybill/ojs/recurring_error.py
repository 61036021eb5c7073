"""An error of a loop that tries again each second: the log has its trace once, and a line a minute while it lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from waybill.ojs.spec.nesting import shown

AGAIN_SECONDS: Final = 60.0


class RecurringError:
    """Logs the errors of one loop."""

    def __init__(self, log: logging.Logger, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`text` says what cannot be done. `clock` returns seconds."""
        self._log = log
        self._text = text
        self._clock = clock
        self._logged_at: float | None = None

    def failed(self, error: Exception) -> None:
        """Note that a try has failed."""
        now = self._clock()
        if self._logged_at is None:
            self._log.error(self._text, exc_info=error)
        elif now - self._logged_at < AGAIN_SECONDS:
            return
        else:
            lines = str(error).splitlines() or [type(error).__name__]
            self._log.error("%s, still: %s", self._text, shown(lines[0]))
        self._logged_at = now

    def worked(self) -> None:
        """Note that a try has succeeded: the next error is a new one."""
        self._logged_at = None
