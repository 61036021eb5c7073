"""Methods of class exchange (0-9-1, 1.6), with RabbitMQ's bindings between exchanges."""

from dataclasses import dataclass, field
from typing import ClassVar

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.method import Method


@dataclass(frozen=True)
class ExchangeDeclare(Method):
    """Make an exchange, or with `passive` ask for it."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "exchange.declare"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit"
        " no_wait:bit arguments:table"
    )

    exchange: str = ""
    type: str = "direct"
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ExchangeDeclareOk(Method):
    """The exchange is there."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "exchange.declare-ok"


@dataclass(frozen=True)
class ExchangeDelete(Method):
    """Delete an exchange."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "exchange.delete"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:short exchange:shortstr if_unused:bit no_wait:bit")

    exchange: str = ""
    if_unused: bool = False
    no_wait: bool = False


@dataclass(frozen=True)
class ExchangeDeleteOk(Method):
    """The exchange is gone."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "exchange.delete-ok"


@dataclass(frozen=True)
class ExchangeBind(Method):
    """RabbitMQ: route messages from one exchange to another."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "exchange.bind"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit arguments:table"
    )

    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ExchangeBindOk(Method):
    """The binding is there."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "exchange.bind-ok"


@dataclass(frozen=True)
class ExchangeUnbind(Method):
    """RabbitMQ: remove a binding between exchanges."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "exchange.unbind"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "-:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit arguments:table"
    )

    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ExchangeUnbindOk(Method):
    """The binding is gone. Its id is 51, out of the pattern of all others."""

    CLASS_ID: ClassVar[int] = 40
    METHOD_ID: ClassVar[int] = 51
    NAME: ClassVar[str] = "exchange.unbind-ok"
