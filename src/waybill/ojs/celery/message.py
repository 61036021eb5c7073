"""Celery's messages, protocol 2 as JSON, read as jobs.

    properties  content_type application/json, content_encoding utf-8, correlation_id, reply_to, priority
    headers     task, id, root_id, parent_id, group, eta, expires, retries, timelimit [hard, soft], lang, ...
    body        [args, kwargs, {"callbacks": ..., "errbacks": ..., "chain": ..., "chord": ...}]

What a job cannot do as Celery's worker would is refused, with the reason.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.client import BasicProperties, Delivery
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.nesting import is_nested_deeper, is_too_heavy

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
MAX_TEXT: Final = 255
CANVAS: Final = ("callbacks", "errbacks", "chain", "chord")

_ODD = re.compile(r"[^a-z0-9_.\-]")


class Refused(Exception):
    """A message that cannot become a job; the text has the reason."""


class CeleryTask(msgspec.Struct, frozen=True):
    """One message."""

    id: str
    name: str
    args: list[object]
    kwargs: dict[str, object]
    eta: datetime | None = None
    expires: datetime | None = None
    retries: int = 0
    time_limit: float | None = None
    priority: int = 0
    """From -100 to 100; 0 is Celery's own 0."""
    root_id: str | None = None
    parent_id: str | None = None


def job_type_of(task_name: str) -> str:
    """Return the job type of a task's name: lower case, with `_` for what a type cannot have."""
    segments = [_ODD.sub("_", one).lstrip("_-0123456789") or "task" for one in task_name.lower().split(".")]
    return ".".join(segments)[:MAX_TEXT]


def read_task(delivery: Delivery) -> CeleryTask:
    """Read a message. Raises Refused if it cannot become a job."""
    try:
        properties = delivery.properties
    except ValueError as error:
        raise Refused("its properties are malformed") from error
    headers = dict(properties.headers or {})
    name, task_id = headers.get("task"), headers.get("id")
    if not isinstance(name, str) or not isinstance(task_id, str) or not name or not task_id:
        raise Refused("its headers `task` and `id` are missing: only Celery's message protocol 2 is supported")
    _check_coding(properties, headers)
    args, kwargs, embed = read_arguments(delivery.body)
    canvas = [part for part in CANVAS if embed.get(part)]
    if canvas:
        raise Refused(f"its {', '.join(canvas)} would be lost: a canvas stays with Celery")
    limits = headers.get("timelimit")
    hard = limits[0] if isinstance(limits, (list, tuple)) and limits else None
    priority = properties.priority or 0
    retries = headers.get("retries")
    return CeleryTask(
        task_id[:MAX_TEXT],
        name,
        args,
        kwargs,
        eta=_moment(headers, "eta"),
        expires=_moment(headers, "expires"),
        retries=max(0, retries) if isinstance(retries, int) else 0,
        time_limit=float(hard) if isinstance(hard, (int, float)) and hard > 0 else None,
        priority=min(100, round(priority * 100 / 9)),
        root_id=_text(headers.get("root_id")),
        parent_id=_text(headers.get("parent_id")),
    )


def _check_coding(properties: BasicProperties, headers: dict[str, object]) -> None:
    kind = (properties.content_type or "").lower()
    if kind != "application/json":
        raise Refused(f"its content type is {kind or 'missing'}: set task_serializer to json")
    encoding = (properties.content_encoding or "utf-8").lower()
    if encoding not in {"utf-8", "utf8"} or headers.get("compression"):
        raise Refused("it is compressed, or not UTF-8: set task_compression to None")


def read_arguments(body: bytes) -> tuple[list[object], dict[str, object], dict[str, object]]:
    """Return positional and named arguments, and the rest, of a body. Raises Refused."""
    if len(body) > MAX_BODY_BYTES or is_too_heavy(body) or is_nested_deeper(body):
        raise Refused("its body is too long, has too many values, or is nested too deeply")
    try:
        args, kwargs, embed = msgspec.json.decode(
            body, type=tuple[list[object], dict[str, object], dict[str, object] | None]
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"its body is not [args, kwargs, embed] in JSON: {error}") from error
    return args, kwargs, embed or {}


def _moment(headers: dict[str, object], name: str) -> datetime | None:
    found = headers.get(name)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(str(found))
    except ValueError as error:
        raise Refused(f"its {name} is not a time") from error
    # Without enable_utc, Celery writes its local time with the offset; a time without one is UTC.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) else None


def reason_of(error: Exception) -> str:
    """Return why a message is refused, as text for its dead letter."""
    return str(error) if isinstance(error, (Refused, InvalidJob)) else f"{type(error).__name__}: {error}"
