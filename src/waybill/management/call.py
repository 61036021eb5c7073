"""One request to the management API, its fields and its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from waybill.backend.message import Request
from waybill.management.errors import Refused, bad_request, missing
from waybill.management.long_answers import LongAnswers
from waybill.management.principal import Principal

DEPTH_MAX: Final = 64
WEIGHT_MAX: Final = 100_000
"""An array or an object counts for 4, what it holds for 1."""


@dataclass(slots=True)
class Answer:
    """An answer other than JSON with the status 200. `body` None is an empty body."""

    status: int
    body: object = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    octets: bytes | None = None
    """The encoded body."""
    stream: AsyncIterator[bytes] | None = None
    """A long body in pieces: each is made after the client has read those before."""


CREATED: Final = 201
NO_CONTENT: Final = 204


class Call:
    """A request with its route and its user. `parameters` are those of the route, decoded."""

    __slots__ = ("long_answers", "parameters", "principal", "query", "request")

    def __init__(
        self, request: Request, parameters: dict[str, str], principal: Principal, long_answers: LongAnswers
    ) -> None:
        """`long_answers` are those of all requests."""
        self.request = request
        self.parameters = parameters
        self.principal = principal
        self.query = request.query
        self.long_answers = long_answers

    def __getitem__(self, name: str) -> str:
        """Return a parameter of the route."""
        return self.parameters[name]

    def take_body(self) -> dict[str, Any]:
        """Return the body, which must be an object, and drop its octets; {} if there is none. Raises Refused."""
        octets = self.take_octets(WEIGHT_MAX)
        return object_of(octets) if octets.strip() else {}

    def take_octets(self, weight_max: int) -> bytes:
        """Return the body, and drop it from the request. Raises Refused if it has too many values."""
        if self.request.is_heavier(weight_max):
            raise Refused(413, "the body has too many values", "bad_request")
        octets, self.request.body = self.request.body, b""
        return octets

    def flag(self, name: str) -> bool:
        """Whether a query parameter is `true`."""
        return self.query.get(name, "").lower() == "true"


def object_of(octets: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises Refused."""
    try:
        found = msgspec.json.decode(octets)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(400, "not_json", "bad_request") from None
    if not isinstance(found, dict):
        raise Refused(400, "not_json", "bad_request")
    return found


def require(body: dict[str, Any], *names: str) -> None:
    """Raise Refused if a field is missing."""
    for name in names:
        if body.get(name) is None:
            raise missing(name)


def text_of(body: dict[str, Any], name: str, default: str = "") -> str:
    """Return a string field. Raises Refused."""
    value = body.get(name, default)
    if value is None:
        return default
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string")
    return value


def flag_of(body: dict[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a boolean field; rabbitmqadmin sends strings. Raises Refused."""
    value = body.get(name, default)
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be a boolean")
    return value


def integer_of(body: dict[str, Any], name: str, default: int | None = None) -> int:
    """Return an integer field; some clients send strings. Raises Refused."""
    value = body.get(name, default)
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 19:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not _fits(value, 0):
        raise bad_request(f"{name} must be an integer of 64 bits")
    return value


def tags_of(value: object) -> tuple[str, ...]:
    """Return tags, from a list or a string with commas. Raises Refused."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request("tags must be a list, or a string with commas")
    return tuple(tag.strip() for tag in value if tag.strip())


def table_of(body: dict[str, Any], name: str) -> dict[str, object]:
    """Return an object field; an empty list counts as an empty object. Raises Refused."""
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object")
    if not _fits(value, 0):
        raise bad_request(f"{name} holds a number beyond 64 bits, or is nested too deeply")
    return value


def _fits(value: object, depth: int) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if not isinstance(value, (dict, list)):
        return True
    items = value.values() if isinstance(value, dict) else value
    return depth < DEPTH_MAX and all(_fits(item, depth + 1) for item in items)


Handler = Callable[[Call], Coroutine[Any, Any, object]]
"""Answers a call with an `Answer`, or with a value that becomes a JSON body."""
