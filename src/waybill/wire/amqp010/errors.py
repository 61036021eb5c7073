"""Errors of encoding and decoding. The engine ends the session or the connection, as each error says."""

from typing import ClassVar

from waybill.wire.amqp010.constants import ERROR_ILLEGAL_ARGUMENT, ERROR_NOT_IMPLEMENTED


class EncodeError(ValueError):
    """A value that the protocol cannot encode: too long, out of range or of an unsupported type."""


class DecodeError(ValueError):
    """The peer sent malformed octets.

    In a command, it ends the session with an exception of `error_code`; in a control, the connection (framing-error).
    """

    error_code: ClassVar[int] = ERROR_ILLEGAL_ARGUMENT


class FrameError(DecodeError):
    """The frame or the order of the frames is damaged. Ends the connection (close-code framing-error)."""


class UnknownOperation(DecodeError):
    """A control or command whose class or code is not defined."""

    error_code: ClassVar[int] = ERROR_NOT_IMPLEMENTED

    def __init__(self, class_code: int, code: int) -> None:
        """Keep the codes: execution.exception names the command that failed."""
        super().__init__(f"unknown operation {class_code:#x}.{code:#x}")
        self.class_code = class_code
        self.code = code
