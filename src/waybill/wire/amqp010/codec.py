"""Decodes controls and commands from segments, and encodes them as frames.

The payloads:

    control | class code u8, code u8 | flags, fields
    command | class code u8, code u8 | session.header: size u8 = 1, flags u8 (1: sync) | flags, fields
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp010.errors import DecodeError, EncodeError, UnknownOperation
from waybill.wire.amqp010.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_SEGMENT,
    HEADER,
    LAST_SEGMENT,
    MAX_FRAME_SIZE,
    WHOLE,
    write_frame,
    write_segment,
)
from waybill.wire.amqp010.octets import write_unsigned
from waybill.wire.amqp010.operations import COMMANDS, CONTROLS
from waybill.wire.amqp010.struct import Command, Control, Fields
from waybill.wire.amqp010.values import Decoder

_CONTROLS: Final[dict[int, Fields]] = {one.CODE: one.FIELDS for one in CONTROLS}
_COMMANDS: Final[dict[int, Fields]] = {one.CODE: one.FIELDS for one in COMMANDS}
SYNC: Final = 1
_CONTROL_CLASS: Final = (Control,)
_COMMAND_CLASS: Final = (Command,)


def operation_code(payload: bytes) -> i64:
    """Class code and code of a control or command segment (0x0401: message.transfer). Raises DecodeError."""
    if len(payload) < 2:
        raise DecodeError("an operation without its code")
    return payload[0] << 8 | payload[1]


def decode_control(payload: bytes) -> Control:
    """Decode a control segment. Raises DecodeError, UnknownOperation."""
    code = operation_code(payload)
    fields = _CONTROLS.get(int(code))
    if fields is None:
        raise UnknownOperation(code >> 8, code & 0xFF)
    decoder = Decoder(payload, 2, len(payload))
    found = fields.read_fields(decoder, 1)
    decoder.reader.finish()
    if not isinstance(found, _CONTROL_CLASS):
        raise DecodeError("not a control")
    return found


def decode_command(payload: bytes) -> tuple[Command, bool]:
    """Decode a command segment: the command, and whether it asks for `sync`. Raises DecodeError, UnknownOperation."""
    code = operation_code(payload)
    fields = _COMMANDS.get(int(code))
    if fields is None:
        raise UnknownOperation(code >> 8, code & 0xFF)
    decoder = Decoder(payload, 2, len(payload))
    reader = decoder.reader
    if reader.u8() != 1:
        raise DecodeError("a session header of the wrong size")
    flags = reader.u8()
    if flags & ~SYNC:
        raise DecodeError(f"a session header with the flags {flags:#04x}")
    found = fields.read_fields(decoder, 1)
    reader.finish()
    if not isinstance(found, _COMMAND_CLASS):
        raise DecodeError("not a command")
    return found, flags == SYNC


def wants_sync(payload: bytes) -> bool:
    """Whether a command segment asks for `sync`; False if it is too short to say."""
    return len(payload) > 3 and payload[3] & SYNC != 0


def control_payload(control: Control) -> bytes:
    """Encode a control segment. Raises EncodeError, which names the field."""
    out = BytesWriter()
    write_unsigned(out, control.CODE, 2)
    control.FIELDS.write(out, control, 1)
    return out.getvalue()


def command_payload(command: Command, *, sync: bool = False) -> bytes:
    """Encode a command segment. Raises EncodeError, which names the field."""
    out = BytesWriter()
    write_unsigned(out, command.CODE, 2)
    out.append(1)
    out.append(SYNC if sync else 0)
    command.FIELDS.write(out, command, 1)
    return out.getvalue()


def encode_control(channel: int, control: Control, max_frame_size: int = MAX_FRAME_SIZE) -> bytes:
    """Encode a control: one frame, or several if it exceeds their size. Raises EncodeError."""
    out = BytesWriter()
    payload = control_payload(control)
    write_segment(out, FIRST_SEGMENT | LAST_SEGMENT, CONTROL, channel, payload, max_frame_size)
    return out.getvalue()


def encode_command(
    channel: int,
    command: Command,
    max_frame_size: int = MAX_FRAME_SIZE,
    *,
    sync: bool = False,
    header: bytes | None = None,
    body: bytes | None = None,
) -> bytes:
    """Encode a command as frames, with its header and body segments. Raises EncodeError."""
    if (header is not None or body is not None) and not command.HAS_CONTENT:
        raise EncodeError(f"{command.NAME} has no header and no body")
    out = BytesWriter()
    write_command(out, channel, command_payload(command, sync=sync), header, body, max_frame_size)
    return out.getvalue()


def write_command(
    out: BytesWriter, channel: i64, payload: bytes, header: bytes | None, body: bytes | None, max_frame_size: i64
) -> None:
    """Write the frames of an encoded command, with its header and body segments."""
    if header is None and body is None:
        if len(payload) + 12 <= max_frame_size:
            write_frame(out, WHOLE, COMMAND, channel, payload)
        else:
            write_segment(out, FIRST_SEGMENT | LAST_SEGMENT, COMMAND, channel, payload, max_frame_size)
        return
    write_segment(out, FIRST_SEGMENT, COMMAND, channel, payload, max_frame_size)
    if header is not None:
        write_segment(out, LAST_SEGMENT if body is None else 0, HEADER, channel, header, max_frame_size)
    if body is not None:
        write_segment(out, LAST_SEGMENT, BODY, channel, body, max_frame_size)
