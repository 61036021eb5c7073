"""Methods of class channel (0-9-1, 1.5)."""

from waybill.wire.amqp091.method import Method, method


@method(20, 10, "channel.open", "-:shortstr")
class ChannelOpen(Method):
    """Open the channel of the frame."""


@method(20, 11, "channel.open-ok", "-:octets")
class ChannelOpenOk(Method):
    """The channel is open."""


@method(20, 20, "channel.flow", "active:bit")
class ChannelFlow(Method):
    """Ask the peer to pause or resume sending content."""

    active: bool = True


@method(20, 21, "channel.flow-ok", "active:bit")
class ChannelFlowOk(Method):
    """The current setting of the flow."""

    active: bool = True


@method(20, 40, "channel.close", "reply_code:short reply_text:shortstr class_id:short method_id:short")
class ChannelClose(Method):
    """Close the channel, because of the method with these ids if not 0."""

    reply_code: int = 200
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


@method(20, 41, "channel.close-ok")
class ChannelCloseOk(Method):
    """The channel is closed."""
