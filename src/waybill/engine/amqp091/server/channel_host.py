"""The interfaces of a 0-9-1 connection for its parts: `ChannelHost` is the connection, `ConsumerHost` a channel."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp091.server.octet_window import OctetWindow
from waybill.engine.host import Host
from waybill.engine.server_connection import ServerConnection
from waybill.model.entry import Entry, Holder
from waybill.model.runtime import Chore
from waybill.wire.amqp091.content import ContentFacts
from waybill.wire.amqp091.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicCancel
from waybill.wire.amqp091.methods_connection import ConnectionClose

FRAME_MIN: Final = 4096
ACK_SIZE_AND_METHOD: Final = 0x0000000D_003C0050
"""The size of a basic.ack frame after its type and channel."""


class ChannelHost(ServerConnection):
    """A connection, as its channels, its handshake and its throttle see it."""

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str, state: str
    ) -> None:
        super().__init__(host, transport, peer_address, now, certificate_user, state)
        self.client_properties: dict[str, object] = {}
        self.knows_consumer_cancel = False
        self.knows_blocked = False
        self.channel_max: i64 = 0
        self.frame_max: i64 = FRAME_MIN
        self.facts = ContentFacts()

    def send_method(self, channel: int, method: Method) -> None:
        self.send(method_frame(channel, method))

    def begin(self, task: "ChannelTask") -> None:
        """Execute the request of a frame and answer it. If that takes longer than the turn, later frames wait."""
        raise NotImplementedError

    def holds_messages(self) -> bool:
        """Whether the peer has deliveries that it has not settled."""
        raise NotImplementedError

    def alarm_told(self, method: Method, now: float) -> None:
        """Notify the peer of an alarm, or of its end. Only later publishes count."""
        raise NotImplementedError

    def refuse_login(self, close: ConnectionClose, *, tells: bool) -> None:
        """Close a connection whose peer failed to log in. A peer that cannot read the reason is disconnected."""
        raise NotImplementedError


class ChannelTask(Chore):
    """A task of a channel, which continues if the connection ends. The connection takes no frame before it is done."""

    def finish(self) -> None:
        """Answer the peer."""


class PolledMessages(Holder):
    """Holds the messages that a channel received by basic.get; polling needs no credit."""

    def credit_available(self) -> None:
        pass


class ConsumerHost:
    """A channel, as its consumers and its tasks see it.

    `prefetch`: the limit of the whole channel (qos with global), 0 for none; `window`: that in octets. `has_limit`: one
    of them is set. `counts_octets`: a consumer or the channel has a window in octets. `is_open` never becomes True
    again.
    """

    def __init__(self, connection: ChannelHost, number: i64) -> None:
        self.connection = connection
        self.number: i64 = number
        # The first three octets of its frames as a number, and the first eleven of a basic.ack.
        self.method_head: i64 = FRAME_METHOD << 16 | number
        self.header_head: i64 = FRAME_HEADER << 16 | number
        self.body_head: i64 = FRAME_BODY << 16 | number
        self.ack_head = int(self.method_head).to_bytes(3, "big") + ACK_SIZE_AND_METHOD.to_bytes(8, "big")
        self.is_open = True
        self.is_flowing = True
        # While the channel itself deletes a queue: its cancelled consumers, reported after the answer.
        self.late_cancels: list[BasicCancel] | None = None
        self.prefetch: i64 = 0
        self.window: OctetWindow | None = None
        self.has_limit = False
        self.counts_octets = False
        self.delivery_tag: i64 = 0
        self.unsettled: dict[i64, Entry] = {}
        self.unsettled_count: i64 = 0
        self.unsettled_max: i64 = connection.host.limits.unsettled_per_channel_max
        self.polled = PolledMessages()
        self.reply_queue_name = ""
        # For operators.
        self.publish_count: i64 = 0
        self.acknowledged_count: i64 = 0

    def send(self, method: Method) -> None:
        self.connection.send(method_frame(int(self.number), method))

    def accept_run(self, entries: list[Entry], *, is_counted: bool) -> None:
        """Accept deliveries of one queue and one holder. `is_counted`: the channel still counts them as unsettled."""
        raise NotImplementedError

    def give_credit(self, entry: Entry) -> None:
        """A delivery of a consumer was settled or requeued."""
        raise NotImplementedError

    def has_settled(self) -> None:
        """A task has settled its deliveries."""
        raise NotImplementedError

    def published(self, *, is_accepted: bool, needs_commit: bool) -> None:
        """A message that was routed to very many queues is in all of them."""
        raise NotImplementedError

    def consumer_cancelled(self, tag: str) -> None:
        """The queue of a consumer was deleted."""
        raise NotImplementedError
