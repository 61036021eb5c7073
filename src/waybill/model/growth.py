"""What may be declared: not more than fits a disk that is nearly full, and nothing of an absurd size."""

from typing import Final

from waybill.model.errors import InvalidArgument, ResourceRefused
from waybill.model.runtime import Runtime

ARGUMENTS_BYTES_MAX: Final = 16 << 10
VALUE_BYTES: Final = 8


def check_growth(runtime: Runtime, what: str) -> None:
    """Raises ResourceRefused for something new on the disk while that is low. Whatever frees it goes on."""
    if runtime.disk_alarm:
        raise ResourceRefused(
            f"cannot keep {what}: the node is {runtime.disk_alarm}; delete or consume something first"
        )


def check_arguments(what: str, arguments: dict[str, object]) -> None:
    """Raises InvalidArgument if the arguments of a declaration are too large."""
    size = size_of(arguments) if arguments else 0
    if size > ARGUMENTS_BYTES_MAX:
        raise InvalidArgument(f"the arguments of {what} have about {size} bytes, {ARGUMENTS_BYTES_MAX} are allowed")


def size_of(value: object) -> int:
    """About how many bytes a value of an argument has."""
    if isinstance(value, str):
        return VALUE_BYTES + len(value)
    if isinstance(value, (bytes, bytearray)):
        return VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return VALUE_BYTES + sum(size_of(key) + size_of(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return VALUE_BYTES + sum(size_of(item) for item in value)
    return VALUE_BYTES
