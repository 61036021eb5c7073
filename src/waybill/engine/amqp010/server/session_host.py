"""The interface of a 0-10 connection for its sessions."""

from mypy_extensions import i64

from waybill.engine.host import Host
from waybill.engine.server_connection import ServerConnection
from waybill.engine.server_engine import Confirming
from waybill.model.runtime import Chore
from waybill.wire.amqp010.codec import encode_control
from waybill.wire.amqp010.constants import MIN_MAX_FRAME_SIZE
from waybill.wire.amqp010.message_header import HeaderFacts
from waybill.wire.amqp010.struct import Control
from waybill.wire.amqp010.transfer import TransferFacts


class SessionHost(ServerConnection):
    """A connection. `facts` and `transfer_facts` are scratch space."""

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str, state: str
    ) -> None:
        super().__init__(host, transport, peer_address, now, certificate_user, state)
        self.client_properties: dict[str, object] = {}
        self.channel_max: i64 = 0
        self.max_frame_size: i64 = MIN_MAX_FRAME_SIZE
        self.facts = HeaderFacts()
        self.transfer_facts = TransferFacts()
        self.has_published = False

    def send_control(self, channel: i64, control: Control) -> None:
        self.send(encode_control(int(channel), control, int(self.max_frame_size)))

    @property
    def is_busy(self) -> bool:
        """Whether a command takes more than one turn. No other command is executed before it is done."""
        raise NotImplementedError

    def begin(self, task: Chore) -> None:
        """Execute a command, over several turns if needed."""
        raise NotImplementedError

    def flushing(self, session: Confirming) -> None:
        """Call the session's `finish_flushes` once the queues are drained."""
        raise NotImplementedError

    def holds_messages(self) -> bool:
        """Whether the peer has deliveries that it has not settled."""
        raise NotImplementedError

    def stolen(self, channel: i64) -> None:
        """The session on a channel was attached elsewhere."""
        raise NotImplementedError
