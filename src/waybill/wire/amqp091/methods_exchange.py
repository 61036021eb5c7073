"""Methods of class exchange (0-9-1, 1.6), with RabbitMQ's bindings between exchanges."""

from dataclasses import field

from waybill.wire.amqp091.method import Method, method


@method(
    40,
    10,
    "exchange.declare",
    "-:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit"
    " internal:bit no_wait:bit arguments:table",
)
class ExchangeDeclare(Method):
    """Declare an exchange; with `passive`, check that it exists."""

    exchange: str = ""
    type: str = "direct"
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@method(40, 11, "exchange.declare-ok")
class ExchangeDeclareOk(Method):
    """The exchange exists."""


@method(40, 20, "exchange.delete", "-:short exchange:shortstr if_unused:bit no_wait:bit")
class ExchangeDelete(Method):
    """Delete an exchange."""

    exchange: str = ""
    if_unused: bool = False
    no_wait: bool = False


@method(40, 21, "exchange.delete-ok")
class ExchangeDeleteOk(Method):
    """The exchange was deleted."""


@method(
    40,
    30,
    "exchange.bind",
    "-:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit arguments:table",
)
class ExchangeBind(Method):
    """RabbitMQ: route messages from one exchange to another."""

    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@method(40, 31, "exchange.bind-ok")
class ExchangeBindOk(Method):
    """The binding exists."""


@method(
    40,
    40,
    "exchange.unbind",
    "-:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit arguments:table",
)
class ExchangeUnbind(Method):
    """RabbitMQ: remove a binding between exchanges."""

    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


@method(40, 51, "exchange.unbind-ok")
class ExchangeUnbindOk(Method):
    """The binding was removed. Its id is 51, outside the pattern of all others."""
