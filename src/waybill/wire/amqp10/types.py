"""The AMQP types in Python (1.0, 1.6), as decoding returns and encoding accepts them.

| AMQP | Python | AMQP | Python |
|---|---|---|---|
| null | None | string | str |
| boolean | bool | symbol | Symbol |
| ubyte ushort uint ulong | UByte UShort UInt ULong | binary | bytes |
| byte short int | Byte Short Int | uuid | Uuid |
| long | int | timestamp | Timestamp |
| float | Float | char | Char |
| double | float | list | list |
| decimal32 64 128 | Decimal32 Decimal64 Decimal128 | map | dict, or OddMap where a dict cannot hold it |
| described | Described | array | Array |

Wrappers are subclasses of int, float, str and bytes and behave like these: UInt(5) == 5. Encoding checks their ranges.
"""

from dataclasses import dataclass

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=False)
class Symbol(str):
    """A name from a constrained domain: ASCII."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Char(str):
    """One Unicode character."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class UByte(int):
    """0 to 255."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class UShort(int):
    """0 to 65,535."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class UInt(int):
    """0 to 2^32 - 1."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class ULong(int):
    """0 to 2^64 - 1."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Byte(int):
    """-128 to 127."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Short(int):
    """-32,768 to 32,767."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Int(int):
    """-2^31 to 2^31 - 1."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Timestamp(int):
    """Milliseconds since 1970 in UTC, a signed 64-bit integer."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Float(float):
    """An IEEE 754 number of 32 bits. Encoding rounds it."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Uuid(bytes):
    """The 16 octets of a universally unique id."""

    __slots__ = ()

    def __str__(self) -> str:
        """The usual text: 8-4-4-4-12 hexadecimal digits."""
        text = self.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@mypyc_attr(native_class=False)
class Decimal32(bytes):
    """The 4 octets of an IEEE 754 decimal. Arithmetic is not supported."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Decimal64(bytes):
    """The 8 octets of an IEEE 754 decimal."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Decimal128(bytes):
    """The 16 octets of an IEEE 754 decimal."""

    __slots__ = ()


@dataclass(frozen=True)
class Described:
    """A value with a descriptor. The specification uses ULong and Symbol, and reserves other descriptors."""

    # `| None` says nothing to the type checker, but mypyc 2.4 has no `object` for the annotations of a dataclass.
    descriptor: object | None
    value: object | None


@dataclass(frozen=True)
class Array:
    """Values of one type. `code`: the format code of all items. `descriptors`: those before it, outermost first.

    The items of an array of described types are the bare values, without their common descriptors.
    """

    code: int
    items: tuple[object, ...] = ()
    descriptors: tuple[object, ...] = ()


@dataclass(frozen=True)
class OddMap:
    """A map that a dict cannot represent: keys that are not hashable, or equal in Python and different in AMQP."""

    pairs: tuple[tuple[object, object], ...]
