"""Releases deliveries that a peer has not settled for too long (1.0, 3.4.4: the source may release what it has sent).

Deliveries do not record when they were sent. Instead, each check notes the time and the next delivery-id.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.outcomes import Outcome
from waybill.engine.amqp10.server.settlement import link_of
from waybill.engine.amqp10.server.task import FEW, SessionTask
from waybill.wire.amqp10.error import TRANSACTION_TIMEOUT, Error
from waybill.wire.amqp10.messaging import Released

WRAP: Final = 0xFFFFFFFF
LATE_PER_UNIT_BITS: Final = 6
RELEASED: Final = Outcome(Released())


class UnsettledTimeout:
    """`_marks`: when the check ran, and the next delivery-id then; for one session."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, i64]] = []

    def release(self, session: LinkHost, now: float, timeout_s: float) -> None:
        """Release what has been unsettled for `timeout_s`, as of the last mark. Each call leaves a mark."""
        if not session.unsettled and not session.enlisted.retired:
            self._marks = []
            return
        self._marks.append((now, session.next_delivery_id))
        while len(self._marks) > 1 and self._marks[1][0] <= now - timeout_s:
            del self._marks[0]
        at, end = self._marks[0]
        if at > now - timeout_s:
            return
        # A transaction that is not discharged in time is rolled back; then what it retired is released too.
        late_retired = [retired for number, retired in session.enlisted.retired.items() if _is_before(number, end)]
        for control in dict.fromkeys([retired.transaction.control for retired in late_retired]):
            control.detach(Error(TRANSACTION_TIMEOUT, f"a transaction kept a delivery for {int(timeout_s)} s"))
        late: list[i64] = []
        # They are in the order in which they were sent. Those that a rollback put behind younger ones wait for these.
        for number in session.unsettled:
            if not _is_before(number, end):
                break
            late.append(number)
        session.connection.host.runtime.work_left -= len(late) >> LATE_PER_UNIT_BITS
        if len(late) <= FEW:
            late.reverse()
        if late:
            session.connection.begin(_Release(session, late))


class _Release(SessionTask):
    """Releases deliveries, and tells the peer so."""

    def __init__(self, session: LinkHost, numbers: list[i64]) -> None:
        super().__init__(session)
        self._numbers = numbers
        self._next: i64 = 0

    def work(self) -> bool:
        session = self.session
        runtime = session.connection.host.runtime
        count: i64 = len(self._numbers)
        while self._next < count:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            number = self._numbers[self._next]
            self._next += 1
            entry = session.unsettled.pop(number, None)
            if entry is None:
                continue
            link = link_of(entry)
            entry.holder = None
            RELEASED.apply(link, entry)
            link.settle(number, RELEASED.encoded)
            link.delivery_settled()
        return True


def _is_before(number: i64, end: i64) -> bool:
    return 0 < (end - number) & WRAP <= WRAP >> 1
