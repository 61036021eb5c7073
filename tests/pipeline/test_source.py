"""The readers of stream queues: where they begin and end, and what they leave out."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, LessThan, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream
from waybill.pipeline.lag import lag
from waybill.pipeline.offsets import OffsetRange
from waybill.pipeline.options import parse_options
from waybill.pipeline.source import MESSAGES, RangePartition, StreamBatchReader, StreamTailReader, message_reader
from waybill.pipeline.stream_marks import without_marks

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def numbers(start: int, end: int) -> list[bytes]:
    return [str(number).encode() for number in range(start, end)]


def next_second() -> datetime:
    """The start of the next second, when it has come: brokers know times of streams by the second."""
    second = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    while datetime.now(UTC) < second:
        time.sleep(0.02)
    return second


def milliseconds(moment: datetime) -> str:
    return str(round(moment.timestamp() * 1000))


def spans(reader: StreamBatchReader) -> list[tuple[int, int]]:
    parts = reader.partitions()
    assert all(isinstance(part, RangePartition) for part in parts)
    return [(part.span.start, part.span.end) for part in parts if isinstance(part, RangePartition)]


def batch_reader(stream: Stream, **options: str) -> StreamBatchReader:
    reader = message_reader({"uri": stream.uri, "stream": stream.name, **options})
    assert isinstance(reader, StreamBatchReader)
    return reader


def test_timestamps_are_those_at_which_the_broker_stored_a_message(stream: Stream) -> None:
    before = next_second()
    stream.publish(*numbers(0, 5))
    between = next_second()
    stream.publish(*numbers(5, 12))
    after = next_second()
    for start, end, expected in (
        (before - timedelta(days=1), between, [(0, 5)]),
        (between, after, [(5, 12)]),
        (after, after + timedelta(days=1), []),
    ):
        options = {"startingTimestamp": milliseconds(start), "endingTimestamp": end.isoformat()}
        assert spans(batch_reader(stream, **options)) == expected
    assert spans(batch_reader(stream, startingTimestamp=milliseconds(after))) == []
    # As in Spark's Kafka source, a timestamp comes before offsets.
    both = {"startingTimestamp": milliseconds(between), "startingOffsets": "1", "endingOffsets": "8"}
    assert spans(batch_reader(stream, **both)) == [(5, 8)]
    follower = StreamTailReader(stream.options(startingTimestamp=milliseconds(between)), MESSAGES)
    assert follower.initialOffset() == {stream.name: 5}


def test_each_stream_begins_and_ends_where_it_is_told_to(own_broker: OwnBroker) -> None:
    with Stream(own_broker.uri, "place-a") as a, Stream(own_broker.uri, "place-b") as b:
        before = next_second()
        a.publish(*numbers(0, 5))
        b.publish(*numbers(0, 6))
        between = next_second()
        b.publish(*numbers(6, 9))
        both = {"uri": a.uri, "stream": f"{a.name},{b.name}"}
        places = {"startingOffsets": json.dumps({a.name: -2, b.name: -1})}
        options = parse_options({**both, **places}, default_stream=None, streaming=True)
        assert StreamTailReader(options, MESSAGES).initialOffset() == {a.name: 0, b.name: 9}
        moments = {a.name: before.isoformat(), b.name: round(between.timestamp() * 1000)}
        places = {
            "startingOffsetsByTimestamp": json.dumps(moments),
            "endingOffsets": json.dumps({a.name: 3, b.name: -1}),
        }
        reader = message_reader({**both, **places})
        assert isinstance(reader, StreamBatchReader)
        assert spans(reader) == [(0, 3), (6, 9)]


def test_a_trigger_waits_for_enough_messages_but_not_for_ever(stream: Stream) -> None:
    stream.publish(*numbers(0, 5))
    start = {stream.name: 0}
    patient = StreamTailReader(stream.options(minOffsetsPerTrigger="10", maxTriggerDelay="1h"), MESSAGES)
    limit = patient.getDefaultReadLimit()
    assert patient.latestOffset(start, limit) == start
    assert patient.reportLatestOffset() == {stream.name: 5}
    assert without_marks(patient.latestOffset(start, ReadAllAvailable())) == {stream.name: 5}
    stream.publish(*numbers(5, 10))
    assert without_marks(patient.latestOffset(start, limit)) == {stream.name: 10}
    hasty = StreamTailReader(stream.options(minOffsetsPerTrigger="20", maxTriggerDelay="1ms"), MESSAGES)
    assert without_marks(hasty.latestOffset(start, hasty.getDefaultReadLimit())) == {stream.name: 10}
    both = {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "4", "maxTriggerDelay": "1h"}
    bounded = StreamTailReader(stream.options(**both), MESSAGES)
    assert without_marks(bounded.latestOffset(start, bounded.getDefaultReadLimit())) == {stream.name: 4}
    assert without_marks(bounded.latestOffset({stream.name: 8}, bounded.getDefaultReadLimit())) == {stream.name: 8}
    bounded.prepareForTriggerAvailableNow()
    assert without_marks(bounded.latestOffset({stream.name: 8}, bounded.getDefaultReadLimit())) == {stream.name: 10}


def test_partitions_are_as_many_and_as_small_as_asked_for(stream: Stream) -> None:
    stream.publish(*numbers(0, 10))
    reader = StreamTailReader(stream.options(maxRecordsPerPartition="4"), MESSAGES)
    parts = [part.value for part in reader.partitions({stream.name: 0}, {stream.name: 10})]
    assert [part.count for part in parts] == [3, 3, 4]
    assert spans(batch_reader(stream, minPartitions="2", maxRecordsPerPartition="9")) == [(0, 5), (5, 10)]


def test_large_messages_are_handed_over_before_they_are_many(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.pipeline.source._BYTES_PER_BATCH", 1 << 16)
    stream.publish(*[b"x" * (1 << 16)] * 40)
    reader = batch_reader(stream)
    (partition,) = reader.partitions()
    rows = [batch.num_rows for batch in reader.read(partition)]
    assert sum(rows) == 40
    assert len(rows) > 1


@pytest.mark.parametrize(
    ("filters", "expected", "left"),
    [
        ([IsNotNull(("offset",)), GreaterThan(("offset",), 3)], [(4, 10)], 0),
        ([LessThanOrEqual(("offset",), 6), GreaterThan(("offset",), 3)], [(4, 7)], 0),
        ([EqualTo(("offset",), 5)], [(5, 6)], 0),
        ([In(("offset",), (7, 2))], [(2, 8)], 1),
        ([LessThan(("offset",), 0)], [], 0),
        ([In(("stream",), ("other",))], [], 0),
        ([EqualTo(("body",), b"5")], [(0, 10)], 1),
        ([GreaterThan(("timestamp",), datetime(2026, 3, 1, tzinfo=UTC))], [(0, 10)], 0),
        ([GreaterThan(("timestamp",), "soon")], [(0, 10)], 1),
    ],
)
def test_filters_on_offset_and_stream_leave_less_to_be_read(
    stream: Stream, filters: list[Filter], expected: list[tuple[int, int]], left: int
) -> None:
    stream.publish(*numbers(0, 10))
    reader = batch_reader(stream)
    assert len(list(reader.pushFilters(filters))) == left
    assert spans(reader) == expected


def read(spark: SparkSession, stream: Stream, **options: str) -> DataFrame:
    reader = spark.read.format("amqp").option("uri", stream.uri).option("stream", stream.name)
    return reader.options(**options).load()


def test_a_query_gives_the_same_with_and_without_push_down(spark: SparkSession, stream: Stream) -> None:
    for number in range(6):
        stream.publish(str(number).encode(), timestamp=1_772_000_000 + number)
    stream.publish(b"without")
    noon = datetime.fromtimestamp(1_772_000_002, UTC)
    wanted = (F.col("offset") >= 1) & (F.col("timestamp") > F.lit(noon)) & (F.col("body") != b"4")
    found = []
    for enabled in ("false", "true"):
        spark.conf.set(PUSHDOWN, enabled)
        try:
            found.append([row["offset"] for row in read(spark, stream).where(wanted).orderBy("offset").collect()])
        finally:
            spark.conf.unset(PUSHDOWN)
    assert found == [[3, 5], [3, 5]]


def test_an_empty_stream_has_no_rows_and_headers_come_when_asked_for(spark: SparkSession, stream: Stream) -> None:
    assert read(spark, stream).collect() == []
    stream.publish(b"x", headers={"a": "b"})
    assert [row["headers"] for row in read(spark, stream).collect()] == [{"a": "b"}]
    assert read(spark, stream, includeHeaders="false").columns == [
        "body",
        "stream",
        "offset",
        "timestamp",
        "properties",
    ]
    events = spark.read.format("ojs").option("uri", stream.uri).option("stream", stream.name)
    (event,) = events.option("includeHeaders", "true").load().collect()
    assert (event["headers"], event["malformed"][:8]) == ({"a": "b"}, "not JSON")


def test_spark_reports_how_far_a_query_is_behind(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    stream.publish(*numbers(0, 10))
    source = spark.readStream.format("amqp").option("uri", stream.uri).option("stream", stream.name)
    rows = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "6").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    started = query.start()
    started.awaitTermination()
    batches = [one for one in started.recentProgress if one.numInputRows]
    assert [(one.numInputRows, lag(one)) for one in batches] == [(6, {stream.name: 4}), (4, {stream.name: 0})]


def test_spark_takes_a_least_number_of_messages(spark: SparkSession, own_broker: OwnBroker, tmp_path: Path) -> None:
    with Stream(own_broker.uri, "least") as stream:
        stream.publish(*numbers(0, 3))
        source = spark.readStream.format("amqp").option("uri", stream.uri).option("stream", stream.name)
        rows = source.option("startingOffsets", "earliest").option("minOffsetsPerTrigger", "5").load()
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        try:
            # A trigger without a batch is reported, too, as one without rows.
            while query.lastProgress is None:
                time.sleep(0.05)
            assert query.lastProgress.numInputRows == 0
            stream.publish(*numbers(3, 6))
            while not sum(one.numInputRows for one in query.recentProgress):
                assert query.isActive
                time.sleep(0.05)
            assert sum(one.numInputRows for one in query.recentProgress) == 6
        finally:
            query.stop()


def test_ranges_outside_of_the_filters_vanish() -> None:
    reader = message_reader({"uri": "amqp://localhost", "stream": "a,b"})
    assert isinstance(reader, StreamBatchReader)
    reader.pushFilters([EqualTo(("stream",), "b"), LessThan(("offset",), 5)])
    assert reader.pushed.ranges([OffsetRange("a", 0, 9), OffsetRange("b", 3, 9)]) == [OffsetRange("b", 3, 5)]
