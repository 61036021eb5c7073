"""Reads and writes what is sent for each message without creating objects: transfers, accepts, flow and completions.

Their payloads:

    message.transfer   | 04 01 | 01 sync | flags u16 | destination str8 | accept-mode u8 | acquire-mode u8 |
    message.accept     | 04 02 | 01 sync | flags u16 | transfers: size u16, (first u32, last u32) ... |
    session.completed  | 02 0a | flags u16 | commands: size u16, (first u32, last u32) ... |
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp010.codec import SYNC
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_SEGMENT,
    FRAME_HEAD_SIZE,
    HEADER,
    LAST_SEGMENT,
    WHOLE,
    write_frame_head,
    write_segment,
)
from waybill.wire.amqp010.octets import Reader, write_text
from waybill.wire.amqp010.sequence import write_ranges
from waybill.wire.amqp010.types import Ranges

TRANSFER_CODE: Final = 0x0401
ACCEPT_CODE: Final = 0x0402


class TransferFacts:
    """The fields of a message.transfer. One object is reused for all.

    Some clients omit `accept_mode`: the only answer to a transfer that they understand is its completion.
    """

    def __init__(self) -> None:
        self.sync = False
        self.destination = ""
        self.has_accept_mode = False
        self.accept_mode: i64 = 0
        self.acquire_mode: i64 = 0


def scan_transfer(payload: bytes, facts: TransferFacts) -> None:
    """Fill `facts` from the segment of a message.transfer. Raises DecodeError."""
    reader = Reader(payload, 2, len(payload))
    facts.sync = take_session_header(reader)
    flags = reader.u16()
    if flags & ~0x0700:
        raise DecodeError(f"message.transfer with the flags {flags:#06x}")
    facts.destination = reader.text(1) if flags & 0x0100 else ""
    facts.has_accept_mode = flags & 0x0200 != 0
    facts.accept_mode = reader.u8() if flags & 0x0200 else 0
    facts.acquire_mode = reader.u8() if flags & 0x0400 else 0
    reader.finish()


def take_session_header(reader: Reader) -> bool:
    """Read the session header of a command. Returns whether it asks for `sync`. Raises DecodeError."""
    if reader.u8() != 1:
        raise DecodeError("a session header of the wrong size")
    flags = reader.u8()
    if flags & ~SYNC:
        raise DecodeError(f"a session header with the flags {flags:#04x}")
    return flags == SYNC


def transfer_payload(destination: str, accept_mode: i64, acquire_mode: i64, *, sync: bool = False) -> bytes:
    """The segment of a message.transfer: the same for all messages of a subscription. Raises EncodeError."""
    out = BytesWriter()
    out.write(b"\x04\x01\x01\x01\x07\x00" if sync else b"\x04\x01\x01\x00\x07\x00")
    write_text(out, destination, 1)
    out.append(accept_mode & 0xFF)
    out.append(acquire_mode & 0xFF)
    return out.getvalue()


def write_transfer(
    out: BytesWriter, channel: i64, payload: bytes, header: bytes, body: bytes, max_frame_size: i64
) -> None:
    """Write a message.transfer with its header and its body, split into frames."""
    write_segment(out, FIRST_SEGMENT, COMMAND, channel, payload, max_frame_size)
    write_segment(out, 0, HEADER, channel, header, max_frame_size)
    write_segment(out, LAST_SEGMENT, BODY, channel, body, max_frame_size)


def write_completed(out: BytesWriter, channel: i64, ranges: Ranges, *, timely_reply: bool = False) -> None:
    """Write session.completed in one frame. Raises EncodeError for too many ranges."""
    size: i64 = FRAME_HEAD_SIZE + 6 + 8 * len(ranges)
    write_frame_head(out, WHOLE, CONTROL, channel, size)
    out.write(b"\x02\x0a\x03\x00" if timely_reply else b"\x02\x0a\x01\x00")
    write_ranges(out, ranges)
