"""The AMQP types in Python, as decoding returns and encoding accepts them.

| AMQP | Python | AMQP | Python |
|---|---|---|---|
| void | None | str8 str16 str8-latin str16-latin str8-utf16 str16-utf16 | str, encoded as str16 |
| boolean, bit | bool | vbin8 vbin16 vbin32 | bytes, encoded as vbin32 |
| uint8 uint16 uint32 uint64 | UByte UShort UInt ULong | char-utf32 | Char |
| int8 int16 int32 | Byte Short Int | uuid | Uuid |
| int64 | int | datetime | Datetime |
| float | Float | map | dict |
| double | float | list | list |
| sequence-set | tuple of pairs | array | Array |
| struct32 | the class of the struct | all others | Typed |

The wrappers of numbers are those of AMQP 1.0: subclasses of int and float that keep their width.
"""

from dataclasses import dataclass

from mypy_extensions import mypyc_attr

Ranges = tuple[tuple[int, int], ...]
"""Ranges of a sequence-set: the first and the last number of each, both included."""


@mypyc_attr(native_class=False)
class Datetime(int):
    """Seconds since 1970 in UTC: 64 bits, without a sign."""

    __slots__ = ()


@dataclass(frozen=True)
class Typed:
    """A value of a type without a counterpart in Python, or of one that the specification does not know.

    `octets` is without the size that the type has before it.
    """

    code: int
    octets: bytes


@dataclass(frozen=True)
class Array:
    """Values of one type, with its code."""

    code: int
    items: tuple[object, ...] = ()
