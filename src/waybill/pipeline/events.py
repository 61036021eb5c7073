"""Lifecycle events as columns: the body of a message, one event or an array of events, becomes typed rows.

The envelope and the data of each event follow the Open Job Spec's event vocabulary (sections 2 and 4). An event is used
only if what everything downstream relies upon is there and has its type; otherwise its row says why not. Nothing here
raises for what a peer has published.
"""

from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from waybill.pipeline.message import MessageBlock, Sent
from waybill.pipeline.message_columns import Columns, SentColumns, times
from waybill.pipeline.schemas import EVENT, HEADERS

_INT32_MAX: Final = 2**31 - 1
# Milliseconds stay exact in a double up to here: producers may send 12 or 12.0.
_EXACT_MAX: Final = 2**53
_ATTEMPT_EVENTS: Final = frozenset({"job.started", "job.completed", "job.failed", "job.retrying"})

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


# Stands for an event that cannot be used: all its columns are null.
_NO_EVENT: Any = _Event(*(None,) * 4)  # type: ignore[arg-type]
_NO_ERROR: Final = _Error()
# What the decoders raise for what is no JSON; ValidationError, for another JSON than was asked for, is one of them.
_NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_event_decoder: Final = msgspec.json.Decoder(_Event)
_array_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


class EventColumns(Columns):
    """A row an event, as `schemas.EVENT`; at least one a message, so that no message disappears."""

    schema = EVENT

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._offsets: list[int] = []
        self._sent: list[Sent] = []
        self._positions: list[int] = []
        self._texts: list[bytes] = []
        self._events: list[_Event] = []
        self._reasons: list[str | None] = []

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, block: MessageBlock) -> None:
        self.bytes += sum(map(len, block.bodies))
        try:
            events = list(map(_event_decoder.decode, block.bodies))
        except _NO_JSON:
            for offset, body, sent in zip(block.offsets, block.bodies, block.sent, strict=True):
                self._add_message(offset, body, sent)
            return
        # One usable event a message: what most blocks are.
        reasons = list(map(_unusable, events))
        self._offsets += block.offsets
        self._sent += block.sent
        self._positions += [0] * len(events)
        self._texts += block.bodies
        self._events += [_NO_EVENT if reason else event for event, reason in zip(events, reasons, strict=True)]
        self._reasons += reasons

    def record_batch(self) -> pa.RecordBatch:
        texts = self._checked_texts()
        events = self._events
        data = [event.data for event in events]
        errors: list[Any] = [one.error or one.last_error or _NO_ERROR for one in data]
        sent = SentColumns(self._sent)
        columns = {
            "stream": pa.repeat(self.stream, len(self)),
            "timestamp": sent.timestamps(),
            "time": times([event.time for event in events]),
            "scheduled_at": times([one.scheduled_at for one in data]),
            "next_retry_at": times([one.next_retry_at for one in data]),
            "event": texts,
        }
        values: dict[str, list[Any]] = {
            "offset": self._offsets,
            "position": self._positions,
            "event_id": [event.id for event in events],
            "type": [event.type for event in events],
            "source": [event.source for event in events],
            "subject": [event.subject for event in events],
            "job_type": [one.job_type for one in data],
            "queue": [one.queue for one in data],
            "worker_id": [one.worker_id for one in data],
            "attempt": [one.total_attempts if one.attempt is None else one.attempt for one in data],
            "max_attempts": [one.max_attempts for one in data],
            "priority": [one.priority for one in data],
            "duration_ms": [None if one.duration_ms is None else round(one.duration_ms) for one in data],
            "error_type": [error.type or error.code for error in errors],
            "error_message": [error.message for error in errors],
            "error_retryable": [error.retryable for error in errors],
            "malformed": self._reasons,
        }
        columns |= {name: pa.array(column, self.arrow_schema.field(name).type) for name, column in values.items()}
        if HEADERS.name in self.arrow_schema.names:
            columns[HEADERS.name] = sent.headers()
        return pa.RecordBatch.from_arrays([columns[name] for name in self.arrow_schema.names], schema=self.arrow_schema)

    def _add_message(self, offset: int, body: bytes, sent: Sent) -> None:
        if not body.lstrip().startswith(b"["):
            self._add_event(offset, 0, body, sent)
            return
        try:
            texts = _array_decoder.decode(body)
        except _NO_JSON as problem:
            self._add_row(offset, 0, body, sent, _NO_EVENT, f"not JSON: {problem}")
            return
        if not texts:
            self._add_row(offset, 0, body, sent, _NO_EVENT, "a batch without events")
        for position, text in enumerate(texts):
            self._add_event(offset, position, bytes(text), sent)

    def _add_event(self, offset: int, position: int, text: bytes, sent: Sent) -> None:
        event = _NO_EVENT
        try:
            decoded = _event_decoder.decode(text)
        except msgspec.ValidationError as problem:
            reason: str | None = str(problem)
        except _NO_JSON as problem:
            reason = f"not JSON: {problem}"
        else:
            reason = _unusable(decoded)
            event = _NO_EVENT if reason else decoded
        self._add_row(offset, position, text, sent, event, reason)

    def _add_row(self, offset: int, position: int, text: bytes, sent: Sent, event: _Event, reason: str | None) -> None:
        self._offsets.append(offset)
        self._positions.append(position)
        self._texts.append(text)
        self._sent.append(sent)
        self._events.append(event)
        self._reasons.append(reason)

    def _checked_texts(self) -> pa.Array:
        """The column of texts. The decoder does not look into what it skips: bytes that are no text are found here."""
        try:
            return pa.array(self._texts, pa.string())
        except pa.ArrowInvalid:
            pass
        texts = []
        for index, text in enumerate(self._texts):
            try:
                texts.append(text.decode())
            except UnicodeDecodeError as problem:
                texts.append(text.decode(errors="replace"))
                if self._reasons[index] is None:
                    self._reasons[index] = f"not JSON: {problem}"
                    self._events[index] = _NO_EVENT
        return pa.array(texts, pa.string())


class EventColumnsWithHeaders(EventColumns):
    """The same, followed by the headers of the message."""

    schema = StructType([*EVENT.fields, HEADERS])


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
