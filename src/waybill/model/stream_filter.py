"""Filters of stream consumers: `x-stream-filter` and `x-stream-match-unfiltered`."""

from waybill.model.errors import InvalidArgument
from waybill.model.message import Message


class StreamFilter:
    """Which messages a reader gets: by the value of their header `x-stream-filter-value`, or without one.

    RabbitMQ filters chunks, and clients must drop the other messages in them; here, each message is checked.
    """

    def __init__(self, values: list[str], *, match_unfiltered: bool) -> None:
        self._values = frozenset(values)
        self._match_unfiltered = match_unfiltered

    def matches(self, message: Message) -> bool:
        value = message.format.headers(message.content).get("x-stream-filter-value")
        return self._match_unfiltered if value is None else value in self._values


def stream_filter(arguments: dict[str, object]) -> StreamFilter | None:
    """The filter that the arguments of a consumer ask for. Raises InvalidArgument."""
    wanted = arguments.get("x-stream-filter")
    match_unfiltered = arguments.get("x-stream-match-unfiltered", False)
    if not isinstance(match_unfiltered, bool):
        raise InvalidArgument("invalid arg 'x-stream-match-unfiltered': must be a boolean")
    if wanted is None:
        return None
    values = wanted if isinstance(wanted, list) else [wanted]
    if not values or not all(isinstance(value, str) for value in values):
        raise InvalidArgument("invalid arg 'x-stream-filter': must be a string or a list of strings")
    return StreamFilter([str(value) for value in values], match_unfiltered=match_unfiltered)
