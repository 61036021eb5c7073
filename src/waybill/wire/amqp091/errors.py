"""What can go wrong between bytes and values. The engine turns these into the reply code that each of them carries."""

from typing import ClassVar

from waybill.wire.amqp091.reply_codes import FRAME_ERROR, NOT_IMPLEMENTED, SYNTAX_ERROR, UNEXPECTED_FRAME


class EncodeError(ValueError):
    """A value that the protocol has no encoding for: too long, out of range or of a type that it does not know."""


class DecodeError(ValueError):
    """The peer sent octets that do not mean anything. Ends the connection with `reply_code` (0-9-1, 4.2.2, 4.10)."""

    reply_code: ClassVar[int] = SYNTAX_ERROR


class FrameError(DecodeError):
    """The frame itself is damaged: unknown type, too big, without its end octet, its arguments cut off or too many."""

    reply_code: ClassVar[int] = FRAME_ERROR


class UnexpectedContent(DecodeError):
    """A content header of a class that the method before it does not belong to."""

    reply_code: ClassVar[int] = UNEXPECTED_FRAME


class UnknownMethod(DecodeError):
    """A well-formed method frame whose class or method nobody defined."""

    reply_code: ClassVar[int] = NOT_IMPLEMENTED

    def __init__(self, class_id: int, method_id: int) -> None:
        """Keep the ids: connection.close names the method that failed."""
        super().__init__(f"unknown method {class_id}.{method_id}")
        self.class_id = class_id
        self.method_id = method_id
