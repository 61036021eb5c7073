"""Converts rows of a DataFrame to tables of jobs: rows that differ only in id, arguments and key.

Rows are checked and their arguments encoded while Spark still produces more; they are buffered as Arrow batches. After
all rows have been checked, they are returned as tables.
"""

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyspark.sql.types import IntegralType, StringType, StructType

from waybill.ojs import InvalidJob
from waybill.ojs.handler import Options
from waybill.ojs.push.bulk import JobKind, JobTable
from waybill.ojs.spec.envelope import MAX_SAFE_INTEGER, check_args, check_id
from waybill.ojs.spec.envelope_size import MAX_ENVELOPE_BYTES
from waybill.pipeline.batch_buffer import BatchBuffer
from waybill.pipeline.job_rows import (
    NOT_ENCODABLE,
    InvalidRow,
    JobColumns,
    JobRows,
    check_key,
    content_head,
    encode,
    identity,
)
from waybill.pipeline.json_values import UnreadableValue, column_values
from waybill.pipeline.row_ids import RowIds, digests

_OWN: Final = frozenset({"id", "idempotency_key", "args"})
# Common fields may be columns, too, with a few distinct values in any order.
_SHARED: Final = {"type": StringType, "queue": StringType, "priority": IntegralType}
_NOTHING: Final = repeat(None)
# An additional column of the buffer: the digest of a row's content.
_CONTENT: Final = "content"


def fit_tables(columns: JobColumns, schema: StructType) -> bool:
    """Whether rows with these columns can become tables."""
    return all(
        name in _OWN or (name in _SHARED and isinstance(schema[name].dataType, _SHARED[name]))
        for name in columns.fields
    )


class JobTables:
    """The rows of a partition, buffered in `kept`. `job_type` and `queue` are defaults for rows."""

    def __init__(
        self,
        columns: JobColumns,
        make_kind: Callable[[str, Options], JobKind],
        *,
        job_type: str | None,
        queue: str | None,
        kept: BatchBuffer,
    ) -> None:
        self._columns = columns
        self._rows = JobRows(columns, job_type=job_type, queue=queue)
        self._fields = [name for name in columns.fields if name != "args"]
        self._make_kind = make_kind
        self._type = job_type or ""
        self._queue = queue
        self._kinds: dict[tuple[object, ...], JobKind] = {}
        self._kept = kept
        self._heads: dict[JobKind, bytes] = {}
        self._count = 0

    def add(self, batch: pa.RecordBatch, partition: int) -> None:
        """Check and buffer more rows of the partition with this number. Raises InvalidRow."""
        args: list[bytes] = []
        contents: list[bytes] = []
        heads = self._heads
        is_plain = self._columns.arguments and all(map(_is_plain, batch.select(self._columns.arguments).columns))
        try:
            own = (_values(batch, "id"), _values(batch, "idempotency_key"), self._kinds_of(batch))
            for values, job_id, key, kind in zip(self._rows.arguments(batch), *own, strict=False):
                if job_id is not None:
                    check_id(str(job_id))
                if key is not None:
                    check_key(key)
                if not is_plain:
                    check_args(values)
                text = encode(values)
                if len(text) > kind.args_bytes:
                    _refuse(len(text))
                contents.append((heads.get(kind) or self._head(kind)) + text)
                args.append(text)
        except UnreadableValue as error:
            raise InvalidRow(f"row {self._count + error.index} of partition {partition}: {error}") from None
        except NOT_ENCODABLE as error:
            problem = error if isinstance(error, InvalidJob) else InvalidJob("args", str(error), code="INVALID_ARGS")
            raise InvalidRow(f"row {self._count + len(args)} of partition {partition}: {problem}") from None
        self._count += len(args)
        shared = batch.select(self._fields)
        made = [pa.array(args, pa.large_binary()), pa.array(digests(contents), pa.uint64())]
        schema = pa.schema([*shared.schema, pa.field("args", made[0].type), pa.field(_CONTENT, made[1].type)])
        self._kept.add(pa.RecordBatch.from_arrays([*shared.columns, *made], schema=schema))

    @property
    def queues(self) -> set[str]:
        """The queues that the rows go to."""
        return {kind.queue for kind in self._heads}

    def tables(self, row_ids: RowIds) -> Iterator[JobTable]:
        """All rows in their order."""
        for batch in self._kept:
            ids = keys = row_ids.ids(batch.column(_CONTENT).to_pylist())
            if {"id", "idempotency_key"} & set(self._fields):
                own = zip(_values(batch, "id"), _values(batch, "idempotency_key"), ids, strict=False)
                pairs = [identity(*values) for values in own]
                ids, keys = [job_id for job_id, _ in pairs], [key for _, key in pairs]
            kinds = [kind for _, kind in zip(ids, self._kinds_of(batch), strict=False)]
            yield JobTable(kinds, ids, batch.column("args").to_pylist(), keys)

    def _kinds_of(self, batch: pa.RecordBatch) -> Iterator[JobKind]:
        """The kind of each row; endless if all are of one. Raises InvalidJob at an invalid row."""
        if not _SHARED.keys() & set(self._fields):
            yield from repeat(self._kind(None, None, None))
        for values in zip(*(_values(batch, name) for name in _SHARED), strict=False):
            yield self._kinds.get(values) or self._kind(*values)

    def _kind(self, job_type: object, queue: object, priority: object) -> JobKind:
        key = (job_type, queue, priority)
        if key in self._kinds:
            return self._kinds[key]
        options: Options = {}
        if queue is not None or self._queue is not None:
            options["queue"] = str(self._queue if queue is None else queue)
        if isinstance(priority, int):
            options["priority"] = priority
        made = self._kinds[key] = self._make_kind(str(job_type or self._type), options)
        return made

    def _head(self, kind: JobKind) -> bytes:
        prototype = kind.prototype
        made = self._heads[kind] = content_head(prototype.type, prototype.queue, prototype.priority)
        return made


def _is_plain(column: pa.Array) -> bool:
    """Whether type and range show that all values are valid arguments, without checking each."""
    kind = column.type
    if types.is_string(kind) or types.is_boolean(kind):
        return True
    if not types.is_integer(kind):
        return False
    bounds = pc.min_max(column)
    least, largest = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (least >= -MAX_SAFE_INTEGER and largest <= MAX_SAFE_INTEGER)


def _values(batch: pa.RecordBatch, name: str) -> Iterator[object]:
    """The values of a column; endless None if there is no such column."""
    return iter(column_values(batch, name)) if name in batch.schema.names else _NOTHING


def _refuse(size: int) -> None:
    message = f"are {size} bytes of JSON; an envelope may have {MAX_ENVELOPE_BYTES} in all"
    raise InvalidJob("args", message, code="PAYLOAD_TOO_LARGE")
