"""Somebody who publishes with confirms and consumes, over each protocol, while others misbehave."""

import time
from typing import Final

from tests.search.machine import AMQP010_LOGIN, AMQP10_LOGIN, BYSTANDER, Machine, Wire
from waybill.wire.amqp010.class_message import (
    DeliveryProperties,
    MessageAccept,
    MessageFlow,
    MessageSetFlowMode,
    MessageSubscribe,
    MessageTransfer,
)
from waybill.wire.amqp010.class_session import SessionAttach, SessionCommandPoint
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.constants import ACCEPT_EXPLICIT, FLOW_CREDIT, MODE_PERSISTENT, UNIT_BYTE, UNIT_MESSAGE
from waybill.wire.amqp010.frames import COMMAND, CONTROL
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicAck, BasicConsume, BasicPublish
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionStartOk, ConnectionTuneOk
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.messaging import Accepted, Source, Target
from waybill.wire.amqp10.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Disposition,
    Flow,
    Open,
    Transfer,
)
from waybill.wire.amqp10.types import Described, ULong

BYSTANDERS: Final = 3
QUEUE_091: Final = "bystander-091"
QUEUE_10: Final = "bystander-10"
QUEUE_010: Final = "bystander-010"
ACK: Final = b"\x00\x3c\x00\x50"
DELIVER: Final = b"\x00\x3c\x00\x3c"
TRANSFER: Final = 0x14
UNLIMITED: Final = 0xFFFFFFFF
DISPOSITION: Final = 0x15

LOGIN: Final = PROTOCOL_HEADER + b"".join(
    method_frame(channel, method)
    for channel, method in (
        (0, ConnectionStartOk(mechanism="EXTERNAL")),
        (0, ConnectionTuneOk(2047, 131_072, 0)),
        (0, ConnectionOpen("/")),
        (1, ChannelOpen()),
    )
)
BEGIN_091: Final = b"".join(
    method_frame(1, method)
    for method in (
        QueueDeclare(QUEUE_091, durable=True, no_wait=True),
        QueueDeclare(QUEUE_10, durable=True, no_wait=True),
        QueueDeclare(QUEUE_010, durable=True, no_wait=True),
        ConfirmSelect(nowait=True),
        BasicConsume(QUEUE_091, "b", no_wait=True),
    )
)
PUBLISH: Final = method_frame(1, BasicPublish("", QUEUE_091)) + content_frames(
    1, BasicProperties(delivery_mode=2), b"bystander", 0
)
BEGIN_10: Final = AMQP10_LOGIN + b"".join(
    frame(0, performative.encode())
    for performative in (
        Open("bystander"),
        Begin(next_outgoing_id=0, incoming_window=1 << 30, outgoing_window=1 << 30),
        Attach("out", 0, ROLE_SENDER, source=Source(), target=Target("/queues/" + QUEUE_10), initial_delivery_count=0),
        Attach("in", 1, ROLE_RECEIVER, source=Source("/queues/" + QUEUE_10), target=Target()),
        Flow(
            next_incoming_id=0,
            incoming_window=1 << 30,
            next_outgoing_id=0,
            outgoing_window=1 << 30,
            handle=1,
            delivery_count=0,
            link_credit=1 << 20,
        ),
    )
)
MESSAGE: Final = b"\0\x53\x70\xc0\x02\x01\x41" + encode_value(Described(ULong(0x75), b"bystander"))


BEGIN_010: Final = (
    AMQP010_LOGIN
    + encode_control(0, SessionAttach(b"bystander"))
    + encode_control(0, SessionCommandPoint(0, 0))
    + b"".join(
        encode_command(0, command)
        for command in (
            MessageSubscribe(QUEUE_010, "b"),
            MessageSetFlowMode("b", FLOW_CREDIT),
            MessageFlow("b", UNIT_MESSAGE, UNLIMITED),
            MessageFlow("b", UNIT_BYTE, UNLIMITED),
        )
    )
)
PUBLISH_010: Final = encode_command(
    0,
    MessageTransfer("", ACCEPT_EXPLICIT),
    sync=True,
    header=encode_header(DeliveryProperties(routing_key=QUEUE_010, delivery_mode=MODE_PERSISTENT)),
    body=b"bystander",
)
ACCEPTED_010: Final = encode_command(0, MessageAccept(((0, (1 << 31) - 1),)))
COMPLETED_010: Final = (CONTROL, b"\x02\x0a")
TRANSFER_010: Final = (COMMAND, b"\x04\x01")


class Waited(AssertionError):
    """A bystander did not get what it was owed."""


class Bystanders:
    """One of each protocol."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.old = Wire(machine, BYSTANDER)
        machine.feed(self.old, LOGIN + BEGIN_091)
        self.new = Wire(machine, BYSTANDER)
        machine.feed(self.new, BEGIN_10)
        self.final = Wire(machine, BYSTANDER)
        machine.feed(self.final, BEGIN_010)
        self.count = 0
        self.check("before anything happened")
        machine.meanwhile = self.come_meanwhile

    def come_meanwhile(self) -> None:
        """Publish and be served while the read of somebody else is worked off, turn by turn."""
        machine = self.machine
        if machine.node.alarm or self.old.is_lost:
            return
        seen = self.old.answers.seen
        seen.clear()
        machine.begin_stretch()
        began = time.process_time()
        self.old.receive(PUBLISH)
        while machine.turn() and not {ACK, DELIVER} <= seen:
            pass
        machine.longest_wait_s = max(machine.longest_wait_s, time.process_time() - began)
        self.old.receive(method_frame(1, BasicAck(0, multiple=True)))

    def check(self, when: str) -> None:
        """Publish one message each; it must be confirmed and delivered when the node comes to rest."""
        machine = self.machine
        self.count += 1
        number = self.count
        self.old.answers.seen.clear()
        self.new.answers.seen.clear()
        self.final.answers.seen.clear()
        machine.feed(self.old, PUBLISH)
        machine.feed(self.final, PUBLISH_010)
        transfer = Transfer(0, number - 1, b"%d" % number, 0).encode()
        machine.feed(self.new, frame(0, transfer, MESSAGE))
        for wire, protocol, owed in (
            (self.old, "0-9-1", ((ACK, "confirm"), (DELIVER, "delivery"))),
            (self.new, "1.0", ((DISPOSITION, "outcome"), (TRANSFER, "delivery"))),
            (self.final, "0-10", ((COMPLETED_010, "completion"), (TRANSFER_010, "delivery"))),
        ):
            if wire.is_lost or wire.engine is None or wire.engine.closed:
                raise Waited(f"{when} the bystander of {protocol} is cut off: {wire.answers.errors}")
            for kind, noun in owed:
                if kind not in wire.answers.seen:
                    raise Waited(f"{when} the bystander of {protocol} has no {noun}; {wire.answers.errors}")
        machine.feed(self.old, method_frame(1, BasicAck(0, multiple=True)))
        machine.feed(self.final, ACCEPTED_010)
        machine.feed(self.new, frame(0, Disposition(ROLE_RECEIVER, number - 1, None, True, Accepted()).encode()))
