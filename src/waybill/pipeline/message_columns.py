"""Messages as columns: `format("amqp")`, and the common part of all sources of stream messages.

Most properties are the same for all messages of a publisher: their columns are made once for each distinct value, and
then looked up.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from waybill.pipeline.message import MessageBlock, Metadata
from waybill.pipeline.schemas import HEADERS, MESSAGE

TIME: Final = pa.timestamp("us", "UTC")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PROPERTIES: Final = to_arrow_schema(MESSAGE, timezone="UTC").field("properties").type
_HEADERS: Final = to_arrow_schema(StructType([HEADERS]), timezone="UTC").field(0).type


class Columns:
    """Collects messages of one stream, and turns them into one record batch with the columns of `schema`."""

    schema: ClassVar[StructType]
    arrow_schema: ClassVar[pa.Schema]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # The zone that Spark requires, independent of the session's.
        cls.arrow_schema = to_arrow_schema(cls.schema, timezone="UTC")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.bytes = 0
        """Size of the added bodies."""

    def __len__(self) -> int:
        """Rows."""
        raise NotImplementedError

    def add(self, block: MessageBlock) -> None:
        raise NotImplementedError

    def record_batch(self) -> pa.RecordBatch:
        """The added rows, at least one."""
        raise NotImplementedError


class MessageColumns(Columns):
    """One row per message, as `schemas.MESSAGE`."""

    schema = MESSAGE

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._bodies: list[bytes] = []
        self._offsets: list[int] = []
        self._sent: list[Metadata] = []

    def __len__(self) -> int:
        return len(self._bodies)

    def add(self, block: MessageBlock) -> None:
        self._bodies += block.bodies
        self._offsets += block.offsets
        self._sent += block.metadata
        self.bytes += sum(map(len, block.bodies))

    def record_batch(self) -> pa.RecordBatch:
        sent = MetadataColumns(self._sent)
        columns = [
            pa.array(self._bodies, pa.binary()),
            pa.repeat(self.stream, len(self)),
            pa.array(self._offsets, pa.int64()),
            sent.timestamps(),
            sent.properties(),
        ]
        if HEADERS.name in self.arrow_schema.names:
            columns.append(sent.headers())
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)


class MessageColumnsWithoutHeaders(MessageColumns):
    """The columns without the last one."""

    schema = StructType(MESSAGE.fields[:-1])


class MetadataColumns:
    """The columns of the publishers' properties."""

    def __init__(self, sent: list[Metadata]) -> None:
        keys = list(map(id, sent))
        distinct = dict(zip(keys, sent, strict=True))
        self._distinct = list(distinct.values())
        if len(distinct) == 1:
            self._numbers = pa.repeat(pa.scalar(0, pa.int32()), len(keys))
        else:
            numbers = {key: number for number, key in enumerate(distinct)}
            self._numbers = pa.array([numbers[key] for key in keys], pa.int32())

    def timestamps(self) -> pa.Array:
        return self._looked_up(times(one.timestamp for one in self._distinct))

    def properties(self) -> pa.Array:
        fields = [
            pa.array([_valid_text(getattr(one.properties, field.name)) for one in self._distinct], field.type)
            for field in _PROPERTIES
        ]
        return self._looked_up(pa.StructArray.from_arrays(fields, fields=list(_PROPERTIES)))

    def headers(self) -> pa.Array:
        return self._looked_up(pa.array([header_entries(one) for one in self._distinct], _HEADERS))

    def _looked_up(self, values: pa.Array) -> pa.Array:
        return values.take(self._numbers)


def header_entries(sent: Metadata) -> list[tuple[str, str | None]]:
    """The publisher's headers as the entries of a map; values other than text become JSON."""
    return [(str(_valid_text(name)), _text(value)) for name, value in sent.headers.items()]


def times(values: Iterable[datetime | None]) -> pa.Array:
    """Times as a column. Arrow converts durations seven times faster than times, whose zone it reads one by one."""
    since = [None if value is None else value - _EPOCH for value in values]
    return pa.array(since, pa.duration("us")).cast(pa.int64()).cast(TIME)


def _text(value: object) -> str | None:
    """A header's value as text: strings as they are, everything else as JSON."""
    text = value if value is None or isinstance(value, str) else json.dumps(value, default=_plain, ensure_ascii=False)
    return text if text is None else str(_valid_text(text))


def _valid_text(value: object) -> object:
    """Text for a column: octets that are not UTF-8 are replaced."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else value


def _plain(value: object) -> object:
    """Values that JSON cannot express: times become RFC 3339 strings, bytes text, others their string form."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value)
