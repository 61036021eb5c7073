"""Reads and replaces some fields of an encoded field table (0-9-1, 4.2.5.5) without decoding the others.

The table must have passed `check_table`.
"""

from collections.abc import Collection

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64

from waybill.wire.amqp091.field_table import decode_table, encode_table
from waybill.wire.amqp091.octets import text_octets
from waybill.wire.amqp091.table_check import SIZE_OCTETS, SIZED, WIDTHS, check_table


def some_fields(data: bytes, offset: i64, names: Collection[str]) -> dict[str, object]:
    """The fields of these names in the table at `offset`. If a name is repeated, the last value counts."""
    wanted = {text_octets(name) for name in names}
    found = BytesWriter()
    o = offset + SIZE_OCTETS
    end = _sized_end(data, offset)
    while o < end:
        after = _field_end(data, o)
        if data[o + 1 : o + 1 + data[o]] in wanted:
            found.write(data[o:after])
        o = after
    return decode_table(_table(found.getvalue()), 0)[0]


def edited_table(data: bytes, offset: i64, removed: Collection[str], added: dict[str, object]) -> bytes:
    """The table at `offset` with fields removed and others added at its end, in the place of those of their names.

    Raises EncodeError for values that cannot be encoded, and DecodeError for more values than a table may have.
    """
    unwanted = {text_octets(name) for name in [*removed, *added]}
    fields = BytesWriter()
    o = kept = offset + SIZE_OCTETS
    end = _sized_end(data, offset)
    while o < end:
        after = _field_end(data, o)
        if data[o + 1 : o + 1 + data[o]] in unwanted:
            fields.write(data[kept:o])
            kept = after
        o = after
    fields.write(data[kept:end])
    fields.write(encode_table(added)[SIZE_OCTETS:])
    table = _table(fields.getvalue())
    check_table(table, 0, len(table))
    return table


def _table(fields: bytes) -> bytes:
    return len(fields).to_bytes(SIZE_OCTETS, "big") + fields


def _field_end(data: bytes, offset: i64) -> i64:
    value = offset + 2 + data[offset]
    width: i64 = WIDTHS[data[value - 1]]
    return _sized_end(data, value) if width == SIZED else value + width


def _sized_end(data: bytes, offset: i64) -> i64:
    return offset + SIZE_OCTETS + (i64(read_i32_be(data, offset)) & 0xFFFFFFFF)
