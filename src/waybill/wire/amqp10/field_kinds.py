"""The kinds of fields of composite types (1.0, 1.4 and 2.8): checks after decoding, and encoding.

| kind | on the wire | Python |
|---|---|---|
| boolean ubyte ushort uint ulong string symbol binary timestamp | that type | bool int str bytes |
| symbol[] | a symbol, or an array of symbols | tuple of str |
| any | any type | as `types` has it |
| message_id | ulong, uuid, binary, string | ULong, Uuid, bytes, str |
| map | any map | dict, OddMap |
| fields | map with symbols as keys | dict |
| named | the same; keys may be strings too | dict |
| annotations | map with symbols or ulongs as keys | dict |
| unsettled | map of delivery-tag and delivery-state or null | dict of bytes |
| error source target state outcome | composite types of that archetype | their classes |

Extensions may define sources, targets and states. One with an unknown descriptor stays Described, so that the engine
can refuse it. A known type of the wrong archetype is an error.
"""

from collections.abc import Mapping
from typing import Any, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.encode import (
    ENCODABLE,
    SYMBOL_CODES,
    write_binary,
    write_data,
    write_string,
    write_symbol,
    write_uint,
    write_ulong,
    write_value,
)
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.types import Array, Described, OddMap, Symbol, Timestamp, UByte, UInt, ULong, UShort, Uuid

ANY: Final = 0
BOOLEAN: Final = 1
UBYTE: Final = 2
USHORT: Final = 3
UINT: Final = 4
ULONG: Final = 5
STRING: Final = 6
SYMBOL: Final = 7
BINARY: Final = 8
TIMESTAMP: Final = 9
SYMBOLS: Final = 10
MESSAGE_ID: Final = 11
MAP: Final = 12
FIELDS: Final = 13
ANNOTATIONS: Final = 14
UNSETTLED: Final = 15
ERROR: Final = 16
SOURCE: Final = 17
TARGET: Final = 18
STATE: Final = 19
OUTCOME: Final = 20
NAMED: Final = 21

KINDS: Final[dict[str, int]] = {
    "any": ANY,
    "boolean": BOOLEAN,
    "ubyte": UBYTE,
    "ushort": USHORT,
    "uint": UINT,
    "ulong": ULONG,
    "string": STRING,
    "symbol": SYMBOL,
    "binary": BINARY,
    "timestamp": TIMESTAMP,
    "symbol[]": SYMBOLS,
    "message_id": MESSAGE_ID,
    "map": MAP,
    "fields": FIELDS,
    "named": NAMED,
    "annotations": ANNOTATIONS,
    "unsettled": UNSETTLED,
    "error": ERROR,
    "source": SOURCE,
    "target": TARGET,
    "state": STATE,
    "outcome": OUTCOME,
}

INTEGER_TYPES: Final[dict[int, type[int]]] = {
    UBYTE: UByte,
    USHORT: UShort,
    UINT: UInt,
    ULONG: ULong,
    TIMESTAMP: Timestamp,
}

OUTCOMES: Final = frozenset(
    {
        descriptors.ACCEPTED,
        descriptors.REJECTED,
        descriptors.RELEASED,
        descriptors.MODIFIED,
        descriptors.DECLARED,
    }
)

ARCHETYPES: Final[dict[int, frozenset[int]]] = {
    ERROR: frozenset({descriptors.ERROR}),
    SOURCE: frozenset({descriptors.SOURCE}),
    TARGET: frozenset({descriptors.TARGET, descriptors.COORDINATOR}),
    STATE: OUTCOMES | {descriptors.RECEIVED, descriptors.TRANSACTIONAL_STATE},
    OUTCOME: OUTCOMES,
}
"""The composite types that provide an archetype, by kind."""

FIXED_CODES: Final[dict[int, int]] = {UBYTE: codes.UBYTE, USHORT: codes.USHORT, TIMESTAMP: codes.TIMESTAMP}

MESSAGE_ID_TYPES: Final[frozenset[type]] = frozenset({ULong, Uuid, bytes, str})


def read_simple_field(kind: int, value: object) -> object:
    """Check and convert a decoded value that is not null. Raises DecodeError.

    For kinds that hold composite types see `composite.read_field`.
    """
    if kind in INTEGER_TYPES:
        if not isinstance(value, INTEGER_TYPES[kind]):
            raise wrong_type(value)
        return int(value)
    if kind == BOOLEAN:
        return _of_type(value, bool)
    if kind == STRING:
        return _of_type(value, str)
    if kind == SYMBOL:
        return str(_of_type(value, Symbol))
    if kind == BINARY:
        return _of_type(value, bytes)
    if kind == SYMBOLS:
        return _symbols(value)
    return _read_open_field(kind, value)


def _read_open_field(kind: int, value: object) -> object:
    """Kinds with values of several types."""
    if kind == MESSAGE_ID:
        if type(value) not in MESSAGE_ID_TYPES:
            raise wrong_type(value)
    elif kind == MAP:
        if not isinstance(value, (dict, OddMap)):
            raise wrong_type(value)
    elif kind == FIELDS:
        return checked_fields(value)
    elif kind == NAMED:
        return _named_fields(value)
    elif kind == ANNOTATIONS:
        return checked_annotations(value)
    return value


def checked_fields(value: object) -> dict[object, object]:
    """A decoded map whose keys are symbols (2.8.14). Raises DecodeError."""
    if not isinstance(value, dict):
        raise wrong_type(value)
    for key in value:
        if not isinstance(key, Symbol):
            raise DecodeError(f"a key is a symbol, not {type(key).__name__}")
    return value


def _named_fields(value: object) -> dict[object, object]:
    """A decoded map whose keys are symbols; RabbitMQ's client for Python sends strings. Raises DecodeError."""
    if not isinstance(value, dict):
        raise wrong_type(value)
    named: dict[object, object] = {}
    for key, item in value.items():
        if not isinstance(key, str) or not key.isascii():
            raise DecodeError(f"a key is a symbol, not {type(key).__name__}")
        named[Symbol(key)] = item
    return named


def checked_annotations(value: object) -> dict[object, object]:
    """A decoded map whose keys are symbols or ulongs (3.2.10). Raises DecodeError."""
    if not isinstance(value, dict):
        raise wrong_type(value)
    for key in value:
        if not isinstance(key, (Symbol, ULong)):
            raise DecodeError(f"an annotation's key is a symbol or ulong, not {type(key).__name__}")
    return value


def _of_type(value: object, expected: type) -> object:
    # Not isinstance: a Symbol is a str in Python, but not a string in AMQP.
    if type(value) is not expected:
        raise wrong_type(value)
    return value


def wrong_type(value: object) -> DecodeError:
    """The error for a value of a type that its field does not allow."""
    return DecodeError(f"{type(value).__name__} is the wrong type")


def _symbols(value: object) -> tuple[str, ...]:
    if isinstance(value, Symbol):
        return (str(value),)
    if not isinstance(value, Array) or value.descriptors or value.code not in SYMBOL_CODES:
        raise wrong_type(value)
    return tuple([str(item) for item in value.items])


def write_field(out: BytesWriter, kind: int, value: object, depth: i64) -> None:
    """Write a field that is not None with its constructor. Raises EncodeError."""
    if kind in INTEGER_TYPES:
        _write_integer(out, kind, value)
    elif kind == BOOLEAN and isinstance(value, bool):
        out.append(codes.TRUE if value else codes.FALSE)
    elif kind == STRING and isinstance(value, str):
        write_string(out, value)
    elif kind == SYMBOL and isinstance(value, str):
        write_symbol(out, value)
    elif kind == BINARY and isinstance(value, bytes):
        write_binary(out, value)
    elif kind == SYMBOLS and isinstance(value, (tuple, list)):
        _write_symbols(out, value)
    elif kind in ARCHETYPES and isinstance(value, (*ENCODABLE, Described)):
        write_value(out, value, depth)
    else:
        _write_open_field(out, kind, value, depth)


def _write_open_field(out: BytesWriter, kind: int, value: object, depth: i64) -> None:
    """Kinds with values of several types, and values of the wrong type."""
    as_it_is = (
        kind == ANY
        or (kind == MESSAGE_ID and type(value) in MESSAGE_ID_TYPES)
        or (kind == MAP and isinstance(value, (Mapping, OddMap)))
        or (kind == UNSETTLED and isinstance(value, Mapping))
    )
    if as_it_is:
        write_value(out, value, depth)
    elif kind in {FIELDS, NAMED} and isinstance(value, Mapping):
        write_value(out, symbolic_keys(value), depth)
    elif kind == ANNOTATIONS and isinstance(value, Mapping):
        write_value(out, annotation_keys(value), depth)
    else:
        raise EncodeError(f"{type(value).__name__} is the wrong type")


def symbolic_keys(mapping: Mapping[Any, object]) -> dict[object, object]:
    """Convert the string keys of a map to symbols. Raises EncodeError for other keys."""
    named: dict[object, object] = {}
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise EncodeError(f"a key is a symbol, not {type(key).__name__}")
        named[Symbol(key)] = value
    return named


def annotation_keys(mapping: Mapping[Any, object]) -> dict[object, object]:
    """Convert string keys of a map to symbols, and integers to ulongs. Raises EncodeError for other keys."""
    named: dict[object, object] = {}
    for key, value in mapping.items():
        if isinstance(key, str):
            named[Symbol(key)] = value
        elif isinstance(key, int) and not isinstance(key, bool):
            named[ULong(key)] = value
        else:
            raise EncodeError(f"an annotation's key is a symbol or ulong, not {type(key).__name__}")
    return named


def _write_integer(out: BytesWriter, kind: int, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise EncodeError(f"an integer is needed, not {type(value).__name__}")
    if kind == UINT:
        write_uint(out, value)
    elif kind == ULONG:
        write_ulong(out, value)
    else:
        code = FIXED_CODES[kind]
        out.append(code)
        write_data(out, code, value, 1)


def _write_symbols(out: BytesWriter, values: tuple[object, ...] | list[object]) -> None:
    longest = 0
    for value in values:
        if not isinstance(value, str):
            raise EncodeError(f"a symbol is needed, not {type(value).__name__}")
        longest = max(longest, len(value))
    write_value(out, Array(codes.SYMBOL_8 if longest <= 0xFF else codes.SYMBOL_32, tuple(values)))
