"""The broker's log: passes records of the core to `logging`, limited so that no peer can fill a disk with them."""

import logging
from typing import Final

from waybill.node.node import OperatorLog
from waybill.transport.clock import Clock

RECORDS_PER_SECOND: Final = 10
DETAIL_SHOWN: Final = 2000

logger = logging.getLogger("waybill.broker")


class BrokerLog(OperatorLog):
    """Writes to the logger `waybill.broker`: at most `RECORDS_PER_SECOND` of one event, then a count of the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = 0
        self._counts: dict[tuple[int, str], int] = {}

    def info(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        self._write(logging.INFO, event, detail, _about(user, address))

    def warning(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        self._write(logging.WARNING, event, detail, _about(user, address))

    def error(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        self._write(logging.ERROR, event, detail, _about(user, address))

    def fault(self, event: str, detail: str, error: Exception) -> None:
        self._write(logging.ERROR, event, detail, {}, error)

    def report_suppressed(self) -> None:
        """Log how many records were suppressed since the last call, except those of the current second."""
        if self._counts and int(self._clock.now()) != self._second:
            counts, self._counts = self._counts, {}
            for (level, event), count in counts.items():
                if count > RECORDS_PER_SECOND:
                    more = count - RECORDS_PER_SECOND
                    logger.log(level, "%s: %d similar messages suppressed", event, more, extra={"event": event})

    def _write(
        self, level: int, event: str, detail: str, about: dict[str, str], error: Exception | None = None
    ) -> None:
        if not logger.isEnabledFor(level):
            return
        second = int(self._clock.now())
        if second != self._second:
            self.report_suppressed()
            self._second = second
        count = self._counts.get((level, event), 0) + 1
        self._counts[level, event] = count
        if count <= RECORDS_PER_SECOND:
            logger.log(level, "%s: %s", event, one_line(detail), exc_info=error, extra={"event": event, **about})


def _about(user: str, address: str) -> dict[str, str]:
    """Return the fields of a record about its peer, without empty ones."""
    return {name: one_line(text) for name, text in (("user", user), ("address", address)) if text}


def one_line(detail: str) -> str:
    """A detail without characters that could start new lines: names in it come from peers."""
    if len(detail) > DETAIL_SHOWN:
        detail = f"{detail[:DETAIL_SHOWN]}..."
    if detail.isprintable():
        return detail
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in detail)
