"""The real clock: Unix time that never jumps."""

import time

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """Unix time at construction, advanced by the monotonic clock.

    Timestamps look like the time of day, yet a correction of the system clock (NTP, a resumed virtual machine, an
    operator) neither fires nor delays a timer.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return self._offset_s + time.monotonic()
