"""Lifecycle events as rows: the body of one message, one event or an array of events, becomes typed columns.

The envelope and the data of each event follow the Open Job Spec's event vocabulary (sections 2 and 4). An event is used
only if what everything downstream relies upon is there and has its type; otherwise its row says why not. Nothing here
raises for what a peer has published.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias

import msgspec

from waybill.pipeline.message import StreamMessage

Row: TypeAlias = tuple[object, ...]

_INT32_MAX: Final = 2**31 - 1
# Milliseconds stay exact in a double up to here: producers may send 12 or 12.0.
_EXACT_MAX: Final = 2**53
_ATTEMPT_EVENTS: Final = frozenset({"job.started", "job.completed", "job.failed", "job.retrying"})
_NOTHING: Final = (None,) * 16

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)]
_Signed: TypeAlias = Annotated[int, msgspec.Meta(ge=-_INT32_MAX, le=_INT32_MAX)]
_Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_EXACT_MAX)]
_Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]


class _Error(msgspec.Struct, gc=False):
    """What failed, as jobs say it (`type`) and as the event vocabulary does (`code`)."""

    type: str | None = None
    code: str | None = None
    message: str | None = None
    retryable: bool | None = None


class _Data(msgspec.Struct, gc=False):
    """The fields of `data` that become columns, of any type of event."""

    job_type: str | None = None
    queue: str | None = None
    worker_id: str | None = None
    attempt: _Count | None = None
    total_attempts: _Count | None = None
    max_attempts: _Count | None = None
    priority: _Signed | None = None
    duration_ms: _Milliseconds | None = None
    scheduled_at: _Time | None = None
    next_retry_at: _Time | None = None
    error: _Error | None = None
    last_error: _Error | None = None


class _Event(msgspec.Struct, gc=False):
    """The envelope of one event."""

    id: str
    type: str
    source: str
    time: _Time
    subject: str | None = None
    data: _Data = msgspec.field(default_factory=_Data)


_event_decoder: Final = msgspec.json.Decoder(_Event)
_array_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


def rows_of_messages(messages: Iterable[StreamMessage]) -> list[Row]:
    """The rows of many messages; see `event_rows`."""
    rows = []
    for message in messages:
        # Most messages are told apart by their first byte.
        if message.body[:1] == b"{":
            rows.append(_row(message, 0, message.body))
        else:
            rows += event_rows(message)
    return rows


def event_rows(message: StreamMessage) -> Iterator[Row]:
    """The rows of one message, in the columns of `schemas.EVENT`: at least one, so that no message disappears."""
    body = message.body
    if not body.lstrip().startswith(b"["):
        yield _row(message, 0, body)
        return
    try:
        events = _array_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        yield _malformed(message, 0, body, f"not JSON: {problem}")
        return
    if not events:
        yield _malformed(message, 0, body, "a batch without events")
    for position, event in enumerate(events):
        yield _row(message, position, bytes(event))


def _row(message: StreamMessage, position: int, text: bytes) -> Row:
    """The row of one event."""
    try:
        event = _event_decoder.decode(text)
    except msgspec.ValidationError as problem:
        return _malformed(message, position, text, str(problem))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return _malformed(message, position, text, f"not JSON: {problem}")
    reason = _unusable(event)
    if reason is not None:
        return _malformed(message, position, text, reason)
    data = event.data
    error = data.error or data.last_error
    return (
        message.stream,
        message.offset,
        position,
        message.timestamp,
        event.id,
        event.type,
        event.source,
        event.subject,
        event.time if event.time.tzinfo is UTC else event.time.astimezone(UTC),
        data.job_type,
        data.queue,
        data.worker_id,
        data.total_attempts if data.attempt is None else data.attempt,
        data.max_attempts,
        data.priority,
        None if data.duration_ms is None else round(data.duration_ms),
        data.scheduled_at,
        data.next_retry_at,
        error and (error.type or error.code),
        error and error.message,
        error and error.retryable,
        text.decode("utf-8"),
        None,
    )


def _unusable(event: _Event) -> str | None:
    """Why an event that decodes cannot be counted, or None."""
    data = event.data
    if not event.type.startswith("job."):
        return None
    if event.subject and data.job_type and data.queue and (data.attempt or event.type not in _ATTEMPT_EVENTS):
        return None
    missing = [
        name
        for name, value in (("subject", event.subject), ("job_type", data.job_type), ("queue", data.queue))
        if not value
    ]
    if event.type in _ATTEMPT_EVENTS and not data.attempt:
        missing.append("attempt")
    return f"{event.type} without {', '.join(missing)}"


def _malformed(message: StreamMessage, position: int, text: bytes, reason: str) -> Row:
    """The row of an event that cannot be used: where it was, its text and the reason."""
    place = (message.stream, message.offset, position, message.timestamp)
    return (*place, *_NOTHING, None, text.decode("utf-8", errors="replace"), reason)
