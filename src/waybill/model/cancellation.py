"""Telling the consumers of a deleted queue, as many in a turn as there is room for."""

from typing import Final

from waybill.model.consumer import Consumer
from waybill.model.runtime import Chore, Runtime

CANCEL_UNITS: Final = 2


class Cancellation(Chore):
    """Calls `cancelled` of each consumer that is still in `leaving`, in order, and takes it out."""

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
