"""Reads dead letters into a DataFrame, and moves jobs of a DataFrame out of their dead letter queues.

    dead = spark.read.format("ojs").option("uri", uri).option("deadLetters", "email").load()
    redrive(dead.where("error_type = 'Timeout'"), uri, rate=50)

Reading does not change the queue: its messages are fetched and requeued in order. The result is a snapshot from the
start of the task. A queue is one partition, in order.

Tasks move the jobs, one for each queue; with a rate, one for all. Each job is confirmed in its queue before its dead
letter is acknowledged. If Spark or this program dies, the other jobs stay dead, and at most one job per task is in both
places.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from waybill.client.blocking import run
from waybill.ojs import DeadJob, DeadLetters, InvalidJob, Jobs, JobsError, Topology
from waybill.ojs.spec.envelope import check_queue
from waybill.pipeline.broker_errors import BROKER_ERRORS, explained
from waybill.pipeline.dead_letter_moves import CHOSEN, MOVED, DeadLetterMove, DeadLettersError, checked_arguments
from waybill.pipeline.named_options import NamedOptions, OptionError
from waybill.pipeline.nesting import is_too_deep
from waybill.pipeline.schemas import DEAD_LETTER, FIRST_TIME, TIMES_END
from waybill.pipeline.task_counts import TaskCounts
from waybill.pipeline.task_errors import own_error
from waybill.pipeline.topology_options import TOPOLOGY_OPTIONS, parse_topology

__all__ = ["DeadLetterReader", "DeadLettersError", "Settled", "discard", "redrive"]

Progress: TypeAlias = Callable[[int], None]
T = TypeVar("T")

_OPTIONS: Final = ("uri", "deadLetters", *TOPOLOGY_OPTIONS)
_ROWS_PER_BATCH: Final = 4096
# Each body is in two columns, and Arrow's text columns are limited to 2 GB.
_BYTES_PER_BATCH: Final = 1 << 25
# The largest value of the column.
_ATTEMPT_MAX: Final = 2**31 - 1


@dataclass(frozen=True)
class Settled:
    """The result of a move: `done` of the `wanted` jobs. The others were no longer in their dead letter queue."""

    wanted: int
    done: int


@dataclass(frozen=True)
class DeadLetterOptions:
    """Which dead letter queues to read, by the names of their queues."""

    uri: str
    queues: tuple[str, ...]
    topology: Topology


def parse_dead_letter_options(given: Mapping[str, str]) -> DeadLetterOptions:
    """Check the options of a read of dead letters. Raises OptionError."""
    options = NamedOptions(given, _OPTIONS)
    queues = tuple(name.strip() for name in (options.text("deadLetters") or "").split(",") if name.strip())
    if not queues:
        raise OptionError("option deadLetters must be a comma-separated list of queues")
    for queue in queues:
        try:
            check_queue(queue)
        except InvalidJob as problem:
            # Reading declares what is missing.
            raise OptionError(f"option deadLetters: {problem.message}") from None
    return DeadLetterOptions(options.uri(), queues, parse_topology(options))


class QueuePartition(InputPartition):
    """The dead letters of one queue."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue


class DeadLetterReader(DataSourceReader):
    """Reads a snapshot of dead letter queues."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._options = parse_dead_letter_options(given)

    def partitions(self) -> Sequence[InputPartition]:
        return [QueuePartition(queue) for queue in self._options.queues]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueuePartition):
            raise TypeError(f"a queue was expected, not {partition!r}")
        options = self._options
        jobs = Jobs(options.uri, topology=options.topology, create_queues=True)
        letters = _done(options.uri, partial(_all, jobs, partition.queue))
        schema = to_arrow_schema(DEAD_LETTER, timezone="UTC")
        for some in _cut(letters):
            yield pa.RecordBatch.from_pylist([_row(partition.queue, letter) for letter in some], schema=schema)


def redrive(
    chosen: DataFrame,
    uri: str,
    *,
    topology: Topology | None = None,
    rate: float | None = None,
    on_progress: Progress | None = None,
) -> Settled:
    """Put the jobs of `chosen` back into their queues, with no attempt used.

    `chosen` has the columns `queue` and `job_id`, and may have `args`, the text of a JSON array or an array: edited
    arguments, null for the job's own. `rate`: jobs per second, of all queues together. `on_progress` gets the number
    moved so far, on another thread. Raises DeadLettersError; jobs that were not moved stay where they were.

    Nothing is moved before all of `chosen` is computed. If an executor is lost, Spark restarts its task, but
    `Settled.done` does not count the jobs that were moved before.
    """
    return _settle(chosen, DeadLetterMove(uri, topology, drop=False, rate=rate), on_progress)


def discard(
    chosen: DataFrame,
    uri: str,
    *,
    topology: Topology | None = None,
    rate: float | None = None,
    on_progress: Progress | None = None,
) -> Settled:
    """Drop the dead letters of `chosen` (columns `queue` and `job_id`) for good; see `redrive`."""
    return _settle(chosen.drop("args"), DeadLetterMove(uri, topology, drop=True, rate=rate), on_progress)


def _settle(chosen: DataFrame, move: DeadLetterMove, on_progress: Progress | None) -> Settled:
    missing = {"queue", "job_id"} - set(chosen.columns)
    if missing:
        raise DeadLettersError(f"dead letters to redrive need the columns queue and job_id: {min(missing)} is missing")
    spark = chosen.sparkSession
    args = F.col("args") if "args" in chosen.columns else F.lit(None).cast("string").alias("args")
    checked = chosen.select("queue", "job_id", args).mapInArrow(checked_arguments, CHOSEN)
    # The rate is for all queues together.
    tasks = 1 if move.rate is not None else int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    counts = nullcontext() if on_progress is None else TaskCounts(spark, on_progress)
    with counts:
        if isinstance(counts, TaskCounts):
            move = replace(move, driver=counts.driver)
        try:
            found = checked.repartition(tasks, "queue").mapInArrow(move, MOVED).collect()
        except PySparkException as problem:
            reason = own_error(str(problem))
            if reason is None:
                raise
            raise DeadLettersError(reason) from None
    refused = next((row["problem"] for row in found if row["problem"] is not None), None)
    if refused is not None:
        raise DeadLettersError(refused)
    return Settled(sum(row["wanted"] for row in found), sum(row["done"] for row in found))


async def _all(jobs: Jobs, queue: str) -> list[DeadJob]:
    async with DeadLetters(jobs, queue) as dead:
        return await dead.all()


def _cut(letters: list[DeadJob]) -> Iterator[list[DeadJob]]:
    """The letters of each batch."""
    first = size = 0
    for index, letter in enumerate(letters):
        size += len(letter.body)
        if size >= _BYTES_PER_BATCH or index - first + 1 == _ROWS_PER_BATCH:
            yield letters[first : index + 1]
            first, size = index + 1, 0
    if first < len(letters):
        yield letters[first:]


def _done(uri: str, work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run `work` to its end. Raises DeadLettersError."""
    try:
        return run(work())
    except (*BROKER_ERRORS, JobsError) as problem:
        raise DeadLettersError(explained("dead letters on", uri, problem)) from None


def _row(queue: str, letter: DeadJob) -> dict[str, object]:
    """The columns of `schemas.DEAD_LETTER`; null for values that do not fit a column."""
    return {
        "queue": queue,
        "job_id": _text(letter.id),
        "job_type": _text(letter.type),
        "attempt": letter.attempt if 0 <= letter.attempt <= _ATTEMPT_MAX else None,
        "died_at": _moment(letter.died_at),
        "reason": _text(letter.reason),
        "error_type": _text(letter.error_type),
        "error_message": _text(letter.error),
        "fingerprint": letter.fingerprint,
        "args": _args_text(letter.body),
        "envelope": letter.body,
    }


def _text(value: str) -> str:
    """Text without lone surrogates, which UTF-8 cannot encode."""
    return value.encode(errors="replace").decode()


def _moment(text: str | None) -> datetime | None:
    try:
        found = None if text is None else datetime.fromisoformat(text)
        return found if found is not None and FIRST_TIME <= found < TIMES_END else None
    except (ValueError, TypeError, OverflowError):
        return None


def _args_text(body: bytes) -> str | None:
    """The arguments as in the envelope; None if that is invalid, or nested too deeply."""
    if is_too_deep(body):
        return None
    try:
        return bytes(msgspec.json.decode(body, type=_Arguments).args).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _Arguments(msgspec.Struct):
    args: msgspec.Raw
