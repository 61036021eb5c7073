"""The default type of a virtual host for queues that are declared without a type.

As in RabbitMQ, the default is for queues that every type allows: durable, neither exclusive nor auto-delete. Other
queues are classic. An existing queue keeps its type and can be declared again without one, even if the default is set
later.
"""

from typing import Final

from waybill.model.queue import Queue

ARGUMENT: Final = "x-queue-type"


def with_default_type(
    default: str, arguments: dict[str, object], existing: Queue | None, is_plain: bool
) -> dict[str, object]:
    """Return arguments with the default type if they have none. `is_plain`: every type allows such a queue."""
    if not default or ARGUMENT in arguments:
        return arguments
    if existing is not None:
        kind = existing.arguments.get(ARGUMENT)
        return arguments if kind is None else {**arguments, ARGUMENT: kind}
    return {**arguments, ARGUMENT: default} if is_plain else arguments
