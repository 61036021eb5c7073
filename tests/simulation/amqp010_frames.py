"""The frames of a 0-10 client: cutting what comes, building what goes, reading messages."""

from dataclasses import dataclass
from typing import Final

from tests.simulation.violation import Violation
from tests.wire.amqp010.frame_parser import Assembled, FrameParser
from waybill.wire.amqp010.class_message import DeliveryProperties, MessageProperties
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.frames import HEARTBEAT_FRAME, MAX_FRAME_SIZE, PROTOCOL_HEADER
from waybill.wire.amqp010.message_header import decode_header, encode_header
from waybill.wire.amqp010.struct import Command, Control
from waybill.wire.amqp010.types import Ranges

MASK: Final = 0xFFFFFFFF
HALF: Final = 1 << 31
MESSAGE_ID: Final = "x-message-id"
"""What 0-10 has no place for as an identity, since it is no uuid, stands in this header in every protocol."""


class FrameCodec:
    """Octets in, controls and commands out, and the other way round."""

    def __init__(self) -> None:
        self.max_frame_size = MAX_FRAME_SIZE
        self._output = bytearray(PROTOCOL_HEADER)
        self._parser = FrameParser()
        self._before: bytes | None = b""

    def decode(self, data: bytes) -> list[Assembled]:
        """What has become whole by these octets."""
        if self._before is not None:
            data = self._before + data
            self._before = data
            if len(data) < len(PROTOCOL_HEADER):
                return []
            if not data.startswith(PROTOCOL_HEADER):
                raise Violation("a correct client gets no error", f"{data!r}")
            self._before = None
            data = data[len(PROTOCOL_HEADER) :]
        self._parser.receive(data)
        found: list[Assembled] = []
        while (one := self._parser.next()) is not None:
            found.append(one)
        return found

    def control(self, channel: int, control: Control) -> None:
        self._output += encode_control(channel, control, self.max_frame_size)

    def command(self, channel: int, command: Command, header: bytes | None, body: bytes | None, *, sync: bool) -> None:
        self._output += encode_command(channel, command, self.max_frame_size, sync=sync, header=header, body=body)

    def heartbeat(self) -> None:
        self._output += HEARTBEAT_FRAME

    def data_to_send(self) -> bytes:
        data = bytes(self._output)
        self._output.clear()
        return data


@dataclass(frozen=True)
class Received:
    """What the ledger asks of a message. `size`: the octets that it takes of a credit in octets."""

    body: bytes
    message_id: object
    redelivered: bool
    death: object
    size: int


def read_message(one: Assembled) -> Received:
    header = decode_header(one.header or b"")
    if header.delivery is None or header.properties is None:
        raise Violation("a message comes with its properties", f"{one.header!r}")
    headers = header.properties.application_headers or {}
    body = one.body or b""
    return Received(
        body,
        headers.get(MESSAGE_ID),
        header.delivery.redelivered,
        headers.get("x-first-death-reason"),
        len(one.header or b"") + len(body),
    )


def write_header(key: str, delivery: DeliveryProperties) -> bytes:
    """The header segment of a message."""
    return encode_header(delivery, MessageProperties(application_headers={MESSAGE_ID: key}))


def unwrapped(number: int, near: int) -> int:
    """The count that stands for an id of 32 bits, closest to the count `near`."""
    return near + ((number - near + HALF) & MASK) - HALF


def ranges_of(counts: list[int]) -> Ranges:
    """Counts in rising order as a sequence-set."""
    found: list[tuple[int, int]] = []
    for count in counts:
        if found and found[-1][1] == count - 1:
            found[-1] = (found[-1][0], count)
        else:
            found.append((count, count))
    return tuple((first & MASK, last & MASK) for first, last in found)
