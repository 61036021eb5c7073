"""Methods of class basic (0-9-1, 1.8): publishing, consuming, acknowledging."""

from dataclasses import field

from waybill.wire.amqp091.method import Method, method


@method(60, 10, "basic.qos", "prefetch_size:long prefetch_count:short global_:bit")
class BasicQos(Method):
    """Limit the octets and the number of unacknowledged messages; 0 is no limit."""

    prefetch_size: int = 0
    prefetch_count: int = 0
    global_: bool = False


@method(60, 11, "basic.qos-ok")
class BasicQosOk(Method):
    """The limit is set."""


@method(
    60,
    20,
    "basic.consume",
    "-:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit no_wait:bit arguments:table",
)
class BasicConsume(Method):
    """Start a consumer. Without a tag, the server chooses one."""

    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@method(60, 21, "basic.consume-ok", "consumer_tag:shortstr")
class BasicConsumeOk(Method):
    """The consumer is started."""

    consumer_tag: str = ""


@method(60, 30, "basic.cancel", "consumer_tag:shortstr no_wait:bit")
class BasicCancel(Method):
    """Cancel a consumer; from the server: its queue was deleted."""

    consumer_tag: str = ""
    no_wait: bool = False


@method(60, 31, "basic.cancel-ok", "consumer_tag:shortstr")
class BasicCancelOk(Method):
    """The consumer is cancelled."""

    consumer_tag: str = ""


@method(
    60, 40, "basic.publish", "-:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit", content=True
)
class BasicPublish(Method):
    """Publish the content that follows."""

    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


@method(
    60, 50, "basic.return", "reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr", content=True
)
class BasicReturn(Method):
    """Return a message that could not be routed."""

    reply_code: int = 312
    reply_text: str = "NO_ROUTE"
    exchange: str = ""
    routing_key: str = ""


@method(
    60,
    60,
    "basic.deliver",
    "consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr",
    content=True,
)
class BasicDeliver(Method):
    """Deliver a message to a consumer."""

    consumer_tag: str = ""
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


@method(60, 70, "basic.get", "-:short queue:shortstr no_ack:bit")
class BasicGet(Method):
    """Ask for one message."""

    queue: str = ""
    no_ack: bool = False


@method(
    60,
    71,
    "basic.get-ok",
    "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long",
    content=True,
)
class BasicGetOk(Method):
    """The requested message, and the number of remaining messages."""

    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""
    message_count: int = 0


@method(60, 72, "basic.get-empty", "-:shortstr")
class BasicGetEmpty(Method):
    """There is no message."""


@method(60, 80, "basic.ack", "delivery_tag:longlong multiple:bit")
class BasicAck(Method):
    """Settle a delivery, or all up to it; from the server: confirm publishes."""

    delivery_tag: int = 0
    multiple: bool = False


@method(60, 90, "basic.reject", "delivery_tag:longlong requeue:bit")
class BasicReject(Method):
    """Refuse a delivery."""

    delivery_tag: int = 0
    requeue: bool = True


@method(60, 100, "basic.recover-async", "requeue:bit")
class BasicRecoverAsync(Method):
    """Redeliver unacknowledged messages, without a reply (deprecated)."""

    requeue: bool = False


@method(60, 110, "basic.recover", "requeue:bit")
class BasicRecover(Method):
    """Redeliver unacknowledged messages."""

    requeue: bool = False


@method(60, 111, "basic.recover-ok")
class BasicRecoverOk(Method):
    """They will be redelivered."""


@method(60, 120, "basic.nack", "delivery_tag:longlong multiple:bit requeue:bit")
class BasicNack(Method):
    """RabbitMQ: refuse a delivery, or all up to it; from the server: publishes that failed."""

    delivery_tag: int = 0
    multiple: bool = False
    requeue: bool = True
