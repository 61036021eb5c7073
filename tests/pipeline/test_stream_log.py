"""Reading a stream queue as a log, on our broker and on RabbitMQ."""

import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream
from waybill.client import blocking
from waybill.pipeline import stream_consumer
from waybill.pipeline.offsets import DataLossError, OffsetRange
from waybill.pipeline.options import parse_options
from waybill.pipeline.source import EVENTS, StreamTailReader, event_reader
from waybill.pipeline.stream_consumer import StreamConsumer
from waybill.pipeline.stream_log import StreamError, StreamLog, StreamUnavailable
from waybill.pipeline.stream_marks import marks_of, without_marks


def bodies(count: int, size: int = 0) -> list[bytes]:
    return [f"{index}".encode().ljust(size, b".") for index in range(count)]


def test_an_empty_stream_begins_and_ends_at_0(stream: Stream) -> None:
    log = stream.log()
    assert (log.first(stream.name), log.end(stream.name)) == (0, 0)


def test_the_end_is_behind_the_last_message(stream: Stream) -> None:
    log = stream.log()
    for count, end in ((1, 1), (2500, 2501), (3, 2504)):
        stream.publish(*bodies(count))
        assert log.end(stream.name) == end
    assert log.first(stream.name) == 0


def test_a_range_is_read_exactly(stream: Stream) -> None:
    stream.publish(*bodies(1000))
    log = stream.log(prefetch="64")
    for start, end in ((0, 1000), (0, 1), (999, 1000), (333, 777)):
        messages = list(log.read(OffsetRange(stream.name, start, end)))
        assert [message.offset for message in messages] == list(range(start, end))
        assert [message.body for message in messages] == bodies(1000)[start:end]


def test_no_more_large_messages_wait_in_memory_than_agreed(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the prefetch count allows: a message may have 32 MiB."""
    monkeypatch.setattr(stream_consumer, "_WAITING_BYTES", 2 << 20)
    sent = bodies(100, 1 << 17)
    stream.publish(*sent)
    with StreamConsumer(stream.uri, prefetch=1000) as consumer:
        deliveries = consumer.deliveries(stream.name, "first", 5.0)
        found = [one.body for one in next(deliveries)]
        while not consumer._paused:
            time.sleep(0.01)
        assert consumer._waiting_bytes < 3 << 20
        while len(found) < len(sent):
            found += [one.body for one in next(deliveries)]
    assert found == sent


def test_properties_and_headers_come_along(stream: Stream) -> None:
    stream.publish(b"x", type="t", content_type="text/plain", timestamp=1_772_000_000, headers={"a": "b"})
    (message,) = stream.log().read(OffsetRange(stream.name, 0, 1))
    assert (message.properties.type, message.properties.content_type) == ("t", "text/plain")
    assert message.timestamp is not None
    assert message.timestamp.timestamp() == 1_772_000_000
    assert message.headers["a"] == "b"


def test_whoever_stops_in_the_middle_leaves_the_stream_whole(stream: Stream) -> None:
    stream.publish(*bodies(500))
    log = stream.log(prefetch="32")
    messages = log.read(OffsetRange(stream.name, 0, 500))
    assert [message.offset for message in itertools.islice(messages, 10)] == list(range(10))
    del messages
    assert len(list(log.read(OffsetRange(stream.name, 0, 500)))) == 500


def test_silence_is_an_error_that_names_the_place_and_not_the_password(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.publish(*bodies(5))
    monkeypatch.setattr(StreamLog, "_end", lambda *_: 8)
    log = stream.log(pollTimeoutMs="300", **{"fetchOffset.retryIntervalMs": "1"})
    with pytest.raises(
        StreamUnavailable, match=rf"'{stream.name}' on 127\.0\.0\.1:\d+/%2Fojs .*300 ms.*5 to 7"
    ) as caught:
        list(log.read(OffsetRange(stream.name, 3, 8)))
    assert "guest" not in str(caught.value)


def test_a_stream_that_ends_within_a_planned_range_has_lost_messages(stream: Stream) -> None:
    stream.publish(*bodies(5))
    span = OffsetRange(stream.name, 3, 8)
    with pytest.raises(DataLossError, match=r"ends at offset 5, but messages up to 7 were to be read.*failOnDataLoss"):
        list(stream.log(pollTimeoutMs="300").read(span))
    read = stream.log(pollTimeoutMs="300", failOnDataLoss="false").read(span)
    assert [message.offset for message in read] == [3, 4]


def test_a_stream_that_is_deleted_while_it_is_read_is_an_error_soon(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.publish(*bodies(500))
    read = stream.log(prefetch="32").read(OffsetRange(stream.name, 0, 500))
    next(read)
    stream.delete()
    with pytest.raises(StreamError, match="NOT_FOUND"):
        list(read)
    assert len([record for record in caplog.records if "could not re-register" in record.message]) < 10


def test_a_missing_stream_is_an_error_at_once(stream: Stream) -> None:
    for read in (stream.log().end, stream.log().first, lambda name: list(stream.log().read(OffsetRange(name, 0, 1)))):
        with pytest.raises(StreamError, match=r"'nowhere' on 127\.0\.0\.1.*NOT_FOUND"):
            read("nowhere")


def test_a_wrong_password_is_an_error_at_once(stream: Stream) -> None:
    options = parse_options(
        {"uri": stream.uri.replace("guest@", "secret@"), "stream": stream.name}, default_stream=None, streaming=True
    )
    with pytest.raises(StreamError, match="ACCESS_REFUSED") as caught:
        StreamLog(options).end(stream.name)
    assert "secret" not in str(caught.value)


def test_a_queue_that_is_no_stream_is_an_error(stream: Stream, broker_uri: str) -> None:
    with blocking.connect(broker_uri) as connection:
        channel = connection.channel()
        channel.declare_queue("no-stream", durable=True)
        channel.publish(b"x", routing_key="no-stream")
        with pytest.raises(StreamError, match="'no-stream'"):
            stream.log().end("no-stream")
        channel.delete_queue("no-stream")


def test_a_stream_made_anew_is_a_loss(stream: Stream) -> None:
    stream.publish(*bodies(8))
    reader = StreamTailReader(stream.options(), EVENTS)
    read_up_to = reader.latestOffset({stream.name: 0}, reader.getDefaultReadLimit())
    assert without_marks(read_up_to) == {stream.name: 8}
    stream.delete()
    stream.declare()
    stream.publish(*bodies(3))
    with pytest.raises(DataLossError, match="created again"):
        reader.latestOffset(read_up_to, reader.getDefaultReadLimit())
    careless = StreamTailReader(stream.options(failOnDataLoss="false"), EVENTS)
    end = careless.latestOffset(read_up_to, careless.getDefaultReadLimit())
    spans = [partition.value for partition in careless.partitions(read_up_to, end)]
    assert spans == [OffsetRange(stream.name, 0, 3)]


@pytest.mark.parametrize("alike", [False, True])
def test_a_stream_made_anew_is_a_loss_however_long_it_is(stream: Stream, alike: bool) -> None:
    stream.publish(*bodies(4))
    reader = StreamTailReader(stream.options(), EVENTS)
    limit = reader.getDefaultReadLimit()
    # What Spark keeps is the text.
    read_up_to = json.loads(json.dumps(reader.latestOffset({stream.name: 0}, limit)))
    stream.publish(*bodies(2))
    longer = StreamTailReader(stream.options(), EVENTS).latestOffset(read_up_to, limit)
    assert without_marks(longer) == {stream.name: 6}
    moment = marks_of(read_up_to)[stream.name][1]
    assert isinstance(moment, int)
    # Messages that are all the same are told apart by the second.
    while alike and time.time() < moment:
        time.sleep(0.02)
    stream.delete()
    stream.declare()
    stream.publish(*(bodies(9) if alike else bodies(9, size=20)))
    with pytest.raises(DataLossError, match="created again"):
        StreamTailReader(stream.options(), EVENTS).latestOffset(read_up_to, limit)
    careless = StreamTailReader(stream.options(failOnDataLoss="false"), EVENTS)
    at, seen = read_up_to, []
    for _ in range(2):
        end = careless.latestOffset(at, limit)
        seen += [partition.value for partition in careless.partitions(at, end)]
        at = end
    assert seen == [OffsetRange(stream.name, 0, 3), OffsetRange(stream.name, 3, 9)]


def test_an_empty_queue_that_is_no_stream_is_an_error(stream: Stream, broker_uri: str) -> None:
    assert (stream.log().first(stream.name), stream.log().end(stream.name)) == (0, 0)
    with blocking.connect(broker_uri) as connection:
        channel = connection.channel()
        channel.declare_queue("empty", durable=True)
        for read in (stream.log().end, stream.log().first):
            with pytest.raises(StreamError, match="'empty'"):
                read("empty")
        channel.delete_queue("empty")


def settled_first(log: StreamLog, name: str) -> int:
    """The first offset, when retention has begun and rests: a broker looks at its streams once a second."""
    first, since = 0, time.monotonic()
    while first == 0 or time.monotonic() - since < 1.5:
        latest = log.first(name)
        if latest != first:
            first, since = latest, time.monotonic()
    return first


def test_messages_that_retention_removed_are_a_loss(broker_uri: str) -> None:
    """RabbitMQ's streams also leave offsets out where a segment begins: those are no loss."""
    limits = {"x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 5_000}
    with Stream(broker_uri, "short", **limits) as stream:
        for _ in range(30):
            stream.publish(*bodies(20, size=200))
        log = stream.log()
        first, end = settled_first(log, stream.name), log.end(stream.name)
        assert first < end
        with pytest.raises(DataLossError, match=f"begins at offset {first}, but 0 was to be read"):
            list(log.read(OffsetRange(stream.name, 0, end)))
        careless = stream.log(failOnDataLoss="false")
        kept = [message.offset for message in careless.read(OffsetRange(stream.name, 0, end))]
        assert (kept[0], kept[-1]) == (first, end - 1)
        assert kept == sorted(set(kept))
        assert [message.offset for message in log.read(OffsetRange(stream.name, first, end))] == kept
        assert list(careless.read(OffsetRange(stream.name, 0, first - 1))) == []
        check_first_reads(stream, first, end)


def offsets(batches: Iterable[object]) -> list[int]:
    return [n for rows in batches if isinstance(rows, pa.RecordBatch) for n in rows["offset"].to_pylist()]


def check_first_reads(stream: Stream, first: int, end: int) -> None:
    """Of a stream whose head is gone: a first read begins where it does, and one from before fails or goes on there."""

    def read(**options: str) -> list[int]:
        batch = event_reader({"uri": stream.uri, "stream": stream.name, **options})
        return [n for part in batch.partitions() for n in offsets(batch.read(part))]

    kept = read()
    assert (kept[0], kept[-1]) == (first, end - 1)
    assert read(startingOffsets="0", failOnDataLoss="false", minPartitions="5") == kept
    assert read(endingOffsets="1") == []
    with pytest.raises(DataLossError):
        read(startingOffsets="0")
    tail = StreamTailReader(stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="7"), EVENTS)
    assert tail.initialOffset() == {stream.name: first}
    # A stream that joins a query later was not read before, so nothing of it is lost.
    joined = tail.partitions({"other": 3}, {"other": 3, stream.name: end})
    assert [n for part in joined for n in offsets(tail.read(part))] == kept


def test_reading_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with OwnBroker(tmp_path) as broker, Stream(broker.uri, "events") as stream:
        stream.publish(*bodies(3000, size=100))
        log = stream.log(prefetch="50", **{"fetchOffset.retryIntervalMs": "100", "fetchOffset.numRetries": "50"})
        messages = log.read(OffsetRange("events", 0, 3000))
        seen = [message.offset for message in itertools.islice(messages, 1000)]
        broker.kill()
        broker.start()
        seen += [message.offset for message in messages]
        assert seen == list(range(3000))


def test_a_driver_waits_for_a_broker_that_is_away(tmp_path: Path) -> None:
    with OwnBroker(tmp_path) as broker:
        with Stream(broker.uri, "events") as stream:
            stream.publish(*bodies(3))
            options = stream.options(**{"fetchOffset.retryIntervalMs": "20", "fetchOffset.numRetries": "2"})
        with Stream(broker.uri, "events"):
            broker.kill()
            with pytest.raises(StreamUnavailable, match=rf"127\.0\.0\.1:{broker.port}"):
                StreamLog(options).end("events")
            broker.start()
            assert StreamLog(options).end("events") == 0
