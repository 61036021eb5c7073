"""The frames of a 0-9-1 client: cutting what comes, putting contents together, building what goes."""

from dataclasses import dataclass, field

from tests.simulation.violation import Violation
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    content_frames,
    method_frame,
    parse_frame,
)
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.properties import BasicProperties

FRAME_MAX = 4096


@dataclass
class Content:
    """A method with the content that follows it."""

    method: Method
    properties: BasicProperties = field(default_factory=BasicProperties)
    size: int = -1
    body: bytearray = field(default_factory=bytearray)


class FrameCodec:
    """Bytes in, methods and contents out, and the other way round."""

    def __init__(self) -> None:
        self._output = bytearray(PROTOCOL_HEADER)
        self._input = b""
        self._content: Content | None = None

    def decode(self, data: bytes) -> list[Method | Content]:
        """What has become whole by these bytes."""
        found: list[Method | Content] = []
        data = self._input + data
        offset = 0
        while (parsed := parse_frame(data, offset, FRAME_MAX)) is not None:
            frame, offset = parsed
            content = self._content
            if frame.type == FRAME_METHOD:
                method = decode_method(frame.payload)
                if content is not None:
                    raise Violation("content follows its method", f"{method} in the middle of {content.method}")
                if method.HAS_CONTENT:
                    self._content = Content(method)
                else:
                    found.append(method)
            elif frame.type in {FRAME_HEADER, FRAME_BODY}:
                if content is None:
                    raise Violation("content follows its method", "content alone")
                if frame.type == FRAME_HEADER:
                    content.size = int.from_bytes(frame.payload[4:12], "big")
                    content.properties = BasicProperties.decode(frame.payload, 12)
                else:
                    content.body += frame.payload
                if len(content.body) >= content.size:
                    found.append(content)
                    self._content = None
        self._input = data[offset:]
        return found

    def send(self, channel: int, method: Method) -> None:
        self._output += method_frame(channel, method)

    def send_content(self, channel: int, method: Method, properties: BasicProperties, body: bytes) -> None:
        self._output += method_frame(channel, method)
        self._output += content_frames(channel, properties, body, FRAME_MAX)

    def send_heartbeat(self) -> None:
        self._output += HEARTBEAT_FRAME

    def data_to_send(self) -> bytes:
        data = bytes(self._output)
        self._output.clear()
        return data
