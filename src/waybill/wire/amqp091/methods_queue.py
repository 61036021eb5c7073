"""Methods of class queue (0-9-1, 1.7)."""

from dataclasses import field

from waybill.wire.amqp091.method import Method, method


@method(
    50,
    10,
    "queue.declare",
    "-:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit no_wait:bit arguments:table",
)
class QueueDeclare(Method):
    """Declare a queue; with `passive`, check that it exists. Without a name, the server chooses one."""

    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@method(50, 11, "queue.declare-ok", "queue:shortstr message_count:long consumer_count:long")
class QueueDeclareOk(Method):
    """The queue exists, with this many ready messages and consumers."""

    queue: str = ""
    message_count: int = 0
    consumer_count: int = 0


@method(
    50, 20, "queue.bind", "-:short queue:shortstr exchange:shortstr routing_key:shortstr no_wait:bit arguments:table"
)
class QueueBind(Method):
    """Route messages from an exchange to a queue."""

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@method(50, 21, "queue.bind-ok")
class QueueBindOk(Method):
    """The binding exists."""


@method(50, 30, "queue.purge", "-:short queue:shortstr no_wait:bit")
class QueuePurge(Method):
    """Remove all ready messages."""

    queue: str = ""
    no_wait: bool = False


@method(50, 31, "queue.purge-ok", "message_count:long")
class QueuePurgeOk(Method):
    """This many messages were removed."""

    message_count: int = 0


@method(50, 40, "queue.delete", "-:short queue:shortstr if_unused:bit if_empty:bit no_wait:bit")
class QueueDelete(Method):
    """Delete a queue."""

    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


@method(50, 41, "queue.delete-ok", "message_count:long")
class QueueDeleteOk(Method):
    """The queue was deleted with this many messages."""

    message_count: int = 0


@method(50, 50, "queue.unbind", "-:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table")
class QueueUnbind(Method):
    """Remove a binding of a queue."""

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: dict[str, object] = field(default_factory=dict)


@method(50, 51, "queue.unbind-ok")
class QueueUnbindOk(Method):
    """The binding was removed."""
