"""Frames that no honest encoder makes."""

from waybill.wire.amqp091.frames import FRAME_HEADER, FRAME_METHOD, frame, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicPublish

QUEUE_DECLARE = b"\x00\x32\x00\x0a\x00\x00\x01q\x00"
HEADERS_FLAG = b"\x20\x00"


def table(*fields: bytes) -> bytes:
    """A field table of fields that are encoded already."""
    body = b"".join(fields)
    return len(body).to_bytes(4, "big") + body


def field(name: str, kind: str, value: bytes) -> bytes:
    return bytes([len(name)]) + name.encode() + kind.encode() + value


def array(items: bytes) -> bytes:
    """The value of an array whose items are encoded already."""
    return len(items).to_bytes(4, "big") + items


def declare(arguments: bytes) -> bytes:
    """A queue.declare frame on channel 1 with a table as it is."""
    return frame(FRAME_METHOD, 1, QUEUE_DECLARE + arguments)


def header(body_size: int, headers: bytes) -> bytes:
    """A content header frame on channel 1 with a table of headers as it is."""
    return frame(FRAME_HEADER, 1, b"\x00\x3c\x00\x00" + body_size.to_bytes(8, "big") + HEADERS_FLAG + headers)


def publish(exchange: str, key: str) -> bytes:
    """A basic.publish method frame on channel 1, without the content that must follow."""
    return method(BasicPublish(exchange, key))


def method(value: Method) -> bytes:
    return method_frame(1, value)
