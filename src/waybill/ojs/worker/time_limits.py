"""Time limits of attempts, with one timer for all of them, which most attempts do not change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from waybill.ojs.worker.execution import Execution


class TimeLimits:
    """Ends attempts whose deadline has passed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, active: Iterable[Execution], end: Callable[[Execution], None]
    ) -> None:
        """`active` has the running attempts at any time; `end` ends one, or sets another deadline."""
        self._loop = loop
        self._active = active
        self._end = end
        self._timer: asyncio.TimerHandle | None = None

    def check_by(self, deadline: float) -> None:
        """Check the deadlines no later than this time."""
        timer = self._timer
        if timer is not None and timer.when() <= deadline:
            return
        if timer is not None:
            timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        for execution in list(self._active):
            if execution.deadline <= now:
                self._end(execution)
        deadlines = [execution.deadline for execution in self._active]
        if deadlines:
            self.check_by(min(deadlines))
