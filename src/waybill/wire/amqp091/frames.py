"""Parses and builds frames (0-9-1, 4.2.3).

    octet 0   1         3              7              7 + size
    | type    | channel | payload size | payload ...  | frame-end CE |
    | octet   | short   | long         |              | octet        |

A content header frame's payload (4.2.6.1) is class id and weight (shorts), body size (longlong), flags and values.
`frame_max` counts a whole frame, header and end octet included; 0 is no limit.
"""

from dataclasses import dataclass
from typing import Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64

from waybill.wire.amqp091.errors import EncodeError, FrameError
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.octets import write_unsigned
from waybill.wire.amqp091.properties import BasicProperties

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE

FRAME_HEAD_SIZE: Final = 7
FRAME_OVERHEAD: Final = 8
"""Octets of a frame that are not payload."""

FRAME_MIN_SIZE: Final = 4096
"""The smallest `frame_max` that peers may negotiate (4.2.3)."""

BASIC_CLASS_ID: Final = 60

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
"""As in errata 12 and 29: type 8, and a size like every frame."""


@dataclass(frozen=True)
class Frame:
    """One frame. `type` is one of FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT."""

    type: int
    channel: int
    payload: bytes


def parse_frame(data: bytes, offset: i64, frame_max: i64) -> tuple[Frame, int] | None:
    """Parse the frame at `offset`. Returns it and the offset after it; None if it is incomplete.

    Raises FrameError as soon as the octets show that it is malformed: unknown type, too large, no end octet.
    """
    available = len(data) - offset
    if available <= 0:
        return None
    kind = data[offset]
    if kind != FRAME_METHOD and kind != FRAME_HEADER and kind != FRAME_BODY and kind != FRAME_HEARTBEAT:  # noqa: PLR1714 - native integers
        raise FrameError(f"unknown frame type {kind}")
    if available < FRAME_HEAD_SIZE:
        return None
    size = i64(read_i32_be(data, offset + 3)) & 0xFFFFFFFF
    if frame_max and size > frame_max - FRAME_OVERHEAD:
        raise FrameError(f"a frame of {size + FRAME_OVERHEAD} octets where {frame_max} are allowed")
    if available < size + FRAME_OVERHEAD:
        return None
    start = offset + FRAME_HEAD_SIZE
    end = start + size
    if data[end] != FRAME_END:
        raise FrameError(f"a frame ends with {data[end]:#04x}")
    channel = data[offset + 1] << 8 | data[offset + 2]
    return Frame(kind, channel, data[start:end]), end + 1


def method_frame(channel: int, method: Method) -> bytes:
    """A whole method frame. Raises EncodeError."""
    return frame(FRAME_METHOD, channel, method.encode())


def header_frame(channel: int, body_size: int, properties: BasicProperties | bytes) -> bytes:
    """A content header frame for a body of `body_size` octets; encoded properties may be given. Raises EncodeError."""
    encoded = properties if isinstance(properties, bytes) else properties.encode()
    payload = BytesWriter()
    write_unsigned(payload, BASIC_CLASS_ID, 2)
    write_unsigned(payload, 0, 2)
    write_unsigned(payload, body_size, 8)
    payload.write(encoded)
    return frame(FRAME_HEADER, channel, payload.getvalue())


def content_frames(channel: int, properties: BasicProperties | bytes, body: bytes, frame_max: int) -> bytes:
    """A content header frame and as many body frames as the body needs, none for an empty one. Raises EncodeError.

    Header frames cannot be split (errata 11), so that one may exceed `frame_max`.
    """
    out = BytesWriter()
    out.write(header_frame(channel, len(body), properties))
    write_body_frames(out, channel, body, frame_max)
    return out.getvalue()


def write_body_frames(out: BytesWriter, channel: int, body: bytes, frame_max: i64) -> None:
    """Write `body` as body frames within `frame_max`. Raises EncodeError if `frame_max` leaves no room for a body."""
    size: i64 = len(body)
    step: i64 = size
    if frame_max:
        step = frame_max - FRAME_OVERHEAD
        if step <= 0:
            raise EncodeError(f"frames of {frame_max} octets have no room for a body")
    offset: i64 = 0
    while offset < size:
        out.write(frame(FRAME_BODY, channel, body[offset : offset + step]))
        offset += step


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A whole frame of type `kind` around `payload`. Raises EncodeError if the channel exceeds 16 bits."""
    out = BytesWriter()
    out.append(kind)
    write_unsigned(out, channel, 2)
    write_unsigned(out, len(payload), 4)
    out.write(payload)
    out.append(FRAME_END)
    return out.getvalue()
