"""Tables are of the same jobs as single rows, and the same rows are refused. No Spark session and no broker."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from waybill.ojs import Jobs
from waybill.pipeline.job_rows import InvalidRow, JobRows, job_columns
from waybill.pipeline.job_tables import JobTables, fit_tables

JOBS = Jobs("amqp://guest:guest@localhost:1/%2Fojs")
IDS = [f"01941500-8b2e-7c3a-b5d1-{number:012x}" for number in range(4)]


class Numbers:
    def ids(self, first: int, count: int) -> list[str]:
        return [f"019414d4-8b2e-7c3a-b5d1-{number:012x}" for number in range(first, first + count)]


def batch_of(columns: Mapping[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(dict(columns))


def tables_of(*batches: pa.RecordBatch, job_type: str | None = "a.b", queue: str | None = None) -> JobTables:
    schema = from_arrow_schema(batches[0].schema)
    columns = job_columns(schema, has_type=job_type is not None)
    assert fit_tables(columns, schema)
    tables = JobTables(columns, JOBS.kind, job_type=job_type, queue=queue)
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
@pytest.mark.parametrize("queue", [None, "default-of-all"])
def test_tables_are_of_the_same_jobs_as_single_rows(columns: dict[str, object], queue: str | None) -> None:
    batch = batch_of(columns)
    rows = JobRows(job_columns(from_arrow_schema(batch.schema), has_type=True), job_type="a.b", queue=queue)
    wanted = [job for first in (0, 4) for job in rows.jobs(batch, Numbers().ids(first, 4))]
    found = list(tables_of(batch, batch, queue=queue).tables(Numbers()))
    assert [job_id for table in found for job_id in table.ids] == [job.id for job in wanted]
    assert [key for table in found for key in table.keys] == [job.unique_key for job in wanted]
    assert [json.loads(args) for table in found for args in table.args] == [job.args for job in wanted]
    for kind, job in zip([kind for table in found for kind in table.kinds], wanted, strict=True):
        assert (kind.prototype.type, kind.prototype.queue) == (job.type, job.options.get("queue", "default"))
        assert kind.prototype.priority == job.options.get("priority", 0)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"args": ["[]", "no json"]}, "args: is not the text of a JSON array: 'no json'"),
        ({"x": [1.5, float("nan")]}, "args[0]: nan is not a JSON number"),
        ({"x": [1, 2**60]}, "args[0]: 1152921504606846976 does not fit 53 bits: send it as a string"),
        ({"queue": ["email", "Not A Queue"]}, "queue: 'Not A Queue' is not lower case letters, digits, '-' and '.'"),
        ({"type": ["a.b", "UPPER"]}, "type: 'UPPER' is not dot-separated lower case"),
        ({"id": [None, "not-a-uuid"]}, "id: 'not-a-uuid' is not a UUIDv7 in lower case"),
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
    assert next(iter(tables_of(batch_of({"x": []}), job_type="NO TYPE").tables(Numbers()))).ids == []


@pytest.mark.parametrize(
    "columns", [{"tags": [["a"]]}, {"timeout": [2.5]}, {"priority": ["high"]}, {"queue": [5]}, {"meta": ["{}"]}]
)
def test_other_columns_make_rows_of_their_own(columns: dict[str, object]) -> None:
    schema = from_arrow_schema(batch_of(columns).schema)
    assert not fit_tables(job_columns(schema, has_type=True), schema)
