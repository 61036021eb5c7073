"""All structs, controls and commands, in the order of their classes."""

from types import ModuleType
from typing import Final, TypeVar

from waybill.wire.amqp010 import (
    class_connection,
    class_dtx,
    class_exchange,
    class_execution,
    class_file,
    class_message,
    class_queue,
    class_session,
    class_stream,
    class_tx,
)
from waybill.wire.amqp010.struct import Command, Control, Struct

StructT = TypeVar("StructT", bound=Struct)

_MODULES: Final[tuple[ModuleType, ...]] = (
    class_connection,
    class_session,
    class_execution,
    class_message,
    class_tx,
    class_dtx,
    class_exchange,
    class_queue,
    class_file,
    class_stream,
)


def _defined(base: type[StructT]) -> tuple[type[StructT], ...]:
    return tuple(
        found
        for module in _MODULES
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, base) and found.__module__ == module.__name__
    )


CONTROLS: Final = _defined(Control)
COMMANDS: Final = _defined(Command)
STRUCTS: Final = tuple(found for found in _defined(Struct) if not issubclass(found, (Control, Command)))
