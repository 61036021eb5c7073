"""How a method's arguments are declared, encoded and decoded (0-9-1, 4.2.4 and 4.2.5).

A declaration is the spec's own line: names and types in wire order, `-` for a reserved one, which is written empty
and not read. Consecutive bits share octets, the first one in the lowest bit:

    "-:short queue:shortstr no_ack:bit"   ->   00 00 | len queue | 0000000a
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp091.errors import EncodeError
from waybill.wire.amqp091.field_table import encode_table, read_table
from waybill.wire.amqp091.octets import Reader, text_octets, write_long_octets, write_short_string, write_unsigned

RESERVED: Final = "-"
BITS_AN_OCTET: Final = 8

BIT: Final = 0
OCTET: Final = 1
SHORT: Final = 2
LONG: Final = 3
LONGLONG: Final = 4
SHORT_STRING: Final = 5
LONG_STRING: Final = 6
LONG_OCTETS: Final = 7
TABLE: Final = 8

KINDS: Final[dict[str, int]] = {
    "bit": BIT,
    "octet": OCTET,
    "short": SHORT,
    "long": LONG,
    "longlong": LONGLONG,
    "shortstr": SHORT_STRING,
    "longstr": LONG_STRING,
    "octets": LONG_OCTETS,
    "table": TABLE,
}
"""Names in declarations. `longstr` is text; `octets` has the same encoding, for binary values (SASL responses)."""

EMPTY: Final[dict[int, object]] = {
    BIT: False,
    OCTET: 0,
    SHORT: 0,
    LONG: 0,
    LONGLONG: 0,
    SHORT_STRING: "",
    LONG_STRING: "",
    LONG_OCTETS: b"",
    TABLE: {},
}

INTEGER_SIZES: Final[dict[int, int]] = {OCTET: 1, SHORT: 2, LONG: 4, LONGLONG: 8}


class Arguments:
    """The declared arguments of one method: `names` and `kinds` in wire order."""

    def __init__(self, declaration: str = "") -> None:
        """Read a declaration: `name:type` pairs with spaces between them."""
        pairs = [pair.split(":") for pair in declaration.split()]
        self.names: list[str] = [pair[0] for pair in pairs]
        self.kinds: list[int] = [KINDS[pair[1]] for pair in pairs]

    def encode(self, out: BytesWriter, method: object) -> None:
        """Write the arguments that are attributes of `method`. Raises EncodeError, which names the argument."""
        bits: i64 = 0
        bit: i64 = 1
        bit_count: i64 = 0
        for index in range(len(self.names)):
            name = self.names[index]
            kind = self.kinds[index]
            value: object = EMPTY[kind] if name == RESERVED else getattr(method, name)
            if kind == BIT:
                if value:
                    bits |= bit
                bit_count += 1
                bit += bit
            if bit_count == BITS_AN_OCTET or (bit_count and kind != BIT):
                out.append(bits)
                bits = 0
                bit = 1
                bit_count = 0
            if kind != BIT:
                _write(out, name, kind, value)
        if bit_count:
            out.append(bits)

    def decode(self, reader: Reader) -> list[object]:
        """Read all arguments, up to the reader's end, in wire order, without reserved ones. Raises DecodeError."""
        values: list[object] = []
        bits: i64 = 0
        bit_count: i64 = 0
        for index in range(len(self.names)):
            kind = self.kinds[index]
            value: object
            if kind == BIT:
                if bit_count == 0:
                    bits = reader.u8()
                value = (bits >> bit_count) & 1 == 1
                bit_count = (bit_count + 1) & 7
            else:
                bit_count = 0
                value = _read(reader, kind)
            if self.names[index] != RESERVED:
                values.append(value)
        reader.finish()
        return values


def _write(out: BytesWriter, name: str, kind: int, value: object) -> None:
    try:
        if kind == SHORT_STRING:
            write_short_string(out, value)
        elif kind == TABLE:
            out.write(encode_table(value))
        elif kind in {LONG_STRING, LONG_OCTETS}:
            write_long_octets(out, text_octets(value))
        else:
            write_unsigned(out, value, INTEGER_SIZES[kind])
    except EncodeError as error:
        raise EncodeError(f"{name}: {error}") from None


def _read(reader: Reader, kind: int) -> object:
    if kind == SHORT_STRING:
        return reader.short_string()
    if kind == TABLE:
        return read_table(reader)
    if kind == LONGLONG:
        return reader.u64()
    if kind == LONG:
        return reader.u32()
    if kind == SHORT:
        return reader.u16()
    if kind == OCTET:
        return reader.u8()
    if kind == LONG_STRING:
        return reader.long_string()
    return reader.long_octets()
