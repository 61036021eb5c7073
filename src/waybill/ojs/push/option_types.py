"""The types of a job's options, so that a push rejects a wrong value, not the worker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.retry import Retry
from waybill.ojs.spec.unique import Unique

_TEXT: Final = ((str,), "text")
_WHOLE: Final = ((int,), "a whole number")
_SECONDS: Final = ((int, float), "a number of seconds")
_MOMENT: Final = ((timedelta, datetime, str), "a timedelta, a datetime or RFC 3339 text")

_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "id": _TEXT,
    "queue": _TEXT,
    "priority": _WHOLE,
    "delay": _MOMENT,
    "scheduled_at": _MOMENT,
    "expires_at": _MOMENT,
    "retry": ((Retry,), "a Retry"),
    "timeout": _SECONDS,
    "visibility_timeout": _SECONDS,
    "meta": ((dict,), "a dict"),
    "tags": ((list, tuple), "a list of texts"),
    "unique_key": _TEXT,
    "rate_limit": ((dict,), "a dict"),
    "unique": ((Unique,), "a Unique"),
    "enqueue_ttl": ((timedelta,), "a timedelta"),
    "correlation_id": _TEXT,
    "traceparent": _TEXT,
    "tracestate": _TEXT,
    "workflow_id": _TEXT,
    "results": ((bool,), "True or False"),
    "result_ttl": _SECONDS,
    "result_size_limit": _WHOLE,
}
# They travel in the properties of a message, which must fit into one frame: the first as a short string.
_IN_PROPERTIES: Final = frozenset({"correlation_id", "unique_key", "traceparent", "tracestate"})
_MAX_SHORT_BYTES: Final = 255
_MAX_BYTES: Final = 16 * 1024
_NEVER_NONE: Final = frozenset({"queue", "priority", "meta", "tags", "results"})


def check_options(options: Mapping[str, object]) -> None:
    """Raise InvalidJob for an unknown option, or a value of a wrong type; None is not passed on."""
    for name, value in options.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise InvalidJob(name, f"is not an option of a job{_similar(name)}")
        types, text = kind
        if value is None and name not in _NEVER_NONE:
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise InvalidJob(name, f"expects {text}, got `{type(value).__name__}`")
        if isinstance(value, str) and name in _IN_PROPERTIES:
            check_property(name, value)
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidJob(name, f"expects {text}, got {value}")
        if isinstance(value, list | tuple) and not all(isinstance(one, str) for one in value):
            raise InvalidJob(name, f"expects {text}")


def check_property(name: str, text: str) -> None:
    """Raise InvalidJob for the text of an option that the properties of a message cannot have."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as problem:
        raise InvalidJob(name, str(problem)) from None
    most = _MAX_SHORT_BYTES if name == "correlation_id" else _MAX_BYTES
    if size > most:
        raise InvalidJob(name, f"is larger than {most} bytes")


def _similar(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - as few need it, others start sooner

    found = get_close_matches(name, _KINDS, 1)
    return f"; did you mean {found[0]}?" if found else ""
