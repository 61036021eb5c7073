"""Silver: events folded to one row per attempt, and to one row per job.

Every column is an aggregate that does not depend on the order, number or batches of the events: first and last are
decided by the event's own time and id, never by the place where it was read. So late events, replays and duplicates
change nothing, and a fold from the start gives the same as a fold of the parts.

The events of a job are shuffled to one task, sorted once, and folded to slots: one for each attempt, and slot 0 for
events of the job without an attempt. Attempts are the slots that began, jobs are the sums over slots; neither needs
another shuffle or sort. Aggregating before the shuffle, as Spark does by default, would save nothing: a job has few
events, and they are rarely in one file.

A first attempt becomes available by `job.enqueued`, a later one by the `job.retrying` of the attempt before it. So a
`job.retrying` is counted in two slots, which saves a join of the attempts with themselves.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from waybill.pipeline.schemas import ATTEMPTS, FIRST_TIME, JOBS, LONGEST_MS, TIMES_END
from waybill.pipeline.transforms.sums import total

# Types of events as small numbers, for fast comparison. The order matters: as the end of an attempt, a failure takes
# precedence over the discarding of the job.
_TYPES: Final = (
    "job.started",
    "job.completed",
    "job.enqueued",
    "job.discarded",
    "job.failed",
    "job.retrying",
    "job.scheduled",
    "job.cancelled",
    "job.expired",
)
_STARTED, _COMPLETED, _ENQUEUED, _DISCARDED, _FAILED, _RETRYING, _SCHEDULED, _CANCELLED, _EXPIRED, _OTHER = range(10)
_ERROR_COLUMNS: Final = ("error_type", "error_message", "error_retryable")
_LAST_ERROR_COLUMNS: Final = ("error_type", "error_message")
# The largest attempt number: one below the maximum of the column's type.
_LAST_ATTEMPT: Final = 2**31 - 2
_ENDS: Final = ("completed", "discarded", "cancelled", "expired")
_EVENT_COLUMNS: Final = (
    *("event_id", "time", "job_type", "queue", "worker_id", "attempt", "priority", "duration_ms"),
    *("scheduled_at", "next_retry_at", *_ERROR_COLUMNS),
)

_SLOT_COLUMNS: Final = (
    *("job_id", "slot", "job_type", "queue", "priority", "worker_id", "begun", "rank", "waiting"),
    *("enqueued_at", "scheduled_at", "available_at", "started_at", "finished_at", *(f"{end}_at" for end in _ENDS)),
    *("queue_wait_ms", "run_ms", "starts", "completions", "retried", "next_retry_at", *_ERROR_COLUMNS),
    *("last_error_known", *(f"last_{name}" for name in _LAST_ERROR_COLUMNS), "last_at"),
)


def slots(events: DataFrame) -> DataFrame:
    """One row for each job and slot, from events in the columns of bronze: the input of `attempts` and `jobs`."""
    return folded(job_events(events))


def job_events(events: DataFrame) -> DataFrame:
    """The events of jobs in bronze, with the columns that silver needs."""
    return events.where(F.col("subject").isNotNull() & F.col("type").startswith("job.") & plausible("time")).select(
        F.col("subject").alias("job_id"), _kind().alias("kind"), *_EVENT_COLUMNS
    )


def folded(job_events: DataFrame) -> DataFrame:
    """The slots of events from `job_events`."""
    numbers = (
        F.when(_is(_RETRYING), F.array("attempt", F.least("attempt", F.lit(_LAST_ATTEMPT)) + 1))
        .when(_is(_ENQUEUED), F.array(F.lit(1)))
        .when(_is(_STARTED, _COMPLETED, _FAILED, _DISCARDED), F.array(F.coalesce("attempt", F.lit(0))))
        .otherwise(F.array(F.lit(0)))
    )
    rows = (
        job_events.repartition("job_id")
        .withColumn("slot", F.explode(numbers))
        .withColumn("opening", _is(_ENQUEUED) | (_is(_RETRYING) & (F.col("slot") > F.col("attempt"))))
        .groupBy("job_id", "slot")
        .agg(*_slot_aggregates())
    )
    return rows.withColumns(_slot_columns()).select(*_SLOT_COLUMNS)


def attempts(slots: DataFrame) -> DataFrame:
    """One row for each attempt that began (`schemas.ATTEMPTS`)."""
    outcome = (
        F.when(F.col("completed_at").isNotNull(), "completed")
        .when(F.col("finished_at").isNotNull(), "failed")
        .otherwise("running")
    )
    named = {
        "attempt": F.col("slot").cast("int"),
        "outcome": outcome,
        "discarded": F.col("discarded_at").isNotNull(),
    }
    return slots.where("begun").withColumns(named).select(*ATTEMPTS.fieldNames())


def jobs(slots: DataFrame) -> DataFrame:
    """One row for each job (`schemas.JOBS`).

    The state is the first of these that applies: completed, regardless of other events (such as those of a late
    duplicate that was discarded); discarded, cancelled, expired; else that of the highest attempt.
    """
    return jobs_with_last_event(slots).select(*JOBS.fieldNames())


def jobs_with_last_event(slots: DataFrame) -> DataFrame:
    """The same with `last_at`, the time of the job's last event."""
    rows = slots.groupBy("job_id").agg(*_job_aggregates()).withColumns(_job_columns())
    return rows.select(*JOBS.fieldNames(), "last_at")


def is_open(state: str = "state") -> Column:
    """Whether a job has not ended."""
    return ~F.col(state).isin(*_ENDS)


def plausible(time: str) -> Column:
    """Whether a time can be counted: bronze of earlier versions may contain any time."""
    return (F.col(time) >= F.lit(FIRST_TIME)) & (F.col(time) < F.lit(TIMES_END))


def _kind() -> Column:
    """The type of an event as its number."""
    kind = F.when(F.col("type") == _TYPES[0], 0)
    for number, name in enumerate(_TYPES[1:], start=1):
        kind = kind.when(F.col("type") == name, number)
    return kind.otherwise(_OTHER).cast("tinyint")


def _slot_aggregates() -> list[Column]:
    """The aggregates over the events of one slot."""
    opening = F.col("opening")
    retrying = _is(_RETRYING) & ~opening
    failing = _is(_FAILED, _DISCARDED) | retrying
    error = F.min_by(
        F.struct(*_ERROR_COLUMNS),
        F.when(failing & F.col("error_type").isNotNull(), F.struct(~_is(_FAILED), F.col("time"), F.col("event_id"))),
    )
    last_error = F.max_by(
        F.struct(*_LAST_ERROR_COLUMNS), F.when(_is(_FAILED, _DISCARDED), F.struct("kind", "time", "event_id"))
    )
    return [
        F.min("job_type").alias("job_type"),
        F.min("queue").alias("queue"),
        F.min("priority").alias("priority"),
        ((F.col("slot") > 0) & F.max(_is(_STARTED, _COMPLETED, _FAILED, _DISCARDED) | retrying)).alias("begun"),
        F.max(F.when(_is(_STARTED), 0).when(_is(_FAILED) | retrying, 1)).alias("rank"),
        F.max(F.when(_is(_SCHEDULED), 0).when(_is(_ENQUEUED), 1)).alias("waiting"),
        F.min_by("worker_id", F.when(_is(_STARTED), F.struct("time", "event_id"))).alias("worker_id"),
        _first("time", _is(_ENQUEUED, _SCHEDULED)).alias("enqueued_at"),
        _first("scheduled_at", _is(_ENQUEUED, _SCHEDULED)).alias("scheduled_at"),
        F.max(F.when(opening, F.col("next_retry_at"))).alias("retry_at"),
        F.min(F.when(opening, F.greatest("time", "scheduled_at"))).alias("opened_at"),
        _first("time", _is(_STARTED)).alias("started_at"),
        _first("time", _is(_COMPLETED)).alias("completed_at"),
        _first("time", failing).alias("failed_at"),
        _first("time", _is(_DISCARDED)).alias("discarded_at"),
        _first("time", _is(_CANCELLED)).alias("cancelled_at"),
        _first("time", _is(_EXPIRED)).alias("expired_at"),
        _first("duration_ms", _is(_COMPLETED)).alias("completed_ms"),
        _first("duration_ms", _is(_FAILED)).alias("failed_ms"),
        _distinct(_STARTED).alias("starts"),
        _distinct(_COMPLETED).alias("completions"),
        F.max(retrying).alias("retried"),
        _first("next_retry_at", retrying).alias("next_retry_at"),
        error.alias("error"),
        last_error.alias("last_error"),
        F.max("time").alias("last_at"),
    ]


def _slot_columns() -> dict[str, Column]:
    """The columns computed from the aggregates of a slot."""
    finished_at = F.coalesce("completed_at", "failed_at")
    available_at = F.coalesce("retry_at", "opened_at")
    run_ms = F.coalesce("completed_ms", "failed_ms", _elapsed_ms(F.col("started_at"), finished_at))
    failed = F.col("completed_at").isNull()
    return {
        "available_at": available_at,
        "finished_at": finished_at,
        "queue_wait_ms": _elapsed_ms(available_at, F.col("started_at")),
        "run_ms": F.when(run_ms.isNotNull(), F.least(run_ms, F.lit(LONGEST_MS))),
        **{name: F.when(failed, F.col("error")[name]) for name in _ERROR_COLUMNS},
        "last_error_known": F.col("last_error").isNotNull(),
        **{f"last_{name}": F.col("last_error")[name] for name in _LAST_ERROR_COLUMNS},
    }


def _job_aggregates() -> list[Column]:
    """The aggregates over the slots of one job."""
    begun = F.col("begun")
    moments = ("enqueued_at", "scheduled_at", "started_at", *(f"{end}_at" for end in _ENDS))
    failed = (F.col("completed_at").isNull() & F.col("finished_at").isNotNull()).cast("int")
    last_error = F.when(F.col("last_error_known"), F.col("slot"))
    return [
        *(F.min(name).alias(name) for name in ("job_type", "queue", "priority", *moments)),
        F.max("last_at").alias("last_at"),
        F.max("waiting").alias("waiting"),
        F.max_by("rank", F.when(F.col("rank").isNotNull(), F.col("slot"))).alias("rank"),
        *(F.max_by(f"last_{name}", last_error).alias(name) for name in _LAST_ERROR_COLUMNS),
        F.max(F.when(begun, F.col("slot"))).cast("int").alias("attempts"),
        *(
            F.sum(F.when(begun, value)).cast("int").alias(name)
            for name, value in {
                "starts": F.col("starts"),
                "completions": F.col("completions"),
                "failures": failed,
                "retries": F.col("retried").cast("int"),
            }.items()
        ),
        F.min_by("queue_wait_ms", F.when(begun, F.col("slot"))).alias("queue_wait_ms"),
        total(F.when(begun, F.col("run_ms"))).alias("run_ms"),
    ]


def _job_columns() -> dict[str, Column]:
    """The columns computed from the aggregates of a job."""
    state = F.when(F.col("completed_at").isNotNull(), "completed")
    for end in _ENDS[1:]:
        state = state.when(F.col(f"{end}_at").isNotNull(), end)
    state = (
        state.when(F.col("rank") == 1, "retryable")
        .when(F.col("rank") == 0, "active")
        .when(F.col("waiting") == 0, "scheduled")
        .otherwise("available")
    )
    finished_at = F.coalesce(*(f"{end}_at" for end in _ENDS))
    unfinished_well = F.col("completed_at").isNull()
    counts = ("attempts", "starts", "completions", "failures", "retries")
    return {
        "state": state,
        "finished_at": finished_at,
        **{name: F.coalesce(F.col(name), F.lit(0)) for name in counts},
        "latency_ms": _elapsed_ms(F.col("enqueued_at"), finished_at),
        **{name: F.when(unfinished_well, F.col(name)) for name in _LAST_ERROR_COLUMNS},
    }


def _is(*kinds: int) -> Column:
    return F.col("kind").isin(*kinds) if len(kinds) > 1 else F.col("kind") == kinds[0]


def _first(value: str, wanted: Column) -> Column:
    """The least value among the wanted events, or null."""
    return F.min(F.when(wanted, F.col(value)))


def _distinct(kind: int) -> Column:
    """The number of events of a kind, counted by id, so that duplicates count once.

    By the hash of the id: the set is in memory, and one job may have millions of events with ids of a thousand letters.
    """
    return F.size(F.collect_set(F.when(_is(kind), F.xxhash64("event_id"))))


def _elapsed_ms(start: Column, end: Column) -> Column:
    """Milliseconds from `start` to `end`; 0 if the clocks of two machines disagree; null if one time is null."""
    elapsed = F.unix_millis(end) - F.unix_millis(start)
    return F.when(elapsed.isNotNull(), F.greatest(elapsed, F.lit(0)))
