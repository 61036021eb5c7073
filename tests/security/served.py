"""A bystander in a process of its own: publishes one durable message after the other, and takes and settles each.

    python -m tests.security.served PORT PID

Each round ends when the message is confirmed and has come. See `tests.security.rounds` for what it prints.
"""

import socket
import sys
from typing import Final

from tests.security.rounds import Rounds
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicAck, BasicConsume, BasicPublish
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionStartOk, ConnectionTuneOk
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp091.properties import BasicProperties

QUEUE: Final = "bystander"
TIMEOUT_S: Final = 30.0
ACK: Final = b"\x00\x3c\x00\x50"
DELIVER: Final = b"\x00\x3c\x00\x3c"
BLOCKED: Final = b"\x00\x0a\x00\x3c"
CAPABILITIES: Final[dict[str, object]] = {"capabilities": {"connection.blocked": True}}
HELLO: Final = PROTOCOL_HEADER + b"".join(
    method_frame(channel, method)
    for channel, method in (
        (0, ConnectionStartOk(CAPABILITIES, "PLAIN", b"\0guest\0guest")),
        (0, ConnectionTuneOk(2047, 131_072, 0)),
        (0, ConnectionOpen("/")),
        (1, ChannelOpen()),
        (1, QueueDeclare(QUEUE, durable=True)),
        (1, ConfirmSelect()),
        (1, BasicConsume(QUEUE)),
    )
)
MESSAGE: Final = method_frame(1, BasicPublish("", QUEUE)) + content_frames(
    1, BasicProperties(delivery_mode=2), b"bystander", 0
)
SETTLED: Final = method_frame(1, BasicAck(0, multiple=True))


def main() -> int:
    port, rounds = int(sys.argv[1]), Rounds(int(sys.argv[2]))
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    connection.sendall(HELLO)
    while True:
        rounds.begin()
        connection.sendall(MESSAGE)
        heard = b""
        while not (ACK in heard and DELIVER in heard):
            data = connection.recv(1 << 16)
            if not data:
                print("cut off", flush=True)
                return 1
            heard += data
            if BLOCKED in heard:
                print("blocked", flush=True)
        connection.sendall(SETTLED)
        rounds.end()
        rounds.tell()


if __name__ == "__main__":
    sys.exit(main())
