"""Requests and responses of the application, independent of server and socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.sockets import Talk
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, MAX_WEIGHT, is_nested_deeper, is_too_heavy

MEDIA_TYPE: Final = "application/openjobspec+json"
CLIENT_MEDIA_TYPE: Final = f'{MEDIA_TYPE}; alt="application/json"'
"""For clients that ignore bodies whose type does not contain application/json."""
ACCEPTED: Final = frozenset({MEDIA_TYPE, "application/json"})
SPEC_VERSION: Final = "1.0"
MAX_REQUEST_ID: Final = 128
MAX_QUERY_FIELDS: Final = 100


@dataclass(slots=True)
class Request:
    """A request. The names of `headers` are in lower case; `parameters` are those of the route."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    parameters: dict[str, str] = field(default_factory=dict)
    id: str = ""
    actor: str = ""
    """The name of the API key, empty without one."""
    role: str = "admin"
    """The role of the client. Without keys, every program on this machine may do everything."""
    tenant: str = ""
    """The tenant of the key, empty for keys that see everything."""
    queue_prefix: str = ""
    """The prefix of the queues that the client may see."""
    target: str = ""
    """The encoded path."""
    raw_query: bytes = b""
    """The raw query, which may have repeated fields."""
    peer: str = ""
    """The address of the client, `host:port`."""
    are_ids_made: bool = False
    """Whether the server has made the ids of the jobs in the body, so that no other request has them."""
    client: str = ""
    """The client whose limit of requests counts, once known; see `request_limits`."""

    def is_heavier(self, limit: int) -> bool:
        """Return whether the body has too many values: see `waybill.ojs.spec.nesting.MAX_WEIGHT`."""
        return is_too_heavy(self.body, limit)

    @property
    def is_too_heavy(self) -> bool:
        """Whether the body has too many values to be decoded without delaying other requests."""
        return self.is_heavier(MAX_WEIGHT)

    def json(self, *, required: bool = False) -> dict[str, object]:
        """Return the body, which must be an object. An empty body is {} unless it is required.

        Raises RequestRefused.
        """
        if not self.body.strip() and not required:
            return {}
        declared = self.headers.get("content-type", MEDIA_TYPE).partition(";")[0].strip().lower()
        if declared not in ACCEPTED:
            raise RequestRefused(
                "invalid_request",
                f"The content type {declared[:100]!r} is not supported.",
                hint=f"Send the header Content-Type: {MEDIA_TYPE} or application/json.",
            )
        if self.is_too_heavy:
            raise RequestRefused("payload_too_large", "The body has too many values.")
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise RequestRefused("invalid_payload", f"The body is not JSON: {text}.") from None
        if not isinstance(found, dict):
            raise RequestRefused("invalid_payload", "The body must be a JSON object.")
        if is_nested_deeper(self.body, MAX_CARRIED_NESTING):
            raise RequestRefused("invalid_payload", "The body is nested too deeply.")
        return found

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a number from the query, clamped to its range. Raises RequestRefused if it is not a number."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise RequestRefused("invalid_request", f"The parameter {name} must be a number.", details={"field": name})
        return min(max(int(text), least), most)

    def listed(self, name: str) -> set[str]:
        """Return the values of the query that are separated by commas."""
        return {one for one in self.query.get(name, "").split(",") if one}


@dataclass(slots=True)
class Response:
    """A response: a body, or a stream of pieces, which is closed when the client disconnects."""

    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: AsyncIterator[bytes] | None = None
    unheard: Callable[[], None] | None = None
    """Called if the client has disconnected before the answer."""
    talk: Talk | None = None
    """What follows on the connection of a WebSocket."""
    lines: bytes = b""
    """The encoded status line and headers, instead of `headers`, without the date and the length of the body."""


def request_id_of(given: str) -> str:
    """Return the id of a request: the client's, if it is usable, else a new one."""
    if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable():
        return given
    return f"req_{new_id()}"


def media_type_for(request: Request) -> str:
    """Return the content type of an answer that has no other one."""
    client = request.headers.get("user-agent", "")
    return CLIENT_MEDIA_TYPE if client.startswith("python-httpx") else MEDIA_TYPE


def integer_of(body: Mapping[str, object], name: str, default: int, least: int, most: int) -> int:
    """Return an integer of a body, at most `most`. Raises RequestRefused if it is no integer or below `least`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise invalid(name, f"must be an integer of at least {least}")
    return min(value, most)


def read_query(raw: bytes) -> dict[str, str]:
    """Return the fields of a query, the last one of each name. Raises RequestRefused for too many."""
    if not raw:
        return {}
    try:
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS))
    except ValueError:
        raise RequestRefused("invalid_request", f"The query has more than {MAX_QUERY_FIELDS} fields.") from None


def streamed(stream: AsyncIterator[bytes], media_type: str, status: int = 200) -> Response:
    """Return a streaming response, for server-sent events: each piece is sent immediately."""
    return Response(status, headers=[("Content-Type", media_type), ("Cache-Control", "no-store")], stream=stream)


def answer(body: object, status: int = 200, headers: list[tuple[str, str]] | None = None) -> Response:
    """Return an answer with a JSON body."""
    return Response(status, msgspec.json.encode(body), headers or [])
