"""Converts rows of a DataFrame to jobs: assigns the columns, and finds invalid rows.

A column with the name of a job's field is that field (`schemas.JOB_FIELDS`). The arguments are the column `args`, an
array, a struct (its fields in their order) or the text of a JSON array; without such a column they are all other
columns, in their order.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypedDict, cast

import msgspec
import pyarrow as pa
from pyspark.sql.types import ArrayType, NullType, StringType, StructType

from waybill.ojs import InvalidJob, NewJob, Retry
from waybill.ojs.handler import Options
from waybill.ojs.push.option_types import check_property
from waybill.pipeline.json_values import column_values, unsuitable
from waybill.pipeline.named_options import OptionError
from waybill.pipeline.nesting import DEEPEST, is_too_deep
from waybill.pipeline.row_ids import RowIds, digest

JOB_FIELDS: Final = (
    "id",
    "type",
    "queue",
    "args",
    "priority",
    "scheduled_at",
    "expires_at",
    "timeout",
    "retry",
    "meta",
    "tags",
    "idempotency_key",
    "correlation_id",
    "traceparent",
)


@dataclass(frozen=True)
class JobColumns:
    """The roles of a DataFrame's columns. `arguments`: those that together are a job's arguments."""

    fields: tuple[str, ...]
    arguments: tuple[str, ...]


# The encoder's errors: for lone surrogates, for numbers out of range, for values nested too deeply.
NOT_ENCODABLE: Final = (ValueError, OverflowError, TypeError, RecursionError)
encode: Final = msgspec.json.Encoder().encode


class _Given(TypedDict, total=False):
    """Fields that become options of a job unchanged. Times are RFC 3339 text."""

    queue: str
    priority: int
    scheduled_at: str
    expires_at: str
    timeout: float
    meta: dict[str, object]
    tags: list[str]
    correlation_id: str
    traceparent: str


class InvalidRow(ValueError):
    """A row cannot become a job or a message, or the broker refused it. The message names the row."""


def job_columns(schema: StructType, *, has_type: bool) -> JobColumns:
    """Assign the columns. Raises OptionError for an unknown one or an unsuitable type, and for jobs without a type."""
    names: list[str] = schema.fieldNames()
    if not names:
        raise OptionError(
            "rows without columns do not arrive: jobs without arguments need a column 'args' that is null"
        )
    check_types(schema)
    if "args" in names and not isinstance(schema["args"].dataType, ArrayType | StructType | StringType | NullType):
        kind = schema["args"].dataType.simpleString()
        raise OptionError(f"column 'args' must be an array, a struct or the text of a JSON array, not {kind}")
    fields = tuple(name for name in names if name in JOB_FIELDS)
    others = tuple(name for name in names if name not in JOB_FIELDS)
    if "args" in fields and others:
        raise OptionError(
            f"column {others[0]!r} is not a field of a job: beside 'args', a job has {', '.join(JOB_FIELDS)}"
        )
    if "type" not in fields and not has_type:
        raise OptionError("a job needs a type: a column 'type', or the option type for all rows")
    return JobColumns(fields, others)


def check_types(schema: StructType) -> None:
    """Raise OptionError for a column of a type that neither a job nor a message can have."""
    for field in schema.fields:
        found = unsuitable(field.dataType)
        if found is not None:
            raise OptionError(f"column {field.name!r} cannot be sent, because {found}: convert it to text")


def check_key(key: object) -> None:
    """Raise InvalidJob for an idempotency key that no message can have, and for an empty one: it would join jobs."""
    text = str(key)
    if not text:
        raise InvalidJob("idempotency_key", "is empty; null is for jobs without a key")
    check_property("idempotency_key", text)


def job_id(key: str) -> str:
    """A deterministic UUIDv7 for a key; all bits but version and variant come from the key's SHA-256."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16])
    return str(uuid.UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62))


def identity(given: object, key: object, number: str) -> tuple[str, str]:
    """The id and the idempotency key of a job: from its row, else derived from each other, else from `number`."""
    derived = number if key is None else job_id(str(key))
    own_id = derived if given is None else str(given)
    return own_id, own_id if key is None else str(key)


def args_text(args: list[object]) -> bytes:
    """The arguments of a job as JSON. Raises InvalidJob for values that JSON cannot express."""
    try:
        return encode(args)
    except NOT_ENCODABLE as problem:
        raise InvalidJob("args", str(problem), code="INVALID_ARGS") from None


def content_head(job_type: str, queue: str, priority: int) -> bytes:
    """The content of a row other than its arguments; see `row_ids`."""
    return encode((job_type, queue, priority))


class JobRows:
    """Makes jobs of record batches. `queue` and `job_type` are defaults for rows."""

    def __init__(self, columns: JobColumns, *, job_type: str | None, queue: str | None) -> None:
        self._columns = columns
        self._type = job_type or ""
        self._shared: Options = {} if queue is None else {"queue": queue}
        self._is_shared = not set(columns.fields) - {"type", "args", "id", "idempotency_key"}

    def jobs(self, batch: pa.RecordBatch, row_ids: RowIds) -> Iterator[NewJob]:
        """One job per row. `row_ids` gives ids to rows without one.

        Raises InvalidJob, which names the field, or UnreadableValue before the first row.
        """
        values = {name: column_values(batch, name) for name in self._columns.fields if name != "args"}
        types = values.get("type")
        ids = values.get("id")
        keys = values.get("idempotency_key")
        for index, args in enumerate(self.arguments(batch)):
            job_type = self._type if types is None else str(types[index] or self._type)
            options = self._shared
            if not self._is_shared:
                options = {**self._shared}
                self._fill(options, values, index)
            (number,) = row_ids.ids([_content(job_type, args, options)])
            key = None if keys is None else keys[index]
            if key is not None:
                check_key(key)
            own_id, own_key = identity(None if ids is None else ids[index], key, number)
            if not self._is_shared:
                # The id of the prototype must not be used for jobs.
                options["id"] = own_id
            yield NewJob(job_type, args, options, own_id, own_key)

    def arguments(self, batch: pa.RecordBatch) -> Iterator[list[object]]:
        """The arguments of each row. Raises InvalidJob for text that is not a JSON array, and UnreadableValue."""
        if "args" not in self._columns.fields:
            columns = [column_values(batch, name) for name in self._columns.arguments]
            yield from map(list, zip(*columns, strict=True)) if columns else ([] for _ in range(batch.num_rows))
            return
        for value in column_values(batch, "args"):
            if isinstance(value, list):
                yield value
            elif isinstance(value, dict):
                yield list(value.values())
            else:
                yield _json(value, "args", list) if value is not None else []

    def _fill(self, options: Options, values: dict[str, list[object]], index: int) -> None:
        row: dict[str, object] = {}
        for name in _Given.__annotations__:
            column = values.get(name)
            value = None if column is None else column[index]
            if isinstance(value, str) and name in {"meta", "tags"}:
                value = _json(value, name, list if name == "tags" else dict)
            if value is not None:
                row[name] = value
        try:
            options.update(cast("Options", msgspec.convert(row, _Given)))
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at `$.")
            raise InvalidJob(place.rstrip("`") or "row", text) from None
        retries = values.get("retry")
        if retries is not None and retries[index] is not None:
            options["retry"] = _retry(retries[index])


def _content(job_type: str, args: list[object], options: Options) -> int:
    """The digest of a row's content. Raises InvalidJob."""
    head = content_head(job_type, options.get("queue", "default"), options.get("priority", 0))
    text = head + args_text(args)
    more = {name: value for name, value in options.items() if name not in {"queue", "priority"}}
    try:
        return digest(text + (encode(sorted(more.items())) if more else b""))
    except NOT_ENCODABLE as problem:
        raise InvalidJob("row", str(problem)) from None


def _json(value: object, field: str, kind: type) -> list[object]:
    text = str(value)
    if is_too_deep(text.encode()):
        raise InvalidJob(field, f"is nested deeper than {DEEPEST} levels")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise InvalidJob(field, f"is not the text of a JSON {'array' if kind is list else 'object'}: {value!r}")
    return found  # type: ignore[return-value] # of the kind asked for


def _retry(value: object) -> Retry:
    found: object = _json(value, "retry", dict) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise InvalidJob("retry", f"expects an object, got {type(found).__name__}")
    try:
        return msgspec.convert({name: one for name, one in found.items() if one is not None}, Retry)
    except (msgspec.ValidationError, InvalidJob) as error:
        raise InvalidJob("retry", str(error)) from None
