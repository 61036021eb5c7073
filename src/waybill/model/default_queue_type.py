"""The type of queues that are declared without one, where a virtual host has a default.

As in RabbitMQ, the default is for queues that every type allows: durable, neither exclusive nor auto-delete. Others are
classic. A queue that is there keeps its type, so a default that is set later refuses nobody who declares it again.
"""

from waybill.model.queue import Queue

ARGUMENT = "x-queue-type"


def with_default_type(
    default: str, arguments: dict[str, object], existing: Queue | None, is_plain: bool
) -> dict[str, object]:
    """Return arguments with the type that they do not name. `is_plain`: every type allows such a queue."""
    if not default or ARGUMENT in arguments:
        return arguments
    if existing is not None:
        kind = existing.arguments.get(ARGUMENT)
        return arguments if kind is None else {**arguments, ARGUMENT: kind}
    return {**arguments, ARGUMENT: default} if is_plain else arguments
