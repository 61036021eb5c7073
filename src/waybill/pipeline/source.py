"""Spark readers of stream queues: `format("amqp")` gives messages, `format("ojs")` job events.

One reader serves both: they differ in the columns that a message becomes, their layout. The driver finds where the
streams begin and end; each task opens a connection of its own and reads one range of offsets into Arrow batches.
Planning a batch depends on nothing but its start and end, because Spark may ask for it again after a restart, before
anything else.

Weak spots: an end that was found is the last message that the broker had ready at that moment; and a range whose
messages were all removed by retention is seen as a loss only when its task reads it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from waybill.pipeline.events import event_rows
from waybill.pipeline.message import StreamMessage, message_row
from waybill.pipeline.offsets import OffsetRange, check_not_recreated, limited, ranges_between, split
from waybill.pipeline.options import EARLIEST, LATEST, Position, SourceOptions, parse_options
from waybill.pipeline.schemas import EVENT, MESSAGE
from waybill.pipeline.stream_log import StreamLog

EVENT_STREAM: Final = "ojs.events"
_ROWS_PER_BATCH: Final = 4096


@dataclass(frozen=True)
class Layout:
    """The columns of a source, and the rows that one message becomes."""

    schema: StructType
    rows: Callable[[StreamMessage], Iterable[tuple[object, ...]]]


def _message_rows(message: StreamMessage) -> Iterable[tuple[object, ...]]:
    return (message_row(message),)


MESSAGES: Final = Layout(MESSAGE, _message_rows)
EVENTS: Final = Layout(EVENT, event_rows)


class RangePartition(InputPartition):
    """The range of offsets that one task reads."""

    def __init__(self, span: OffsetRange) -> None:
        super().__init__(span)
        self.span = span


def message_reader(options: Mapping[str, str]) -> DataSourceReader:
    """The batch reader of `format("amqp")`. Raises OptionError."""
    return StreamBatchReader(parse_options(options, default_stream=None, streaming=False), MESSAGES)


def message_stream_reader(options: Mapping[str, str]) -> DataSourceStreamReader:
    """The streaming reader of `format("amqp")`. Raises OptionError."""
    return StreamTailReader(parse_options(options, default_stream=None, streaming=True), MESSAGES)


def event_reader(options: Mapping[str, str]) -> DataSourceReader:
    """The batch reader of `format("ojs")`. Raises OptionError."""
    return StreamBatchReader(parse_options(options, default_stream=EVENT_STREAM, streaming=False), EVENTS)


def event_stream_reader(options: Mapping[str, str]) -> DataSourceStreamReader:
    """The streaming reader of `format("ojs")`. Raises OptionError."""
    return StreamTailReader(parse_options(options, default_stream=EVENT_STREAM, streaming=True), EVENTS)


class StreamBatchReader(DataSourceReader):
    """Reads what lies between two positions when the query runs."""

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def partitions(self) -> Sequence[InputPartition]:
        log = StreamLog(self._options)
        ends = {stream: log.end(stream) for stream in self._options.streams}
        end = {stream: min(at, ends[stream]) for stream, at in _resolved(self._options.ending, ends).items()}
        start = _starts(log, self._options)
        wanted = [span for span in ranges_between(start, end) if start[span.stream] < span.end]
        return _tasks(wanted, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _record_batches(self._options, self._layout, partition)


class StreamTailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams by offset; Spark keeps the offsets in its checkpoint."""

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return _starts(StreamLog(self._options), self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        maximum = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if maximum is None else ReadMaxRows(maximum)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._ends()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        end = self._ends() if self._target is None else self._target
        if self._options.fail_on_data_loss:
            check_not_recreated(start, end, self._options.address)
        return limited(start, end, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return self._ends() if self._target is None else self._target

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _tasks(ranges_between(start, end), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _record_batches(self._options, self._layout, partition)

    def _ends(self) -> dict[str, int]:
        log = StreamLog(self._options)
        return {stream: log.end(stream) for stream in self._options.streams}


def _starts(log: StreamLog, options: SourceOptions) -> dict[str, int]:
    """Where to begin in each stream. An offset that was asked for is taken as it is: if it is gone, reading says so."""
    if options.starting == EARLIEST:
        return {stream: log.first(stream) for stream in options.streams}
    if options.starting == LATEST:
        return {stream: log.end(stream) for stream in options.streams}
    return _resolved(options.starting, {})


def _resolved(position: Position, ends: Mapping[str, int]) -> dict[str, int]:
    """The offsets that a position other than `earliest` stands for."""
    return dict(ends) if isinstance(position, str) else dict(position)


def _tasks(ranges: list[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    return [RangePartition(span) for span in split(ranges, options.min_partitions, options.max_records_per_partition)]


def _record_batches(options: SourceOptions, layout: Layout, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one range, in batches that have exactly the schema that Spark expects."""
    if not isinstance(partition, RangePartition):
        raise TypeError(f"a range of offsets was expected, not {partition!r}")
    schema = to_arrow_schema(layout.schema, timezone="UTC")
    rows = (row for message in StreamLog(options).read(partition.span) for row in layout.rows(message))
    while chunk := list(islice(rows, _ROWS_PER_BATCH)):
        columns = zip(*chunk, strict=True)
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
