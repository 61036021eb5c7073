"""Spark writers: `format("ojs")` pushes a job for each row, `format("amqp")` publishes a message for each row.

Each task opens one connection and sends its partition in pipelined windows with confirms; it is done when the broker
has confirmed every row. All rows of a partition are checked before the first one is sent; meanwhile they are buffered,
in a temporary file if they are many. A returned or refused row fails the task, and the error names the row.

AMQP has no transactions across tasks, so delivery is at least once: a task that Spark retries sends its rows again. A
job's id is the same in each try (see `row_ids`), and so is its idempotency key; see docs/explanation/pipeline.md.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from waybill.client import (
    Channel,
    ChannelClosed,
    ClientError,
    ConnectionLost,
    EncodeError,
    MessageNacked,
    MessageReturned,
    connect,
)
from waybill.client.blocking import run
from waybill.ojs import BatchFailed, InvalidJob, Jobs, JobsError, NewJob, PushFailed, Topology
from waybill.ojs.push.bulk import TableFailed
from waybill.ojs.push.outgoing import forget
from waybill.ojs.spec.identifiers import new_id
from waybill.pipeline.batch_buffer import BatchBuffer
from waybill.pipeline.broker_errors import BROKER_ERRORS, explained
from waybill.pipeline.job_rows import InvalidRow, JobColumns, JobRows, job_columns
from waybill.pipeline.job_tables import JobTables, fit_tables
from waybill.pipeline.json_values import UnreadableValue
from waybill.pipeline.message_rows import MessageRows, RowMessage, check_message_columns
from waybill.pipeline.named_options import NamedOptions, OptionError, address
from waybill.pipeline.row_ids import RowIds
from waybill.pipeline.spark_garbage_collection import infrequent_collection
from waybill.pipeline.topology_options import TOPOLOGY_OPTIONS, is_passive, parse_topology

_JOB_OPTIONS: Final = ("uri", "type", "queue", *TOPOLOGY_OPTIONS, "timeoutMs")
_MESSAGE_OPTIONS: Final = ("uri", "exchange", "routingKey", "mandatory", "timeoutMs")
# Spark adds these itself to all writes.
_SPARKS_OWN: Final = frozenset({"path", "checkpointlocation"})
_JOBS_PER_PUSH: Final = 10_000
_WINDOW: Final = 5_000
_ROWS_PER_DRAIN: Final = 100
_TIME_MAX_MS: Final = 31_536_000_000
_TIMEOUT_MS: Final = 60_000
_LOSS_PAUSE_S: Final = 0.02


class SinkError(RuntimeError):
    """The broker is unreachable, or refused a row. The message names the address, never the password."""


@dataclass
class RowsSent(WriterCommitMessage):
    """The number of confirmed rows of a task."""

    rows: int


@dataclass(frozen=True)
class JobSinkOptions:
    """Where jobs go. `job_type` and `queue` are defaults for rows.

    `must_exist`: check that queues exist before sending, instead of declaring them.
    """

    uri: str
    job_type: str | None
    queue: str | None
    topology: Topology
    timeout_s: float
    must_exist: bool = False


@dataclass(frozen=True)
class MessageSinkOptions:
    """Where messages go. `exchange` and `routing_key` are defaults for rows."""

    uri: str
    exchange: str
    routing_key: str
    mandatory: bool
    timeout_s: float


def parse_job_options(given: Mapping[str, str]) -> JobSinkOptions:
    """Check the options of `format("ojs")`. Raises OptionError."""
    options = NamedOptions(given, _JOB_OPTIONS, _SPARKS_OWN)
    return JobSinkOptions(
        options.uri(),
        options.text("type"),
        options.text("queue"),
        parse_topology(options),
        _timeout_s(options),
        is_passive(options),
    )


def parse_message_options(given: Mapping[str, str]) -> MessageSinkOptions:
    """Check the options of `format("amqp")`. Raises OptionError."""
    options = NamedOptions(given, _MESSAGE_OPTIONS, _SPARKS_OWN)
    return MessageSinkOptions(
        options.uri(),
        options.text("exchange") or "",
        options.text("routingKey") or "",
        options.truth("mandatory", default=True),
        _timeout_s(options),
    )


def _timeout_s(options: NamedOptions) -> float:
    return (options.count("timeoutMs", 1, _TIME_MAX_MS) or _TIMEOUT_MS) / 1000


def check_mode(*, overwrite: bool) -> None:
    """Raise OptionError for write modes that would have to empty a queue."""
    if overwrite:
        raise OptionError('a queue only supports appending: write with mode("append")')


class _Sender:
    """Sends the rows of a partition. Picklable: it opens no socket until `send` is called on the executor."""

    def send(self, batches: Iterator[pa.RecordBatch]) -> RowsSent:
        raise NotImplementedError


class SinkWriter(DataSourceArrowWriter):
    """The writer of a batch query."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsSent:
        return self._sender.send(iterator)


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query. There is nothing to commit: rows are in the queue once a task has sent them."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsSent:
        return self._sender.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass


class JobSender(_Sender):
    """Pushes jobs. Raises OptionError for unsuitable columns."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_job_options(given)
        self._columns: JobColumns = job_columns(schema, has_type=self._options.job_type is not None)
        self._tables = fit_tables(self._columns, schema)
        self._write_id = new_id()

    def send(self, batches: Iterator[pa.RecordBatch]) -> RowsSent:
        """Raises InvalidRow before anything is sent, or SinkError."""
        partition, name = _named(self._write_id)
        send = self._send_tables if self._tables else self._send_rows
        with infrequent_collection():
            return run(send(batches, partition, name))

    async def _send_tables(self, batches: Iterator[pa.RecordBatch], partition: int, name: str) -> RowsSent:
        options, jobs = self._options, self._jobs()
        with BatchBuffer() as kept:
            rows = JobTables(self._columns, jobs.kind, job_type=options.job_type, queue=options.queue, kept=kept)
            for batch in batches:
                rows.add(batch, partition)
            async with _explained(options.uri, "jobs"), jobs:
                await _check_queues(options, rows.queues)
                push = await jobs.bulk()
                try:
                    for table in rows.tables(RowIds(name)):
                        await push.push(table)
                    return RowsSent(await push.finish())
                except TableFailed as error:
                    number, first = error.failures[0]
                    raise SinkError(_refused(number, first, len(error.failures), partition, options.uri)) from None

    async def _send_rows(self, batches: Iterator[pa.RecordBatch], partition: int, name: str) -> RowsSent:
        options, jobs = self._options, self._jobs()
        rows = JobRows(self._columns, job_type=options.job_type, queue=options.queue)
        queues = set()
        with BatchBuffer() as kept:
            for number, job in _numbered(rows, kept.through(batches), partition, name):
                queues.add(job.options.get("queue", "default"))
                try:
                    jobs.check(job)
                except InvalidJob as error:
                    raise InvalidRow(f"row {number} of partition {partition}: {error}") from None
            numbered = _numbered(rows, kept, partition, name)
            async with _explained(options.uri, "jobs"), jobs:
                await _check_queues(options, queues)
                return RowsSent(await self._pushed(jobs, numbered, partition))

    async def _pushed(self, jobs: Jobs, numbered: Iterator[tuple[int, NewJob]], partition: int) -> int:
        """Push the jobs; returns how many. Raises SinkError."""
        sent = 0
        while chunk := [job for _, job in islice(numbered, _JOBS_PER_PUSH)]:
            try:
                await jobs.push_many(chunk)
            except BatchFailed as error:
                first = error.failures[0]
                number = sent + next(index for index, job in enumerate(chunk) if job.id == first.job_id)
                raise SinkError(_refused(number, first, len(error.failures), partition, self._options.uri)) from None
            sent += len(chunk)
        return sent

    def _jobs(self) -> Jobs:
        options = self._options
        return Jobs(
            options.uri,
            topology=options.topology,
            push_timeout=options.timeout_s,
            wait_while_blocked=True,
            create_queues=True,
        )


class MessageSender(_Sender):
    """Publishes messages. Raises OptionError for unsuitable columns."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_message_options(given)
        self._rows = MessageRows(exchange=self._options.exchange, routing_key=self._options.routing_key)
        check_message_columns(schema)

    def send(self, batches: Iterator[pa.RecordBatch]) -> RowsSent:
        """Raises InvalidRow before anything is sent, or SinkError."""
        with infrequent_collection(), BatchBuffer() as kept:
            partition = _task().partitionId()
            self._check(kept.through(batches), partition)
            return run(self._send(kept, partition))

    def _check(self, batches: Iterable[pa.RecordBatch], partition: int) -> None:
        """Raise InvalidRow for a row that cannot be a message."""
        number = 0
        try:
            for batch in batches:
                for message in self._rows.messages(batch):
                    message.check()
                    number += 1
        except UnreadableValue as error:
            raise InvalidRow(f"row {number + error.index} of partition {partition}: {error}") from None
        except (InvalidRow, ClientError, ValueError) as error:
            raise InvalidRow(f"row {number} of partition {partition}: {error}") from None

    async def _send(self, batches: Iterable[pa.RecordBatch], partition: int) -> RowsSent:
        options = self._options
        async with (
            _explained(options.uri, "messages"),
            connect(options.uri, name="waybill-pipeline") as connection,
        ):
            channel = await connection.channel(confirms=True)
            window = _Window(channel, mandatory=options.mandatory, timeout_s=options.timeout_s)
            try:
                for batch in batches:
                    for message in self._rows.messages(batch):
                        await window.publish(message)
                await window.finish()
            except (MessageReturned, MessageNacked, ChannelClosed) as error:
                # A broker that closes the channel does not say because of which message.
                last = window.published - 1 if isinstance(error, ChannelClosed) else window.confirmed
                rows = (
                    f"row {window.confirmed}" if last == window.confirmed else f"a row of {window.confirmed} to {last}"
                )
                raise SinkError(f"{rows} of partition {partition}, to {address(options.uri)}: {error}") from None
            finally:
                window.forget()
            return RowsSent(window.confirmed)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows can only be sent from a Spark task")
    return context


class _Window:
    """Unconfirmed publishes of a channel. `published`, `confirmed`: how many of the first rows are.

    Publishes lost with a connection are repeated once it is back, unless that takes longer than `timeout_s`.
    """

    def __init__(self, channel: Channel, *, mandatory: bool, timeout_s: float) -> None:
        self.published = 0
        self.confirmed = 0
        self._channel = channel
        self._mandatory = mandatory
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[RowMessage, asyncio.Future[None]]] = deque()

    async def publish(self, message: RowMessage) -> None:
        """Publish a message. Raises the error of an earlier one."""
        self.published += 1
        if self.published % _ROWS_PER_DRAIN == 0:
            await self._channel.drain()
        self._waiting.append((message, self._send(message)))
        if len(self._waiting) > _WINDOW:
            # Wait for half of them, so that many writes follow each wait.
            await self._settle(_WINDOW // 2)

    async def finish(self) -> None:
        """Wait for all remaining confirms."""
        await self._settle(0)

    def forget(self) -> None:
        """Wait no longer."""
        forget(future for _, future in self._waiting)

    async def _settle(self, left: int) -> None:
        while len(self._waiting) > left:
            try:
                await self._waiting[0][1]
            except ConnectionLost:
                await self._publish_again()
                continue
            self._waiting.popleft()
            self.confirmed += 1

    async def _publish_again(self) -> None:
        async with asyncio.timeout(self._timeout_s):
            # The connection reports its loss a little later than its publishes.
            await asyncio.sleep(_LOSS_PAUSE_S)
            await self._channel.drain()
        messages = [message for message, _ in self._waiting]
        self._waiting = deque((message, self._send(message)) for message in messages)

    def _send(self, message: RowMessage) -> asyncio.Future[None]:
        return self._channel.publish_nowait(
            message.body,
            exchange=message.exchange,
            routing_key=message.routing_key,
            properties=message.properties,
            mandatory=self._mandatory,
        )


def _named(write_id: str) -> tuple[int, str]:
    """The number of this task's partition, and a name for its rows that is the same in each try."""
    context = _task()
    partition = context.partitionId()
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    name = write_id if batch is None else f"{query}/{batch}"
    return partition, f"{name}/{partition}"


async def _check_queues(options: JobSinkOptions, queues: set[str]) -> None:
    """Raise SinkError for a queue that does not exist. Its arguments are not checked."""
    if not options.must_exist:
        return
    async with connect(options.uri, name="waybill-pipeline") as connection:
        channel = await connection.channel()
        for queue in sorted(queues):
            await channel.declare_queue(options.topology.job_queue(queue), durable=True, passive=True)


def _numbered(
    rows: JobRows, batches: Iterable[pa.RecordBatch], partition: int, name: str
) -> Iterator[tuple[int, NewJob]]:
    """The jobs with the numbers of their rows. Raises InvalidRow."""
    number = 0
    row_ids = RowIds(name)
    for batch in batches:
        try:
            for job in rows.jobs(batch, row_ids):
                yield number, job
                number += 1
        except UnreadableValue as error:
            raise InvalidRow(f"row {number + error.index} of partition {partition}: {error}") from None
        except InvalidJob as error:
            raise InvalidRow(f"row {number} of partition {partition}: {error}") from None


def _refused(number: int, first: PushFailed, count: int, partition: int, uri: str) -> str:
    more = f" ({count} rows of this push were refused)" if count > 1 else ""
    return f"row {number} of partition {partition}, to {address(uri)}: {first}{more}"


@asynccontextmanager
async def _explained(uri: str, what: str) -> AsyncIterator[None]:
    """Errors of the connection become errors of this module, without the URI and its password."""
    try:
        yield
    except (*BROKER_ERRORS, JobsError, EncodeError) as problem:
        raise SinkError(explained(f"cannot write {what} to", uri, problem)) from None
