"""Limits on declarations: free disk space, names, and the size of arguments."""

from typing import Final

from waybill.model.errors import InvalidArgument, PreconditionFailed, ResourceRefused
from waybill.model.runtime import Runtime

ARGUMENTS_BYTES_MAX: Final = 16 << 10
VALUE_BYTES: Final = 8


def check_growth(runtime: Runtime, what: str) -> None:
    """Raises ResourceRefused while the disk is low. Operations that free space are still allowed."""
    if runtime.disk_alarm:
        raise ResourceRefused(
            f"cannot keep {what}: the node is {runtime.disk_alarm}; delete or consume something first"
        )


def check_streams(runtime: Runtime, what: str) -> None:
    """Raises PreconditionFailed if the node has reached its limit of streams."""
    if runtime.stream_count >= runtime.streams_max:
        raise PreconditionFailed(
            f"cannot declare {what} as a stream: the node may have {runtime.streams_max} "
            "streams, and each has a file open"
        )


def is_text(name: str) -> bool:
    """Whether the octets of a name are UTF-8: others were read as half characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_queue_name(name: str) -> None:
    """Raises InvalidArgument unless the name is text, as in RabbitMQ."""
    if not is_text(name):
        raise InvalidArgument(f"queue name '{name}' is not UTF-8")


def check_arguments(what: str, arguments: dict[str, object]) -> None:
    """Raises InvalidArgument if the arguments of a declaration are too large."""
    size = size_of(arguments) if arguments else 0
    if size > ARGUMENTS_BYTES_MAX:
        raise InvalidArgument(f"the arguments of {what} have about {size} bytes, {ARGUMENTS_BYTES_MAX} are allowed")


def size_of(value: object) -> int:
    """The approximate size of an argument's value in bytes."""
    if isinstance(value, str):
        return VALUE_BYTES + len(value)
    if isinstance(value, (bytes, bytearray)):
        return VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return VALUE_BYTES + sum(size_of(key) + size_of(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return VALUE_BYTES + sum(size_of(item) for item in value)
    return VALUE_BYTES
