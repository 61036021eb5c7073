"""How long a peer may keep a delivery without settling it (1.0, 3.4.4: the source may release what it has sent).

Deliveries do not note their time. Marks, made now and then, tell which delivery-id was the next one at which time.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.outcomes import Outcome
from waybill.engine.amqp10.server.task import FEW, SessionTask
from waybill.wire.amqp10.error import TRANSACTION_TIMEOUT, Error
from waybill.wire.amqp10.messaging import Released

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.session import Session

WRAP: Final = 0xFFFFFFFF
LATE_PER_UNIT_BITS: Final = 6
RELEASED: Final = Outcome(Released())


class Locks:
    """The marks of one session."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, i64]] = []

    def release(self, session: "Session", now: float, timeout_s: float) -> None:
        """Release what was unsettled `timeout_s` ago already. To be called now and then: each call leaves a mark."""
        if not session.unsettled and not session.retired:
            self._marks = []
            return
        self._marks.append((now, session.next_delivery_id))
        while len(self._marks) > 1 and self._marks[1][0] <= now - timeout_s:
            del self._marks[0]
        at, end = self._marks[0]
        if at > now - timeout_s:
            return
        # A transaction that is not discharged in time is undone; what it retired is released like all else then.
        late_retired = [retired for number, retired in session.retired.items() if _is_before(number, end)]
        for control in dict.fromkeys([retired.transaction.control for retired in late_retired]):
            control.session.detach_incoming(
                control, Error(TRANSACTION_TIMEOUT, f"a transaction kept a delivery for {int(timeout_s)} s")
            )
        late: list[i64] = []
        # They stand in the order in which they were sent. What a rollback has put behind younger ones comes after them.
        for number in session.unsettled:
            if not _is_before(number, end):
                break
            late.append(number)
        session.connection.host.runtime.work_left -= len(late) >> LATE_PER_UNIT_BITS
        if len(late) <= FEW:
            late.reverse()
        if late:
            session.connection.begin(_Releasing(session, late))


class _Releasing(SessionTask):
    """Takes deliveries back from the peer."""

    def __init__(self, session: "Session", numbers: list[i64]) -> None:
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
            link = session.link_of(entry)
            entry.holder = None
            RELEASED.apply(link, entry)
            session.settled_by_us(number, RELEASED.encoded)
            link.settled_later()
        return True


def _is_before(number: i64, end: i64) -> bool:
    return 0 < (end - number) & WRAP <= WRAP >> 1
