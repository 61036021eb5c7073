"""Parses and builds frames and protocol headers (1.0, 2.2, 2.3, 5.2, 5.3).

    octet 0        4      5      6         8                  doff * 4        size
    | size         | doff | type | channel | extended header  | body ...      |
    | u32, of all  | u8   | u8   | u16     | ignored          |               |

The body of an AMQP frame is a performative and its payload. An empty one only keeps the connection alive. A SASL frame
has no channel, and always a body.
"""

from dataclasses import dataclass
from typing import Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64, u8

from waybill.wire.amqp10.encode import write_unsigned
from waybill.wire.amqp10.errors import EncodeError, FrameError

FRAME_AMQP: Final = 0
FRAME_SASL: Final = 1

FRAME_HEAD_SIZE: Final = 8
DATA_OFFSET: Final = 2
"""In words of 4 octets: frames that we write have no extended header."""

MIN_MAX_FRAME_SIZE: Final = 512
"""Every peer accepts frames of this size (2.8.19). It is the limit before open, and always for SASL frames."""

PROTOCOL_HEADER_SIZE: Final = 8

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""A heartbeat: it keeps the peer's idle time-out from expiring (2.4.5)."""


@dataclass(frozen=True)
class Frame:
    """One frame. `type` is FRAME_AMQP or FRAME_SASL; the channel of a SASL frame is ignored."""

    type: int
    channel: int
    body: bytes


class FrameFacts:
    """The position of a frame: its body is `data[body:end]`. One object is reused for all frames."""

    def __init__(self) -> None:
        self.type: i64 = 0
        self.channel: i64 = 0
        self.body: i64 = 0
        self.end: i64 = 0


def scan_frame(data: bytes, offset: i64, max_frame_size: i64, facts: FrameFacts) -> bool:
    """Fill `facts` from the frame at `offset`. False, with `facts` undefined, if it is incomplete.

    Raises FrameError as soon as the octets show that it is malformed: too large, an impossible size, an unknown type.
    """
    available = len(data) - offset
    if available < 4:
        return False
    size = i64(read_i32_be(data, offset)) & 0xFFFFFFFF
    if size < FRAME_HEAD_SIZE:
        raise FrameError(f"a frame of {size} octets is impossible")
    if size > max_frame_size:
        raise FrameError(f"a frame of {size} octets where {max_frame_size} are allowed")
    if available < FRAME_HEAD_SIZE:
        return False
    body: i64 = data[offset + 4]
    body *= 4
    if body < FRAME_HEAD_SIZE or body > size:
        raise FrameError(f"a frame of {size} octets whose body starts at {body}")
    kind: i64 = data[offset + 5]
    if kind != FRAME_AMQP and kind != FRAME_SASL:  # noqa: PLR1714 - native integers
        raise FrameError(f"unknown frame type {kind}")
    if kind == FRAME_SASL and body == size:
        raise FrameError("a SASL frame without a body")
    if available < size:
        return False
    facts.type = kind
    facts.channel = data[offset + 6] << 8 | data[offset + 7]
    facts.body = offset + body
    facts.end = offset + size
    return True


def parse_frame(data: bytes, offset: i64, max_frame_size: i64) -> tuple[Frame, int] | None:
    """Parse the frame at `offset`. Returns it and the offset after it, None if incomplete. Raises FrameError."""
    facts = FrameFacts()
    if not scan_frame(data, offset, max_frame_size, facts):
        return None
    return Frame(facts.type, facts.channel, data[facts.body : facts.end]), facts.end


def frame(channel: int, performative: bytes, payload: bytes = b"") -> bytes:
    """Build an AMQP frame. Raises EncodeError if the channel does not fit into 16 bits."""
    return _frame(FRAME_AMQP, channel, performative, payload)


def sasl_frame(body: bytes) -> bytes:
    """Build a SASL frame. Raises EncodeError if it is too large."""
    if len(body) + FRAME_HEAD_SIZE > MIN_MAX_FRAME_SIZE:
        raise EncodeError(f"a SASL frame has {MIN_MAX_FRAME_SIZE} octets at most, not {len(body) + FRAME_HEAD_SIZE}")
    return _frame(FRAME_SASL, 0, body, b"")


def _frame(kind: int, channel: int, performative: bytes, payload: bytes) -> bytes:
    out = BytesWriter()
    write_unsigned(out, FRAME_HEAD_SIZE + len(performative) + len(payload), 4)
    out.append(DATA_OFFSET)
    out.append(kind)
    write_unsigned(out, channel, 2)
    out.write(performative)
    out.write(payload)
    return out.getvalue()


def write_frame_head(out: BytesWriter, channel: i64) -> i64:
    """Write the head of an AMQP frame of unknown size. Returns the offset for `close_frame`."""
    start: i64 = len(out)
    out.write(b"\x00\x00\x00\x00\x02\x00")
    out.append((channel >> 8) & 0xFF)
    out.append(channel & 0xFF)
    return start


def close_frame(out: BytesWriter, start: i64, more: i64 = 0) -> None:
    """Set the size of the frame at `start` to what was written, and `more` octets that will be written."""
    size: i64 = len(out) - start
    set_u32(out, start, size + more)


def set_u32(out: BytesWriter, offset: i64, value: i64) -> None:
    """Overwrite 4 octets with `value`."""
    out[offset] = u8((value >> 24) & 0xFF)
    out[offset + 1] = u8((value >> 16) & 0xFF)
    out[offset + 2] = u8((value >> 8) & 0xFF)
    out[offset + 3] = u8(value & 0xFF)
