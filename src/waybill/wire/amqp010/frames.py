"""Parses and builds frames (final text of 0-10).

    octet 0       1      2        4       5             6           8              12            size
    | 00 rr BEbe | type | size u16 | 00   | rrrr track | channel u16 | 00 00 00 00 | payload ...  |

`size` counts the whole frame. B and E mark the first and last segment of an assembly, b and e the first and last frame
of a segment. The two highest bits are the version of the format, which is 0. Bits and octets that are reserved (r, 00)
are written as 0 and not read.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64

from waybill.wire.amqp010.errors import EncodeError, FrameError

PROTOCOL_HEADER: Final = b"AMQP\x01\x01\x00\x0a"

FRAME_HEAD_SIZE: Final = 12
MAX_FRAME_SIZE: Final = 0xFFFF
"""The size has 16 bits."""

FIRST_SEGMENT: Final = 0x08
LAST_SEGMENT: Final = 0x04
FIRST_FRAME: Final = 0x02
LAST_FRAME: Final = 0x01
WHOLE: Final = 0x0F
"""An assembly of one segment in one frame."""
VERSION_MASK: Final = 0xC0

CONTROL: Final = 0
COMMAND: Final = 1
HEADER: Final = 2
BODY: Final = 3
"""Types of segments."""
CONTROL_TRACK: Final = 0
COMMAND_TRACK: Final = 1

HEARTBEAT_FRAME: Final = b"\x0f\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x01\x0a\x00\x00"
"""The control connection.heartbeat on channel 0."""


class FrameFacts:
    """The position of a frame: its payload is `data[payload:end]`. One object is reused for all frames."""

    def __init__(self) -> None:
        self.flags: i64 = 0
        self.type: i64 = 0
        self.track: i64 = 0
        self.channel: i64 = 0
        self.payload: i64 = 0
        self.end: i64 = 0


def scan_frame(data: bytes, offset: i64, max_frame_size: i64, facts: FrameFacts) -> bool:
    """Fill `facts` from the frame at `offset`. False, with `facts` undefined, if it is incomplete.

    Raises FrameError as soon as the octets show that it is malformed: an invalid version, type, track or size.
    """
    available = len(data) - offset
    if available < 4:
        if available > 0 and data[offset] & VERSION_MASK:
            raise FrameError(f"a frame of version {data[offset] >> 6}")
        return False
    head = i64(read_i32_be(data, offset))
    if head >> 24 & VERSION_MASK:
        raise FrameError(f"a frame of version {head >> 30 & 3}")
    size = head & 0xFFFF
    facts.type = head >> 16 & 0xFF
    if facts.type > BODY:
        raise FrameError(f"a segment of type {facts.type}")
    if size < FRAME_HEAD_SIZE or size > max_frame_size:
        raise FrameError(f"a frame of {size} octets where {FRAME_HEAD_SIZE} to {max_frame_size} are allowed")
    if available < FRAME_HEAD_SIZE:
        return False
    facts.track = data[offset + 5] & 0x0F
    is_control = facts.type == CONTROL
    if facts.track > COMMAND_TRACK or (facts.track == CONTROL_TRACK) != is_control:
        raise FrameError(f"a segment of type {facts.type} on track {facts.track}")
    if available < size:
        return False
    facts.flags = head >> 24 & WHOLE
    facts.channel = data[offset + 6] << 8 | data[offset + 7]
    facts.payload = offset + FRAME_HEAD_SIZE
    facts.end = offset + size
    return True


def write_frame(out: BytesWriter, flags: i64, kind: i64, channel: i64, payload: bytes) -> None:
    """Write a frame; the kind of segment determines the track. Raises EncodeError if the payload is too large."""
    size: i64 = len(payload) + FRAME_HEAD_SIZE
    if size > MAX_FRAME_SIZE:
        raise EncodeError(f"a frame has {MAX_FRAME_SIZE} octets at most, not {size}")
    write_frame_head(out, flags, kind, channel, size)
    out.write(payload)


def write_frame_head(out: BytesWriter, flags: i64, kind: i64, channel: i64, size: i64) -> None:
    """Write the head of a frame of `size` octets, head included."""
    out.append(flags & 0xFF)
    out.append(kind & 0xFF)
    out.append((size >> 8) & 0xFF)
    out.append(size & 0xFF)
    out.append(0)
    out.append(0 if kind == CONTROL else 1)
    out.append((channel >> 8) & 0xFF)
    out.append(channel & 0xFF)
    out.write(b"\x00\x00\x00\x00")


def write_segment(out: BytesWriter, flags: i64, kind: i64, channel: i64, payload: bytes, max_frame_size: i64) -> None:
    """Write a segment as frames of at most `max_frame_size` octets. `flags` are FIRST_SEGMENT and LAST_SEGMENT."""
    size: i64 = len(payload)
    step = max_frame_size - FRAME_HEAD_SIZE
    if step <= 0:
        raise EncodeError(f"frames of {max_frame_size} octets have no room for a payload")
    if size <= step:
        write_frame_head(out, flags | FIRST_FRAME | LAST_FRAME, kind, channel, size + FRAME_HEAD_SIZE)
        out.write(payload)
        return
    offset: i64 = 0
    while offset < size:
        end = offset + step
        frame_flags = flags
        if offset == 0:
            frame_flags |= FIRST_FRAME
        if end >= size:
            frame_flags |= LAST_FRAME
            end = size
        write_frame_head(out, frame_flags, kind, channel, end - offset + FRAME_HEAD_SIZE)
        out.write(payload[offset:end])
        offset = end
