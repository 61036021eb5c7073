"""Settles deliveries as a disposition says (1.0, 2.7.6): those of the peer's receivers, and those that it has sent."""

from mypy_extensions import i64

from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.detached_deliveries import DetachedDeliveries
from waybill.engine.amqp10.server.faults import Fault, link_error, link_fault
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.outcomes import Outcome
from waybill.engine.amqp10.server.task import FEW, OneByOne, SessionTask
from waybill.engine.amqp10.server.unsettled_map import forget_settling, settling_among
from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.wire.amqp10.error import NOT_ALLOWED


def link_of(entry: Entry) -> DeliveryHost:
    """The link that has sent an unsettled delivery."""
    link = entry.holder
    assert isinstance(link, DeliveryHost)  # noqa: S101 - no other holder's deliveries are in `unsettled`
    return link


def settle(session: LinkHost, number: i64, entry: Entry, outcome: Outcome | None, *, settled: bool) -> None:
    """Apply a disposition to one delivery. An outcome that its link does not allow detaches the link."""
    link = link_of(entry)
    if outcome is not None and outcome.changes:
        session.connection.host.runtime.work_left -= entry.message.size // BYTES_PER_UNIT + 1
    try:
        _apply(session, link, number, entry, outcome, settled=settled)
    except Fault as fault:
        link.detach(link_error(fault))


def _apply(
    session: LinkHost, link: DeliveryHost, number: i64, entry: Entry, outcome: Outcome | None, *, settled: bool
) -> None:
    if outcome is None:
        if not settled:
            return
        # Settled without a terminal state: the default outcome (3.5.3).
        outcome = link.default_outcome
    elif outcome.name not in link.outcomes:
        raise link_fault(NOT_ALLOWED, f"{outcome.name} is not among the outcomes of this link")
    del session.unsettled[number]
    outcome.apply(link, entry)
    if not settled:
        link.settle(number, outcome.encoded)
    link.delivery_settled()


class Settlement(SessionTask):
    """A disposition of many deliveries. It skips those of `numbers` that are settled meanwhile."""

    def __init__(self, session: LinkHost, numbers: list[i64], outcome: Outcome | None, *, settled: bool) -> None:
        super().__init__(session)
        self._numbers = numbers
        self._outcome = outcome
        self._settled = settled
        self._next: i64 = 0

    def work(self) -> bool:
        session = self.session
        runtime = session.connection.host.runtime
        numbers = self._numbers
        count: i64 = len(numbers)
        # A message that goes back, or to dead letters, costs as much as a publish; so does an answer.
        cost: i64 = FEW >> 1 if self._outcome is not None and self._outcome.is_accepted else FEW
        if not self._settled:
            cost += FEW
        while self._next < count:
            if runtime.work_left <= 0:
                return False
            first = self._next
            self._next = min(first + FEW, count)
            runtime.work_left -= cost
            for number in numbers[first : self._next]:
                entry = session.unsettled.get(number)
                if entry is not None:
                    settle(session, number, entry, self._outcome, settled=self._settled)
        return True


class LateSettlement(OneByOne):
    """A disposition of deliveries whose links are detached."""

    def __init__(
        self, session: LinkHost, detached: DetachedDeliveries, numbers: list[i64], outcome: Outcome | None
    ) -> None:
        super().__init__(session, i64(len(numbers)))
        self._detached = detached
        self._numbers = numbers
        self._outcome = outcome

    def take(self, index: i64) -> None:
        self._detached.settle(self._numbers[index], self._outcome)


class SenderSettlement(SessionTask):
    """The peer settles the deliveries `first` to `last` that it has sent: their outcomes are no longer needed."""

    def __init__(self, session: LinkHost, termini: list[Terminus], first: i64, last: i64) -> None:
        super().__init__(session)
        self._first: i64 = first
        self._last: i64 = last
        self._termini = termini
        self._next: i64 = 0
        self._tags: list[bytes] = []

    def work(self) -> bool:
        runtime = self.session.connection.host.runtime
        while True:
            if runtime.work_left <= 0:
                return False
            if self._tags:
                tags = self._tags[-FEW:]
                del self._tags[-FEW:]
                runtime.work_left -= len(tags)
                tags.reverse()
                for tag in tags:
                    forget_settling(self._termini[self._next - 1], tag)
            elif self._next < len(self._termini):
                terminus = self._termini[self._next]
                self._next += 1
                runtime.work_left -= len(terminus.settling) >> 5
                self._tags = settling_among(terminus, self._first, self._last)
                self._tags.reverse()
            else:
                return True
