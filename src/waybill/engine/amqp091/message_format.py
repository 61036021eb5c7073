"""The format of messages that came over AMQP 0-9-1, and the header that streams and quorum queues add."""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i64, u8

from waybill.model.death_headers import DEATHS
from waybill.model.message import MessageFormat
from waybill.wire.amqp091.content import (
    BODY_SIZE_OFFSET,
    VALUES_OFFSET,
    ContentFacts,
    properties_of,
    refragment,
    scan,
    with_properties,
)
from waybill.wire.amqp091.field_table import EncodedField, encode_table, unix_seconds
from waybill.wire.amqp091.frames import FRAME_OVERHEAD
from waybill.wire.amqp091.properties import FLAG_EXPIRATION, FLAG_HEADERS
from waybill.wire.amqp091.table_edit import edited_table, some_fields

FORMAT_CODE: Final = 1
_TYPE_LONG_LONG: Final = ord("l")
_DEATHS: Final = [DEATHS]
_ADDED: Final = [
    *[f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")],
    "x-delivery-count",
    "x-stream-offset",
]


class Amqp091Format(MessageFormat):
    """Content frames, header frame first, as `wire.amqp091.content` has them."""

    def __init__(self) -> None:
        super().__init__(FORMAT_CODE, "AMQP 0-9-1")

    def headers(self, content: bytes) -> dict[str, object]:
        return properties_of(content).headers or {}

    def some_headers(self, content: bytes, names: list[str]) -> dict[str, object]:
        facts = ContentFacts()
        scan(content, 0, facts)
        return some_fields(content, facts.headers_offset, names) if facts.headers_size >= 0 else {}

    def property_text(self, content: bytes, name: str) -> str:
        properties = properties_of(content)
        if name == "timestamp":
            return "" if properties.timestamp is None else str(unix_seconds(properties.timestamp))
        return (properties.message_id if name == "message_id" else properties.correlation_id) or ""

    def body_size(self, content: bytes) -> i64:
        return read_i64_be(content, BODY_SIZE_OFFSET)

    def with_headers(
        self, content: bytes, changes: dict[str, object], removed: list[str], *, keep_expiration: bool
    ) -> bytes:
        if DEATHS in changes:
            changes = changes | {DEATHS: _with_long_counts(changes[DEATHS])}
        facts = ContentFacts()
        scan(content, 0, facts)
        flags = facts.flags | FLAG_HEADERS
        values = BytesWriter()
        if facts.headers_size >= 0:
            rest = facts.headers_offset + facts.headers_size
            values.write(content[VALUES_OFFSET : facts.headers_offset])
            values.write(edited_table(content, facts.headers_offset, removed, changes))
        else:
            rest = _headers_position(content, facts.flags)
            values.write(content[VALUES_OFFSET:rest])
            values.write(encode_table(changes))
        if facts.expiration_size >= 0 and not keep_expiration:
            flags ^= FLAG_EXPIRATION
            values.write(content[rest : facts.expiration_offset - 1])
            rest = facts.expiration_offset + facts.expiration_size
        values.write(content[rest : facts.end - 1])
        return with_properties(content, int(flags).to_bytes(2, "big") + values.getvalue())


AMQP091: Final = Amqp091Format()


def _with_long_counts(deaths: object) -> object:
    """The record of deaths with each count in 64 bits, as in RabbitMQ: typed clients (Java) rely on it."""
    if not isinstance(deaths, list):
        return deaths
    return [
        death | {"count": EncodedField(_TYPE_LONG_LONG, count.to_bytes(8, "big", signed=True))}
        if isinstance(death, dict) and isinstance(count := death.get("count"), int)
        else death
        for death in deaths
    ]


def fitted(content: bytes, frame_max: i64) -> bytes:
    """`content` in frames of at most `frame_max` octets.

    A header frame cannot be divided (4.2.6.1). If it has grown beyond the limit, headers added by brokers are dropped,
    the record of deaths first. If it was published larger than this consumer's frames, it is sent unchanged, as in
    RabbitMQ.
    """
    if _header_frame_size(content) > frame_max:
        for names in (_DEATHS, _DEATHS + _ADDED):
            less = AMQP091.with_headers(content, {}, names, keep_expiration=True)
            if _header_frame_size(less) <= frame_max:
                content = less
                break
    return refragment(content, frame_max)


def _header_frame_size(content: bytes) -> i64:
    return (read_i64_be(content, 0) >> 8 & 0xFFFFFFFF) + FRAME_OVERHEAD


def with_integer_header(content: bytes, facts: ContentFacts, name: bytes, value: i64) -> bytes:
    """`content` with one more header, a 64-bit integer. `facts` is scratch space.

    It is inserted after the existing headers without decoding them, since a stream does this for each delivery. A
    header of that name set by the publisher stays before it; readers of tables use the last one.
    """
    scan(content, 0, facts)
    field = BytesWriter()
    field.append(len(name))
    field.write(name)
    field.append(_TYPE_LONG_LONG)
    write_i64_be(field, value)
    added = field.getvalue()
    out = BytesWriter()
    header_end = facts.end
    if facts.headers_size >= 0:
        table = facts.headers_offset
        table_end = table + facts.headers_size
        out.write(content[:table])
        write_i32_be(out, read_i32_be(content, table) + len(added))
        out.write(content[table + 4 : table_end])
        out.write(added)
        out.write(content[table_end:])
        growth: i64 = len(added)
    else:
        values = _headers_position(content, facts.flags)
        out.write(content[:values])
        write_i32_be(out, len(added))
        out.write(added)
        out.write(content[values:])
        growth = len(added) + 4
        flags = facts.flags | FLAG_HEADERS
        out[19] = u8(flags >> 8 & 0xFF)
        out[20] = u8(flags & 0xFF)
    payload_size = header_end - 8 + growth
    out[3] = u8(payload_size >> 24 & 0xFF)
    out[4] = u8(payload_size >> 16 & 0xFF)
    out[5] = u8(payload_size >> 8 & 0xFF)
    out[6] = u8(payload_size & 0xFF)
    return out.getvalue()


def _headers_position(content: bytes, flags: i64) -> i64:
    """Where the headers table is or would be: after content type and content encoding."""
    position: i64 = 21
    if flags & 0x8000:
        position += 1 + i64(content[position])
    if flags & 0x4000:
        position += 1 + i64(content[position])
    return position
