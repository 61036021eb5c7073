"""Writes the messages that one channel publishes, and waits for their confirms.

`publish` runs once a message. It is longer than other functions and knows the layout of frames, since calls would cost
more than the work.
"""

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from waybill.engine.amqp091.client.confirms import Confirms
from waybill.engine.amqp091.client.delivery import NO_PROPERTIES
from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.output import Output
from waybill.engine.amqp091.client.settlement import Settlement
from waybill.wire.amqp091.errors import EncodeError
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    method_frame,
    write_body_frames,
)
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp091.reply_codes import COMMAND_INVALID

METHODS_KEPT: Final = 1024
END_OCTET: Final = b"\xce"


class Publisher:
    """Created with its channel, which checks whether publishing is possible."""

    def __init__(self, output: Output, number: int, frame_max: int, settlement: Settlement) -> None:
        self.confirms: Confirms | None = None
        self._output = output
        self._number = number
        self._frame_max = frame_max
        self._settlement = settlement
        self._publish_frames: dict[tuple[str, str, bool], bytes] = {}
        self._last_properties: BasicProperties | None = None
        self._last_encoded = NO_PROPERTIES
        channel = number.to_bytes(2, "big")
        self._header_start = bytes([FRAME_HEADER]) + channel
        self._body_start = bytes([FRAME_END, FRAME_BODY]) + channel

    def publish(
        self,
        body: bytes,
        exchange: str,
        routing_key: str,
        properties: BasicProperties | bytes | None,
        mandatory: bool,  # noqa: FBT001 - the bit of basic.publish
        token: object | None,
    ) -> None:
        """Write a message. On a confirm channel `token` comes back with the broker's answer.

        The caller has checked that the channel is usable. Raises EncodeError for names or properties that have no
        encoding; nothing is written then.
        """
        key = (exchange, routing_key, mandatory)
        method = self._publish_frames.get(key)
        if method is None:
            method = self._publish_frame(exchange, routing_key, mandatory)
        if properties is None:
            encoded = NO_PROPERTIES
        elif isinstance(properties, bytes):
            encoded = properties
        else:
            encoded = self._encode(properties)
        if len(encoded) > self._frame_max - FRAME_OVERHEAD - 12:
            # A content header must fit into one frame: otherwise the server would close the connection.
            raise EncodeError(f"properties of {len(encoded)} octets do not fit into a frame of {self._frame_max}")
        size: i64 = len(body)
        out = BytesWriter()
        out.write(method)
        out.write(self._header_start)
        # Payload size, class 60 and weight 0, as one number of eight octets.
        write_i64_be(out, (12 + len(encoded)) << 32 | 60 << 16)
        write_i64_be(out, size)
        out.write(encoded)
        if 0 < size <= self._frame_max - FRAME_OVERHEAD:
            out.write(self._body_start)
            write_i32_be(out, i32(size))
            out.write(body)
            out.write(END_OCTET)
        else:
            out.write(END_OCTET)
            write_body_frames(out, self._number, body, self._frame_max)
        settlement = self._settlement
        if settlement.unsent:
            settlement.flush_acks()
        self._output.write(out.getvalue())
        confirms = self.confirms
        if confirms is not None:
            confirms.add(token, (exchange, routing_key, encoded, body) if mandatory else None)

    def settle(self, number: int, multiple: bool) -> list[object]:  # noqa: FBT001 - the bit of basic.ack
        """The tokens of a confirm or a refusal. Raises ProtocolViolation for numbers that were never published."""
        if self.confirms is None:
            raise ProtocolViolation(COMMAND_INVALID, "a confirm on a channel without confirms")
        try:
            return self.confirms.settle(number, multiple)
        except ValueError as error:
            raise ProtocolViolation(COMMAND_INVALID, str(error)) from None

    def _publish_frame(self, exchange: str, routing_key: str, mandatory: bool) -> bytes:  # noqa: FBT001
        frame = method_frame(self._number, BasicPublish(exchange, routing_key, mandatory))
        if len(self._publish_frames) >= METHODS_KEPT:
            self._publish_frames.clear()
        self._publish_frames[exchange, routing_key, mandatory] = frame
        return frame

    def _encode(self, properties: BasicProperties) -> bytes:
        """Encode properties, unless they equal a copy of the previous ones. Their owner may have changed those."""
        if properties.headers is not None:
            # A table may contain lists and tables that are changed in place: a deep copy would cost too much.
            return properties.encode()
        if self._last_properties is None or properties != self._last_properties:
            self._last_encoded = properties.encode()
            self._last_properties = BasicProperties(
                properties.content_type,
                properties.content_encoding,
                None,
                properties.delivery_mode,
                properties.priority,
                properties.correlation_id,
                properties.reply_to,
                properties.expiration,
                properties.message_id,
                properties.timestamp,
                properties.type,
                properties.user_id,
                properties.app_id,
            )
        return self._last_encoded
