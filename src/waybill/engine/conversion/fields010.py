"""Values of 0-10's application-headers as values of 1.0, and back, type by type.

| 0-10 | 1.0 | | 0-10 | 1.0 |
|---|---|---|---|---|
| boolean | boolean | | str16 | string; symbol and char-utf32 too |
| uint8 uint16 uint32 uint64 | ubyte ushort uint ulong | | vbin32 | binary; decimals too |
| int8 int16 int32 int64 | byte short int long | | datetime | timestamp; from the year 292278994 on, ulong |
| float, double | float, double | | list | list; array too |
| uuid | uuid | | map | map |
| void | null | | others | binary |
"""

from typing import Final

from waybill.wire.amqp010.struct import Struct
from waybill.wire.amqp010.types import Array as Array010
from waybill.wire.amqp010.types import Datetime, Typed
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import EncodeError
from waybill.wire.amqp10.types import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Int,
    OddMap,
    Short,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)

_MAX_MS: Final = 2**63 - 1
_TEXT_MAX: Final = 0xFFFF
_KEY_MAX: Final = 255
_EXACT: Final[frozenset[type]] = frozenset(
    {bool, int, float, Byte, Short, Int, UByte, UShort, UInt, ULong, Float, Uuid, Char, type(None)}
)
_STRUCT: Final = (Struct,)


def canonical_value(value: object) -> object:
    """A decoded value of 0-10 as one of 1.0."""
    if isinstance(value, Datetime):
        seconds = int(value)
        return Timestamp(seconds * 1000) if seconds * 1000 <= _MAX_MS else ULong(seconds)
    if isinstance(value, Typed):
        return value.octets
    if isinstance(value, Array010):
        return [canonical_value(item) for item in value.items]
    if isinstance(value, (list, tuple)):
        return [canonical_value(item) for item in value]
    if isinstance(value, dict):
        return {key: canonical_value(item) for key, item in value.items()}
    if isinstance(value, _STRUCT):
        return {
            name: canonical_value(getattr(value, name))
            for name in value.FIELDS.names
            if getattr(value, name) is not None
        }
    return value


def shown_value(value: object) -> tuple[object, bool]:
    """The nearest value that 0-10 has, and whether `canonical_value` makes the same of it again. Never raises."""
    if type(value) in _EXACT:
        return value, True
    if type(value) is str:
        size = len(value.encode("utf-8", "surrogatepass"))
        return (value, True) if size <= _TEXT_MAX else (value.encode("utf-8", "surrogatepass"), False)
    if isinstance(value, str):
        return str(value), False
    if isinstance(value, Timestamp):
        milliseconds = int(value)
        if milliseconds < 0:
            return milliseconds, False
        return Datetime(milliseconds // 1000), milliseconds % 1000 == 0
    if isinstance(value, bytes):
        return bytes(value), type(value) is bytes
    return _shown_compound(value)


def _shown_compound(value: object) -> tuple[object, bool]:
    if isinstance(value, Described):
        return shown_value(value.value)[0], False
    if isinstance(value, Array):
        return [shown_value(item)[0] for item in value.items], False
    if isinstance(value, OddMap):
        return {_key(key): shown_value(item)[0] for key, item in value.pairs}, False
    is_exact = True
    if isinstance(value, dict):
        shown_map: dict[str, object] = {}
        for key, item in value.items():
            shown, item_is_exact = shown_value(item)
            is_exact = is_exact and item_is_exact and type(key) is str and len(key.encode()) <= _KEY_MAX
            shown_map[_key(key)] = shown
        return shown_map, is_exact
    if isinstance(value, (list, tuple)):
        items: list[object] = []
        for item in value:
            shown, item_is_exact = shown_value(item)
            is_exact = is_exact and item_is_exact
            items.append(shown)
        return items, is_exact
    return str(value), False


def _key(key: object) -> str:
    text = key.decode("utf-8", "replace") if type(key) is bytes else str(key)
    return text if len(text.encode("utf-8", "replace")) <= _KEY_MAX else text[: _KEY_MAX // 4]


def is_same(one: object, other: object) -> bool:
    """Whether two values are the same, with their types. `one` may have those of 0-10."""
    try:
        return encode_value(canonical_value(one)) == encode_value(other)
    except EncodeError:
        return False
