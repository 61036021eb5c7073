"""Converts values of Arrow columns to JSON values, for arguments of jobs and headers of messages.

Numbers, text and booleans stay. Timestamps become RFC 3339 text with their zone, dates and times ISO 8601 text,
decimals exact text, durations ISO 8601 durations, bytes base64 text, maps and structs objects, arrays arrays. Spark has
other types, too: `unsuitable` finds those that JSON cannot express.
"""

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Final, TypeAlias

import pyarrow as pa
from pyarrow import types
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

Convert: TypeAlias = Callable[[object], object]

DEEPEST_TYPE: Final = 30
"""Levels of arrays, maps and structs in a column. Arrow reads 64, and a map has two."""
_SECONDS_PER_DAY: Final = 86_400
# Arrow's and Python's errors: for times outside of the years 1 to 9999, and for text that is not UTF-8.
_UNREADABLE: Final = (ValueError, ArithmeticError, TypeError)
_NOT_JSON: Final = (VariantType, YearMonthIntervalType, CalendarIntervalType)


class UnreadableValue(ValueError):
    """Python cannot express a value of a column. `index` is its row in the batch."""

    def __init__(self, name: str, index: int, problem: Exception) -> None:
        super().__init__(f"{name}: {problem}")
        self.index = index


def column_values(batch: pa.RecordBatch, name: str, *, plain: bool = True) -> list[object]:
    """The values of a column, null as None, as JSON values unless `plain` is false. Raises UnreadableValue."""
    column = batch.column(name)
    read = _plain_values if plain else pa.Array.to_pylist
    try:
        return read(column)
    except _UNREADABLE:
        for index in range(len(column)):
            try:
                read(column.slice(index, 1))
            except _UNREADABLE as problem:
                raise UnreadableValue(name, index, problem) from None
        raise


def unsuitable(kind: DataType, depth: int = 0) -> str | None:
    """Why values of a type cannot be sent; None for most types."""
    parts: list[DataType] = []
    if depth > DEEPEST_TYPE:
        return f"it is nested deeper than {DEEPEST_TYPE} levels"
    if isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, AtomicType | NullType):
            return f"JSON has no {kind.simpleString()}"
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        parts = [field.dataType for field in kind.fields]
    elif isinstance(kind, _NOT_JSON):
        return f"JSON has no {kind.simpleString()}"
    return next((found for part in parts if (found := unsuitable(part, depth + 1)) is not None), None)


def _plain_values(column: pa.Array) -> list[object]:
    values: list[object] = column.to_pylist()
    convert = _converter(column.type)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(kind: pa.DataType) -> Convert | None:
    """The function that converts a value of this type; None if it is not necessary."""
    if types.is_timestamp(kind):
        return _moment
    if types.is_decimal(kind):
        return str
    if types.is_date(kind) or types.is_time(kind):
        return _iso
    if types.is_duration(kind):
        return _duration
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _base64
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _each(_converter(kind.value_type))
    if types.is_struct(kind):
        return _fields({kind.field(index).name: _converter(kind.field(index).type) for index in range(kind.num_fields)})
    if types.is_map(kind):
        return _entries(_converter(kind.key_type) or str, _converter(kind.item_type))
    return None


def _moment(value: object) -> object:
    if not isinstance(value, datetime):
        return value
    # Spark's timestamps without a zone are in the session's zone; Arrow gets them as UTC.
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")


def _iso(value: object) -> object:
    return value.isoformat() if isinstance(value, date | time_of_day) else value


def _duration(value: object) -> object:
    if not isinstance(value, timedelta):
        return value
    seconds = Decimal(value.days * _SECONDS_PER_DAY + value.seconds) + Decimal(value.microseconds) / 1_000_000
    return f"{'-' if seconds < 0 else ''}PT{abs(seconds).normalize():f}S"


def _base64(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in _items(values)]


def _fields(converts: dict[str, Convert | None]) -> Convert | None:
    needed = {name: convert for name, convert in converts.items() if convert is not None}
    if not needed:
        return None

    def convert_fields(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return value | {name: convert(value[name]) for name, convert in needed.items() if value[name] is not None}

    return convert_fields


def _entries(key_of: Convert, convert: Convert | None) -> Convert:
    def convert_entries(entries: object) -> object:
        pairs: dict[object, object] = dict(entries) if isinstance(entries, list) else {}
        if convert is None:
            return {key_of(key): value for key, value in pairs.items()}
        return {key_of(key): None if value is None else convert(value) for key, value in pairs.items()}

    return convert_entries


def _items(values: object) -> list[object]:
    return values if isinstance(values, list) else []
