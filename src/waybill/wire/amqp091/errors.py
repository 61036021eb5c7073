"""Errors of encoding and decoding, each with the reply code that the engine sends."""

from typing import ClassVar

from waybill.wire.amqp091.reply_codes import FRAME_ERROR, NOT_IMPLEMENTED, SYNTAX_ERROR, UNEXPECTED_FRAME


class EncodeError(ValueError):
    """A value that the protocol cannot encode: too long, out of range or of an unsupported type."""


class DecodeError(ValueError):
    """The peer sent malformed octets. Ends the connection with `reply_code` (0-9-1, 4.2.2, 4.10)."""

    reply_code: ClassVar[int] = SYNTAX_ERROR


class FrameError(DecodeError):
    """A malformed frame: of unknown type, too large, without an end octet, or with truncated or excess arguments."""

    reply_code: ClassVar[int] = FRAME_ERROR


class UnexpectedContent(DecodeError):
    """A content header whose class is not that of the method before it."""

    reply_code: ClassVar[int] = UNEXPECTED_FRAME


class UnknownMethod(DecodeError):
    """A well-formed method frame whose class or method is not defined."""

    reply_code: ClassVar[int] = NOT_IMPLEMENTED

    def __init__(self, class_id: int, method_id: int) -> None:
        """Keep the ids: connection.close names the method that failed."""
        super().__init__(f"unknown method {class_id}.{method_id}")
        self.class_id = class_id
        self.method_id = method_id
