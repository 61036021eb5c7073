from datetime import UTC, datetime

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from waybill.pipeline.schemas import ACTIVITY, ATTEMPTS, DEAD_LETTERS, FAILURES, JOBS
from waybill.pipeline.transforms import gold

NOON = datetime(2026, 3, 1, 12, 0, 0)  # noqa: DTZ001 - the session's zone is UTC


def attempt(job_id: str, minute: int, outcome: str, wait: int, run: int, **more: object) -> Row:
    moment = datetime(2026, 3, 1, 12, minute, 30, tzinfo=UTC)
    cells: dict[str, object] = dict.fromkeys(ATTEMPTS.fieldNames())
    cells |= {"job_id": job_id, "attempt": 1, "job_type": "t", "queue": "q", "outcome": outcome, "retried": False}
    cells |= {"started_at": moment, "finished_at": moment, "queue_wait_ms": wait, "run_ms": run, **more}
    return Row(**cells)


def job(job_id: str, minute: int, state: str, **more: object) -> Row:
    moment = datetime(2026, 3, 1, 12, minute, 10, tzinfo=UTC)
    cells: dict[str, object] = dict.fromkeys(JOBS.fieldNames())
    cells |= {"job_id": job_id, "job_type": "t", "queue": "q", "state": state, "enqueued_at": moment}
    return Row(**(cells | {"finished_at": moment, "attempts": 1} | more))


def lines(columns: tuple[str, ...], *cells: tuple[object, ...]) -> list[Row]:
    return [Row(**dict(zip(columns, line, strict=True))) for line in cells]


def test_minutes_count_what_happened_in_them(spark: SparkSession) -> None:
    jobs = spark.createDataFrame([job("a", 0, "completed"), job("b", 0, "discarded"), job("c", 1, "completed")], JOBS)
    attempts = spark.createDataFrame(
        [attempt("a", 0, "completed", 10, 5), attempt("b", 0, "failed", 30, 7), attempt("c", 1, "completed", 50, 9)],
        ATTEMPTS,
    )
    activity = gold.activity(jobs, attempts)
    assertSchemaEqual(activity.schema, ACTIVITY, ignoreNullable=True)
    columns = ("bucket", "enqueued", "started", "completed", "failed", "discarded", "busy_ms", "failure_ratio")
    assertDataFrameEqual(
        activity.select(*columns),
        lines(columns, (NOON, 2, 2, 1, 1, 1, 12, 0.5), (NOON.replace(minute=1), 1, 1, 1, 0, 0, 9, 0.0)),
    )


def test_sketches_of_minutes_merge_to_percentiles_of_all(spark: SparkSession) -> None:
    attempts = spark.createDataFrame(
        [attempt(f"j{index}", index % 5, "completed", index, 1) for index in range(1, 101)], ATTEMPTS
    )
    activity = gold.activity(spark.createDataFrame([], JOBS), attempts)
    row = gold.rolled_up(activity, "queue").first()
    assert row is not None
    assert row["queue_wait_ms"] == [50, 95, 99]
    assert row["started"] == 100


def test_a_bucket_without_starts_has_no_percentiles(spark: SparkSession) -> None:
    activity = gold.activity(
        spark.createDataFrame([job("a", 0, "available")], JOBS), spark.createDataFrame([], ATTEMPTS)
    )
    row = gold.rolled_up(activity, F.lit(1).alias("all")).first()
    assert row is not None
    assert (row["enqueued"], row["queue_wait_ms"], row["run_ms"]) == (1, None, None)


def test_failures_and_dead_letters_are_grouped_by_error(spark: SparkSession) -> None:
    attempts = spark.createDataFrame(
        [
            attempt("a", 0, "failed", 1, 1, error_type="OSError", error_message="first", retried=True),
            attempt("b", 0, "failed", 1, 1, error_type="OSError", error_message="second"),
            attempt("c", 0, "failed", 1, 1),
            attempt("d", 0, "completed", 1, 1),
        ],
        ATTEMPTS,
    )
    failures = gold.failures(attempts)
    assertSchemaEqual(failures.schema, FAILURES, ignoreNullable=True)
    columns = ("error_type", "failed", "retried", "example_job_id", "example_message")
    assertDataFrameEqual(
        failures.select(*columns), lines(columns, ("OSError", 2, 1, "a", "first"), ("unknown", 1, 0, "c", None))
    )
    dead = gold.dead_letters(
        spark.createDataFrame(
            [job("b", 0, "discarded", error_type="OSError", error_message="second", attempts=3)], JOBS
        )
    )
    assertSchemaEqual(dead.schema, DEAD_LETTERS, ignoreNullable=True)
    columns = ("reason", "jobs", "attempts", "example_job_id", "example_message")
    assertDataFrameEqual(dead.select(*columns), lines(columns, ("OSError", 1, 3, "b", "second")))
