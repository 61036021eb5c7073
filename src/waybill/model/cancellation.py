"""Tells the consumers of a deleted queue, over several turns if there are many."""

from typing import Final

from waybill.model.consumer import Consumer
from waybill.model.runtime import Chore, Runtime

CANCEL_UNITS: Final = 2


class Cancellation(Chore):
    """Calls `cancelled` of each consumer in `leaving`, in order, and removes it from there."""

    def __init__(self, runtime: Runtime, leaving: dict[Consumer, None]) -> None:
        self._runtime = runtime
        self._leaving = leaving
        self._consumers = list(reversed(leaving))

    def work(self) -> bool:
        runtime = self._runtime
        while self._consumers and runtime.work_left > 0:
            runtime.work_left -= CANCEL_UNITS
            consumer = self._consumers.pop()
            if consumer in self._leaving:
                del self._leaving[consumer]
                consumer.cancelled()
        return not self._consumers
