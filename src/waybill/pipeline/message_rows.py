"""Converts rows of a DataFrame to messages: body, exchange, routing key, properties and headers, by column names.

`properties` may be a struct, as `format("amqp")` reads it, or its fields columns of their own. `headers` are a map, a
struct, or the array of name and value that is read. Columns that only say where a message was read (`stream`,
`offset`) are accepted, but not sent: a message that was read can be written unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, NullType, StringType, StructType

from waybill.client import BasicProperties
from waybill.pipeline.job_rows import InvalidRow, check_types
from waybill.pipeline.json_values import column_values
from waybill.pipeline.message import Properties
from waybill.pipeline.named_options import OptionError

PROPERTY_COLUMNS: Final = (*Properties.__dataclass_fields__, "timestamp")
MESSAGE_COLUMNS: Final = ("body", "exchange", "routing_key", "properties", "headers", *PROPERTY_COLUMNS)
_READ_FROM: Final = frozenset({"stream", "offset"})
_PERSISTENT: Final = 2
_NAME_MAX: Final = 255
# They are in one frame, which has 128 KiB at all brokers that are not configured otherwise.
_PROPERTIES_MAX: Final = 128_000


@dataclass(frozen=True, slots=True)
class RowMessage:
    """A message with its exchange and routing key."""

    exchange: str
    routing_key: str
    body: bytes
    properties: BasicProperties

    def check(self) -> None:
        """Raise InvalidRow, or the client's ValueError, for a message that AMQP cannot express."""
        for column, name in (("exchange", self.exchange), ("routing_key", self.routing_key)):
            if len(name.encode()) > _NAME_MAX:
                raise InvalidRow(f"{column}: is longer than {_NAME_MAX} bytes")
        size = len(self.properties.encode())
        if size > _PROPERTIES_MAX:
            raise InvalidRow(
                f"the properties have {size} bytes with their headers; a message may have {_PROPERTIES_MAX}"
            )


def check_message_columns(schema: StructType) -> None:
    """Raise OptionError for columns that cannot be sent."""
    names: list[str] = schema.fieldNames()
    if "body" not in names:
        raise OptionError("a message needs a column 'body', of text or bytes")
    if not isinstance(schema["body"].dataType, StringType | BinaryType):
        raise OptionError(f"column 'body' is text or bytes, not {schema['body'].dataType.simpleString()}")
    check_types(schema)
    if "properties" in names and not isinstance(schema["properties"].dataType, StructType | NullType):
        raise OptionError(f"column 'properties' is a struct, not {schema['properties'].dataType.simpleString()}")
    for name in names:
        if name not in MESSAGE_COLUMNS and name not in _READ_FROM:
            raise OptionError(
                f"column {name!r} is not a field of a message: a message has {', '.join(MESSAGE_COLUMNS)}"
            )


class MessageRows:
    """Makes messages of record batches. `exchange` and `routing_key` are defaults for rows."""

    def __init__(self, *, exchange: str, routing_key: str) -> None:
        self._exchange = exchange
        self._routing_key = routing_key

    def messages(self, batch: pa.RecordBatch) -> Iterator[RowMessage]:
        """One message per row. Raises InvalidRow, which names the column, or UnreadableValue before the first row."""
        columns = {name: _values(batch, name) for name in batch.schema.names if name not in _READ_FROM}
        bodies = columns.pop("body")
        exchanges = columns.pop("exchange", None)
        keys = columns.pop("routing_key", None)
        for index, body in enumerate(bodies):
            if body is None:
                raise InvalidRow("body: must not be null")
            exchange = None if exchanges is None else exchanges[index]
            key = None if keys is None else keys[index]
            yield RowMessage(
                self._exchange if exchange is None else str(exchange),
                self._routing_key if key is None else str(key),
                body if isinstance(body, bytes) else str(body).encode(),
                _properties({name: values[index] for name, values in columns.items()}),
            )


def _values(batch: pa.RecordBatch, name: str) -> list[object]:
    """Bodies stay bytes, and a timestamp property a time; other values become what a header can hold."""
    return column_values(batch, name, plain=name not in {"body", "timestamp"})


def _properties(row: dict[str, object]) -> BasicProperties:
    given = row.pop("properties", None)
    headers = _headers(row.pop("headers", None))
    given = given if isinstance(given, dict) else {}
    values = {name: value for name, value in [*given.items(), *row.items()] if value is not None}
    moment = values.get("timestamp")
    if isinstance(moment, datetime):
        values["timestamp"] = int(moment.timestamp())
    values.setdefault("delivery_mode", _PERSISTENT)
    try:
        return msgspec.convert({**values, "headers": headers or None}, _Sent).properties()
    except msgspec.ValidationError as error:
        raise InvalidRow(str(error)) from None


class _Sent(msgspec.Struct, kw_only=True):
    """The properties of a message, each of its type."""

    content_type: str | None = None
    content_encoding: str | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    headers: dict[str, object] | None = None

    def properties(self) -> BasicProperties:
        return BasicProperties(**msgspec.structs.asdict(self))


def _headers(value: object) -> dict[str, object]:
    """Headers are a dict by now if the column is a map or a struct; `format("amqp")` has an array of entries."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if one is not None}
    if isinstance(value, list) and all(isinstance(pair, dict) and len(pair) == 2 for pair in value):
        return {str(name): one for name, one in (pair.values() for pair in value)}
    raise InvalidRow("headers: must be a map, a struct, or an array of name and value")
