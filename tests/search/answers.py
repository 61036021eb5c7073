"""Reads what a node sends, as far as a peer must: frames that can be read, and errors of its protocol."""

from typing import Final

from waybill.wire.amqp010 import constants as constants010
from waybill.wire.amqp010.class_connection import ConnectionClose as ConnectionClose010
from waybill.wire.amqp010.class_execution import ExecutionException
from waybill.wire.amqp010.codec import decode_command, decode_control
from waybill.wire.amqp010.frames import COMMAND, CONTROL, FIRST_FRAME, FRAME_HEAD_SIZE, LAST_FRAME
from waybill.wire.amqp010.frames import PROTOCOL_HEADER as AMQP010_HEADER
from waybill.wire.amqp091.frames import FRAME_METHOD, parse_frame
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_channel import ChannelClose
from waybill.wire.amqp091.methods_connection import ConnectionClose
from waybill.wire.amqp091.reply_codes import INTERNAL_ERROR, REPLY_NAMES
from waybill.wire.amqp10 import error as conditions
from waybill.wire.amqp10.composite import decode_composite
from waybill.wire.amqp10.frames import PROTOCOL_HEADER_SIZE
from waybill.wire.amqp10.frames import parse_frame as parse_amqp10_frame
from waybill.wire.amqp10.performatives import Close, Detach, End

CONDITIONS: Final = frozenset(
    value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)
)
EXCEPTION_010: Final = b"\x03\x03"
CLOSE_010: Final = b"\x01\x0b"
ERRORS_010: Final = frozenset(
    value for name, value in vars(constants010).items() if name.startswith("ERROR_") and "INTERNAL" not in name
)
CLOSES_010: Final = frozenset(value for name, value in vars(constants010).items() if name.startswith("CLOSE_"))
CLOSES: Final = (b"\x00\x0a\x00\x32", b"\x00\x14\x00\x28")
CLOSE_CODES: Final = frozenset({0x16, 0x17, 0x18})
FRAME_MAX: Final = 1 << 28


class WrongAnswer(AssertionError):
    """What no peer can make sense of."""


class Answers:
    """`seen` are the kinds of all frames and errors that came: what tells one behaviour from another."""

    def __init__(self) -> None:
        self.seen: set[object] = set()
        self.errors: list[str] = []
        self.size = 0
        self._rest = b""
        self._protocol = b""

    def add(self, data: bytes) -> None:
        self.size += len(data)
        data = self._rest + data
        offset = 0
        while offset < len(data):
            if data.startswith(b"AMQP", offset):
                if len(data) < offset + PROTOCOL_HEADER_SIZE:
                    break
                self._protocol = data[offset + 4 : offset + PROTOCOL_HEADER_SIZE]
                offset += PROTOCOL_HEADER_SIZE
                continue
            after = self._frame(data, offset)
            if after == 0:
                break
            offset = after
        self._rest = data[offset:]

    def _frame(self, data: bytes, offset: int) -> int:
        """Where a frame ends; 0 if it is not there yet."""
        if self._protocol == AMQP010_HEADER[4:]:
            return self._amqp010(data, offset)
        # 0-9-1 answers without a header of its own.
        return self._amqp10(data, offset) if self._protocol[1:2] == b"\1" else self._amqp091(data, offset)

    def _amqp010(self, data: bytes, offset: int) -> int:
        size = int.from_bytes(data[offset + 2 : offset + 4], "big")
        if len(data) < offset + max(FRAME_HEAD_SIZE, size):
            return 0
        kind = data[offset + 1]
        payload = data[offset + FRAME_HEAD_SIZE : offset + size]
        code = payload[:2]
        if kind in {CONTROL, COMMAND} and data[offset] & FIRST_FRAME:
            self.seen.add((kind, code))
        if kind == COMMAND and code == EXCEPTION_010 and data[offset] & LAST_FRAME:
            exception = decode_command(payload)[0]
            assert isinstance(exception, ExecutionException)
            self._note(str(exception.error_code), exception.description or "")
            if exception.error_code not in ERRORS_010 and "x-match" not in (exception.description or ""):
                raise WrongAnswer(f"{exception}")
        if kind == CONTROL and code == CLOSE_010:
            close = decode_control(payload)
            assert isinstance(close, ConnectionClose010)
            self._note(str(close.reply_code), close.reply_text or "")
            if close.reply_code not in CLOSES_010 or "an error in the broker" in (close.reply_text or ""):
                raise WrongAnswer(f"{close}")
        return offset + size

    def _amqp091(self, data: bytes, offset: int) -> int:
        size = int.from_bytes(data[offset + 3 : offset + 7], "big")
        if len(data) < offset + 8 + size:
            return 0
        ids = data[offset + 7 : offset + 11]
        if data[offset] == FRAME_METHOD:
            self.seen.add(ids)
            if ids in CLOSES:
                parsed = parse_frame(data, offset, FRAME_MAX)
                assert parsed is not None
                method = decode_method(parsed[0].payload)
                assert isinstance(method, (ChannelClose, ConnectionClose))
                self._note(str(method.reply_code), method.reply_text)
                if method.reply_code not in REPLY_NAMES or method.reply_code == INTERNAL_ERROR:
                    raise WrongAnswer(f"{method}")
        if data[offset + 7 + size] != 0xCE:
            raise WrongAnswer(f"a frame without its end: {data[offset : offset + 40]!r}")
        return offset + 8 + size

    def _amqp10(self, data: bytes, offset: int) -> int:
        size = int.from_bytes(data[offset : offset + 4], "big")
        if len(data) < offset + max(4, size):
            return 0
        body = offset + 4 * data[offset + 4]
        code = data[body + 2] if size > 8 else 0
        self.seen.add(code)
        if code in CLOSE_CODES:
            parsed = parse_amqp10_frame(data, offset, FRAME_MAX)
            assert parsed is not None
            value, _ = decode_composite(parsed[0].body)
            if isinstance(value, (Close, End, Detach)) and value.error is not None:
                self._note(value.error.condition, value.error.description or "")
                if value.error.condition not in CONDITIONS or value.error.condition == conditions.INTERNAL_ERROR:
                    raise WrongAnswer(f"{value}")
        return offset + size

    def _note(self, code: str, text: str) -> None:
        self.seen.add((code, "".join(letter for letter in text if letter.isalpha() or letter == " ")[:40]))
        self.errors.append(f"{code} {text}")
