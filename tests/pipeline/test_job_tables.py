"""Tables are of the same jobs as single rows, and the same rows are refused. No Spark session and no broker."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from waybill.ojs import InvalidJob, Jobs
from waybill.ojs.spec.identifiers import is_uuid7
from waybill.pipeline.batch_buffer import BatchBuffer
from waybill.pipeline.job_rows import InvalidRow, JobRows, job_columns
from waybill.pipeline.job_tables import JobTables, fit_tables
from waybill.pipeline.row_ids import RowIds

JOBS = Jobs("amqp://guest:guest@localhost:1/%2Fojs")
IDS = [f"01941500-8b2e-7c3a-b5d1-{number:012x}" for number in range(4)]


def batch_of(columns: Mapping[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(dict(columns))


def tables_of(
    *batches: pa.RecordBatch, job_type: str | None = "a.b", queue: str | None = None, kept: BatchBuffer | None = None
) -> JobTables:
    schema = from_arrow_schema(batches[0].schema)
    columns = job_columns(schema, has_type=job_type is not None)
    assert fit_tables(columns, schema)
    tables = JobTables(columns, JOBS.kind, job_type=job_type, queue=queue, kept=kept or BatchBuffer())
    for batch in batches:
        tables.add(batch, 7)
    return tables


@pytest.mark.parametrize(
    "columns",
    [
        {"to": ["a@b", "c@d", None, "ü"], "copies": [1, 2, 3, None]},
        {"args": [["x", "y"], [], None, ["z"]]},
        {"args": [{"first": 1, "second": "x"}] * 4},
        {"args": ['["x", [1.5, null]]', "[]", None, '[{"a": 1}]'], "type": ["a.b", None, "c.d", ""]},
        {"queue": ["email", None, "bulk", "email"], "priority": [1, None, -7, 1], "x": [1, 2, 3, 4]},
        {"id": [IDS[0], None, IDS[2], IDS[3]], "x": [1, 2, 3, 4]},
        {"idempotency_key": ["order-1", None, "order-1", "ü"], "x": [1, 2, 3, 4]},
        {"id": IDS, "idempotency_key": ["order-1", None, "order-1", "ü"], "type": ["e.f"] * 4},
    ],
)
@pytest.mark.parametrize(("queue", "memory_bytes"), [(None, 1 << 20), ("default-of-all", 1 << 20), (None, 0)])
def test_tables_are_of_the_same_jobs_as_single_rows(
    columns: dict[str, object], queue: str | None, memory_bytes: int
) -> None:
    batch = batch_of(columns)
    rows = JobRows(job_columns(from_arrow_schema(batch.schema), has_type=True), job_type="a.b", queue=queue)
    row_ids = RowIds("a write")
    wanted = [job for _ in range(2) for job in rows.jobs(batch, row_ids)]
    with BatchBuffer(memory_bytes) as kept:
        found = list(tables_of(batch, batch, queue=queue, kept=kept).tables(RowIds("a write")))
    assert [job_id for table in found for job_id in table.ids] == [job.id for job in wanted]
    assert [key for table in found for key in table.keys] == [job.unique_key for job in wanted]
    assert [json.loads(args) for table in found for args in table.args] == [job.args for job in wanted]
    for kind, job in zip([kind for table in found for kind in table.kinds], wanted, strict=True):
        assert (kind.prototype.type, kind.prototype.queue) == (job.type, job.options.get("queue", "default"))
        assert kind.prototype.priority == job.options.get("priority", 0)


def test_an_id_comes_from_what_a_row_says_and_not_from_its_place() -> None:
    values = ["a", "b", "a", "c", "a", "d"]
    batch = batch_of({"x": values, "queue": ["q", "q", "q", "q", "r", "q"]})
    mixed = batch.take(pa.array([5, 2, 4, 0, 3, 1]))

    def ids(*batches: pa.RecordBatch, name: str = "a write/0") -> list[tuple[str, str]]:
        tables = tables_of(*batches).tables(RowIds(name))
        return [(job_id, args.decode()) for table in tables for job_id, args in zip(table.ids, table.args, strict=True)]

    first = ids(batch)
    # However they are ordered and cut, the same rows have the same ids, and equal rows are as many jobs.
    assert sorted(ids(mixed.slice(0, 2), mixed.slice(2))) == sorted(first)
    assert len({job_id for job_id, _ in first}) == len(values)
    assert all(is_uuid7(job_id) for job_id, _ in first)
    assert not {job_id for job_id, _ in first} & {job_id for job_id, _ in ids(batch, name="a write/1")}
    # More rows change the ids of no other.
    assert set(first) < set(ids(batch_of({"x": ["e"], "queue": ["q"]}), batch))


@pytest.mark.parametrize(
    "text", ["[" * 1500 + "]" * 1500, '{"a":' * 1500 + "1" + "}" * 1500, f'["{chr(92)}ud800"]', "[" + "9" * 400 + "]"]
)
@pytest.mark.parametrize("field", ["args", "meta", "tags", "retry"])
def test_odd_json_is_refused_by_its_row_in_both_ways(text: str, field: str) -> None:
    batch = batch_of({"args": ["[]", "[]"]} | {field: [None, text]})
    columns = job_columns(from_arrow_schema(batch.schema), has_type=True)
    rows = JobRows(columns, job_type="a.b", queue=None)
    with pytest.raises(InvalidJob) as caught:
        list(map(JOBS.check, rows.jobs(batch, RowIds("a write"))))
    if field == "args":
        with pytest.raises(InvalidRow) as named:
            tables_of(batch)
        assert str(named.value) == f"row 1 of partition 7: {caught.value}"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"args": ["[]", "no json"]}, "args: is not the text of a JSON array: 'no json'"),
        ({"x": [1.5, float("nan")]}, "args[0]: nan is not a JSON number"),
        ({"x": [1, 2**60]}, "args[0]: 1152921504606846976 does not fit 53 bits: send it as a string"),
        ({"queue": ["email", "Not A Queue"]}, "queue: 'Not A Queue' is not lower case letters, digits, '-' and '.'"),
        ({"type": ["a.b", "UPPER"]}, "type: 'UPPER' is not dot-separated lower case"),
        ({"id": [None, "not-a-uuid"]}, "id: 'not-a-uuid' is not a UUIDv7 in lower case"),
        ({"idempotency_key": [None, ""]}, "idempotency_key: is empty; null is for jobs without a key"),
        ({"idempotency_key": ["a", "k" * 16_385]}, "idempotency_key: is larger than 16384 bytes"),
        ({"x": pa.array([0, 253402300800], pa.timestamp("s", "UTC"))}, "x: date value out of range"),
        (
            {"idempotency_key": pa.array([0, 253402300800], pa.timestamp("s", "UTC"))},
            "idempotency_key: date value out of range",
        ),
        (
            {"x": ["short", "x" * (1 << 24)]},
            "args: are 16777220 bytes of JSON; an envelope may have 16777216 in all",
        ),
    ],
)
def test_a_row_that_is_no_job_is_named(columns: dict[str, object], problem: str) -> None:
    batch = batch_of(columns)
    with pytest.raises(InvalidRow) as caught:
        tables_of(batch.slice(0, 1), batch.slice(0, 1), batch)
    assert str(caught.value) == f"row 3 of partition 7: {problem}"


def test_a_type_for_all_rows_that_is_none_is_the_fault_of_the_first() -> None:
    with pytest.raises(InvalidRow, match="row 0 of partition 7: type: 'NO TYPE'"):
        tables_of(batch_of({"x": [1, 2]}), job_type="NO TYPE")
    assert next(iter(tables_of(batch_of({"x": []}), job_type="NO TYPE").tables(RowIds("a write")))).ids == []


@pytest.mark.parametrize(
    "columns", [{"tags": [["a"]]}, {"timeout": [2.5]}, {"priority": ["high"]}, {"queue": [5]}, {"meta": ["{}"]}]
)
def test_other_columns_make_rows_of_their_own(columns: dict[str, object]) -> None:
    schema = from_arrow_schema(batch_of(columns).schema)
    assert not fit_tables(job_columns(schema, has_type=True), schema)
