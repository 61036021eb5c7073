"""Dead letters as a DataFrame and back into their queues, on both brokers, and with the mover killed half-way."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from tests.pipeline.own_broker import OwnBroker
from tests.program_environment import program_environment
from waybill.client import BasicProperties, blocking
from waybill.ojs import DeadJob
from waybill.ojs.spec.identifiers import new_id
from waybill.pipeline import dead_letters
from waybill.pipeline.dead_letter_moves import checked_arguments
from waybill.pipeline.dead_letters import (
    DeadLetterReader,
    DeadLettersError,
    QueuePartition,
    Settled,
    discard,
    redrive,
)
from waybill.pipeline.named_options import OptionError
from waybill.pipeline.task_counts import CountReporter, TaskCounts

pytestmark = pytest.mark.spark

_numbers = itertools.count(1)
DEAD_LETTER_EXCHANGE = "ojs.exchange.dlx"


class Morgue:
    """The dead letter queue of a queue of its own, filled and looked at with a plain client."""

    def __init__(self, uri: str) -> None:
        self.queue = f"dead-{next(_numbers)}"
        self.uri = uri
        self.ids: list[str] = []
        self._connection = blocking.connect(uri)
        self._channel = self._connection.channel()

    @property
    def letters(self) -> str:
        return f"ojs.queue.dlx.{self.queue}"

    @property
    def alive(self) -> str:
        return f"ojs.queue.{self.queue}"

    def fill(self, count: int) -> None:
        """Put dead letters in, every third of another type. The queues are declared as a client of jobs does."""
        probe = "import asyncio, sys; from waybill.ojs import DeadLetters, Jobs\n"
        probe += (
            "async def main():\n  async with DeadLetters(Jobs(sys.argv[1]), sys.argv[2]): pass\nasyncio.run(main())"
        )
        subprocess.run([sys.executable, "-c", probe, self.uri, self.queue], check=True, env=environment())
        for number in range(count):
            job_id = new_id()
            self.ids.append(job_id)
            envelope = {
                "specversion": "1.0",
                "id": job_id,
                "type": "report.make" if number % 3 == 0 else "email.send",
                "queue": self.queue,
                "args": [number],
                "error": {"type": "Timeout", "message": f"no answer from 10.0.0.{number}"},
            }
            properties = BasicProperties(delivery_mode=2, message_id=job_id, type=str(envelope["type"]))
            self._channel.publish(json.dumps(envelope).encode(), routing_key=self.letters, properties=properties)

    def publish(self, body: bytes, name: str, properties: BasicProperties) -> None:
        self._channel.publish(body, routing_key=name, properties=properties)

    def count(self, name: str) -> int:
        return self._channel.declare_queue(name, durable=True, passive=True).message_count

    def taken(self, name: str) -> list[dict[str, object]]:
        """All that is in a queue, which is empty then."""
        found = []
        while (delivery := self._channel.get(name, no_ack=True)) is not None:
            found.append(json.loads(delivery.body))
        return found

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("ojs").options(uri=self.uri, deadLetters=self.queue).load()

    def close(self) -> None:
        for name in (self.letters, self.alive):
            self._channel.delete_queue(name)
        self._connection.close()


def test_odd_letters_are_rows_like_others(own_broker: OwnBroker) -> None:
    morgue = Morgue(own_broker.uri)
    death = [{"time": datetime(2026, 3, 1, tzinfo=UTC), "reason": "rejected", "count": 1}]
    whole = {"specversion": "1.0", "id": new_id(), "type": "a.b", "queue": morgue.queue, "args": []}
    deep = "[" * 1500 + "]" * 1500
    odd: list[tuple[bytes, dict[str, object]]] = [
        (json.dumps(whole).encode(), {"x-ojs-attempt": 2**40}),
        (json.dumps(whole).encode(), {"x-ojs-attempt": -1}),
        (json.dumps({**whole, "attempt": 2**70}).encode(), {}),
        (json.dumps({**whole, "error": {"type": "\ud800", "message": "x"}}).encode(), {}),
        (json.dumps({**whole, "args": "@"}).replace('"@"', deep).encode(), {}),
        (deep.encode(), {}),
        (b"\xff\x00", {"x-death": [{"time": datetime(9999, 1, 1, tzinfo=UTC), "reason": 7}]}),
        (b"", {"x-death": "no list"}),
    ]
    try:
        morgue.fill(1)
        for body, headers in odd:
            sent = BasicProperties(delivery_mode=2, headers={"x-death": death, **headers})
            morgue.publish(body, morgue.letters, sent)
        for body in (b"junk", deep.encode(), b"[]", b'{"type": "job.discarded"}', b"\xff"):
            morgue.publish(body, "ojs.events", BasicProperties(delivery_mode=2))
        reader = DeadLetterReader({"uri": morgue.uri, "deadLetters": morgue.queue})
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert len(rows) == len(odd) + 1
        assert [row["envelope"] for row in rows[1:]] == [body for body, _ in odd]
        assert [row["attempt"] for row in rows[1:3]] == [None, None]
    finally:
        morgue.close()


def environment() -> dict[str, str]:
    return program_environment()


@pytest.fixture
def morgue(broker_uri: str) -> Iterator[Morgue]:
    made = Morgue(broker_uri)
    yield made
    made.close()


@pytest.mark.parametrize(("count", "size", "batches"), [(0, 1, []), (5000, 1, [4096, 904]), (7, 12 << 20, [3, 3, 1])])
def test_a_batch_has_a_limited_size(monkeypatch: pytest.MonkeyPatch, count: int, size: int, batches: list[int]) -> None:
    letters = [DeadJob(str(number), "a.b", 0, None, "", "", "", b"x" * size, {}) for number in range(count)]
    monkeypatch.setattr(dead_letters, "_done", lambda *_: letters)
    reader = DeadLetterReader({"uri": "amqp://localhost", "deadLetters": "email"})
    assert [batch.num_rows for batch in reader.read(QueuePartition("email"))] == batches


@pytest.mark.parametrize("names", ["../x", "email,Bad Queue", "x" * 300, ","])
def test_odd_queues_are_refused_before_any_is_declared(names: str) -> None:
    with pytest.raises(OptionError, match="option deadLetters"):
        DeadLetterReader({"uri": "amqp://localhost", "deadLetters": names})
    choice = pa.RecordBatch.from_pydict({"queue": ["email", names], "job_id": ["a", "b"], "args": [None, None]})
    with pytest.raises(DeadLettersError, match="a choice of dead letters has a row whose queue"):
        list(checked_arguments(iter([choice])))


def test_they_are_read_in_their_order_and_stay(spark: SparkSession, morgue: Morgue) -> None:
    morgue.fill(30)
    for _ in range(2):
        rows = morgue.read(spark).collect()
        assert [row.job_id for row in rows] == morgue.ids
    assert [row.args for row in rows] == [f"[{number}]" for number in range(30)]
    assert {row.queue for row in rows} == {morgue.queue}
    assert {row.error_type for row in rows} == {"Timeout"}
    assert rows[0].error_message == "no answer from 10.0.0.0"
    groups = {row.fingerprint: row["count"] for row in morgue.read(spark).groupBy("fingerprint").count().collect()}
    assert sorted(groups.values()) == [10, 20]
    assert morgue.count(morgue.letters) == 30


def test_chosen_jobs_go_back_with_edited_arguments_and_others_stay(spark: SparkSession, morgue: Morgue) -> None:
    morgue.fill(12)
    chosen = morgue.read(spark).where("job_type = 'report.make'").select("queue", "job_id")
    edited = chosen.withColumn("args", F.when(F.col("job_id") == morgue.ids[0], F.lit('["edited"]')))
    seen: list[int] = []
    assert redrive(edited, morgue.uri, on_progress=seen.append) == Settled(wanted=4, done=4)
    assert seen == [1, 2, 3, 4]
    alive = {job["id"]: job["args"] for job in morgue.taken(morgue.alive)}
    assert alive == {morgue.ids[0]: ["edited"], morgue.ids[3]: [3], morgue.ids[6]: [6], morgue.ids[9]: [9]}
    left = [row.job_id for row in morgue.read(spark).collect()]
    assert left == [job_id for number, job_id in enumerate(morgue.ids) if number % 3]
    assert redrive(chosen.limit(0), morgue.uri) == Settled(0, 0)


def test_chosen_letters_are_dropped(spark: SparkSession, morgue: Morgue) -> None:
    morgue.fill(6)
    assert discard(morgue.read(spark).where("job_type = 'email.send'"), morgue.uri) == Settled(4, 4)
    assert [row.job_id for row in morgue.read(spark).collect()] == [morgue.ids[0], morgue.ids[3]]
    assert morgue.count(morgue.alive) == 0


@pytest.mark.parametrize("rate", [None, 500.0])
def test_jobs_of_several_queues_are_moved_in_tasks(
    spark: SparkSession, own_broker: OwnBroker, rate: float | None
) -> None:
    morgues = [Morgue(own_broker.uri) for _ in range(3)]
    try:
        for morgue in morgues:
            morgue.fill(5)
        rows = [(morgue.queue, job_id, None) for morgue in morgues for job_id in morgue.ids[1:]]
        rows += [("dead-nobody", "gone", None), *rows[:2]]
        chosen = spark.createDataFrame(rows, "queue string, job_id string, args array<int>").repartition(4)
        edited = chosen.withColumn("args", F.when(F.col("job_id") == morgues[0].ids[1], F.array(F.lit(7))))
        counts: list[int] = []
        assert redrive(edited, own_broker.uri, rate=rate, on_progress=counts.append) == Settled(13, 12)
        assert counts[-1] == 12
        assert counts == sorted(counts)
        assert [job["args"] for job in morgues[0].taken(morgues[0].alive)] == [[7], [2], [3], [4]]
        assert [len(morgue.taken(morgue.alive)) for morgue in morgues[1:]] == [4, 4]
        assert [morgue.count(morgue.letters) for morgue in morgues] == [1, 1, 1]
    finally:
        for morgue in morgues:
            morgue.close()


def test_nothing_is_moved_if_one_row_cannot_be(spark: SparkSession, own_broker: OwnBroker) -> None:
    morgue = Morgue(own_broker.uri)
    try:
        morgue.fill(40)
        chosen = spark.createDataFrame([(morgue.queue, one) for one in morgue.ids], "queue string, job_id string")
        bad = F.when(F.col("job_id") == morgue.ids[-1], "{}").otherwise("[]")
        with pytest.raises(DeadLettersError, match=f"^job {morgue.ids[-1]}: args must be an array"):
            redrive(chosen.repartition(8).withColumn("args", bad), morgue.uri)
        with pytest.raises(DeadLettersError, match="job_id is null"):
            redrive(chosen.withColumn("job_id", F.nullif("job_id", F.lit(morgue.ids[9]))), morgue.uri)
        with pytest.raises(DeadLettersError, match=r"127\.0\.0\.1:1/") as error:
            redrive(chosen, "amqp://user:hidden-secret@127.0.0.1:1/")
        assert "hidden-secret" not in str(error.value)
        assert morgue.count(morgue.letters) == 40
    finally:
        morgue.close()


def test_a_task_that_is_killed_loses_no_job(spark: SparkSession, morgue: Morgue) -> None:
    morgue.fill(60)
    program = """if True:
        import sys
        import pyarrow as pa
        from waybill.pipeline.dead_letter_moves import DeadLetterMove
        from waybill.pipeline.task_counts import Driver
        uri, queue, host, port, secret, *ids = sys.argv[1:]
        rows = pa.RecordBatch.from_pydict({"queue": [queue] * len(ids), "job_id": ids, "args": [None] * len(ids)})
        move = DeadLetterMove(uri, None, drop=False, rate=200, driver=Driver(host, int(port), bytes.fromhex(secret)))
        list(move(iter([rows])))
    """
    counts: list[int] = []

    def note(count: int) -> None:
        counts.append(count)
        if count == 20:
            mover.kill()

    with TaskCounts(spark, note) as told:
        driver = told.driver
        given = [morgue.uri, morgue.queue, driver.host, str(driver.port), driver.secret.hex(), *morgue.ids]
        with subprocess.Popen([sys.executable, "-c", program, *given], env=environment()) as mover:
            mover.wait(60)
    assert 20 in counts
    rest = {row.job_id for row in morgue.read(spark).collect()}
    alive = [str(job["id"]) for job in morgue.taken(morgue.alive)]
    assert rest | set(alive) == set(morgue.ids)
    assert len(alive) == len(set(alive))
    assert len(rest & set(alive)) <= 1
    assert len(alive) < 60


def test_a_stranger_tells_nothing(spark: SparkSession) -> None:
    counts: list[int] = []
    with TaskCounts(spark, counts.append) as told:
        stranger = CountReporter(replace(told.driver, secret=bytes(32)))
        stranger.report(5)
        stranger.close()
        friends = [CountReporter(told.driver) for _ in range(2)]
        for count, friend in enumerate(friends, start=3):
            friend.report(count)
            friend.close()
    # And nobody listens any more.
    CountReporter(told.driver).report(9)
    CountReporter(None).report(9)
    assert counts[-1] == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadLetters": " , "}, "deadLetters must be a comma-separated list"),
        ({"deadLetters": "x", "profile": "y"}, "profile must be spec or web"),
        ({"deadLetters": "x", "startingOffsets": "3"}, "unknown option"),
        ({"deadLetters": "x"}, "127.0.0.1:1"),
    ],
)
def test_errors_name_the_cause(spark: SparkSession, options: dict[str, str], message: str) -> None:
    reader = spark.read.format("ojs").options(uri="amqp://user:hidden-secret@127.0.0.1:1/%2F", **options)
    with pytest.raises(PySparkException) as error:
        reader.load().collect()
    assert message in str(error.value)
    assert "hidden-secret" not in str(error.value)


def test_a_choice_without_ids_is_no_choice(spark: SparkSession) -> None:
    with pytest.raises(DeadLettersError, match="job_id is missing"):
        redrive(spark.createDataFrame([("q",)], "queue string"), "amqp://127.0.0.1:1/")
