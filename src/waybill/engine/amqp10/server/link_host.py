"""`LinkHost`: what a link needs of its session."""

from collections import deque

from mypy_extensions import i64

from waybill.engine.amqp10.server.accepted_runs import AcceptedRuns
from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.session_host import HostedSession, SessionHost
from waybill.engine.amqp10.server.transaction import Enlisted
from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry, Holder
from waybill.model.queue import Queue
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.performatives import Begin, Performative


class ParkedDelivery:
    """The rest of a delivery that the session's window has no room for."""

    def send(self) -> bool:
        """Send what fits into the window now. True if nothing is left."""
        raise NotImplementedError


class LinkHost(HostedSession):
    """A session. `is_open` turns False for good.

    `next_outgoing_id` counts the transfers that were sent, modulo 2^32; `peer_window` is how many more the peer takes.
    `unsettled`: deliveries that the peer has not settled, by delivery-id. `parked`: deliveries of which the rest waits
    for the window. `suspended`: the termini of links that were detached and may be attached again.
    """

    def __init__(self, connection: SessionHost, channel: i64, begin: Begin) -> None:
        super().__init__(channel)
        self.connection = connection
        self.is_open = True
        self.next_outgoing_id: i64 = 0
        self.peer_window: i64 = begin.incoming_window
        self.next_delivery_id: i64 = 0
        self.unsettled: dict[i64, Entry] = {}
        self.enlisted = Enlisted()
        self.accepted_runs = AcceptedRuns(connection, channel)
        self.parked: deque[ParkedDelivery] = deque()
        self.suspended: list[Terminus] = []

    def send(self, performative: Performative) -> None:
        if not self.connection.is_over:
            self.connection.send_performative(self.channel, performative)

    def send_flow(
        self, handle: i64 = -1, delivery_count: i64 = 0, credit: i64 = 0, available: i64 = -1, *, drain: bool = False
    ) -> None:
        """Send the state of the session, and of the link with our `handle` unless that is negative."""
        raise NotImplementedError

    def send_outcome(self, delivery_id: i64, state: bytes, *, settled: bool = True) -> None:
        """Tell the outcome of one delivery that the peer has sent."""
        self.connection.send_disposition(self.channel, delivery_id, delivery_id, state, settled=settled, receiver=True)

    def settle(self, delivery_id: i64, state: bytes) -> None:
        """Settle a delivery that the peer has given an outcome and not settled."""
        self.connection.send_disposition(self.channel, delivery_id, delivery_id, state, settled=True, receiver=False)

    def report_detach(self, name: str, error: Error | None) -> None:
        """Log that a link is refused, or detached from our side, by an error."""
        if error is not None:
            reason = f"{error.condition} {error.description or ''}"
            self.connection.report("link detached", f"session {self.channel}, link {name!r}: {reason}")

    def wants_drain(self) -> None:
        """A link drains."""
        self.connection.draining(self)

    def remove_incoming(self, peer_handle: i64) -> bool:
        """Drop transfers of a link until the peer detaches it, too. False if the session has no such link."""
        raise NotImplementedError

    def remove_outgoing(self, peer_handle: i64) -> bool:
        """As `remove_incoming`, for a link by which the peer receives."""
        raise NotImplementedError

    def take_deliveries(self, link: Holder) -> list[tuple[i64, Entry]]:
        """Remove the unsettled deliveries of a link that is detached."""
        raise NotImplementedError

    def leave_behind(self, link: DeliveryHost, number: i64, entry: Entry) -> None:
        """The terminus of a detached link holds a delivery: the peer may still settle it by its delivery-id."""
        raise NotImplementedError

    def response_queue(self, name: str) -> Queue | None:
        """The queue of the link of that name that takes responses of the management node; else of any such link."""
        raise NotImplementedError
