"""Moves chosen dead letters in tasks, one for each queue, because only one reader at a time can search a queue.

    chosen -> checked_arguments -> shuffle by queue -> DeadLetterMove -> (queue, wanted, done, problem)

No task moves anything before the whole choice is computed and checked: the shuffle waits for that. Later errors are in
the result rows, so that Spark does not retry what the broker refused.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from waybill.client.blocking import run
from waybill.ojs import DeadLetters, InvalidJob, Jobs, JobsError, Topology
from waybill.ojs.spec.envelope import check_queue
from waybill.pipeline.broker_errors import BROKER_ERRORS, explained
from waybill.pipeline.json_values import UnreadableValue, column_values
from waybill.pipeline.nesting import is_too_deep
from waybill.pipeline.task_counts import CountReporter, Driver

_TEXT: Final = StringType()
CHOSEN: Final = StructType([StructField(name, _TEXT) for name in ("queue", "job_id", "args")])
"""A choice with the arguments as JSON; null for the job's own."""
MOVED: Final = StructType(
    [
        StructField("queue", _TEXT),
        StructField("wanted", LongType()),
        StructField("done", LongType()),
        StructField("problem", _TEXT),
    ]
)


class DeadLettersError(RuntimeError):
    """Dead letters cannot be read or moved; the message names the broker's address, never the password."""


def checked_arguments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of `CHOSEN`, from those whose `args` are arrays, or the text of JSON arrays. Raises DeadLettersError."""
    schema = to_arrow_schema(CHOSEN)
    for batch in batches:
        try:
            queues, ids, given = (column_values(batch, name) for name in CHOSEN.fieldNames())
        except UnreadableValue as problem:
            raise DeadLettersError(f"a choice of dead letters has a row that cannot be read: {problem}") from None
        for name, values in (("queue", queues), ("job_id", ids)):
            if None in values:
                raise DeadLettersError(f"a choice of dead letters has a row whose {name} is null")
        for queue in set(queues):
            try:
                check_queue(str(queue))
            except InvalidJob as problem:
                # A move declares what is missing.
                text = f"a choice of dead letters has a row whose queue {problem.message}"
                raise DeadLettersError(text) from None
        texts = [None if args is None else _arguments(args, job_id) for args, job_id in zip(given, ids, strict=True)]
        yield pa.RecordBatch.from_pydict({"queue": queues, "job_id": ids, "args": texts}, schema=schema)


def _arguments(given: object, job_id: object) -> str:
    found = given
    if isinstance(given, str):
        try:
            found = None if is_too_deep(given.encode(errors="replace")) else json.loads(given)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, list):
        raise DeadLettersError(f"job {job_id}: args must be an array or the text of a JSON array, not {given!r}")
    return json.dumps(found)


@dataclass(frozen=True)
class DeadLetterMove:
    """The work of a task: puts jobs back into their queues, or discards them. `rate`: jobs per second."""

    uri: str
    topology: Topology | None
    drop: bool
    rate: float | None = None
    driver: Driver | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row of `MOVED` for each queue, from rows of `CHOSEN`; after a problem, no more queues."""
        queues: dict[str, dict[str, dict[str, object]]] = {}
        for batch in batches:
            for queue, job_id, args in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                changes = {} if args is None else {"args": json.loads(args)}
                queues.setdefault(queue, {})[job_id] = changes
        moved = 0
        reporter = CountReporter(self.driver)
        try:
            for queue, own in queues.items():
                done, problem = self._moved(queue, own, moved, reporter)
                moved += done
                row = {"queue": queue, "wanted": len(own), "done": done, "problem": problem}
                yield pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(MOVED))
                if problem is not None:
                    return
        finally:
            reporter.close()

    def _moved(
        self, queue: str, own: dict[str, dict[str, object]], before: int, reporter: CountReporter
    ) -> tuple[int, str | None]:
        """The number of moved jobs, and the error."""
        done = 0

        def note(count: int) -> None:
            nonlocal done
            done = count
            reporter.report(before + count)

        async def settle() -> None:
            jobs = Jobs(self.uri, topology=self.topology, create_queues=True)
            async with DeadLetters(jobs, queue) as dead:
                work = partial(dead.discard, list(own)) if self.drop else partial(dead.retry, own)
                await work(rate=self.rate, on_progress=note)

        try:
            run(settle())
        except (*BROKER_ERRORS, JobsError) as problem:
            return done, explained("dead letters on", self.uri, problem)
        return done, None
