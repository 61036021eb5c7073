"""Retrying a read that the disk could not serve."""

from typing import Final

from waybill.model.entry import EntryQueue
from waybill.model.runtime import Runtime
from waybill.model.timers import Timer

FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 2.0


class ReadRetry(Timer):
    """Calls `queue.read_again` after a delay that doubles with each `wait`, until `succeeded`."""

    def __init__(self, runtime: Runtime, queue: EntryQueue) -> None:
        self._runtime = runtime
        self._queue = queue
        self._delay_s = FIRST_DELAY_S
        self.is_waiting = False

    def wait(self) -> None:
        """A read failed: retry it later."""
        if not self.is_waiting:
            self.is_waiting = True
            self._runtime.timers.schedule(self._runtime.now + self._delay_s, self)
            self._delay_s = min(self._delay_s * 2.0, MAX_DELAY_S)

    def succeeded(self) -> None:
        """A read succeeded: reset the delay."""
        self._delay_s = FIRST_DELAY_S

    def fire(self, now: float) -> None:
        self.is_waiting = False
        self._queue.read_again()
