"""Silver: events folded to one row an attempt, and to one row a job.

Every column is an aggregate that does not care in which order the events come, how often, or in how many batches: first
and last are taken by the event's own time and id, never by the place where it was read. So late events, replays and
duplicates change nothing, and a fold from the start gives what a fold of the parts would.

An attempt becomes available twice over: by `job.enqueued` (the first), or by the `job.retrying` of the one before it.
Such an event is therefore counted in two slots, which saves a join of the attempts with themselves.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from waybill.pipeline.schemas import ATTEMPTS, JOBS

_ERROR_COLUMNS = ("error_type", "error_message", "error_retryable")


def attempts(events: DataFrame) -> DataFrame:
    """One row for each attempt that began (`schemas.ATTEMPTS`), from events in the columns of bronze."""
    slots = (
        F.when(F.col("type") == "job.enqueued", F.array(F.lit(1)))
        .when(F.col("type") == "job.retrying", F.array("attempt", F.col("attempt") + 1))
        .when(_is("job.started", "job.completed", "job.failed", "job.discarded"), F.array("attempt"))
    )
    slotted = events.where(F.col("subject").isNotNull()).withColumn("slot", F.explode(slots))
    opening = (F.col("type") == "job.enqueued") | (
        (F.col("type") == "job.retrying") & (F.col("slot") > F.col("attempt"))
    )
    folded = (
        slotted.where(F.col("slot") > 0)
        .withColumn("kind", F.when(~opening, F.col("type")).otherwise(F.lit("opening")))
        .groupBy(F.col("subject").alias("job_id"), F.col("slot").cast("int").alias("attempt"))
        .agg(*_attempt_aggregates())
    )
    return _attempt_columns(folded.where("begun"))


def _attempt_aggregates() -> list[Column]:
    """What is kept of the events of one slot."""
    failing = _kind("job.failed", "job.retrying", "job.discarded")
    error = F.min_by(
        F.struct(*_ERROR_COLUMNS),
        F.when(
            failing & F.col("error_type").isNotNull(),
            F.struct(F.col("kind") != "job.failed", F.col("time"), F.col("event_id")),
        ),
    )
    return [
        F.min("job_type").alias("job_type"),
        F.min("queue").alias("queue"),
        F.max(F.col("kind") != "opening").alias("begun"),
        F.min_by("worker_id", F.when(_kind("job.started"), F.struct("time", "event_id"))).alias("worker_id"),
        F.max(F.when(_kind("opening"), F.col("next_retry_at"))).alias("retry_at"),
        F.min(F.when(_kind("opening"), F.greatest("time", "scheduled_at"))).alias("enqueued_at"),
        _first(F.col("time"), "job.started").alias("started_at"),
        _first(F.col("time"), "job.completed").alias("completed_at"),
        _first(F.col("time"), "job.failed", "job.discarded", "job.retrying").alias("failed_at"),
        _first(F.col("duration_ms"), "job.completed").alias("completed_ms"),
        _first(F.col("duration_ms"), "job.failed").alias("failed_ms"),
        _distinct("job.started").alias("starts"),
        _distinct("job.completed").alias("completions"),
        F.max(_kind("job.retrying")).alias("retried"),
        _first(F.col("next_retry_at"), "job.retrying").alias("next_retry_at"),
        F.max(_kind("job.discarded")).alias("discarded"),
        error.alias("error"),
    ]


def _attempt_columns(folded: DataFrame) -> DataFrame:
    """The columns of `schemas.ATTEMPTS` from the aggregates."""
    finished_at = F.coalesce("completed_at", "failed_at")
    available_at = F.coalesce("retry_at", "enqueued_at")
    outcome = (
        F.when(F.col("completed_at").isNotNull(), "completed")
        .when(F.col("failed_at").isNotNull(), "failed")
        .otherwise("running")
    )
    run_ms = F.coalesce("completed_ms", "failed_ms", _elapsed_ms(F.col("started_at"), finished_at))
    failed = F.col("completed_at").isNull()
    return folded.select(
        *("job_id", "attempt", "job_type", "queue", "worker_id"),
        outcome.alias("outcome"),
        available_at.alias("available_at"),
        "started_at",
        finished_at.alias("finished_at"),
        _elapsed_ms(available_at, F.col("started_at")).alias("queue_wait_ms"),
        run_ms.alias("run_ms"),
        *("starts", "completions", "retried", "next_retry_at", "discarded"),
        *(F.when(failed, F.col("error")[name]).alias(name) for name in _ERROR_COLUMNS),
    ).select(*ATTEMPTS.fieldNames())


def jobs(events: DataFrame, attempts: DataFrame) -> DataFrame:
    """One row for each job (`schemas.JOBS`): its state from `events`, the sums over its `attempts`.

    A job that completed is completed, whatever else was said of it (a late duplicate of a job that was given up, say);
    then discarded, cancelled and expired; then what the highest attempt says.
    """
    facts = (
        events.where(F.col("subject").isNotNull() & F.col("type").startswith("job."))
        .groupBy(F.col("subject").alias("job_id"))
        .agg(*_job_aggregates())
    )
    return facts.join(_attempt_sums(attempts), "job_id", "left").select(*_job_columns()).select(*JOBS.fieldNames())


def _job_aggregates() -> list[Column]:
    """What is kept of the events of one job."""
    error = F.max_by(
        F.struct("error_type", "error_message"),
        F.when(_is("job.discarded", "job.failed"), F.struct("attempt", "type", "time", "event_id")),
    )
    return [
        F.min("job_type").alias("job_type"),
        F.min("queue").alias("queue"),
        F.min("priority").alias("priority"),
        F.min(F.when(_is("job.enqueued", "job.scheduled"), F.col("time"))).alias("enqueued_at"),
        F.min(F.when(_is("job.enqueued", "job.scheduled"), F.col("scheduled_at"))).alias("scheduled_at"),
        F.min(F.when(_is("job.started"), F.col("time"))).alias("started_at"),
        *(
            F.min(F.when(_is(f"job.{state}"), F.col("time"))).alias(f"{state}_at")
            for state in ("completed", "discarded", "cancelled", "expired")
        ),
        F.max(F.when(_is("job.enqueued"), 1).when(_is("job.scheduled"), 0)).alias("waiting"),
        F.max(
            F.when(_is("job.started"), F.struct("attempt", F.lit(0).alias("rank"))).when(
                _is("job.failed", "job.retrying"), F.struct("attempt", F.lit(1).alias("rank"))
            )
        ).alias("latest"),
        error.alias("error"),
    ]


def _attempt_sums(attempts: DataFrame) -> DataFrame:
    """The sums over the attempts of each job."""
    return attempts.groupBy("job_id").agg(
        F.max("attempt").alias("attempts"),
        F.sum("starts").cast("int").alias("starts"),
        F.sum("completions").cast("int").alias("completions"),
        F.sum((F.col("outcome") == "failed").cast("int")).cast("int").alias("failures"),
        F.sum(F.col("retried").cast("int")).cast("int").alias("retries"),
        F.min_by("queue_wait_ms", "attempt").alias("queue_wait_ms"),
        F.sum("run_ms").alias("run_ms"),
    )


def _job_columns() -> list[Column]:
    """The columns of `schemas.JOBS` from the aggregates and the sums."""
    ended = [(state, F.col(f"{state}_at")) for state in ("completed", "discarded", "cancelled", "expired")]
    state = F.when(ended[0][1].isNotNull(), ended[0][0])
    for name, time in ended[1:]:
        state = state.when(time.isNotNull(), name)
    state = (
        state.when(F.col("latest.rank") == 1, "retryable")
        .when(F.col("latest.rank") == 0, "active")
        .when(F.col("waiting") == 0, "scheduled")
        .otherwise("available")
    )
    finished_at = F.coalesce(*(time for _, time in ended))
    counts = ("attempts", "starts", "completions", "failures", "retries")
    kept = ("job_id", "job_type", "queue", "priority", "enqueued_at", "scheduled_at", "started_at")
    unfinished_well = F.col("completed_at").isNull()
    return [
        *(F.col(name) for name in kept),
        state.alias("state"),
        finished_at.alias("finished_at"),
        *(F.coalesce(F.col(name), F.lit(0)).alias(name) for name in counts),
        F.col("queue_wait_ms"),
        F.col("run_ms"),
        _elapsed_ms(F.col("enqueued_at"), finished_at).alias("latency_ms"),
        F.when(unfinished_well, F.col("error.error_type")).alias("error_type"),
        F.when(unfinished_well, F.col("error.error_message")).alias("error_message"),
    ]


def _is(*types: str) -> Column:
    return F.col("type").isin(*types)


def _kind(*kinds: str) -> Column:
    return F.col("kind").isin(*kinds)


def _first(value: Column, *kinds: str) -> Column:
    """The least value among the events of these kinds, or null."""
    return F.min(F.when(_kind(*kinds), value))


def _distinct(kind: str) -> Column:
    """How many events of this kind there are, counted by id, so that a duplicate counts once."""
    return F.size(F.collect_set(F.when(_kind(kind), F.col("event_id"))))


def _elapsed_ms(start: Column, end: Column) -> Column:
    """Milliseconds from `start` to `end`; 0 if the clocks of two machines disagree; null if one of them is."""
    elapsed = F.unix_millis(end) - F.unix_millis(start)
    return F.when(elapsed.isNotNull(), F.greatest(elapsed, F.lit(0)))
