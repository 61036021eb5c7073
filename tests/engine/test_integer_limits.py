"""Every integer of every method and performative at its limits: an answer of the protocol, and never an exception.

What is compiled keeps integers in 64 bits with a sign, so these tests say most where they run on the compiled build.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.client.peer import opened
from tests.engine.amqp091.peer import Cut, NodeBench
from tests.engine.amqp10.peer import Peer as Peer10
from tests.engine.amqp10.peer import declare, message
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.delivery import Delivery
from waybill.wire.amqp091.frames import FRAME_HEADER, content_frames, frame, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.method_arguments import INTEGER_SIZES
from waybill.wire.amqp091.methods import METHODS
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicNack,
    BasicPublish,
    BasicReject,
)
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp091.reply_codes import PRECONDITION_FAILED
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import EncodeError
from waybill.wire.amqp10.frames import frame as frame10
from waybill.wire.amqp10.messaging import Accepted, Received, Rejected, Source, Target
from waybill.wire.amqp10.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Open,
    Transfer,
)
from waybill.wire.amqp10.sections import encode_data
from waybill.wire.amqp10.types import Described

LIMITS: Final = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def integers_of(method: type[Method]) -> Iterator[tuple[str, int]]:
    """Name and largest value of each argument that is a number."""
    names = {field.name for field in dataclasses.fields(method)}  # type: ignore[arg-type]
    arguments = method.ARGUMENTS
    for name, kind in zip(arguments.names, arguments.kinds, strict=True):
        if name in names and kind in INTEGER_SIZES:
            yield name, 256 ** INTEGER_SIZES[kind] - 1


METHOD_CASES: Final = [
    (method, name, value)
    for method in METHODS
    for name, largest in integers_of(method)
    for value in LIMITS
    if value <= largest
]


def filled(method: type[Method], name: str, value: int) -> Method:
    arguments: dict[str, Any] = {name: value}
    with contextlib.suppress(TypeError):
        return method(**arguments)
    return method(**dict.fromkeys((field.name for field in dataclasses.fields(method)), 0), **arguments)  # type: ignore[arg-type]


def with_flags(made: Method) -> Iterator[Method]:
    """It, and once more with its bits set."""
    yield made
    names = [field.name for field in dataclasses.fields(made) if isinstance(getattr(made, field.name), bool)]  # type: ignore[arg-type]
    if names:
        yield dataclasses.replace(made, **dict.fromkeys(names, True))  # type: ignore[type-var]


def test_there_are_cases() -> None:
    assert {"delivery_tag", "prefetch_size", "reply_code", "channel_max"} <= {name for _, name, _ in METHOD_CASES}


def test_the_server_answers_each_method() -> None:
    bench = NodeBench(Cut.WHOLE)
    witness = bench.channel()
    witness.declare("q")
    for method, name, value in METHOD_CASES:
        for made in with_flags(filled(method, name, value)):
            for number in (0, 1):
                peer = bench.connect()
                peer.open_channel(1)
                octets = method_frame(number, made)
                if made.HAS_CONTENT:
                    octets += content_frames(number or 1, BasicProperties(), b"", 0)
                peer.write(octets)
                peer.wire.cut()
    witness.publish(b"still here")
    assert witness.take().body == b"still here"


@pytest.mark.parametrize("tag", LIMITS)
@pytest.mark.parametrize("has_deliveries", [False, True])
@requirement("BB-020")
def test_a_tag_that_was_never_given_is_refused(tag: int, has_deliveries: bool) -> None:
    bench = NodeBench(Cut.WHOLE)
    for method in (BasicAck, BasicNack, BasicReject):
        for multiple in (False, True):
            if method is BasicReject and multiple:
                continue
            channel = bench.channel()
            channel.declare("q", exclusive=True)
            channel.qos(1)
            if has_deliveries:
                channel.publish(b"one")
                channel.consume()
                assert channel.delivery().body == b"one"
            made = method(tag) if method is BasicReject else method(tag, multiple)
            if (multiple and tag == 0) or (has_deliveries and tag == 1):
                channel.send(made)
                channel.sync()
            else:
                close = channel.refuses(made, PRECONDITION_FAILED)
                assert close.reply_text.endswith(f"unknown delivery tag {tag}")
            channel.peer.close()


def header_of(body_size: int) -> bytes:
    """A content header frame that announces a body of that size."""
    return frame(FRAME_HEADER, 1, b"\x00\x3c\x00\x00" + body_size.to_bytes(8, "big") + b"\x00\x00")


@pytest.mark.parametrize("size", LIMITS)
@pytest.mark.parametrize("before", [0, 2])
def test_a_body_of_any_announced_size(size: int, before: int) -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q")
    for _ in range(before):
        channel.publish(b"")
    channel.peer.write(method_frame(1, BasicPublish("", "q")) + header_of(size))
    if size == 0:
        assert channel.depth() == before + 1
    channel.peer.wire.cut()
    assert bench.channel().depth() == before + (size == 0)


@pytest.mark.parametrize("stamp", LIMITS)
def test_a_timestamp_of_any_size_reaches_both_protocols(stamp: int) -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    channel.publish(b"x", properties=BasicProperties(timestamp=stamp, headers={"x-delay": stamp % 2**63}))
    receiver = Peer10(bench)
    receiver.open()
    link = receiver.begin().receiver("/queues/q", credit=1)
    delivery = link.delivery()
    link.settle(delivery, Rejected())
    assert channel.take().properties.timestamp == stamp


# --- our own client ---


def frames_of(made: Method) -> bytes:
    octets = method_frame(1, made)
    return octets + content_frames(1, BasicProperties(), b"body", 4096) if made.HAS_CONTENT else octets


def test_the_client_answers_each_method() -> None:
    for method, name, value in METHOD_CASES:
        for made in with_flags(filled(method, name, value)):
            for number in (0, 1):
                peer = opened()
                channel, _ = peer.open_channel(confirms=True)
                consume(channel)
                peer.send(1, BasicConsumeOk("c"))
                peer.feed(method_frame(number, made) if number == 0 else frames_of(made))
                peer.engine.data_to_send()


def acknowledge(delivery: Delivery) -> None:
    delivery.ack()


def consume(channel: ClientChannel) -> None:
    channel.consume(BasicConsume("q", "c"), acknowledge, lambda _: None)


# --- 1.0 ---


def composites() -> Iterator[Composite]:
    sends: dict[str, Any] = {"source": Source(), "target": Target("/queues/q"), "initial_delivery_count": 0}
    windows: dict[str, Any] = {"next_incoming_id": 0, "incoming_window": 9, "next_outgoing_id": 0, "outgoing_window": 9}
    yield Open("me")
    yield Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    yield Attach("a", 0, ROLE_SENDER, **sends)
    yield Attach("b", 1, ROLE_RECEIVER, source=Source("/queues/q"), target=Target())
    yield Flow(**windows)
    yield Flow(**windows, handle=0, delivery_count=0, link_credit=3)
    yield Transfer(5, 0, delivery_tag=b"t", message_format=0)
    yield Disposition(ROLE_RECEIVER, 0, last=0, settled=True, state=Accepted())
    yield Disposition(ROLE_SENDER, 0, last=0, settled=True, state=Accepted())
    yield Detach(5)


def performative_cases() -> Iterator[bytes]:
    for value in composites():
        for name in value.FIELDS.names:
            for limit in LIMITS:
                with contextlib.suppress(EncodeError, TypeError):
                    yield encode_value(dataclasses.replace(value, **{name: limit}))  # type: ignore[type-var]
    for limit in LIMITS:
        received: dict[bytes, Composite | Described | None] = {b"tag": Received(min(limit, 2**32 - 1), limit)}
        source = Source("/queues/q")
        attach = Attach("r", 3, ROLE_RECEIVER, source=source, target=Target(), unsettled=received)
        yield encode_value(attach)
        if limit < 2**32:
            yield encode_value(dataclasses.replace(attach, source=Source("/queues/q", timeout=limit, durable=limit)))


def test_the_1_0_server_answers_each_performative() -> None:
    bench = NodeBench(Cut.WHOLE)
    declare(bench)
    count = 0
    for octets in performative_cases():
        for channel in (0, 2**16 - 1):
            peer = Peer10(bench)
            peer.open()
            session = peer.begin()
            session.next_handle = 5
            sender = session.sender("/queues/q")
            session.receiver("/queues/q", credit=2)
            sender.transfer(message())
            count += 1
            peer.write(frame10(channel, octets, encode_data(b"x") if octets[2] == 0x14 else b""))
            peer.wire.cut()
    assert count > 300
