"""Rows as jobs: columns, conversions and what is wrong with a row. No Spark session and no broker."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from waybill.ojs import InvalidJob, Jobs, NewJob, Retry
from waybill.ojs.spec.identifiers import is_uuid7
from waybill.pipeline.job_rows import JobRows, job_columns, job_id
from waybill.pipeline.json_values import DEEPEST_TYPE, UnreadableValue
from waybill.pipeline.named_options import OptionError
from waybill.pipeline.row_ids import RowIds

URI = "amqp://guest:guest@localhost:1/%2Fojs"
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def jobs_of(
    columns: Mapping[str, object], *, job_type: str | None = "email.send", queue: str | None = None
) -> list[NewJob]:
    batch = pa.RecordBatch.from_pydict(dict(columns))
    sorted_columns = job_columns(from_arrow_schema(batch.schema), has_type=job_type is not None)
    rows = JobRows(sorted_columns, job_type=job_type, queue=queue)
    jobs = list(rows.jobs(batch, RowIds("a write")))
    for job in jobs:
        Jobs(URI).check(job)
    return jobs


def args_of(column: pa.Array) -> list[object]:
    return [job.args[0] for job in jobs_of({"value": column})]


def test_columns_that_are_no_fields_are_arguments_in_their_order() -> None:
    jobs = jobs_of({"to": ["a@b", "c@d"], "copies": [1, 2], "queue": ["email", "bulk"]})
    assert [job.args for job in jobs] == [["a@b", 1], ["c@d", 2]]
    assert [job.options["queue"] for job in jobs] == ["email", "bulk"]
    assert {job.type for job in jobs} == {"email.send"}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["x", "y"]]),
        pa.array([{"first": "x", "second": "y"}]),
        pa.array(['["x", "y"]']),
    ],
)
def test_arguments_are_an_array_a_struct_or_json_text(column: pa.Array) -> None:
    assert jobs_of({"args": column})[0].args == ["x", "y"]


def test_a_job_needs_no_arguments() -> None:
    assert jobs_of({"type": ["a.b"], "args": pa.array([None], pa.list_(pa.string()))})[0].args == []
    assert jobs_of({"type": ["a.b"]}, job_type=None)[0].args == []


def test_values_become_json_without_loss() -> None:
    assert args_of(pa.array([MOMENT])) == ["2026-01-02T03:04:05.678000Z"]
    assert args_of(pa.array([date(2026, 1, 2)])) == ["2026-01-02"]
    assert args_of(pa.array([Decimal("1.10")])) == ["1.10"]
    assert args_of(pa.array([timedelta(days=1, milliseconds=-5)])) == ["PT86399.995S"]
    assert args_of(pa.array([b"\x00\xff"])) == ["AP8="]
    assert args_of(pa.array([None, 5])) == [None, 5]
    assert args_of(pa.array([[MOMENT, None]])) == [["2026-01-02T03:04:05.678000Z", None]]
    assert args_of(pa.array([{"at": MOMENT, "n": 1}])) == [{"at": "2026-01-02T03:04:05.678000Z", "n": 1}]
    pairs = pa.array([[("a", b"x"), ("b", None)]], pa.map_(pa.string(), pa.binary()))
    assert args_of(pairs) == [{"a": "eA==", "b": None}]
    by_time = pa.array([[(MOMENT, 1)]], pa.map_(pa.timestamp("us", "UTC"), pa.int64()))
    assert args_of(by_time) == [{"2026-01-02T03:04:05.678000Z": 1}]
    assert args_of(pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int64()))) == [{"/w==": 1}]


def test_fields_of_a_job_are_taken_from_columns() -> None:
    job = jobs_of(
        {
            "args": [["x"]],
            "priority": [7],
            "scheduled_at": [MOMENT],
            "timeout": [2.5],
            "meta": ['{"tenant": "t1"}'],
            "tags": [["a", "b"]],
            "retry": [{"max_attempts": 9, "jitter": None}],
            "correlation_id": ["c1"],
        }
    )[0]
    assert job.options["priority"] == 7
    assert job.options["scheduled_at"] == "2026-01-02T03:04:05.678000Z"
    assert job.options["timeout"] == 2.5
    assert job.options["meta"] == {"tenant": "t1"}
    assert job.options["tags"] == ["a", "b"]
    assert job.options["retry"] == Retry(max_attempts=9)
    assert job.options["correlation_id"] == "c1"


def test_a_key_gives_a_job_its_id() -> None:
    first, second, third = jobs_of({"idempotency_key": ["order-1", "order-1", None], "x": [1, 2, 3]})
    assert first.id == second.id == job_id("order-1")
    assert is_uuid7(job_id("order-1"))
    assert first.unique_key == "order-1"
    assert is_uuid7(str(third.id))
    assert third.id == third.unique_key != first.id


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"priority": ["high"]}, "priority"),
        ({"args": ["no json"]}, "args"),
        ({"args": ['{"a": 1}']}, "args"),
        ({"x": [float("nan")]}, r"args\[0\]"),
        ({"x": [2**60]}, r"args\[0\]"),
        ({"queue": ["Not A Queue"]}, "queue"),
        ({"type": ["UPPER"]}, "type"),
        ({"id": ["not-a-uuid"]}, "id"),
        ({"scheduled_at": ["tomorrow"]}, "scheduled_at"),
        ({"retry": ['{"max_attempts": -1}']}, "max_attempts"),
        ({"meta": ["[]"]}, "meta"),
        ({"tags": [[1]]}, "tags"),
        ({"retry": [5]}, "retry: expects an object, got int"),
        ({"retry": [[3]]}, "retry: expects an object, got list"),
        ({"retry": ['{"backoff_coefficient": 1e999}']}, "backoff_coefficient"),
        ({"idempotency_key": [""]}, "idempotency_key: is empty"),
        ({"idempotency_key": ["k" * 20_000], "tags": [["a"]]}, "idempotency_key: is larger than 16384 bytes"),
        ({"correlation_id": ["c" * 256]}, "correlation_id: is larger than 255 bytes"),
        ({"x": ["x" * (1 << 24)], "tags": [["a"]]}, "envelope: has .* bytes"),
    ],
)
def test_what_is_wrong_with_a_row_is_named(columns: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidJob, match=field):
        jobs_of(columns)


def test_a_column_without_a_place_is_an_error() -> None:
    with pytest.raises(OptionError, match="'prioritty' is not a field"):
        jobs_of({"args": [["x"]], "prioritty": [1]})


def nested(depth: int) -> DataType:
    """An array in arrays, and a map."""
    kind: DataType = MapType(StringType(), LongType())
    for _ in range(depth):
        kind = ArrayType(kind)
    return kind


def test_arrow_reads_all_types_that_are_taken() -> None:
    kind: DataType = LongType()
    for _ in range(DEEPEST_TYPE):
        kind = MapType(StringType(), kind)
    schema = to_arrow_schema(StructType([StructField("x", kind)]))
    job_columns(StructType([StructField("x", kind)]), has_type=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays([pa.nulls(1, schema.field(0).type)], schema=schema))
    assert pa.ipc.open_stream(sink.getvalue()).read_all().num_rows == 1


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"x": VariantType()}, "column 'x' cannot be sent, because JSON has no variant: convert it to text"),
        (
            {"args": ArrayType(StructType([StructField("a", YearMonthIntervalType())]))},
            "column 'args' cannot be sent, because JSON has no interval year to month: convert it to text",
        ),
        (
            {"meta": MapType(ArrayType(LongType()), LongType())},
            "column 'meta' cannot be sent, because JSON has no map<array<bigint>,bigint>: convert it to text",
        ),
        (
            {"args": MapType(StringType(), LongType())},
            "column 'args' must be an array, a struct or the text of a JSON array, not map<string,bigint>",
        ),
        ({"args": LongType()}, "column 'args' must be an array, a struct or the text of a JSON array, not bigint"),
        (
            {"x": nested(30)},
            "column 'x' cannot be sent, because it is nested deeper than 30 levels: convert it to text",
        ),
        ({}, "rows without columns do not arrive: jobs without arguments need a column 'args' that is null"),
    ],
)
def test_columns_that_cannot_be_jobs_are_refused_before_any_row(columns: dict[str, DataType], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        job_columns(StructType([StructField(name, kind) for name, kind in columns.items()]), has_type=True)
    assert str(caught.value) == problem


def test_the_row_of_a_value_that_python_cannot_express_is_known() -> None:
    late = pa.array([0, 253402300800], pa.timestamp("s", "UTC"))
    cut = pa.array([0, 1, 2], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, cut, pa.py_buffer(b"a\xff")])
    given: list[dict[str, pa.Array]] = [
        {"x": late},
        {"scheduled_at": late},
        {"id": broken},
        {"args": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), broken)},
    ]
    for columns in given:
        with pytest.raises(UnreadableValue) as caught:
            jobs_of(columns)
        assert caught.value.index == 1
        assert str(caught.value).startswith(f"{next(iter(columns))}: ")


def test_a_job_needs_a_type() -> None:
    with pytest.raises(OptionError, match="needs a type"):
        jobs_of({"x": [1]}, job_type=None)
