"""The arguments of queues as Qpid's clients write them, in terms of the model."""

from operator import index
from typing import Final

from waybill.engine.amqp010.server.faults import session_fault
from waybill.wire.amqp010.constants import ERROR_INVALID_ARGUMENT, ERROR_NOT_IMPLEMENTED
from waybill.wire.amqp010.types import Array

MAX_PRIORITY: Final = "x-max-priority"
PRIORITIES: Final = frozenset({"qpid.priorities", "x-qpid-priorities"})
PRIORITIES_MAX: Final = 255
RENAMED: Final[dict[str, str]] = {
    "qpid.max_count": "x-max-length",
    "qpid.max_size": "x-max-length-bytes",
    "qpid.msg_sequence": "",
}
OVERFLOWS: Final[dict[str, str]] = {"reject": "reject-publish", "ring": "drop-head", "ring_strict": "drop-head"}
PREFIXES: Final = ("x-", "qpid.", "no-local")


def queue_arguments(given: dict[str, object]) -> dict[str, object]:
    """The arguments of a queue. Raises a session fault for an unknown argument."""
    arguments: dict[str, object] = {}
    for name, value in given.items():
        if name in PRIORITIES:
            if not isinstance(value, int) or not 1 <= value <= PRIORITIES_MAX + 1:
                raise session_fault(ERROR_INVALID_ARGUMENT, f"invalid arg '{name}': {value!r}")
            if value > 1:
                arguments[MAX_PRIORITY] = int(value) - 1
        elif name in RENAMED:
            if RENAMED[name]:
                arguments[RENAMED[name]] = plain(value)
        elif name == "qpid.policy_type":
            if isinstance(value, str) and value in OVERFLOWS:
                arguments["x-overflow"] = OVERFLOWS[value]
        elif not name.startswith(PREFIXES):
            raise session_fault(ERROR_NOT_IMPLEMENTED, f"the argument '{name}' is not known")
        else:
            arguments[name] = plain(value)
    return arguments


def plain_arguments(given: dict[str, object]) -> dict[str, object]:
    """The arguments of an exchange or a binding, as they are stored."""
    return {str(name): plain(value) for name, value in given.items()}


def plain(value: object) -> object:
    """A value without the width that its type has on the wire."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Not `int(value)`: compiled, that leaves a large one in its own class.
        return index(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value[:]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Array):
        return [plain(item) for item in value.items]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
