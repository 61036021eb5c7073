"""The streams that a source reads: named ones, all partitions of a super stream or of events, or those of a pattern.

AMQP 0-9-1 cannot list queues. The partitions of a super stream are numbered, so they are searched until one is missing.
So are those of an event stream: the first has the name itself, and the second is NAME-1.
For a pattern, the management API of the broker, Waybill's or RabbitMQ's, lists the streams.
"""

import base64
import http.client
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from waybill.client import Inspector, connect
from waybill.client.blocking import run
from waybill.client.super_streams import PARTITIONS_MAX, partition_name
from waybill.pipeline.broker_errors import BROKER_ERRORS
from waybill.pipeline.http_connection import http_connection
from waybill.pipeline.named_options import address
from waybill.pipeline.offsets import DataLossError
from waybill.pipeline.options import SourceOptions
from waybill.pipeline.stream_log import StreamError, StreamUnavailable, unreadable

_PAGE_SIZE: Final = 500
_PAGES_MAX: Final = 200
_ANSWER_MAX: Final = 1 << 24
_TIMEOUT_S: Final = 30.0
_PORTS: Final = {"amqp": ("http", 15672), "amqps": ("https", 15671)}
_OK: Final = 200
_SERVER_FAILED: Final = 500


def selected(options: SourceOptions) -> tuple[str, ...]:
    """The streams to read now. Raises StreamError if there are none, StreamUnavailable."""
    if options.super_stream is not None:
        return _partitions(options, options.super_stream)
    if options.event_stream is not None:
        return _event_partitions(options, options.event_stream)
    if options.pattern is not None:
        return _matching(options, re.compile(options.pattern))
    return options.streams


def check_none_gone(options: SourceOptions, known: Mapping[str, int], streams: tuple[str, ...]) -> None:
    """Raise DataLossError if a stream that was read before is no longer among the found ones."""
    if options.streams or not options.fail_on_data_loss:
        return
    gone = sorted(set(known) - set(streams))
    if gone:
        raise DataLossError(
            f"stream {gone[0]!r} on {options.address} was read before and no longer exists. "
            "Set failOnDataLoss to false to continue without it."
        )


def _partitions(options: SourceOptions, name: str) -> tuple[str, ...]:
    try:
        found = run(_existing(options.uri, name))
    except BROKER_ERRORS as problem:
        raise unreadable(f"super stream {name!r}", options.uri, problem) from None
    if not found:
        raise StreamError(
            f"there is no super stream {name!r} on {options.address}: no stream {partition_name(name, 0)!r}. "
            f"`waybill topology super-stream {name} --partitions 4` declares one"
        )
    return found


def _event_partitions(options: SourceOptions, name: str) -> tuple[str, ...]:
    """The event stream itself comes first, even if it does not exist: reading it then fails."""
    try:
        return name, *run(_existing(options.uri, name, first=1))
    except BROKER_ERRORS as problem:
        raise unreadable(f"stream {name!r}", options.uri, problem) from None


async def _existing(uri: str, name: str, first: int = 0) -> tuple[str, ...]:
    found: list[str] = []
    async with connect(uri, name="waybill-pipeline") as connection:
        inspector = Inspector(connection)
        while len(found) < PARTITIONS_MAX:
            stream = partition_name(name, first + len(found))
            if await inspector.queue(stream) is None:
                break
            found.append(stream)
    return tuple(found)


def _matching(options: SourceOptions, pattern: re.Pattern[str]) -> tuple[str, ...]:
    streams = tuple(sorted(name for name in _listed(options) if pattern.fullmatch(name)))
    if not streams:
        raise StreamError(f"no stream on {options.address} matches {pattern.pattern!r} (option subscribePattern)")
    return streams


def _listed(options: SourceOptions) -> Iterator[str]:
    """The names of all streams of the virtual host."""
    broker = urlsplit(options.uri)
    api = urlsplit(options.management_uri or "")
    scheme, port = _PORTS.get(broker.scheme, _PORTS["amqp"])
    scheme, host = api.scheme or scheme, api.hostname or broker.hostname or "localhost"
    port = api.port or (port if not api.hostname else {"https": 443}.get(scheme, 80))
    user = (api if api.username else broker).username or "guest"
    password = (api if api.username else broker).password or "guest"
    credentials = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    # A path of nothing but "/" is the virtual host without a name only if it is written as %2F or "//".
    virtual_host = unquote(broker.path[1:]) if len(broker.path) > 1 else "/"
    path = f"{api.path.rstrip('/')}/api/queues/{quote(virtual_host, safe='')}"
    where = f"{scheme}://{host}:{port}"
    connection = http_connection(scheme, host, port, _TIMEOUT_S)
    try:
        for page in range(1, _PAGES_MAX + 1):
            query = f"page={page}&page_size={_PAGE_SIZE}&columns=name,type"
            connection.request("GET", f"{path}?{query}", headers={"Authorization": f"Basic {credentials}"})
            answer = connection.getresponse()
            names, pages = _read(answer.status, answer.read(_ANSWER_MAX + 1), where)
            yield from names
            if page >= pages:
                return
    except (OSError, http.client.HTTPException) as problem:
        raise StreamUnavailable(
            f"cannot list the streams of {address(options.uri)} for subscribePattern: {where} "
            f"(option managementUri): {problem or type(problem).__name__}"
        ) from None
    finally:
        connection.close()


def _read(status: int, body: bytes, where: str) -> tuple[list[str], int]:
    """The streams of one page of the list, and the number of pages."""
    if status != _OK:
        kind = StreamUnavailable if status >= _SERVER_FAILED else StreamError
        raise kind(f"{where} (option managementUri) answered {status} to the request for the streams")
    if len(body) > _ANSWER_MAX:
        raise StreamError(f"{where} (option managementUri) sent a list of more than {_ANSWER_MAX} bytes")
    try:
        found = json.loads(body)
        names = [str(item["name"]) for item in found["items"] if item.get("type") == "stream"]
        return names, int(found["page_count"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise StreamError(f"{where} (option managementUri) is not a management API: {problem}") from None
