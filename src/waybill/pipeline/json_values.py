"""Converts values of Arrow columns to JSON values, for arguments of jobs and headers of messages.

Numbers, text and booleans stay. Timestamps become RFC 3339 text with their zone, dates and times ISO 8601 text,
decimals exact text, durations ISO 8601 durations, bytes base64 text, maps and structs objects, arrays arrays.
"""

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Final, TypeAlias

import pyarrow as pa
from pyarrow import types

Convert: TypeAlias = Callable[[object], object]

_SECONDS_PER_DAY: Final = 86_400


def plain_values(column: pa.Array) -> list[object]:
    """The values of a column, null as None."""
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
        return _entries(_converter(kind.item_type))
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


def _entries(convert: Convert | None) -> Convert:
    def convert_entries(entries: object) -> object:
        pairs: dict[object, object] = dict(entries) if isinstance(entries, list) else {}
        if convert is None:
            return {str(key): value for key, value in pairs.items()}
        return {str(key): None if value is None else convert(value) for key, value in pairs.items()}

    return convert_entries


def _items(values: object) -> list[object]:
    return values if isinstance(values, list) else []
