"""Content as the broker stores it: the frames of one message as received, header frame first, never decoded.

    | header frame 2 | body frame 3 | body frame 3 | ...

    header frame:  02 | channel 2 | size 4 | class 2 | weight 2 | body size 8 | flags 2 | values ... | CE
    offset         0    1           3        7         9          11            19        21

`scan` reads the fields that a broker acts on, without making objects. For invalid content, all functions raise
DecodeError and nothing else.
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64, u8

from waybill.wire.amqp091.errors import DecodeError, FrameError, UnexpectedContent
from waybill.wire.amqp091.frames import (
    BASIC_CLASS_ID,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    header_frame,
    write_body_frames,
)
from waybill.wire.amqp091.properties import (
    FLAG_APP_ID,
    FLAG_CONTENT_ENCODING,
    FLAG_CONTENT_TYPE,
    FLAG_CORRELATION_ID,
    FLAG_DELIVERY_MODE,
    FLAG_EXPIRATION,
    FLAG_HEADERS,
    FLAG_MESSAGE_ID,
    FLAG_PRIORITY,
    FLAG_REPLY_TO,
    FLAG_RESERVED,
    FLAG_TIMESTAMP,
    FLAG_TYPE,
    FLAG_USER_ID,
    UNKNOWN_FLAGS,
    BasicProperties,
)
from waybill.wire.amqp091.table_check import check_table

ABSENT: Final = -1
PAYLOAD_OFFSET: Final = 7
BODY_SIZE_OFFSET: Final = 11
PROPERTIES_OFFSET: Final = 19
VALUES_OFFSET: Final = 21

_BEFORE_HEADERS: Final = FLAG_CONTENT_TYPE | FLAG_CONTENT_ENCODING
_CORRELATION: Final = FLAG_CORRELATION_ID | FLAG_REPLY_TO
_AFTER_TIMESTAMP: Final = FLAG_TYPE | FLAG_USER_ID | FLAG_APP_ID | FLAG_RESERVED
_AFTER_PRIORITY: Final = _CORRELATION | FLAG_EXPIRATION | FLAG_MESSAGE_ID | FLAG_TIMESTAMP | _AFTER_TIMESTAMP


class ContentFacts:
    """The result of `scan`, in absolute offsets into the scanned data. One object is reused for all messages.

    `delivery_mode` and `priority` are -1 if absent; `expiration_size` and `headers_size` are -1 likewise, their offsets
    then mean nothing. `headers_offset` is that of the table's own size, which `headers_size` includes, so that
    `decode_table(data, headers_offset)` reads it. `end` is the offset after the header frame.
    """

    def __init__(self) -> None:
        self.body_size: i64 = 0
        self.flags: i64 = 0
        self.delivery_mode: i64 = ABSENT
        self.priority: i64 = ABSENT
        self.expiration_offset: i64 = 0
        self.expiration_size: i64 = ABSENT
        self.headers_offset: i64 = 0
        self.headers_size: i64 = ABSENT
        self.end: i64 = 0

    def expiration(self, data: bytes) -> bytes:
        """The text of the expiration property, empty if absent. `data`: the scanned data."""
        if self.expiration_size <= 0:
            return b""
        return data[self.expiration_offset : self.expiration_offset + self.expiration_size]


def scan(data: bytes, offset: i64, facts: ContentFacts) -> None:
    """Fill `facts` from the content header frame at `offset`. Raises DecodeError; `facts` are undefined then.

    The header table is checked in depth, so that `properties_of` will not fail on what was scanned. Longer than other
    functions, since it runs once a message and calls would cost more than the work.
    """
    end = _header_end(data, offset)
    facts.end = end + 1
    facts.body_size = _body_size(data, offset)
    facts.delivery_mode = ABSENT
    facts.priority = ABSENT
    facts.expiration_size = ABSENT
    facts.headers_size = ABSENT
    flags: i64 = data[offset + PROPERTIES_OFFSET] << 8 | data[offset + PROPERTIES_OFFSET + 1]
    facts.flags = flags
    if flags & UNKNOWN_FLAGS:
        raise DecodeError(f"property flags {flags:#06x} announce properties that class basic does not have")
    o = offset + VALUES_OFFSET
    if flags & _BEFORE_HEADERS:
        if flags & FLAG_CONTENT_TYPE:
            o = _skip_short_string(data, o, end)
        if flags & FLAG_CONTENT_ENCODING:
            o = _skip_short_string(data, o, end)
    if flags & FLAG_HEADERS:
        facts.headers_offset = o
        o = check_table(data, o, end)
        facts.headers_size = o - facts.headers_offset
    if flags & FLAG_DELIVERY_MODE:
        if o >= end:
            raise _truncated(o)
        facts.delivery_mode = data[o]
        o += 1
    if flags & FLAG_PRIORITY:
        if o >= end:
            raise _truncated(o)
        facts.priority = data[o]
        o += 1
    if flags & _AFTER_PRIORITY:
        o = _scan_after_priority(data, o, end, facts)
    if o != end:
        raise DecodeError(f"the property list ends at {o}, its frame's payload at {end}")


def _scan_after_priority(data: bytes, o: i64, end: i64, facts: ContentFacts) -> i64:
    flags = facts.flags
    if flags & FLAG_CORRELATION_ID:
        o = _skip_short_string(data, o, end)
    if flags & FLAG_REPLY_TO:
        o = _skip_short_string(data, o, end)
    if flags & FLAG_EXPIRATION:
        facts.expiration_offset = o + 1
        o = _skip_short_string(data, o, end)
        facts.expiration_size = o - facts.expiration_offset
    if flags & FLAG_MESSAGE_ID:
        o = _skip_short_string(data, o, end)
    if flags & FLAG_TIMESTAMP:
        o += 8
        if o > end:
            raise _truncated(o)
    if flags & FLAG_TYPE:
        o = _skip_short_string(data, o, end)
    if flags & FLAG_USER_ID:
        o = _skip_short_string(data, o, end)
    if flags & FLAG_APP_ID:
        o = _skip_short_string(data, o, end)
    if flags & FLAG_RESERVED:
        o = _skip_short_string(data, o, end)
    return o


def rewrite_channel(content: bytes, channel: i64) -> bytes:
    """The same frames on another channel."""
    high = u8((channel >> 8) & 0xFF)
    low = u8(channel & 0xFF)
    out = BytesWriter()
    out.write(content)
    size: i64 = len(content)
    o: i64 = 0
    while o < size:
        after = _frame_end(content, o)
        out[o + 1] = high
        out[o + 2] = low
        o = after
    return out.getvalue()


def body_of(content: bytes) -> bytes:
    """The body: the joined payloads of all body frames."""
    o = _header_end(content, 0) + 1
    size: i64 = len(content)
    if o == size:
        return b""
    after = _body_frame_end(content, o)
    if after == size:
        return content[o + PAYLOAD_OFFSET : after - 1]
    parts = BytesWriter()
    while True:
        parts.write(content[o + PAYLOAD_OFFSET : after - 1])
        if after == size:
            return parts.getvalue()
        o = after
        after = _body_frame_end(content, o)


def properties_of(content: bytes) -> BasicProperties:
    """The properties, decoded as a whole."""
    return BasicProperties.decode(content, PROPERTIES_OFFSET, _header_end(content, 0))


def channel_of(content: bytes) -> i64:
    """The channel of the header frame, and so of all frames."""
    _header_end(content, 0)
    return content[1] << 8 | content[2]


def refragment(content: bytes, frame_max: i64) -> bytes:
    """Content whose body frames fit `frame_max` (0: no limit): `content` itself if they do, else new frames."""
    header_end = _header_end(content, 0) + 1
    size: i64 = len(content)
    fits = True
    o = header_end
    while o < size:
        after = _body_frame_end(content, o)
        if frame_max and after - o > frame_max:
            fits = False
        o = after
    return content if fits else joined(content, frame_max)


def joined(content: bytes, frame_max: i64) -> bytes:
    """The same content, its body in as few frames as `frame_max` (0: no limit) allows."""
    header_end = _header_end(content, 0) + 1
    out = BytesWriter()
    out.write(content[:header_end])
    write_body_frames(out, channel_of(content), body_of(content), frame_max)
    return out.getvalue()


def with_properties(content: bytes, properties: BasicProperties | bytes) -> bytes:
    """The same body on the same channel under other properties, encoded or not. Raises EncodeError besides."""
    header_end = _header_end(content, 0) + 1
    return header_frame(channel_of(content), _body_size(content, 0), properties) + content[header_end:]


def _header_end(data: bytes, offset: i64) -> i64:
    """Check the frame of a content header of class basic; the offset of its end octet."""
    after = _frame_end(data, offset)
    if data[offset] != FRAME_HEADER:
        raise FrameError(f"a content header frame is needed, not type {data[offset]}")
    end = after - 1
    if end < offset + VALUES_OFFSET:
        raise DecodeError("a content header without room for its fields")
    # The weight is unused (4.2.6.1) and, as in RabbitMQ, not checked.
    class_id: i64 = data[offset + PAYLOAD_OFFSET] << 8 | data[offset + PAYLOAD_OFFSET + 1]
    if class_id != BASIC_CLASS_ID:
        raise UnexpectedContent(f"content of class {class_id}, where only class {BASIC_CLASS_ID} has content")
    return end


def _body_size(data: bytes, offset: i64) -> i64:
    size = read_i64_be(data, offset + BODY_SIZE_OFFSET)
    if size < 0:
        raise DecodeError("a body of 2^63 octets or more")
    return size


def _body_frame_end(data: bytes, offset: i64) -> i64:
    after = _frame_end(data, offset)
    if data[offset] != FRAME_BODY:
        raise FrameError(f"a body frame is needed, not type {data[offset]}")
    return after


def _frame_end(data: bytes, offset: i64) -> i64:
    """Check that a whole frame is at `offset`; the offset after it."""
    size: i64 = len(data)
    if offset < 0 or offset + FRAME_OVERHEAD > size:
        raise FrameError("a frame is cut off")
    # The size field, and the octet after it, are the end of eight octets from the frame's first.
    after = offset + FRAME_OVERHEAD + (read_i64_be(data, offset) >> 8 & 0xFFFFFFFF)
    if after > size or data[after - 1] != FRAME_END:
        raise FrameError("a frame is cut off or has no end octet")
    return after


def _skip_short_string(data: bytes, o: i64, end: i64) -> i64:
    if o < end:
        o += 1 + data[o]
        if o <= end:
            return o
    raise _truncated(o)


def _truncated(o: i64) -> DecodeError:
    return DecodeError(f"the property list is cut off at {o}")
