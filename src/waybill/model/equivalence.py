"""Redeclaration: every setting must be the same as before."""

from waybill.model.errors import InvalidArgument, PreconditionFailed, ResourceLocked
from waybill.model.exchange import Exchange
from waybill.model.queue import Queue
from waybill.model.queue_arguments import CLASSIC, KNOWN_ARGUMENTS


def check_same_exchange(
    virtual_host: str,
    exchange: Exchange,
    type_name: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: dict[str, object],
) -> None:
    """Raises `PreconditionFailed` if an exchange was declared with other settings."""
    what = f"exchange '{exchange.name}' in vhost '{virtual_host}'"
    _check_same("type", what, type_name, exchange.type)
    _check_same("durable", what, durable, exchange.durable)
    _check_same("auto_delete", what, auto_delete, exchange.auto_delete)
    _check_same("internal", what, internal, exchange.internal)
    _check_same(
        "alternate-exchange",
        what,
        arguments.get("alternate-exchange"),
        exchange.arguments.get("alternate-exchange"),
    )


def check_same_queue(
    virtual_host: str,
    queue: Queue,
    durable: bool,
    auto_delete: bool,
    exclusive_to: object | None,
    arguments: dict[str, object],
) -> None:
    """Raises `PreconditionFailed` or `ResourceLocked` if a queue was declared with other settings."""
    what = f"queue '{queue.name}' in vhost '{virtual_host}'"
    _check_same("durable", what, durable, queue.durable)
    _check_same("auto_delete", what, auto_delete, queue.auto_delete)
    if (exclusive_to is None) != (queue.owner is None):
        raise ResourceLocked(
            f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{virtual_host}'. The exclusive "
            "property value does not match that of the original declaration."
        )
    for name in sorted(KNOWN_ARGUMENTS.intersection({*arguments, *queue.arguments})):
        default = CLASSIC if name == "x-queue-type" else None
        _check_same(name, what, arguments.get(name, default), queue.arguments.get(name, default))


def _check_same(name: str, what: str, received: object, current: object) -> None:
    if received == current and type(received) is type(current):
        return
    raise PreconditionFailed(
        f"inequivalent arg '{name}' for {what}: received {_shown(received)} but current is {_shown(current)}"
    )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    if isinstance(value, (str, int, float)):
        return f"'{value}'"
    raise InvalidArgument(f"an argument cannot be compared: {value!r}")
