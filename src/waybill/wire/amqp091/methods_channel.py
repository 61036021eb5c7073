"""Methods of class channel (0-9-1, 1.5)."""

from dataclasses import dataclass
from typing import ClassVar

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.method import Method


@dataclass(frozen=True)
class ChannelOpen(Method):
    """Open the channel that the frame names."""

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "channel.open"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:shortstr")


@dataclass(frozen=True)
class ChannelOpenOk(Method):
    """The channel is open."""

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "channel.open-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:octets")


@dataclass(frozen=True)
class ChannelFlow(Method):
    """Ask the peer to pause or resume sending content."""

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "channel.flow"
    ARGUMENTS: ClassVar[Arguments] = Arguments("active:bit")

    active: bool = True


@dataclass(frozen=True)
class ChannelFlowOk(Method):
    """What the flow is set to now."""

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "channel.flow-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("active:bit")

    active: bool = True


@dataclass(frozen=True)
class ChannelClose(Method):
    """Close the channel, because of the method with these ids if not 0."""

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "channel.close"
    ARGUMENTS: ClassVar[Arguments] = Arguments("reply_code:short reply_text:shortstr class_id:short method_id:short")

    reply_code: int = 200
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


@dataclass(frozen=True)
class ChannelCloseOk(Method):
    """The channel is closed."""

    CLASS_ID: ClassVar[int] = 20
    METHOD_ID: ClassVar[int] = 41
    NAME: ClassVar[str] = "channel.close-ok"
