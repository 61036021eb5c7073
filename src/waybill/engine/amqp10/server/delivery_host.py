"""`DeliveryHost`: the interface of a link for deliveries that were sent."""

from mypy_extensions import i64

from waybill.engine.amqp10.server.outcomes import Outcome, OutcomeHost
from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry
from waybill.wire.amqp10.error import Error


class DeliveryHost(OutcomeHost):
    """A link by which the peer receives. `is_attached` turns False for good.

    `outcomes`: the names of those that both ends agreed upon. `default_outcome`: of deliveries settled without one.
    """

    def __init__(  # noqa: PLR0913
        self,
        name: str,
        terminus: Terminus,
        outcomes: tuple[str, ...],
        default_outcome: Outcome,
        priority: i64,
        *,
        is_settled: bool,
        is_exclusive: bool,
        is_strict: bool,
    ) -> None:
        super().__init__(name, is_settled, is_exclusive, priority)
        self.is_strict = is_strict
        self.terminus = terminus
        self.outcomes = outcomes
        self.default_outcome = default_outcome
        self.is_attached = True

    def withdraw(self, number: i64, entry: Entry) -> bool:
        """Remove a delivery from the unsettled ones. False if the peer has settled it."""
        raise NotImplementedError

    def restore(self, number: i64, entry: Entry) -> None:
        """Add a delivery to the unsettled ones again: its outcome has not taken effect."""
        raise NotImplementedError

    def settle(self, number: i64, state: bytes) -> None:
        """Settle a delivery that the peer has given an outcome and not settled."""
        raise NotImplementedError

    def delivery_settled(self) -> None:
        """A delivery that was removed from the unsettled ones is settled."""
        raise NotImplementedError

    def end_acquiring(self) -> None:
        """The transaction has ended that the link acquired deliveries for."""
        raise NotImplementedError

    def detach(self, error: Error | None, *, closed: bool = True) -> None:
        """Detach the link from our side."""
        raise NotImplementedError
