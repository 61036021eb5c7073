"""The description of a route: its parameters, bodies, responses and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

JSON_OBJECT: Final = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    description: str
    type: object = str
    place: str = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of a method on a path. `body` and responses are msgspec types; None is an empty response.

    `errors` are error codes in addition to those of every operation. `media_types` are those of responses other than
    the binding's JSON.
    """

    summary: str
    tag: str
    answers: dict[int, object] = field(default_factory=lambda: {200: JSON_OBJECT})
    body: object = None
    is_body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[str, ...] = ()
    media_type: str = ""


def described_by_itself(method: str, path: str) -> Operation:
    """Return the description of a route that has none, from its path."""
    tag = path.removeprefix("/ojs/v1/").partition("/")[0]
    body = JSON_OBJECT if method in {"POST", "PUT", "PATCH"} else None
    answers: dict[int, object] = dict.fromkeys((200, 201, 202) if method == "POST" else (200,), JSON_OBJECT)
    errors = ("conflict", "duplicate", "unsupported", "validation_error")
    return Operation(f"{method} {path}", tag, answers, body, is_body_required=False, errors=errors)
