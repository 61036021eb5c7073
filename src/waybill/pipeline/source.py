"""Spark readers of stream queues: `format("amqp")` reads messages, `format("ojs")` job events.

One reader serves both: only the columns differ. The driver finds the beginnings and ends of the streams; each task
opens its own connection and reads a range of offsets into Arrow batches. Planning a batch depends only on its start and
end, because Spark may request it again after a restart, before anything else.

Weak spots: an end that was found is the last message that the broker had ready at that moment; and a range whose
messages were all removed by retention is seen as a loss only when its task reads it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from waybill.pipeline.events import EventColumns, EventColumnsWithHeaders
from waybill.pipeline.message_columns import Columns, MessageColumns, MessageColumnsWithoutHeaders
from waybill.pipeline.named_options import OptionError, truth
from waybill.pipeline.offsets import OffsetRange, check_not_recreated, distance, limited, ranges_between, split
from waybill.pipeline.options import EARLIEST, Position, SourceOptions, parse_options
from waybill.pipeline.pushed_filters import FilterPushdown, PushedFilters
from waybill.pipeline.selection import check_none_gone, selected
from waybill.pipeline.spark_garbage_collection import infrequent_collection
from waybill.pipeline.stream_log import StreamLog
from waybill.pipeline.stream_marks import MARKS, mark, marks_of, was_recreated, without_marks

EVENT_STREAM: Final = "ojs.events"
_ROWS_PER_BATCH: Final = 8192
# For large messages: Arrow's text columns are limited to 2 GB, and memory ends earlier.
_BYTES_PER_BATCH: Final = 1 << 25
# The connections that planning opens at a time.
_ASKED_AT_ONCE: Final = 8
# How often a query looks for new partitions of the event stream.
_SEARCH_S: Final = 60.0


# With and without the option includeHeaders.
MESSAGES: Final[dict[bool, type[Columns]]] = {True: MessageColumns, False: MessageColumnsWithoutHeaders}
EVENTS: Final[dict[bool, type[Columns]]] = {True: EventColumnsWithHeaders, False: EventColumns}


class RangePartition(InputPartition):
    """The range of offsets that a task reads. `is_new`: its stream was not read before."""

    def __init__(self, span: OffsetRange, *, is_new: bool = False) -> None:
        super().__init__(span)
        self.span = span
        self.is_new = is_new


def message_schema(options: Mapping[str, str]) -> StructType:
    """The columns of `format("amqp")`. Raises OptionError."""
    return MESSAGES[includes_headers(options, default=True)].schema


def message_reader(options: Mapping[str, str]) -> DataSourceReader:
    """The batch reader of `format("amqp")`. Raises OptionError."""
    return StreamBatchReader(parse_options(options, default_stream=None, streaming=False), MESSAGES)


def message_stream_reader(options: Mapping[str, str]) -> DataSourceStreamReader:
    """The streaming reader of `format("amqp")`. Raises OptionError."""
    return StreamTailReader(parse_options(options, default_stream=None, streaming=True), MESSAGES)


def selects_dead_letters(given: Mapping[str, str]) -> bool:
    """Whether the options of `format("ojs")` select dead letters, not events."""
    return any(name.lower() == "deadletters" for name in given)


def event_schema(options: Mapping[str, str]) -> StructType:
    """The columns of `format("ojs")`. Raises OptionError."""
    return EVENTS[includes_headers(options, default=False)].schema


def event_reader(options: Mapping[str, str]) -> DataSourceReader:
    """The batch reader of `format("ojs")`. Raises OptionError."""
    return StreamBatchReader(parse_options(options, default_stream=EVENT_STREAM, streaming=False), EVENTS)


def event_stream_reader(options: Mapping[str, str]) -> DataSourceStreamReader:
    """The streaming reader of `format("ojs")`. Raises OptionError."""
    return StreamTailReader(parse_options(options, default_stream=EVENT_STREAM, streaming=True), EVENTS)


class StreamBatchReader(DataSourceReader):
    """Reads between two positions, determined when the query runs."""

    def __init__(self, options: SourceOptions, columns: Mapping[bool, type[Columns]]) -> None:
        self._options = options
        self._columns = columns[options.include_headers]
        self.pushed = PushedFilters()
        self.pushFilters = FilterPushdown(self.pushed)  # type: ignore[method-assign] # as Spark's setting asks

    def partitions(self) -> Sequence[InputPartition]:
        log = StreamLog(self._options)
        streams = _selected(log, self._options)
        ends = _for_each(streams, log.end)
        wanted = _resolved(log, streams, self._options.ending, ends.__getitem__)
        end = {stream: min(at, ends[stream]) for stream, at in wanted.items()}
        start = _resolved(log, streams, self._options.starting, log.end)
        spans = [span for span in ranges_between(start, end) if start[span.stream] < span.end]
        return _tasks(self.pushed.ranges(spans), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one empty partition for an empty stream.
        if isinstance(partition, RangePartition):
            yield from _record_batches(self._options, self._columns, partition, self.pushed)


class StreamTailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams by offset; Spark keeps the offsets in its checkpoint."""

    def __init__(self, options: SourceOptions, columns: Mapping[bool, type[Columns]]) -> None:
        self._options = options
        self._columns = columns[options.include_headers]
        self._target: dict[str, int] | None = None
        self._latest: dict[str, int] | None = None
        self._triggered_at = time.monotonic()
        self._is_first = True
        self._event_streams: tuple[str, ...] = ()
        self._searched_at = 0.0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        log = StreamLog(self._options)
        # A given offset is not checked: if it is gone, reading fails.
        return _resolved(log, self._streams(log), self._options.starting, log.end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        log = StreamLog(self._options)
        self._target = _for_each(self._streams(log), log.end)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        log = StreamLog(self._options)
        ends = _for_each(self._streams(log), log.end) if self._target is None else self._target
        self._latest = ends
        read_to = without_marks(start)
        check_none_gone(self._options, read_to, tuple(ends))
        end = self._checked_ends(log, start, ends)
        if self._is_too_early(distance(read_to, end), limit):
            return start
        self._triggered_at = time.monotonic()
        reached = limited(read_to, end, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        return reached | self._marks(log, start, reached)

    def _streams(self, log: StreamLog) -> tuple[str, ...]:
        """The streams to read. A search for partitions of events that are not there yet is an error in broker logs."""
        if self._options.event_stream is None:
            return _selected(log, self._options)
        if not self._event_streams or time.monotonic() - self._searched_at > _SEARCH_S:
            self._event_streams, self._searched_at = _selected(log, self._options), time.monotonic()
        return self._event_streams

    def _checked_ends(self, log: StreamLog, start: dict[str, Any], ends: dict[str, int]) -> dict[str, int]:
        """The ends of the streams. A recreated stream gets an end before its old position: it is read from its start.

        Raises DataLossError if the query must fail then.
        """
        read_to, marks = without_marks(start), marks_of(start)
        checked = dict(ends)
        for stream, last in ends.items():
            before = read_to.get(stream, 0)
            # If a stream has not grown, the next messages show it.
            if last > before and was_recreated(log, stream, before, marks.get(stream), thoroughly=self._is_first):
                checked[stream] = before - 1
        self._is_first = False
        if self._options.fail_on_data_loss:
            check_not_recreated(read_to, checked, self._options.address)
        return checked

    def _marks(self, log: StreamLog, start: dict[str, Any], end: dict[str, int]) -> dict[str, Any]:
        """The marks of a batch's end, as an entry of its offsets."""
        known, marks = marks_of(start), {}
        for stream, last in end.items():
            made = known.get(stream) if start.get(stream) == last else mark(log, stream, last)
            if made is not None:
                marks[stream] = made
        return {MARKS: marks} if marks else {}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """The ends found by the last trigger. The query's lag is the distance to them."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _tasks(ranges_between(without_marks(start), without_marks(end)), self._options, known=start)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):
            yield from _record_batches(self._options, self._columns, partition, PushedFilters())

    def _is_too_early(self, count: int, limit: ReadLimit) -> bool:
        """Whether `count` messages are too few for a trigger. Queries that run once always read them."""
        least = self._options.min_offsets_per_trigger
        if least is None or count >= least or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        return time.monotonic() - self._triggered_at < self._options.max_trigger_delay_ms / 1000


def includes_headers(given: Mapping[str, str], *, default: bool) -> bool:
    """The option includeHeaders. Raises OptionError."""
    text = next((value for name, value in given.items() if name.lower() == "includeheaders"), None)
    return default if text is None else truth("includeHeaders", text)


def _selected(log: StreamLog, options: SourceOptions) -> tuple[str, ...]:
    """The streams to read. Retries while the broker is unavailable."""
    return log.retrying(lambda: selected(options))


def _resolved(log: StreamLog, streams: Sequence[str], position: Position, end: Callable[[str], int]) -> dict[str, int]:
    """The offsets for a position. `end` returns the end of a stream."""

    def offset(stream: str) -> int:
        place = position.get(stream) if isinstance(position, Mapping) else position
        if place is None:
            raise OptionError(f"no offset or time was given for the stream {stream!r}")
        if isinstance(place, datetime):
            return log.since(stream, place)
        if isinstance(place, int):
            return place
        return log.first(stream) if place == EARLIEST else end(stream)

    return _for_each(streams, offset)


def _for_each(streams: Sequence[str], find: Callable[[str], int]) -> dict[str, int]:
    """The result of `find` for each stream. Several run at a time, because they mostly wait."""
    if len(streams) == 1:
        return {streams[0]: find(streams[0])}
    with ThreadPoolExecutor(min(len(streams), _ASKED_AT_ONCE)) as pool:
        return dict(zip(streams, pool.map(find, streams), strict=True))


def _tasks(
    ranges: list[OffsetRange], options: SourceOptions, *, known: Mapping[str, object] | None = None
) -> list[InputPartition]:
    """Tasks for the ranges. `known`: the streams that were read before, for streaming queries."""
    return [
        RangePartition(span, is_new=known is not None and span.stream not in known)
        for span in split(ranges, options.min_partitions, options.max_records_per_partition)
    ]


def _record_batches(
    options: SourceOptions, make: type[Columns], partition: RangePartition, pushed: PushedFilters
) -> Iterator[pa.RecordBatch]:
    """The rows of one range, in batches with exactly the schema that Spark expects."""
    span = partition.span
    if partition.is_new:
        options = replace(options, fail_on_data_loss=False)
    with infrequent_collection():
        columns = make(span.stream)
        for block in StreamLog(options).read_blocks(span):
            columns.add(pushed.wanted(block))
            if len(columns) >= _ROWS_PER_BATCH or columns.bytes >= _BYTES_PER_BATCH:
                yield columns.record_batch()
                columns = make(span.stream)
        if len(columns):
            yield columns.record_batch()
