"""Decodes lifecycle events into columns: the body of a message, one event or an array of events, becomes typed rows.

The envelope and the data of each event follow the Open Job Spec's event vocabulary (sections 2 and 4). An event is used
only if all fields that later steps need are present and have their types; otherwise its row has the reason. Nothing
that a peer publishes raises an exception here.

Valid JSON that a table cannot hold is refused, with the reason: numbers out of range, implausible times, long names,
text nested deeper than `nesting.DEEPEST`. Errors are truncated. The rules depend only on the event's text, so an event
always becomes the same row, in any block or message, and when it is read again.
"""

from array import array
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from waybill.pipeline.message import MessageBlock, Metadata
from waybill.pipeline.message_columns import TIME, Columns, MetadataColumns, times
from waybill.pipeline.nesting import DEEPEST, elements, is_too_deep
from waybill.pipeline.schemas import (
    EVENT,
    FIRST_TIME,
    HEADERS,
    LONGEST_MESSAGE,
    LONGEST_MS,
    LONGEST_NAME,
    TIMES_END,
)

_INT32_MAX: Final = 2**31 - 1
_ATTEMPT_EVENTS: Final = frozenset({"job.started", "job.completed", "job.failed", "job.retrying"})

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)]
_Signed: TypeAlias = Annotated[int, msgspec.Meta(ge=-_INT32_MAX, le=_INT32_MAX)]
# Producers may send 12 or 12.0: whole milliseconds of this length are exact in a double.
_Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_MS)]
_Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]


class _Error(msgspec.Struct, gc=False):
    """An error, with the names that jobs use (`type`) and those of the event vocabulary (`code`)."""

    type: str | None = None
    code: str | None = None
    message: str | None = None
    retryable: bool | None = None


class _Data(msgspec.Struct, gc=False):
    """The fields of `data` that become columns, of any type of event."""

    job_type: _Name | None = None
    queue: _Name | None = None
    worker_id: _Name | None = None
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

    id: _Name
    type: _Name
    source: _Name
    time: _Time
    subject: _Name | None = None
    data: _Data = msgspec.field(default_factory=_Data)


# Represents an event that cannot be used: all its columns are null.
_NO_EVENT: Any = _Event(*(None,) * 4)  # type: ignore[arg-type]
# The decoders' errors: for invalid JSON, for JSON of other types (ValidationError), for bytes that are not UTF-8, and
# for values that Python's types refuse.
_REFUSED: Final = (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError)
_TOO_DEEP: Final = f"not JSON that can be read: nested deeper than {DEEPEST} levels"
_PLAUSIBLE: Final = (pa.scalar(FIRST_TIME, TIME), pa.scalar(TIMES_END, TIME))
_event_decoder: Final = msgspec.json.Decoder(_Event)
_array_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


class EventColumns(Columns):
    """One row per event, as `schemas.EVENT`, and at least one per message, so that no message disappears."""

    schema = EVENT

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._offsets = array("q")
        self._positions = array("i")
        self._sent: list[Metadata] = []
        self._texts: list[bytes] = []
        self._events: list[_Event] = []
        # By row, for those that cannot be used.
        self._reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, block: MessageBlock) -> None:
        self.bytes += sum(map(len, block.bodies))
        try:
            events = [] if any(map(is_too_deep, block.bodies)) else list(map(_event_decoder.decode, block.bodies))
        except _REFUSED:
            events = []
        if len(events) < len(block.bodies):
            for offset, body, sent in zip(block.offsets, block.bodies, block.metadata, strict=True):
                self._add_message(offset, body, sent)
            return
        # Each message has one event, as in most blocks.
        self._add_events(block.offsets, array("i", [0]) * len(events), block.metadata, block.bodies, events)

    def record_batch(self) -> pa.RecordBatch:
        texts = self._checked_texts()
        moments = self._checked_times()
        events = self._events
        data = [event.data for event in events]
        sent = MetadataColumns(self._sent)
        columns = {
            "stream": pa.repeat(self.stream, len(self)),
            "offset": _numbers(self._offsets, pa.int64()),
            "position": _numbers(self._positions, pa.int32()),
            "timestamp": sent.timestamps(),
            **moments,
            "duration_ms": pc.round(pa.array([one.duration_ms for one in data], pa.float64())).cast(pa.int64()),
            "event": texts,
            "malformed": pa.array(list(map(self._reasons.get, range(len(self)))), pa.string()),
        }
        values: dict[str, list[Any]] = {
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
        }
        columns |= {name: pa.array(column, self.arrow_schema.field(name).type) for name, column in values.items()}
        columns |= _error_columns(data)
        if HEADERS.name in self.arrow_schema.names:
            columns[HEADERS.name] = sent.headers()
        return pa.RecordBatch.from_arrays([columns[name] for name in self.arrow_schema.names], schema=self.arrow_schema)

    def _add_message(self, offset: int, body: bytes, sent: Metadata) -> None:
        if not body.lstrip().startswith(b"["):
            self._add_event(offset, 0, body, sent)
            return
        try:
            texts = _split(body)
        except _REFUSED as problem:
            self._add_row(offset, 0, body, sent, _NO_EVENT, f"not JSON: {problem}")
            return
        if not texts:
            self._add_row(offset, 0, body, sent, _NO_EVENT, "a batch without events")
        try:
            events = [] if any(map(is_too_deep, texts)) else list(map(_event_decoder.decode, texts))
        except _REFUSED:
            events = []
        if len(events) < len(texts):
            for position, text in enumerate(texts):
                self._add_event(offset, position, text, sent)
            return
        count = len(events)
        self._add_events([offset] * count, range(count), [sent] * count, texts, events)

    def _add_events(
        self,
        offsets: Iterable[int],
        positions: Iterable[int],
        sent: list[Metadata],
        texts: list[bytes],
        events: list[_Event],
    ) -> None:
        """Rows of decoded events. Unusable ones become rows without an event."""
        for index in _doubtful(events):
            reason = _unusable(events[index])
            if reason is not None:
                self._reasons[len(self) + index] = reason
                events[index] = _NO_EVENT
        self._offsets.extend(offsets)
        self._positions.extend(positions)
        self._sent += sent
        self._texts += texts
        self._events += events

    def _add_event(self, offset: int, position: int, text: bytes, sent: Metadata) -> None:
        if is_too_deep(text):
            self._add_row(offset, position, text, sent, _NO_EVENT, _TOO_DEEP)
            return
        try:
            event = _event_decoder.decode(text)
        except (msgspec.ValidationError, OverflowError) as problem:
            self._add_row(offset, position, text, sent, _NO_EVENT, str(problem))
        except _REFUSED as problem:
            self._add_row(offset, position, text, sent, _NO_EVENT, f"not JSON: {problem}")
        else:
            reason = _unusable(event)
            self._add_row(offset, position, text, sent, _NO_EVENT if reason else event, reason)

    def _add_row(
        self, offset: int, position: int, text: bytes, sent: Metadata, event: _Event, reason: str | None
    ) -> None:
        if reason is not None:
            self._reasons[len(self)] = reason
        self._offsets.append(offset)
        self._positions.append(position)
        self._texts.append(text)
        self._sent.append(sent)
        self._events.append(event)

    def _checked_texts(self) -> pa.Array:
        """The column of texts. The decoder does not check skipped parts: this finds bytes that are not UTF-8."""
        try:
            return pa.array(self._texts, pa.string())
        except pa.ArrowInvalid:
            pass
        texts = []
        for row, text in enumerate(self._texts):
            try:
                texts.append(text.decode())
            except UnicodeDecodeError as problem:
                texts.append(text.decode(errors="replace"))
                if row not in self._reasons:
                    self._reasons[row] = f"not JSON: {problem}"
                    self._events[row] = _NO_EVENT
        return pa.array(texts, pa.string())

    def _checked_times(self) -> dict[str, pa.Array]:
        """The columns of times. Whole columns are compared, which is cheap as long as all times are plausible."""
        columns = self._time_columns()
        for name, column in columns.items():
            for row in _implausible(column):
                if self._events[row] is not _NO_EVENT:
                    self._reasons[row] = (
                        f"{name} is not plausible: {_shown(self._events[row], name)} is not between "
                        f"{FIRST_TIME:%Y-%m-%d} and {TIMES_END:%Y-%m-%d}"
                    )
                    self._events[row] = _NO_EVENT
        return columns if not any(map(_implausible, columns.values())) else self._time_columns()

    def _time_columns(self) -> dict[str, pa.Array]:
        data = [event.data for event in self._events]
        return {
            "time": times([event.time for event in self._events]),
            "scheduled_at": times([one.scheduled_at for one in data]),
            "next_retry_at": times([one.next_retry_at for one in data]),
        }


class EventColumnsWithHeaders(EventColumns):
    """The columns, followed by the headers of the message."""

    schema = StructType([*EVENT.fields, HEADERS])


def _numbers(values: "array[int]", kind: pa.DataType) -> pa.Array:
    """Consecutive numbers, as a column of the same width without nulls."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _split(body: bytes) -> list[bytes]:
    """The texts of the events of an array, so that one that is nested too deeply does not affect the others."""
    try:
        return list(map(bytes, _array_decoder.decode(body)))
    except RecursionError:
        return list(elements(body))


def _implausible(column: pa.Array) -> list[int]:
    """The rows of a column of times that are implausible."""
    first, end = _PLAUSIBLE
    bounds = pc.min_max(column)
    if not bounds["min"].is_valid or (bounds["min"].value >= first.value and bounds["max"].value < end.value):
        return []
    outside = pc.or_(pc.less(column, first), pc.greater_equal(column, end))
    return [row for row, found in enumerate(outside.to_pylist()) if found]


def _shown(event: _Event, name: str) -> str:
    moment: datetime = event.time if name == "time" else getattr(event.data, name)
    # In its own zone: in UTC it may be out of the calendar.
    return moment.isoformat()


def _error_columns(data: list[_Data]) -> dict[str, pa.Array]:
    """The columns of errors. Few events have one: only those are converted, then put in their rows."""
    rows = [row for row, one in enumerate(data) if one.error is not None or one.last_error is not None]
    errors: list[Any] = [data[row].error or data[row].last_error for row in rows]
    numbers = array("i", [len(rows)]) * len(data)
    for number, row in enumerate(rows):
        numbers[row] = number
    places = _numbers(numbers, pa.int32())
    columns = {
        "error_type": _truncated([*(error.type or error.code for error in errors), None], LONGEST_NAME),
        "error_message": _truncated([*(error.message for error in errors), None], LONGEST_MESSAGE),
        "error_retryable": pa.array([*(error.retryable for error in errors), None], pa.bool_()),
    }
    return {name: column.take(places) for name, column in columns.items()}


def _truncated(texts: list[str | None], most: int) -> pa.Array:
    return pa.array([text if text is None or len(text) <= most else text[:most] for text in texts], pa.string())


def _doubtful(events: list[_Event]) -> list[int]:
    """The rows that `_unusable` must check: all others have what every job event needs."""
    return [
        index
        for index, event in enumerate(events)
        if not (
            event.subject
            and (data := event.data).job_type
            and data.queue
            and (data.attempt or event.type not in _ATTEMPT_EVENTS)
        )
    ]


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
