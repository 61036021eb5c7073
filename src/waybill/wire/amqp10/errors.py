"""What can go wrong between bytes and values. The engine turns these into the error condition that each carries."""

from typing import ClassVar


class EncodeError(ValueError):
    """A value that the protocol has no encoding for: out of range, too long, too deep or of a type unknown to it."""


class DecodeError(ValueError):
    """The peer sent octets that do not mean anything (1.0, 2.8.15). `condition` is the error to answer with."""

    condition: ClassVar[str] = "amqp:decode-error"


class FrameError(DecodeError):
    """The frame or the protocol header itself is damaged: sizes that cannot be, an unknown type (1.0, 2.8.16)."""

    condition: ClassVar[str] = "amqp:connection:framing-error"
