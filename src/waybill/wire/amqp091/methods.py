"""All methods of 0-9-1 and RabbitMQ's additions, by their ids, and the decoder of method frames."""

from collections.abc import Callable
from types import ModuleType
from typing import Final

from waybill.wire.amqp091 import (
    methods_basic,
    methods_channel,
    methods_confirm,
    methods_connection,
    methods_exchange,
    methods_queue,
    methods_tx,
)
from waybill.wire.amqp091.errors import UnknownMethod
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.method_arguments import Arguments
from waybill.wire.amqp091.octets import Reader

_MODULES: Final[tuple[ModuleType, ...]] = (
    methods_connection,
    methods_channel,
    methods_exchange,
    methods_queue,
    methods_basic,
    methods_confirm,
    methods_tx,
)
METHODS: Final[tuple[type[Method], ...]] = tuple(
    found
    for module in _MODULES
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Method) and found is not Method
)

_CONSTRUCTORS: Final[dict[tuple[int, int], Callable[..., Method]]] = {
    (cls.CLASS_ID, cls.METHOD_ID): cls for cls in METHODS
}
_ARGUMENTS: Final[dict[tuple[int, int], Arguments]] = {(cls.CLASS_ID, cls.METHOD_ID): cls.ARGUMENTS for cls in METHODS}


def decode_method(payload: bytes) -> Method:
    """Decode the payload of a method frame, all of it. Raises UnknownMethod or another DecodeError."""
    reader = Reader(payload, 0, len(payload))
    class_id = reader.u16()
    method_id = reader.u16()
    constructor = _CONSTRUCTORS.get((class_id, method_id))
    if constructor is None:
        raise UnknownMethod(class_id, method_id)
    values = _ARGUMENTS[class_id, method_id].decode(reader)
    return constructor(*values)
