"""Methods of class queue (0-9-1, 1.7)."""

from dataclasses import dataclass, field
from typing import ClassVar

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.method import Method


@dataclass(frozen=True)
class QueueDeclare(Method):
    """Make a queue, or with `passive` ask for it; without a name the server gives one."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "queue.declare"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit no_wait:bit arguments:table"
    )

    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueDeclareOk(Method):
    """The queue is there, with this many messages ready and consumers."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "queue.declare-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("queue:shortstr message_count:long consumer_count:long")

    queue: str = ""
    message_count: int = 0
    consumer_count: int = 0


@dataclass(frozen=True)
class QueueBind(Method):
    """Route messages from an exchange to a queue."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "queue.bind"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short queue:shortstr exchange:shortstr routing_key:shortstr no_wait:bit arguments:table"
    )

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueBindOk(Method):
    """The binding is there."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "queue.bind-ok"


@dataclass(frozen=True)
class QueuePurge(Method):
    """Drop all messages that are ready."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "queue.purge"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:short queue:shortstr no_wait:bit")

    queue: str = ""
    no_wait: bool = False


@dataclass(frozen=True)
class QueuePurgeOk(Method):
    """That many messages were dropped."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "queue.purge-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("message_count:long")

    message_count: int = 0


@dataclass(frozen=True)
class QueueDelete(Method):
    """Delete a queue."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "queue.delete"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:short queue:shortstr if_unused:bit if_empty:bit no_wait:bit")

    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


@dataclass(frozen=True)
class QueueDeleteOk(Method):
    """The queue is gone, and that many messages with it."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 41
    NAME: ClassVar[str] = "queue.delete-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("message_count:long")

    message_count: int = 0


@dataclass(frozen=True)
class QueueUnbind(Method):
    """Remove a binding of a queue."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 50
    NAME: ClassVar[str] = "queue.unbind"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table"
    )

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueUnbindOk(Method):
    """The binding is gone."""

    CLASS_ID: ClassVar[int] = 50
    METHOD_ID: ClassVar[int] = 51
    NAME: ClassVar[str] = "queue.unbind-ok"
