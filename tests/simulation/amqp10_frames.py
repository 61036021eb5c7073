"""The frames of a 1.0 client: cutting what comes, building what goes, reading messages."""

from dataclasses import dataclass
from typing import Final

from tests.simulation.violation import Violation
from waybill.wire.amqp10.composite import Composite, decode_composite
from waybill.wire.amqp10.frames import (
    EMPTY_FRAME,
    PROTOCOL_HEADER_SIZE,
    frame,
    parse_frame,
    sasl_frame,
)
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.sections import (
    MessageFacts,
    data_of,
    decode_annotations,
    decode_header,
    decode_properties,
    scan_message,
)

MAX_FRAME_SIZE: Final = 1 << 20


class FrameCodec:
    """Bytes in, protocol headers and performatives with their payloads out, and the other way round."""

    def __init__(self) -> None:
        self._output = bytearray()
        self._input = b""

    def decode(self, data: bytes) -> list[tuple[Composite | bytes, bytes]]:
        """What has become whole by these bytes: a header as it is, or a performative and its payload."""
        found: list[tuple[Composite | bytes, bytes]] = []
        data = self._input + data
        offset = 0
        while True:
            if data.startswith(b"AMQP", offset):
                if len(data) < offset + PROTOCOL_HEADER_SIZE:
                    break
                found.append((data[offset : offset + PROTOCOL_HEADER_SIZE], b""))
                offset += PROTOCOL_HEADER_SIZE
                continue
            parsed = parse_frame(data, offset, MAX_FRAME_SIZE)
            if parsed is None:
                break
            octets, offset = parsed
            if octets.body:
                value, payload = decode_composite(octets.body)
                found.append((value, octets.body[payload:]))
        self._input = data[offset:]
        return found

    def send(self, performative: Composite, payload: bytes = b"") -> None:
        self._output += frame(0, performative.encode(), payload)

    def send_header(self, header: bytes) -> None:
        self._output += header

    def send_sasl(self, body: Composite) -> None:
        self._output += sasl_frame(body.encode())

    def send_empty(self) -> None:
        self._output += EMPTY_FRAME

    def data_to_send(self) -> bytes:
        data = bytes(self._output)
        self._output.clear()
        return data


@dataclass(frozen=True)
class Received:
    """What the ledger asks of a message. `death`: the reason of its first death, if it is a dead letter."""

    body: bytes
    message_id: object
    first_acquirer: bool
    death: object


def read_message(payload: bytes) -> Received:
    facts = MessageFacts()
    scan_message(payload, 0, len(payload), facts)
    if facts.properties < 0 or facts.message_annotations < 0:
        raise Violation("a message comes with its annotations and properties", f"{payload!r}")
    header = decode_header(payload, facts.header, facts.header_end) if facts.header >= 0 else Header()
    annotations = decode_annotations(payload, facts.message_annotations, facts.message_annotations_end)
    return Received(
        data_of(payload, facts),
        decode_properties(payload, facts.properties, facts.properties_end).message_id,
        header.first_acquirer,
        annotations.get("x-first-death-reason"),
    )
