"""The header segment of message.transfer: structs behind their size and code, in any order, each at most once.

    | size u32 | code u16 | flags u16 | fields |   delivery-properties 0x0401, message-properties 0x0403, others

The broker reads the fields that it needs to route and store a message, and checks the rest without creating objects.
For a consumer, it writes delivery-properties again; everything else is unchanged.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be
from mypy_extensions import i64

from waybill.wire.amqp010.class_message import DeliveryProperties, FragmentProperties, MessageProperties
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.octets import Reader, write_text, write_unsigned
from waybill.wire.amqp010.struct import Struct
from waybill.wire.amqp010.value_check import check_map
from waybill.wire.amqp010.values import Decoder

ABSENT: Final = -1
DELIVERY_PROPERTIES: Final = 0x0401
FRAGMENT_PROPERTIES: Final = 0x0402
MESSAGE_PROPERTIES: Final = 0x0403

# Flags of delivery-properties: the first octet, then the second one.
DISCARD_UNROUTABLE: Final = 0x0100
IMMEDIATE: Final = 0x0200
REDELIVERED: Final = 0x0400
PRIORITY: Final = 0x0800
DELIVERY_MODE: Final = 0x1000
TTL: Final = 0x2000
TIMESTAMP: Final = 0x4000
EXPIRATION: Final = 0x8000
EXCHANGE: Final = 0x0001
ROUTING_KEY: Final = 0x0002
RESUME_ID: Final = 0x0004
RESUME_TTL: Final = 0x0008
_DELIVERY_FLAGS: Final = 0xFF0F

# Flags of message-properties.
CONTENT_LENGTH: Final = 0x0100
MESSAGE_ID: Final = 0x0200
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0800
CONTENT_TYPE: Final = 0x1000
CONTENT_ENCODING: Final = 0x2000
USER_ID: Final = 0x4000
APP_ID: Final = 0x8000
APPLICATION_HEADERS: Final = 0x0001
_MESSAGE_FLAGS: Final = 0xFF01

_MAX_I64: Final = 0x7FFFFFFFFFFFFFFF
_STRUCT: Final = (Struct,)


class HeaderFacts:
    """The fields of a header segment that the broker needs. One object is reused for all.

    Numbers are ABSENT if the peer did not give them; times are capped at 63 bits. `delivery` and
    `delivery_end` frame the whole struct of delivery-properties; `headers` and `headers_end` the map of
    application-headers, size included.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all fields."""
        self.discard_unroutable = False
        self.immediate = False
        self.redelivered = False
        self.priority: i64 = ABSENT
        self.delivery_mode: i64 = ABSENT
        self.ttl_ms: i64 = ABSENT
        self.timestamp: i64 = ABSENT
        self.expiration: i64 = ABSENT
        self.exchange = ""
        self.routing_key = ""
        self.delivery: i64 = ABSENT
        self.delivery_end: i64 = ABSENT
        self.properties: i64 = ABSENT
        self.properties_end: i64 = ABSENT
        self.headers: i64 = ABSENT
        self.headers_end: i64 = ABSENT
        self.content_length: i64 = ABSENT
        self.user_id: bytes | None = None


def scan_header(data: bytes, facts: HeaderFacts, offset: i64 = 0, end: i64 = -1) -> None:
    """Fill `facts` from the header segment `data[offset:end]`. Raises DecodeError, also for fields not in `facts`."""
    facts.clear()
    limit: i64 = len(data) if end == -1 else end
    fragment: i64 = ABSENT
    while offset < limit:
        if limit - offset < 6:
            raise DecodeError("a struct of a header is cut off")
        size = i64(read_i32_be(data, offset)) & 0xFFFFFFFF
        start = offset + 4
        if size < 2 or size > limit - start:
            raise DecodeError(f"a struct of {size} octets, {limit - start} left")
        code: i64 = data[start] << 8 | data[start + 1]
        after = start + size
        if code == DELIVERY_PROPERTIES:
            if facts.delivery != ABSENT:
                raise DecodeError("two structs of delivery-properties")
            facts.delivery = offset
            facts.delivery_end = after
            _scan_delivery(Reader(data, start + 2, after), facts)
        elif code == MESSAGE_PROPERTIES:
            if facts.properties != ABSENT:
                raise DecodeError("two structs of message-properties")
            facts.properties = offset
            facts.properties_end = after
            _scan_properties(Reader(data, start + 2, after), facts)
        elif code == FRAGMENT_PROPERTIES:
            if fragment != ABSENT:
                raise DecodeError("two structs of fragment-properties")
            fragment = offset
        offset = after


def _scan_delivery(reader: Reader, facts: HeaderFacts) -> None:
    flags = reader.u16()
    if flags & ~_DELIVERY_FLAGS:
        raise DecodeError(f"delivery-properties with the flags {flags:#06x}")
    facts.discard_unroutable = flags & DISCARD_UNROUTABLE != 0
    facts.immediate = flags & IMMEDIATE != 0
    facts.redelivered = flags & REDELIVERED != 0
    if flags & PRIORITY:
        facts.priority = reader.u8()
    if flags & DELIVERY_MODE:
        facts.delivery_mode = reader.u8()
    if flags & TTL:
        facts.ttl_ms = _limited(reader)
    if flags & TIMESTAMP:
        facts.timestamp = _limited(reader)
    if flags & EXPIRATION:
        facts.expiration = _limited(reader)
    if flags & EXCHANGE:
        facts.exchange = reader.text(1)
    if flags & ROUTING_KEY:
        facts.routing_key = reader.text(1)
    if flags & RESUME_ID:
        reader.text(2)
    if flags & RESUME_TTL:
        reader.take(8)
    reader.finish()


def _scan_properties(reader: Reader, facts: HeaderFacts) -> None:
    flags = reader.u16()
    if flags & ~_MESSAGE_FLAGS:
        raise DecodeError(f"message-properties with the flags {flags:#06x}")
    if flags & CONTENT_LENGTH:
        facts.content_length = _limited(reader)
    if flags & MESSAGE_ID:
        reader.take(16)
    if flags & CORRELATION_ID:
        reader.take(reader.u16())
    if flags & REPLY_TO:
        _check_reply_to(reader)
    if flags & CONTENT_TYPE:
        reader.text(1)
    if flags & CONTENT_ENCODING:
        reader.text(1)
    if flags & USER_ID:
        facts.user_id = reader.octets(reader.u16())
    if flags & APP_ID:
        reader.take(reader.u16())
    if flags & APPLICATION_HEADERS:
        facts.headers = reader.offset
        check_map(reader)
        facts.headers_end = reader.offset
    reader.finish()


def _check_reply_to(reader: Reader) -> None:
    outer_end = reader.enter(reader.u16())
    flags = reader.u16()
    if flags & ~0x0300:
        raise DecodeError(f"reply-to with the flags {flags:#06x}")
    if flags & 0x0100:
        reader.text(1)
    if flags & 0x0200:
        reader.text(1)
    reader.leave(outer_end)


def _limited(reader: Reader) -> i64:
    value = read_i64_be(reader.data, reader.take(8))
    return _MAX_I64 if value < 0 else value


def delivered_header(
    data: bytes, facts: HeaderFacts, exchange: str, routing_key: str, ttl_ms: i64, *, redelivered: bool, end: i64
) -> bytes:
    """The header segment for a consumer: delivery-properties with these values, then all other structs unchanged.

    `facts` are those of `data[:end]`, of all of it if `end` is -1; `ttl_ms` is the time left, ABSENT for none.
    """
    out = BytesWriter()
    write_delivery_properties(out, facts, exchange, routing_key, ttl_ms, redelivered=redelivered)
    limit: i64 = len(data) if end == -1 else end
    if facts.delivery == ABSENT:
        out.write(data[:limit])
    else:
        out.write(data[: facts.delivery])
        out.write(data[facts.delivery_end : limit])
    return out.getvalue()


def write_delivery_properties(
    out: BytesWriter, facts: HeaderFacts, exchange: str, routing_key: str, ttl_ms: i64, *, redelivered: bool
) -> None:
    """Write delivery-properties as a server gives them to a consumer. Raises EncodeError if a name is too long."""
    body = BytesWriter()
    flags: i64 = EXCHANGE | ROUTING_KEY
    if redelivered:
        flags |= REDELIVERED
    if facts.priority != ABSENT:
        flags |= PRIORITY
        body.append(facts.priority & 0xFF)
    if facts.delivery_mode != ABSENT:
        flags |= DELIVERY_MODE
        body.append(facts.delivery_mode & 0xFF)
    if ttl_ms != ABSENT:
        flags |= TTL
        write_unsigned(body, int(ttl_ms), 8)
    if facts.timestamp != ABSENT:
        flags |= TIMESTAMP
        write_unsigned(body, int(facts.timestamp), 8)
    if facts.expiration != ABSENT:
        flags |= EXPIRATION
        write_unsigned(body, int(facts.expiration), 8)
    write_text(body, exchange, 1)
    write_text(body, routing_key, 1)
    fields = body.getvalue()
    write_unsigned(out, len(fields) + 4, 4)
    write_unsigned(out, DELIVERY_PROPERTIES, 2)
    out.append(flags >> 8 & 0xFF)
    out.append(flags & 0xFF)
    out.write(fields)


class MessageHeader:
    """A decoded header segment. `others` are unknown structs."""

    def __init__(self) -> None:
        self.delivery: DeliveryProperties | None = None
        self.fragment: FragmentProperties | None = None
        self.properties: MessageProperties | None = None
        self.others: list[object] = []


def decode_header(data: bytes) -> MessageHeader:
    """Decode a header segment. Raises DecodeError."""
    found = MessageHeader()
    decoder = Decoder(data, 0, len(data))
    while decoder.reader.offset < decoder.reader.end:
        one = decoder.struct32(1)
        name = one.NAME if isinstance(one, _STRUCT) else ""
        if name == DeliveryProperties.NAME and found.delivery is None:
            found.delivery = one  # type: ignore[assignment] # the name says what it is
        elif name == MessageProperties.NAME and found.properties is None:
            found.properties = one  # type: ignore[assignment]
        elif name == FragmentProperties.NAME and found.fragment is None:
            found.fragment = one  # type: ignore[assignment]
        elif name in {DeliveryProperties.NAME, MessageProperties.NAME, FragmentProperties.NAME}:
            raise DecodeError(f"two structs of {name}")
        else:
            found.others.append(one)
    return found


def encode_header(*structs: Struct) -> bytes:
    """A header segment of these structs. Raises EncodeError."""
    out = BytesWriter()
    for one in structs:
        one.write_struct32(out, 1)
    return out.getvalue()
