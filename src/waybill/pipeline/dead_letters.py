"""Reads dead letters into a DataFrame, and moves jobs of a DataFrame out of their dead letter queues.

    dead = spark.read.format("ojs").option("uri", uri).option("deadLetters", "email").load()
    redrive(dead.where("error_type = 'Timeout'"), uri, rate=50)

Reading leaves the queue as it was: its messages are fetched and requeued in order. It is a snapshot, as long as the
queue was when the task began. A queue is one partition, which keeps its order.

The driver moves the jobs one by one: each is published and confirmed in its queue before its dead letter is
acknowledged. If Spark or this program dies, the rest stays dead, and at most one job is in both places.
"""

import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from waybill.client.blocking import run
from waybill.ojs import DeadJob, DeadLetters, Jobs, JobsError, Topology
from waybill.pipeline.broker_errors import BROKER_ERRORS, explained
from waybill.pipeline.named_options import NamedOptions, OptionError
from waybill.pipeline.nesting import is_too_deep
from waybill.pipeline.schemas import DEAD_LETTER, FIRST_TIME, TIMES_END
from waybill.pipeline.topology_options import TOPOLOGY_OPTIONS, parse_topology

Progress: TypeAlias = Callable[[int], None]
Settle: TypeAlias = Callable[[DeadLetters, dict[str, dict[str, object]], Progress], Awaitable[int]]
T = TypeVar("T")

_OPTIONS: Final = ("uri", "deadLetters", *TOPOLOGY_OPTIONS)
_ROWS_PER_BATCH: Final = 4096
# The largest number of the column.
_ATTEMPT_MAX: Final = 2**31 - 1


class DeadLettersError(RuntimeError):
    """Dead letters cannot be read or moved; the message names the broker's address, never the password."""


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
        raise OptionError("option deadLetters is the name of a queue, or several separated by commas")
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
        for start in range(0, len(letters), _ROWS_PER_BATCH):
            rows = [_row(partition.queue, letter) for letter in letters[start : start + _ROWS_PER_BATCH]]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


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
    arguments, null for the job's own. `rate`: jobs per second. `on_progress` gets the number moved so far. Raises
    DeadLettersError; jobs that were not moved stay where they were.
    """

    async def retry(dead: DeadLetters, own: dict[str, dict[str, object]], progress: Progress) -> int:
        return await dead.retry(own, rate=rate, on_progress=progress)

    return _settle(chosen, uri, topology, retry, on_progress)


def discard(
    chosen: DataFrame,
    uri: str,
    *,
    topology: Topology | None = None,
    rate: float | None = None,
    on_progress: Progress | None = None,
) -> Settled:
    """Drop the dead letters of `chosen` (columns `queue` and `job_id`) for good; see `redrive`."""

    async def drop(dead: DeadLetters, own: dict[str, dict[str, object]], progress: Progress) -> int:
        return await dead.discard(own, rate=rate, on_progress=progress)

    return _settle(chosen.select("queue", "job_id"), uri, topology, drop, on_progress)


def _settle(
    chosen: DataFrame, uri: str, topology: Topology | None, settle: Settle, on_progress: Progress | None
) -> Settled:
    """Collect the choice first: no job is moved unless the whole DataFrame can be computed."""
    queues = _by_queue(chosen)
    jobs = Jobs(uri, topology=topology, create_queues=True)
    moved = 0

    def told(count: int) -> None:
        if on_progress is not None:
            on_progress(moved + count)

    for queue, own in queues.items():
        moved += _done(uri, partial(_settle_queue, jobs, queue, own, settle, told))
    return Settled(sum(map(len, queues.values())), moved)


async def _settle_queue(
    jobs: Jobs, queue: str, own: dict[str, dict[str, object]], settle: Settle, progress: Progress
) -> int:
    async with DeadLetters(jobs, queue) as dead:
        return await settle(dead, own, progress)


def _by_queue(chosen: DataFrame) -> dict[str, dict[str, dict[str, object]]]:
    """The changes to the envelope of each job, by queue and id. Raises DeadLettersError."""
    missing = {"queue", "job_id"} - set(chosen.columns)
    if missing:
        raise DeadLettersError(
            f"a choice of dead letters needs the columns queue and job_id: {min(missing)} is missing"
        )
    edits = "args" in chosen.columns
    queues: dict[str, dict[str, dict[str, object]]] = {}
    for row in chosen.select("queue", "job_id", *(["args"] if edits else [])).toLocalIterator():
        changes: dict[str, object] = {}
        if edits and row["args"] is not None:
            changes["args"] = _arguments(row["args"], row["job_id"])
        queues.setdefault(row["queue"], {})[row["job_id"]] = changes
    return queues


def _arguments(given: object, job_id: str) -> list[object]:
    found = given
    if isinstance(given, str):
        try:
            found = None if is_too_deep(given.encode(errors="replace")) else json.loads(given)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, list):
        raise DeadLettersError(f"job {job_id}: args are an array or the text of a JSON array, not {given!r}")
    return found


async def _all(jobs: Jobs, queue: str) -> list[DeadJob]:
    async with DeadLetters(jobs, queue) as dead:
        return await dead.all()


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
