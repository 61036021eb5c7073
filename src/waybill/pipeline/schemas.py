"""The schemas of all sources and tables of the pipeline, for readers, writers and tests.

All timestamps are UTC with microseconds; names that end in `_ms` are whole milliseconds. A column is nullable unless a
row without it would be useless.
"""

from datetime import UTC, datetime
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TEXT: Final = StringType()
_INT: Final = IntegerType()
_LONG: Final = LongType()
_DOUBLE: Final = DoubleType()
_TIME: Final = TimestampType()
_BOOL: Final = BooleanType()
_BYTES: Final = BinaryType()


def _table(required: dict[str, DataType], optional: dict[str, DataType]) -> StructType:
    """A struct of `required` columns (not null) followed by `optional` ones."""
    fields = [StructField(name, kind, nullable=False) for name, kind in required.items()]
    fields += [StructField(name, kind, nullable=True) for name, kind in optional.items()]
    return StructType(fields)


# The times that an event may have. They do not depend on the reader's clock: an event that is read again must become
# the same row.
FIRST_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
TIMES_END: Final = datetime(2100, 1, 1, tzinfo=UTC)
# The longest run of an attempt, 366 days: 290 million of them fit into a sum.
LONGEST_MS: Final = 366 * 24 * 3600 * 1000
# In characters. Silver and gold are grouped by names.
LONGEST_NAME: Final = 1000
LONGEST_MESSAGE: Final = 10_000

# The properties of a basic content header, without `timestamp` and `headers`, which are columns of their own.
PROPERTIES: Final = _table(
    {},
    {
        "content_type": _TEXT,
        "content_encoding": _TEXT,
        "delivery_mode": _INT,
        "priority": _INT,
        "correlation_id": _TEXT,
        "reply_to": _TEXT,
        "expiration": _TEXT,
        "message_id": _TEXT,
        "type": _TEXT,
        "user_id": _TEXT,
        "app_id": _TEXT,
    },
)

# The last column of a source, unless the option includeHeaders says otherwise.
HEADERS: Final = StructField("headers", MapType(_TEXT, _TEXT, valueContainsNull=True))

# One row for each message of a stream queue: `format("amqp")`.
MESSAGE: Final = StructType(
    [
        *_table(
            {"body": _BYTES, "stream": _TEXT, "offset": _LONG}, {"timestamp": _TIME, "properties": PROPERTIES}
        ).fields,
        HEADERS,
    ]
)

# One row for each event: `format("ojs")`. A message may hold several; `position` counts them from 0. An event that
# cannot be used has its reason in `malformed`, its text in `event`, and nothing in the columns between.
EVENT: Final = _table(
    {"stream": _TEXT, "offset": _LONG, "position": _INT},
    {
        "timestamp": _TIME,
        "event_id": _TEXT,
        "type": _TEXT,
        "source": _TEXT,
        "subject": _TEXT,
        "time": _TIME,
        "job_type": _TEXT,
        "queue": _TEXT,
        "worker_id": _TEXT,
        "attempt": _INT,
        "max_attempts": _INT,
        "priority": _INT,
        "duration_ms": _LONG,
        "scheduled_at": _TIME,
        "next_retry_at": _TIME,
        "error_type": _TEXT,
        "error_message": _TEXT,
        "error_retryable": _BOOL,
        "event": _TEXT,
        "malformed": _TEXT,
    },
)

# One row for each dead letter: `format("ojs")` with the option deadLetters. `args` is the text of a JSON array.
DEAD_LETTER: Final = _table(
    {"queue": _TEXT, "job_id": _TEXT},
    {
        "job_type": _TEXT,
        "attempt": _INT,
        "died_at": _TIME,
        "reason": _TEXT,
        "error_type": _TEXT,
        "error_message": _TEXT,
        "fingerprint": _TEXT,
        "args": _TEXT,
        "envelope": _BYTES,
    },
)

# Bronze: the received events, each exactly once by (stream, offset, position).
BRONZE_EVENTS: Final = StructType(
    [field for field in EVENT.fields if field.name != "malformed"]
    + [StructField("date", DateType()), StructField("batch_id", _LONG)]
)
BRONZE_PARTITIONS: Final = ("date", "batch_id")

# Messages that are not valid events, with the reason.
QUARANTINE: Final = StructType(
    [
        *_table({"stream": _TEXT, "offset": _LONG, "position": _INT}, {"timestamp": _TIME}).fields,
        *_table({}, {"reason": _TEXT, "event": _TEXT, "batch_id": _LONG}).fields,
    ]
)
QUARANTINE_PARTITIONS: Final = ("batch_id",)

# Silver: one row for each attempt, and one row for each job.
ATTEMPTS: Final = _table(
    {"job_id": _TEXT, "attempt": _INT},
    {
        "job_type": _TEXT,
        "queue": _TEXT,
        "worker_id": _TEXT,
        "outcome": _TEXT,
        "available_at": _TIME,
        "started_at": _TIME,
        "finished_at": _TIME,
        "queue_wait_ms": _LONG,
        "run_ms": _LONG,
        "starts": _INT,
        "completions": _INT,
        "retried": _BOOL,
        "next_retry_at": _TIME,
        "discarded": _BOOL,
        "error_type": _TEXT,
        "error_message": _TEXT,
        "error_retryable": _BOOL,
    },
)
JOBS: Final = _table(
    {"job_id": _TEXT},
    {
        "job_type": _TEXT,
        "queue": _TEXT,
        "priority": _INT,
        "state": _TEXT,
        "enqueued_at": _TIME,
        "scheduled_at": _TIME,
        "started_at": _TIME,
        "finished_at": _TIME,
        "attempts": _INT,
        "starts": _INT,
        "completions": _INT,
        "failures": _INT,
        "retries": _INT,
        "queue_wait_ms": _LONG,
        "run_ms": _LONG,
        "latency_ms": _LONG,
        "error_type": _TEXT,
        "error_message": _TEXT,
    },
)

# Gold: counts by time bucket, queue and job type. The sketches are KLL sketches of whole milliseconds, to be merged
# over any buckets before a percentile is taken; the percentiles next to them are of the bucket alone.
ACTIVITY: Final = _table(
    {},
    {
        "bucket": _TIME,
        "queue": _TEXT,
        "job_type": _TEXT,
        "enqueued": _LONG,
        "started": _LONG,
        "completed": _LONG,
        "failed": _LONG,
        "retried": _LONG,
        "discarded": _LONG,
        "completed_per_second": _DOUBLE,
        "failure_ratio": _DOUBLE,
        "busy_ms": _LONG,
        "queue_wait_sketch": _BYTES,
        "run_sketch": _BYTES,
        "queue_wait_ms": ArrayType(_LONG),
        "run_ms": ArrayType(_LONG),
    },
)
FAILURES: Final = _table(
    {},
    {
        "bucket": _TIME,
        "queue": _TEXT,
        "job_type": _TEXT,
        "error_type": _TEXT,
        "failed": _LONG,
        "retried": _LONG,
        "example_job_id": _TEXT,
        "example_message": _TEXT,
    },
)
DEAD_LETTERS: Final = _table(
    {},
    {
        "bucket": _TIME,
        "queue": _TEXT,
        "job_type": _TEXT,
        "reason": _TEXT,
        "jobs": _LONG,
        "attempts": _LONG,
        "example_job_id": _TEXT,
        "example_message": _TEXT,
    },
)
# How attempts of each number ended. The sketch is of the milliseconds from a job's first failure to its completion.
RETRIES: Final = _table(
    {},
    {
        "bucket": _TIME,
        "queue": _TEXT,
        "job_type": _TEXT,
        "attempt": _INT,
        "ended": _LONG,
        "completed": _LONG,
        "recovery_sketch": _BYTES,
    },
)

# Jobs that ended, those of them that were completed within `target_ms`, and their share.
OBJECTIVES: Final = _table(
    {},
    {
        "bucket": _TIME,
        "queue": _TEXT,
        "job_type": _TEXT,
        "target_ms": _LONG,
        "ended": _LONG,
        "in_time": _LONG,
        "attainment": _DOUBLE,
    },
)
# `busy_ms`: the time of all attempts in the bucket; `utilisation`: its share of all places (null if the worker never
# reported how many it has).
WORKERS: Final = _table(
    {},
    {
        "bucket": _TIME,
        "worker_id": _TEXT,
        "places": _INT,
        "started": _LONG,
        "ended": _LONG,
        "busy_ms": _LONG,
        "utilisation": _DOUBLE,
    },
)

# The ranks of the percentile arrays in gold: median, 95th, 99th.
PERCENTILES: Final = (0.5, 0.95, 0.99)
