"""Errors of encoding and decoding. A DecodeError carries the error condition for the peer."""

from typing import ClassVar


class EncodeError(ValueError):
    """A value has no encoding: it is out of range, too long, too deep or of an unknown type."""


class DecodeError(ValueError):
    """The peer sent octets that cannot be decoded (1.0, 2.8.15). `condition`: the error to answer with."""

    condition: ClassVar[str] = "amqp:decode-error"


class FrameError(DecodeError):
    """A frame or protocol header is malformed: an impossible size, an unknown type (1.0, 2.8.16)."""

    condition: ClassVar[str] = "amqp:connection:framing-error"
