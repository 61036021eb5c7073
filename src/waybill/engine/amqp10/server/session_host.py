"""`SessionHost`: the interface of a connection for its sessions and links."""

from mypy_extensions import i64

from waybill.engine.amqp10.server.transactions import Transactions
from waybill.engine.amqp10.termini import Terminus
from waybill.engine.host import Host
from waybill.engine.server_connection import ServerConnection
from waybill.model.runtime import Chore
from waybill.wire.amqp10.disposition import write_disposition
from waybill.wire.amqp10.frames import MIN_MAX_FRAME_SIZE, frame
from waybill.wire.amqp10.performatives import Performative
from waybill.wire.amqp10.sections import MessageFacts
from waybill.wire.amqp10.transfer import TransferFacts


class FrameTask(Chore):
    """The work of a frame that may take several turns."""

    def attempt(self) -> bool:
        """Like `work`. A fault ends what it concerns, and the task."""
        raise NotImplementedError


class HostedSession:
    """A session as its connection sees it."""

    def __init__(self, channel: i64) -> None:
        self.channel: i64 = channel

    def finish_drains(self) -> None:
        """The queues have delivered everything available: return the credit of links that drain."""
        raise NotImplementedError


class Accepting:
    """Collects accepted deliveries."""

    def accept_all(self) -> None:
        raise NotImplementedError


class SessionHost(ServerConnection):
    """A connection. `peer_max_frame_size`: what the peer takes. `suspended`: the termini of sessions that have ended.

    `transfer_facts` and `message_facts` are used for one frame at a time.
    """

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str, state: str
    ) -> None:
        super().__init__(host, transport, peer_address, now, certificate_user, state)
        self.container_id = ""
        self.peer_max_frame_size: i64 = MIN_MAX_FRAME_SIZE
        self.transactions = Transactions(host.runtime, self.held, host.limits.transaction_units_max)
        self.transfer_facts = TransferFacts()
        self.message_facts = MessageFacts()
        self.suspended: list[Terminus] = []

    def send_performative(self, channel: i64, performative: Performative) -> None:
        self.send(frame(int(channel), performative.encode()))

    def send_disposition(
        self, channel: i64, first: i64, last: i64, state: bytes, *, settled: bool, receiver: bool
    ) -> None:
        """Tell the state of the deliveries `first` to `last`. `receiver`: the peer has sent them."""
        if self.is_over:
            return
        write_disposition(self.out, channel, receiver=receiver, first=first, last=last, settled=settled, state=state)
        if not self.is_dirty:
            self.host.mark_dirty(self)

    def begin(self, task: FrameTask) -> None:
        """Execute the request of a frame. If it takes longer than the turn, later frames wait."""
        raise NotImplementedError

    def fail_session(self, session: HostedSession, error: Exception) -> None:
        """End what an error concerns: the session or the connection."""
        raise NotImplementedError

    def draining(self, session: HostedSession) -> None:
        """Call its `finish_drains` when the queues have had their turn."""
        raise NotImplementedError

    def accepting(self, accepting: Accepting) -> None:
        """Call its `accept_all` as soon as anything but a disposition arrives."""
        raise NotImplementedError

    def accept_all(self) -> None:
        """Apply the accepted dispositions that were collected."""
        raise NotImplementedError

    def link_count(self) -> int:
        """The attached links of all sessions."""
        raise NotImplementedError

    def settling_count(self) -> int:
        """The deliveries that have their outcome and that the peer has not settled."""
        raise NotImplementedError
