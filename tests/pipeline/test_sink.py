"""DataFrames as jobs and as messages, written by real Spark to both brokers."""

import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses
from pyspark.sql.pandas.types import from_arrow_schema

from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream
from waybill.client import blocking
from waybill.ojs import Topology
from waybill.ojs.spec.identifiers import is_uuid7
from waybill.pipeline import sink
from waybill.pipeline.batch_buffer import MEMORY_BYTES, BatchBuffer
from waybill.pipeline.job_rows import InvalidRow
from waybill.pipeline.named_options import OptionError
from waybill.pipeline.sink import JobSender, MessageSender, SinkError, parse_job_options

pytestmark = pytest.mark.spark

_numbers = itertools.count(1)
NOWHERE = "amqp://user:hidden-secret@127.0.0.1:1/%2Fojs"


class Queue:
    """A queue of its own for a test, looked at with a plain client."""

    def __init__(self, uri: str) -> None:
        self.name = f"sink-{next(_numbers)}"
        self.uri = uri
        self._connection = blocking.connect(uri)
        self.channel = self._connection.channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.name, f"ojs.queue.{self.name}", f"ojs.queue.dlx.{self.name}"):
            self.channel.delete_queue(name)
        self._connection.close()

    def declare(self, **arguments: object) -> None:
        self.channel.declare_queue(self.name, durable=True, arguments=arguments)

    def messages(self, name: str) -> list[blocking.Delivery]:
        """All that is in a queue, which is empty then."""
        found = []
        while (delivery := self.channel.get(name, no_ack=True)) is not None:
            found.append(delivery)
        return found

    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(delivery.body) for delivery in self.messages(f"ojs.queue.{self.name}")]


@pytest.fixture
def queue(broker_uri: str) -> Iterator[Queue]:
    with Queue(broker_uri) as made:
        yield made


def write(rows: DataFrame, kind: str, **options: str) -> None:
    rows.write.format(kind).mode("append").options(**options).save()


def reason(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


def test_each_row_becomes_a_job(spark: SparkSession, queue: Queue) -> None:
    rows = spark.range(0, 500, numPartitions=3).select(
        F.format_string("user-%d@example.com", "id").alias("to"), (F.col("id") % 3).cast("int").alias("copies")
    )
    write(rows, "ojs", uri=queue.uri, type="email.send", queue=queue.name)
    messages = queue.messages(f"ojs.queue.{queue.name}")
    jobs = [json.loads(message.body) for message in messages]
    assert sorted(job["args"] for job in jobs) == sorted([f"user-{n}@example.com", n % 3] for n in range(500))
    assert {(job["type"], job["queue"], job["specversion"]) for job in jobs} == {("email.send", queue.name, "1.0")}
    ids = {str(job["id"]) for job in jobs}
    assert len(ids) == 500
    assert all(map(is_uuid7, ids))
    for message, job in zip(messages, jobs, strict=True):
        assert message.properties.message_id == job["id"]
        assert (message.properties.headers or {})["x-ojs-idempotency-key"] == job["id"]


def test_a_bad_row_is_named_and_nothing_of_its_partition_is_sent(spark: SparkSession, queue: Queue) -> None:
    queue.channel.declare_queue(f"ojs.queue.{queue.name}", durable=True, arguments={"x-max-priority": 10})
    rows = spark.createDataFrame([(1, 5), (2, 5), (3, -7)], "x int, timeout int").coalesce(1)
    rows = rows.withColumn("type", F.when(F.col("x") == 3, "NOT A TYPE").otherwise("a.b"))
    with pytest.raises(PySparkException) as error:
        write(rows, "ojs", uri=queue.uri, queue=queue.name)
    assert "row 2 of partition 0: type: 'NOT A TYPE'" in reason(error)
    assert queue.jobs() == []


def test_columns_of_all_kinds_go_their_way_in_order(spark: SparkSession, queue: Queue) -> None:
    rows = spark.range(0, 30, numPartitions=1)
    rows = rows.withColumn("type", F.when(F.col("id") % 3 == 0, "a.fizz").otherwise("a.number"))
    rows = (
        rows.withColumn("args", F.array(F.col("id").cast("string"))).withColumn("queue", F.lit(queue.name)).drop("id")
    )
    write(rows, "ojs", uri=queue.uri)
    write(rows.withColumn("tags", F.array(F.lit("slow"))), "ojs", uri=queue.uri)
    jobs = queue.jobs()
    assert [job["args"] for job in jobs] == [[str(number)] for number in range(30)] * 2
    assert [job["type"] for job in jobs] == ["a.number" if number % 3 else "a.fizz" for number in range(30)] * 2
    assert [job.get("tags") for job in jobs] == [None] * 30 + [["slow"]] * 30


class Task:
    """What a sender asks Spark of its task."""

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 3

    def getLocalProperty(self, _: str) -> None:  # noqa: N802 - Spark's name
        return None


@pytest.mark.parametrize("more", [{}, {"tags": [["slow"]] * 500}])
def test_a_job_that_its_queue_refuses_fails_the_task(
    monkeypatch: pytest.MonkeyPatch, queue: Queue, more: dict[str, list[list[str]]]
) -> None:
    monkeypatch.setattr(sink, "_task", Task)
    limited = replace(parse_job_options({"uri": queue.uri, "queue": queue.name}), topology=Topology(max_length=2))
    monkeypatch.setattr(sink, "parse_job_options", lambda _: limited)
    batch = pa.RecordBatch.from_pydict({"type": ["a.b"] * 500, "args": [[number] for number in range(500)], **more})
    sender = JobSender({}, from_arrow_schema(batch.schema))
    with pytest.raises(SinkError) as caught:
        sender.send(iter([batch.slice(0, 200), batch.slice(200)]))
    named = re.match(r"row (\d+) of partition 3, to \S+ job (\S+) .*QUEUE_FULL", str(caught.value))
    assert named is not None
    assert is_uuid7(named[2])
    taken = [job["args"][0] for job in queue.jobs()]
    assert int(named[1]) == min(set(range(500)).difference(taken))


@pytest.fixture
def own_queue(own_broker: OwnBroker) -> Iterator[Queue]:
    with Queue(own_broker.uri) as made:
        yield made


@pytest.mark.parametrize("memory_bytes", [MEMORY_BYTES, 0])
@pytest.mark.parametrize("more", [{}, {"tags": [["slow"]] * 200}])
def test_a_task_that_is_tried_again_in_another_order_makes_and_loses_no_jobs(
    monkeypatch: pytest.MonkeyPatch, own_queue: Queue, more: dict[str, list[list[str]]], memory_bytes: int
) -> None:
    monkeypatch.setattr(sink, "_task", Task)
    monkeypatch.setattr(sink, "BatchBuffer", partial(BatchBuffer, memory_bytes))
    # Among them are rows that say the same, which are jobs of their own.
    rows = pa.RecordBatch.from_pydict({"args": [[number // 2] for number in range(200)], **more})
    options = {"uri": own_queue.uri, "queue": own_queue.name, "type": "a.b", "deduplicate": "true"}
    sender = JobSender(options, from_arrow_schema(rows.schema))
    sender.send(iter([rows.slice(0, 120)]))
    order = random.Random(3).sample(range(200), 200)
    assert sender.send(iter([rows.take(pa.array(order))])).rows == 200
    jobs = own_queue.jobs()
    assert sorted(job["args"][0] for job in jobs) == [number // 2 for number in range(200)]
    assert len({job["id"] for job in jobs}) == 200


def test_a_queue_of_somebody_else_is_looked_for_and_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, own_queue: Queue
) -> None:
    monkeypatch.setattr(sink, "_task", Task)
    name = f"ojs.queue.{own_queue.name}"
    rows = pa.RecordBatch.from_pydict({"args": [[number] for number in range(9)]})
    options = {"uri": own_queue.uri, "queue": own_queue.name, "type": "a.b"}

    def send(**more: str) -> int:
        return JobSender({**options, **more}, from_arrow_schema(rows.schema)).send(iter([rows])).rows

    with pytest.raises(SinkError, match=f"NOT_FOUND.*{name}"):
        send(declare="passive")
    own_queue.channel.declare_exchange("ojs.exchange.direct", "direct", durable=True)
    own_queue.channel.declare_queue(name, durable=True, arguments={"x-message-deduplication": True, "x-expires": 99999})
    own_queue.channel.bind_queue(name, "ojs.exchange.direct", own_queue.name)
    with pytest.raises(SinkError, match="exists with other properties"):
        send()
    assert send(declare="passive") == send(declare="never") == 9
    assert len(own_queue.jobs()) == 18
    own_queue.channel.delete_queue(name)
    wanted = {"queueType": "quorum", "maxLength": "12", "messageTtlMs": "600000", "deduplicate": "true"}
    topology = parse_job_options({**options, **wanted}).topology
    assert topology == Topology(queue_type="quorum", max_length=12, message_ttl_ms=600_000, deduplicate=True)
    assert send(maxLength="9", maxPriority="0", whenFull="drop-oldest") == 9
    for wrong in ({"whenFull": "wait"}, {"settleBy": "nack", "messageTtlMs": "1"}, {"declare": "no"}):
        with pytest.raises(OptionError):
            parse_job_options({**options, **wrong})


def test_a_stream_of_rows_becomes_jobs_and_a_replay_gives_the_same_ids(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    source = tmp_path / "rows"
    spark.range(0, 40, numPartitions=2).withColumn("x", F.col("id").cast("string")).drop("id").write.json(str(source))

    def run() -> list[dict[str, object]]:
        query = (
            spark.readStream.schema("x string")
            .json(str(source))
            .writeStream.format("ojs")
            .options(uri=queue.uri, type="a.b", queue=queue.name, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return queue.jobs()

    first = run()
    assert sorted(str(job["args"]) for job in first) == sorted(str([str(n)]) for n in range(40))
    assert run() == []
    # A driver that dies between sending and noting it runs the batch again.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    again = run()
    assert {(str(job["id"]), str(job["args"])) for job in again} == {
        (str(job["id"]), str(job["args"])) for job in first
    }


def test_messages_go_where_their_columns_say(spark: SparkSession, queue: Queue) -> None:
    queue.declare()
    rows = spark.createDataFrame(
        [("hello", queue.name, "text/plain", {"a": "1"}), ("world", queue.name, None, None)],
        "body string, routing_key string, content_type string, headers map<string, string>",
    ).coalesce(1)
    write(rows, "amqp", uri=queue.uri)
    first, second = queue.messages(queue.name)
    assert (first.body, second.body) == (b"hello", b"world")
    assert first.properties.content_type == "text/plain"
    assert first.properties.headers == {"a": "1"}
    assert first.properties.delivery_mode == 2
    assert second.properties.content_type is None


def test_a_partition_may_be_larger_than_what_is_kept_in_memory(spark: SparkSession, own_queue: Queue) -> None:
    own_queue.declare()
    count, size = 24, 3 << 20
    assert count * size > MEMORY_BYTES
    body = F.concat(F.lpad(F.col("id").cast("string"), 3, "0"), F.repeat(F.lit("x"), size))
    # A batch of Arrow would have all rows.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    try:
        rows = spark.range(count).coalesce(1).select(body.alias("body"))
        write(rows, "amqp", uri=own_queue.uri, routingKey=own_queue.name)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    bodies = [delivery.body for delivery in own_queue.messages(own_queue.name)]
    assert [int(one[:3]) for one in bodies] == list(range(count))
    assert {len(one) for one in bodies} == {size + 3}


def test_what_was_read_can_be_written_as_it_is(spark: SparkSession, queue: Queue, stream: Stream) -> None:
    queue.declare()
    stream.publish(b"a", b"b", content_type="text/plain", message_id="m1", headers={"k": "v"}, timestamp=1_700_000_000)
    read = spark.read.format("amqp").options(uri=stream.uri, stream=stream.name).load()
    write(read, "amqp", uri=queue.uri, routingKey=queue.name)
    messages = queue.messages(queue.name)
    assert [message.body for message in messages] == [b"a", b"b"]
    sent = messages[0].properties
    assert (sent.content_type, sent.message_id, sent.headers) == ("text/plain", "m1", {"k": "v"})
    assert sent.timestamp is not None


def test_a_row_that_is_returned_fails_the_task(spark: SparkSession, queue: Queue) -> None:
    queue.declare()
    rows = spark.createDataFrame([("a", queue.name), ("b", "nobody-home")], "body string, routing_key string")
    with pytest.raises(PySparkException) as error:
        write(rows.coalesce(1), "amqp", uri=queue.uri)
    assert "row 1 of partition 0" in reason(error)
    assert "127.0.0.1" in reason(error)


LATE = pa.array([0, 253402300800], pa.timestamp("s", "UTC"))
ENTRIES = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"routing_key": ["x", "k" * 256]}, "routing_key: is longer than 255 bytes"),
        ({"exchange": ["", "é" * 128]}, "exchange: is longer than 255 bytes"),
        ({"headers": pa.array([[], [("a", "x" * 130_000)]], ENTRIES)}, "the properties have 130014 bytes"),
        ({"message_id": ["x", "k" * 256]}, "a short string holds 255 octets"),
        ({"timestamp": LATE}, "timestamp: date value out of range"),
    ],
)
def test_a_row_that_no_message_can_express_is_named_and_none_is_sent(
    monkeypatch: pytest.MonkeyPatch, own_queue: Queue, columns: dict[str, Any], problem: str
) -> None:
    monkeypatch.setattr(sink, "_task", Task)
    own_queue.declare()
    rows = pa.RecordBatch.from_pydict({"body": ["a", "b"], **columns})
    sender = MessageSender({"uri": own_queue.uri, "routingKey": own_queue.name}, from_arrow_schema(rows.schema))
    with pytest.raises(InvalidRow, match=f"row 4 of partition 3: {problem}"):
        sender.send(iter([rows.slice(0, 1), rows.slice(0, 1), rows.slice(0, 1), rows]))
    assert own_queue.messages(own_queue.name) == []


def test_a_row_for_which_the_broker_closes_the_channel_is_among_those_named(
    monkeypatch: pytest.MonkeyPatch, own_queue: Queue
) -> None:
    monkeypatch.setattr(sink, "_task", Task)
    own_queue.declare()
    rows = pa.RecordBatch.from_pydict({"body": ["a", "b"], "user_id": ["guest", "eve"]})
    sender = MessageSender({"uri": own_queue.uri, "routingKey": own_queue.name}, from_arrow_schema(rows.schema))
    with pytest.raises(SinkError, match=r"a row of [01] to 1 of partition 3, to .*user_id property set to 'eve'"):
        sender.send(iter([rows]))


def test_an_odd_properties_column_is_refused() -> None:
    rows = pa.RecordBatch.from_pydict({"body": ["a"], "properties": [1]})
    with pytest.raises(OptionError, match="column 'properties' is a struct, not bigint"):
        MessageSender({"uri": NOWHERE}, from_arrow_schema(rows.schema))


def test_a_row_that_is_refused_fails_the_task(spark: SparkSession, queue: Queue) -> None:
    queue.declare(**{"x-max-length": 3, "x-overflow": "reject-publish"})
    rows = spark.range(20).select(F.col("id").cast("string").alias("body")).coalesce(1)
    with pytest.raises(PySparkException, match=r"row \d+ of partition 0"):
        write(rows, "amqp", uri=queue.uri, routingKey=queue.name)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("ojs", {"uri": NOWHERE, "type": "a.b"}, "127.0.0.1:1"),
        ("amqp", {"uri": NOWHERE, "routingKey": "q"}, "127.0.0.1:1"),
        ("ojs", {"uri": NOWHERE, "type": "a.b", "quueue": "x"}, "did you mean 'queue'"),
        ("amqp", {"uri": NOWHERE, "mandatory": "perhaps"}, "mandatory must be true or false"),
        ("ojs", {"uri": NOWHERE}, "needs a type"),
        ("ojs", {"uri": NOWHERE, "type": "a.b", "profile": "other"}, "profile must be spec or web"),
    ],
)
def test_errors_name_the_cause_and_never_the_password(
    spark: SparkSession, kind: str, options: dict[str, str], message: str
) -> None:
    rows = spark.createDataFrame([("x",)], "body string")
    with pytest.raises(PySparkException) as error:
        write(rows, kind, **options, timeoutMs="1500")
    assert message in reason(error)
    assert "hidden-secret" not in reason(error)


def test_a_queue_is_not_overwritten(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("x",)], "body string")
    with pytest.raises(PySparkException, match="only supports appending"):
        rows.write.format("amqp").mode("overwrite").options(uri=NOWHERE).save()
