"""Which streams are read: partitions of super streams, those that match a pattern, and those that come and go."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream
from tests.rabbitmq import free_port
from waybill.cli.main import main
from waybill.client import blocking
from waybill.pipeline.named_options import OptionError
from waybill.pipeline.offsets import DataLossError
from waybill.pipeline.options import chosen_stream, parse_options
from waybill.pipeline.selection import selected
from waybill.pipeline.source import RangePartition, StreamTailReader, message_stream_reader
from waybill.pipeline.stream_log import StreamError
from waybill.pipeline.stream_marks import without_marks


class SuperStream:
    """A super stream for a test, declared by the command."""

    def __init__(self, uri: str, name: str) -> None:
        self.uri = uri
        self.name = name
        self._connection = blocking.connect(uri)
        self.channel = self._connection.channel()
        self.streams: list[str] = []

    def declare(self, partitions: int) -> None:
        words = ["topology", "super-stream", self.name, "--partitions", str(partitions), "--uri", self.uri, "--json"]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        self.streams = json.loads(done.output)["streams"]

    def publish(self, partition: int, *bodies: bytes) -> None:
        self.channel.publish_many(list(bodies), exchange=self.name, routing_key=str(partition))

    def reader(self) -> StreamTailReader:
        reader = message_stream_reader({"uri": self.uri, "superStream": self.name, "startingOffsets": "earliest"})
        assert isinstance(reader, StreamTailReader)
        return reader

    def close(self) -> None:
        for stream in self.streams:
            self.channel.delete_queue(stream)
        self.channel.delete_exchange(self.name)
        self._connection.close()


@pytest.fixture
def invoices(broker_uri: str) -> Iterator[SuperStream]:
    made = SuperStream(broker_uri, "invoices")
    made.declare(3)
    yield made
    made.close()


def test_the_partitions_of_a_super_stream_are_read_together(spark: SparkSession, invoices: SuperStream) -> None:
    assert invoices.streams == ["invoices-0", "invoices-1", "invoices-2"]
    for partition in range(3):
        invoices.publish(partition, *(f"{partition}/{number}".encode() for number in range(20)))

    def read(**options: str) -> set[tuple[str, int, str]]:
        rows = spark.read.format("amqp").options(uri=invoices.uri, **options).load().collect()
        return {(row["stream"], row["offset"], row["body"].decode()) for row in rows}

    whole = {(f"invoices-{part}", number, f"{part}/{number}") for part in range(3) for number in range(20)}
    assert read(superStream="invoices") == whole
    some = {row for row in whole if row[0] != "invoices-1"}
    assert read(assign='{"invoices": [0, 2]}') == some
    begun = '{"invoices-0": 18, "invoices-1": 20, "invoices-2": -2}'
    expected = {row for row in whole if row[0] == "invoices-2" or (row[0] == "invoices-0" and row[1] >= 18)}
    assert read(superStream="invoices", startingOffsets=begun) == expected


def test_new_partitions_join_a_running_query_and_lost_ones_fail_it(invoices: SuperStream) -> None:
    invoices.publish(0, b"one")
    reader = invoices.reader()
    start = reader.initialOffset()
    assert start == dict.fromkeys(invoices.streams, 0)
    first = reader.latestOffset(start, ReadAllAvailable())
    assert without_marks(first) == {"invoices-0": 1, "invoices-1": 0, "invoices-2": 0}
    invoices.declare(4)
    invoices.publish(3, b"two")
    second = reader.latestOffset(first, ReadAllAvailable())
    (part,) = reader.partitions(first, second)
    assert isinstance(part, RangePartition)
    assert (part.span.stream, part.span.start, part.span.end, part.is_new) == ("invoices-3", 0, 1, True)
    invoices.channel.delete_queue("invoices-3")
    with pytest.raises(DataLossError, match=r"'invoices-3' on .* was read before and no longer exists"):
        reader.latestOffset(second, ReadAllAvailable())


def test_a_super_stream_that_does_not_exist_is_an_error(broker_uri: str) -> None:
    options = parse_options({"uri": broker_uri, "superStream": "nothing"}, default_stream=None, streaming=True)
    with pytest.raises(StreamError, match=r"no super stream 'nothing' .* `waybill topology super-stream nothing"):
        selected(options)


def test_streams_are_found_by_a_pattern(tmp_path: Path) -> None:
    management = free_port()
    with OwnBroker(tmp_path, "--management", "--management-port", str(management)) as broker:
        with blocking.connect(broker.uri) as connection:
            channel = connection.channel()
            for name in ("orders-eu", "orders-us", "mails"):
                channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
            channel.declare_queue("orders-classic", durable=True)
        given = {"uri": broker.uri, "managementUri": f"http://127.0.0.1:{management}", "fetchOffset.numRetries": "0"}

        def found(**options: str) -> tuple[str, ...]:
            return selected(parse_options(given | options, default_stream=None, streaming=True))

        assert found(subscribePattern="orders-.*") == ("orders-eu", "orders-us")
        with pytest.raises(StreamError, match=r"no stream on .* matches 'order'"):
            found(subscribePattern="order")
        with pytest.raises(StreamError, match="answered 401"):
            found(subscribePattern=".*", managementUri=f"http://guest:wrong@127.0.0.1:{management}")
        with pytest.raises(StreamError, match=r"cannot list the streams of .*managementUri"):
            found(subscribePattern=".*", managementUri=f"http://127.0.0.1:{broker.port}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stream": "a", "superStream": "b"}, "stream and superStream cannot be used together"),
        ({"subscribePattern": "("}, "subscribePattern is not a regular expression"),
        ({"subscribePattern": "a" * 501}, "longer than 500 characters"),
        ({"assign": "[1]"}, "assign must be JSON with the partitions"),
        ({"assign": '{"a": []}'}, "assign must be JSON with the partitions"),
        ({"assign": '{"a": [true]}'}, "assign must be JSON with the partitions"),
        ({"superStream": "a", "startingOffsets": "5"}, "for each of the streams that are found"),
        ({"subscribePattern": "a", "managementUri": "file:///etc"}, "managementUri must be the URL"),
    ],
)
def test_bad_selections_are_errors(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({"uri": "amqp://localhost", **given}, default_stream="s", streaming=True)


def test_the_partitions_of_an_event_stream_are_read_together(broker_uri: str) -> None:
    given = {"uri": broker_uri, "eventStream": "parts.events", "startingOffsets": "earliest"}
    options = parse_options(given, default_stream=None, streaming=True)
    with Stream(broker_uri, "parts.events"), Stream(broker_uri, "parts.events-2"):
        assert selected(options) == ("parts.events",), "partitions have no gaps"
        with Stream(broker_uri, "parts.events-1"):
            assert selected(options) == ("parts.events", "parts.events-1", "parts.events-2")
    assert selected(options) == ("parts.events",), "that it does not exist is said when it is read"


@pytest.mark.parametrize(
    ("given", "event_stream", "streams"),
    [
        ({}, "s", ()),
        ({"stream": ""}, "s", ()),
        ({"stream": "a"}, None, ("a",)),
        ({"eventStream": "e"}, "e", ()),
        ({"superStream": "x"}, None, ()),
        ({"assign": '{"x": [1]}'}, None, ("x-1",)),
    ],
)
def test_all_partitions_of_the_default_are_read(
    given: dict[str, str], event_stream: str | None, streams: tuple[str, ...]
) -> None:
    options = parse_options({"uri": "amqp://a", **given}, default_stream="s", streaming=True)
    assert (options.event_stream, options.streams) == (event_stream, streams)


def test_an_offset_alone_is_that_of_the_event_stream() -> None:
    options = parse_options({"uri": "amqp://a", "startingOffsets": "7"}, default_stream="s", streaming=True)
    assert options.starting == {"s": 7}


def test_a_list_of_streams_is_no_event_stream() -> None:
    assert chosen_stream("ojs.events") == ("eventStream", "ojs.events")
    assert chosen_stream("a,b") == ("stream", "a,b")
