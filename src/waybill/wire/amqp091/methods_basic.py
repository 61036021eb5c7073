"""Methods of class basic (0-9-1, 1.8): publishing, consuming, acknowledging."""

from dataclasses import dataclass, field
from typing import ClassVar

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.method import Method


@dataclass(frozen=True)
class BasicQos(Method):
    """Limit what may be unacknowledged: octets and messages, 0 for no limit."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "basic.qos"
    ARGUMENTS: ClassVar[Arguments] = Arguments("prefetch_size:long prefetch_count:short global_:bit")

    prefetch_size: int = 0
    prefetch_count: int = 0
    global_: bool = False


@dataclass(frozen=True)
class BasicQosOk(Method):
    """The limit holds."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "basic.qos-ok"


@dataclass(frozen=True)
class BasicConsume(Method):
    """Start a consumer; without a tag the server gives one."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "basic.consume"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit no_wait:bit arguments:table"
    )

    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class BasicConsumeOk(Method):
    """The consumer is started."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "basic.consume-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("consumer_tag:shortstr")

    consumer_tag: str = ""


@dataclass(frozen=True)
class BasicCancel(Method):
    """End a consumer; from the server: its queue is gone."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "basic.cancel"
    ARGUMENTS: ClassVar[Arguments] = Arguments("consumer_tag:shortstr no_wait:bit")

    consumer_tag: str = ""
    no_wait: bool = False


@dataclass(frozen=True)
class BasicCancelOk(Method):
    """The consumer is ended."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "basic.cancel-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("consumer_tag:shortstr")

    consumer_tag: str = ""


@dataclass(frozen=True)
class BasicPublish(Method):
    """Publish the content that follows."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "basic.publish"
    HAS_CONTENT: ClassVar[bool] = True
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit"
    )

    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


@dataclass(frozen=True)
class BasicReturn(Method):
    """A message that could not be routed comes back."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 50
    NAME: ClassVar[str] = "basic.return"
    HAS_CONTENT: ClassVar[bool] = True
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr"
    )

    reply_code: int = 312
    reply_text: str = "NO_ROUTE"
    exchange: str = ""
    routing_key: str = ""


@dataclass(frozen=True)
class BasicDeliver(Method):
    """A message for a consumer."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 60
    NAME: ClassVar[str] = "basic.deliver"
    HAS_CONTENT: ClassVar[bool] = True
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr"
    )

    consumer_tag: str = ""
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


@dataclass(frozen=True)
class BasicGet(Method):
    """Ask for one message."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 70
    NAME: ClassVar[str] = "basic.get"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:short queue:shortstr no_ack:bit")

    queue: str = ""
    no_ack: bool = False


@dataclass(frozen=True)
class BasicGetOk(Method):
    """The message asked for, and how many are left."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 71
    NAME: ClassVar[str] = "basic.get-ok"
    HAS_CONTENT: ClassVar[bool] = True
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long"
    )

    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""
    message_count: int = 0


@dataclass(frozen=True)
class BasicGetEmpty(Method):
    """There is no message."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 72
    NAME: ClassVar[str] = "basic.get-empty"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:shortstr")


@dataclass(frozen=True)
class BasicAck(Method):
    """Settle a delivery, or all up to it; from the server: confirm publishes."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 80
    NAME: ClassVar[str] = "basic.ack"
    ARGUMENTS: ClassVar[Arguments] = Arguments("delivery_tag:longlong multiple:bit")

    delivery_tag: int = 0
    multiple: bool = False


@dataclass(frozen=True)
class BasicReject(Method):
    """Refuse a delivery."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 90
    NAME: ClassVar[str] = "basic.reject"
    ARGUMENTS: ClassVar[Arguments] = Arguments("delivery_tag:longlong requeue:bit")

    delivery_tag: int = 0
    requeue: bool = True


@dataclass(frozen=True)
class BasicRecoverAsync(Method):
    """Deliver again what is unacknowledged, without an answer (deprecated)."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 100
    NAME: ClassVar[str] = "basic.recover-async"
    ARGUMENTS: ClassVar[Arguments] = Arguments("requeue:bit")

    requeue: bool = False


@dataclass(frozen=True)
class BasicRecover(Method):
    """Deliver again what is unacknowledged."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 110
    NAME: ClassVar[str] = "basic.recover"
    ARGUMENTS: ClassVar[Arguments] = Arguments("requeue:bit")

    requeue: bool = False


@dataclass(frozen=True)
class BasicRecoverOk(Method):
    """It will be delivered again."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 111
    NAME: ClassVar[str] = "basic.recover-ok"


@dataclass(frozen=True)
class BasicNack(Method):
    """RabbitMQ: refuse a delivery, or all up to it; from the server: publishes that failed."""

    CLASS_ID: ClassVar[int] = 60
    METHOD_ID: ClassVar[int] = 120
    NAME: ClassVar[str] = "basic.nack"
    ARGUMENTS: ClassVar[Arguments] = Arguments("delivery_tag:longlong multiple:bit requeue:bit")

    delivery_tag: int = 0
    multiple: bool = False
    requeue: bool = True
