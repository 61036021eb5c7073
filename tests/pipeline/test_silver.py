import random
from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from tests.pipeline.histories import START, Event, event, history, rows, stamp
from tests.pipeline.reference_fold import fold
from waybill.pipeline.schemas import ATTEMPTS, EVENT, JOBS
from waybill.pipeline.transforms import silver

Cells = list[tuple[object, ...]]


def bronze(spark: SparkSession, messages: Iterable[list[Event]]) -> DataFrame:
    return spark.createDataFrame(rows(messages), EVENT)


def folded(spark: SparkSession, messages: Iterable[list[Event]]) -> tuple[Cells, Cells]:
    """All rows of attempts and jobs, in an order of their own."""
    events = bronze(spark, messages)
    slots = silver.slots(events)
    attempts, jobs = silver.attempts(slots), silver.jobs(slots)
    order = ["job_id", "attempt"]
    return [tuple(row) for row in attempts.orderBy(*order).collect()], [
        tuple(row) for row in jobs.orderBy("job_id").collect()
    ]


def test_a_job_that_fails_once_and_then_completes(spark: SparkSession) -> None:
    error = {"code": "handler_error", "type": "OSError", "message": "no", "retryable": True}
    told = [
        event("job.enqueued", at(0), "j", 1, priority=5),
        event("job.started", at(2), "j", 2, worker_id="w1", attempt=1),
        event("job.failed", at(3), "j", 3, attempt=1, error=error, duration_ms=900),
        event("job.retrying", at(3), "j", 4, attempt=1, max_attempts=3, next_retry_at=stamp_at(5), error=error),
        event("job.started", at(6), "j", 5, worker_id="w2", attempt=2),
        event("job.completed", at(10), "j", 6, attempt=2, duration_ms=4000),
    ]
    events = bronze(spark, [told])
    slots = silver.slots(events)
    attempts, jobs = silver.attempts(slots), silver.jobs(slots)
    assertSchemaEqual(attempts.schema, ATTEMPTS, ignoreNullable=True)
    columns = ("attempt", "worker_id", "outcome", "queue_wait_ms", "run_ms", "retried", "error_type")
    assertDataFrameEqual(
        attempts.select(*columns),
        [
            Row(
                attempt=1,
                worker_id="w1",
                outcome="failed",
                queue_wait_ms=2000,
                run_ms=900,
                retried=True,
                error_type="OSError",
            ),
            Row(
                attempt=2,
                worker_id="w2",
                outcome="completed",
                queue_wait_ms=1000,
                run_ms=4000,
                retried=False,
                error_type=None,
            ),
        ],
    )
    assertSchemaEqual(jobs.schema, JOBS, ignoreNullable=True)
    counted = (
        "state",
        "priority",
        "attempts",
        "starts",
        "failures",
        "retries",
        "queue_wait_ms",
        "run_ms",
        "latency_ms",
    )
    assertDataFrameEqual(
        jobs.select(*counted),
        [
            Row(
                state="completed",
                priority=5,
                attempts=2,
                starts=2,
                failures=1,
                retries=1,
                queue_wait_ms=2000,
                run_ms=4900,
                latency_ms=10_000,
            )
        ],
    )


def test_ids_of_a_job_are_collected_as_numbers(spark: SparkSession) -> None:
    """A set of the ids themselves took a gigabyte for 800,000 starts of one job, and Spark ended for lack of memory."""
    assert spark.sparkContext  # Columns need a session.
    collected = [text for text in map(str, silver._slot_aggregates()) if "collect" in text]
    assert len(collected) == 2
    assert all("THEN xxhash64(event_id)" in text for text in collected), collected


def test_a_scheduled_job_waits_from_its_time_on(spark: SparkSession) -> None:
    told = [
        event("job.enqueued", at(0), "j", 1, scheduled_at=stamp_at(60)),
        event("job.started", at(61), "j", 2, worker_id="w1", attempt=1),
    ]
    attempts, jobs = folded(spark, [told])
    assert dict(zip(ATTEMPTS.fieldNames(), attempts[0], strict=True))["queue_wait_ms"] == 1000
    assert dict(zip(JOBS.fieldNames(), jobs[0], strict=True))["state"] == "active"


def test_a_completed_job_stays_completed_whatever_comes_after(spark: SparkSession) -> None:
    told = [
        event("job.enqueued", at(0), "j", 1),
        event("job.started", at(1), "j", 2, worker_id="w1", attempt=1),
        event("job.completed", at(2), "j", 3, attempt=1, duration_ms=5),
        event("job.discarded", at(3), "j", 4, total_attempts=1, last_error={"code": "late", "message": "late"}),
    ]
    _, jobs = folded(spark, [told])
    job = dict(zip(JOBS.fieldNames(), jobs[0], strict=True))
    assert (job["state"], job["error_type"]) == ("completed", None)


def test_states_of_jobs_that_have_not_ended(spark: SparkSession) -> None:
    error = {"code": "c", "message": "m"}
    told = [
        event("job.enqueued", at(0), "waiting", 1),
        event("job.scheduled", at(0), "later", 1, scheduled_at=stamp_at(9)),
        event("job.failed", at(0), "again", 1, attempt=1, error=error),
        event("job.cancelled", at(0), "stopped", 1, reason="because"),
    ]
    _, jobs = folded(spark, [told])
    states = {row[0]: row[4] for row in jobs}
    assert states == {"waiting": "available", "later": "scheduled", "again": "retryable", "stopped": "cancelled"}


@pytest.mark.parametrize("seed", [1, 2])
def test_silver_agrees_with_a_plain_fold(spark: SparkSession, seed: int) -> None:
    events = history(seed, 60)
    expected = fold(events)
    attempts, jobs = folded(spark, [events])
    columns = ("outcome", "starts", "retried", "discarded", "error_type", "queue_wait_ms", "run_ms")
    seen = {}
    for row in attempts:
        cells = dict(zip(ATTEMPTS.fieldNames(), row, strict=True))
        if cells["outcome"] == "running":
            cells["run_ms"] = None
        seen[cells["job_id"], cells["attempt"]] = tuple(cells[name] for name in columns)
    assert seen == {
        (job_id, number): tuple(getattr(attempt, name) for name in columns)
        for job_id, job in expected.items()
        for number, attempt in job.attempts.items()
    }
    assert {row[0]: row[4] for row in jobs} == {job_id: job.state for job_id, job in expected.items()}


def test_order_duplicates_and_batches_change_nothing(spark: SparkSession) -> None:
    events = history(3, 50)
    tellings = {"told-0-": [events]}
    for seed in range(1, 5):
        chance = random.Random(seed)
        told = events + chance.sample(events, len(events) // 2)
        chance.shuffle(told)
        tellings[f"told-{seed}-"] = cut(told, chance)
    # All in one fold, as jobs of other names: a fold by Spark takes longer than its events do.
    messages = [[renamed(one, prefix) for one in message] for prefix, told in tellings.items() for message in told]
    for cells in folded(spark, messages):
        first, *others = [of_jobs(cells, prefix) for prefix in tellings]
        assert len(first) >= 50
        assert all(other == first for other in others)


def renamed(told: Event, prefix: str) -> Event:
    """The same event of another job: silver counts events by their ids."""
    return told | {"id": f"{prefix}{told['id']}", "subject": f"{prefix}{told['subject']}"}


def of_jobs(cells: Cells, prefix: str) -> Cells:
    """The rows of the jobs whose names begin so, under the names that they had before."""
    return [(str(name).removeprefix(prefix), *rest) for name, *rest in cells if str(name).startswith(prefix)]


def cut(events: list[Event], chance: random.Random) -> list[list[Event]]:
    """The same events in messages of random sizes."""
    messages = []
    while events:
        size = chance.randint(1, 40)
        messages.append(events[:size])
        events = events[size:]
    return messages


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def stamp_at(seconds: int) -> str:
    return stamp(at(seconds))
