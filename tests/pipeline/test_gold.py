from datetime import UTC, datetime, timedelta

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from waybill.pipeline.schemas import (
    ACTIVITY,
    ATTEMPTS,
    BRONZE_EVENTS,
    DEAD_LETTERS,
    FAILURES,
    JOBS,
    OBJECTIVES,
    WORKERS,
)
from waybill.pipeline.transforms import gold
from waybill.pipeline.transforms.objectives import Objectives, attainment
from waybill.pipeline.transforms.workers import utilisation

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


def test_jobs_are_in_time_by_the_objective_of_their_type(spark: SparkSession) -> None:
    start = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)

    def ended(job_id: str, state: str, seconds: float, **more: object) -> Row:
        times = {"enqueued_at": start, "finished_at": start + timedelta(seconds=seconds)}
        return job(job_id, 0, state, **(times | more))

    jobs = spark.createDataFrame(
        [
            ended("quick", "completed", 2),
            ended("at-last", "completed", 10),
            ended("slow", "completed", 10.001),
            ended("dead", "discarded", 1),
            ended("scheduled", "completed", 50, scheduled_at=start + timedelta(seconds=45)),
            ended("not-seen-before", "completed", 1, enqueued_at=None),
            ended("cancelled", "cancelled", 1),
            ended("open", "active", 1),
            ended("other", "completed", 2, job_type="strict"),
        ],
        JOBS,
    )
    rows = attainment(jobs, Objectives(10_000, {"strict": 1_000}))
    assertSchemaEqual(rows.schema, OBJECTIVES, ignoreNullable=True)
    assertDataFrameEqual(
        rows,
        lines(
            tuple(OBJECTIVES.fieldNames()),
            (NOON, "q", "strict", 1_000, 1, 0, 0.0),
            (NOON, "q", "t", 10_000, 5, 3, 0.6),
        ),
    )


def test_workers_are_busy_in_the_minutes_of_their_attempts(spark: SparkSession) -> None:
    def worked(job_id: str, worker_id: str | None, start_s: int, end_s: int | None) -> Row:
        noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
        ended = None if end_s is None else noon + timedelta(seconds=end_s)
        times = {"started_at": noon + timedelta(seconds=start_s), "finished_at": ended}
        return attempt(job_id, 0, "completed", 0, 0, worker_id=worker_id, **times)

    attempts = spark.createDataFrame(
        [
            worked("a", "w1", 30, 150),
            worked("b", "w1", 0, 30),
            worked("c", "w2", 10, 20),
            worked("running", "w2", 10, None),
            worked("clocks-differ", "w2", 20, 10),
        ],
        ATTEMPTS,
    )
    told = dict.fromkeys(BRONZE_EVENTS.fieldNames()) | {
        "stream": "s",
        "offset": 0,
        "position": 0,
        "event_id": "e",
        "type": "worker.started",
        "worker_id": "w1",
        "time": datetime(2026, 3, 1, tzinfo=UTC),
        "event": '{"data": {"concurrency": 2}}',
    }
    rows = utilisation(attempts, spark.createDataFrame([Row(**told)], BRONZE_EVENTS))
    assertSchemaEqual(rows.schema, WORKERS, ignoreNullable=True)
    assertDataFrameEqual(
        rows,
        lines(
            tuple(WORKERS.fieldNames()),
            (NOON, "w1", 2, 2, 1, 60_000, 0.5),
            (NOON.replace(minute=1), "w1", 2, 0, 0, 60_000, 0.5),
            (NOON.replace(minute=2), "w1", 2, 0, 1, 30_000, 0.25),
            (NOON, "w2", None, 1, 1, 10_000, None),
        ),
    )
