"""A run of deliveries to a lone consumer looks like deliveries one by one, and leaves the same behind.

A queue with priority levels delivers one by one, and these messages all have the same priority.
"""

from typing import Final

import pytest

from tests.engine.amqp091.peer import Cut, NodeBench
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.model.message import NO_TTL, Address, Message
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.sections import encode_data

FRAME_MAX: Final = 4096
FIRST: Final = Address("", "q")
SECOND: Final = Address("exchange", "key")


def own(body: bytes, address: Address = FIRST, *, channel: int = 1, ttl_ms: int = NO_TTL) -> Message:
    content = content_frames(channel, BasicProperties(), body, 131_072)
    return Message(AMQP091, content, address, True, 0, ttl_ms, 0.0)


def foreign(content: bytes) -> Message:
    return Message(AMQP10, content, FIRST, True, 0, NO_TTL, 0.0)


MESSAGES: Final[dict[str, list[Message]]] = {
    "alike": [own(b"body")] * 20,
    "of two addresses": [own(b"body"), own(b"body", SECOND)] * 3,
    "of other channels": [own(b"body", channel=number) for number in (1, 2, 7)],
    "larger than a frame": [own(b"x" * size) for size in (FRAME_MAX - 8, FRAME_MAX, 3 * FRAME_MAX)],
    "of another protocol": [own(b"before"), foreign(encode_data(b"body")), own(b"after")],
    "without a form": [own(b"before"), foreign(b"\x00\x53\x75"), own(b"after"), foreign(b"?")],
    "expired between": [own(b"before"), own(b"gone", ttl_ms=1), own(b"after")],
}


def story(messages: list[Message], *, no_ack: bool, again: bool, prefetch: int, levels: int | None) -> list[object]:
    """What a consumer gets, all in octets, and what the queue and the dead letters hold afterwards."""
    bench = NodeBench(Cut.WHOLE)
    setup = bench.channel()
    setup.declare("dead")
    arguments: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    setup.declare("q", arguments if levels is None else {**arguments, "x-max-priority": levels}, durable=True)
    queue = bench.node.virtual_hosts["/"].queues["q"]
    for message in messages:
        message.published_at = bench.now
        queue.publish(message, 0)
    bench.advance(1.0)
    peer = bench.connect(frame_max=FRAME_MAX)
    consumer = peer.open_channel(1)
    consumer.qos(prefetch)
    if again:
        first = peer.open_channel(2)
        first.consume("q", tag="first")
        peer.receive(0.0)
        first.call(BasicCancel("first"), BasicCancelOk)
        first.nack(0, multiple=True)
    consumer.consume("q", tag="consumer", no_ack=no_ack)
    peer.receive(0.0)
    held = [queue.ready_count, queue.unsettled_count, int(bench.node.runtime.memory_bytes)]
    got = [(str(one.method), one.properties, one.body) for one in consumer.replies]
    bench.advance(1.0)
    return [*held, *got, setup.depth("dead"), next(iter(queue.consumers)).unsettled_count]


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("again", [False, True], ids=["new", "redelivered"])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("case", MESSAGES)
def test_a_run_is_delivered_like_one_after_the_other(case: str, prefetch: int, *, no_ack: bool, again: bool) -> None:
    run = story(MESSAGES[case], no_ack=no_ack, again=again, prefetch=prefetch, levels=None)
    one_by_one = story(MESSAGES[case], no_ack=no_ack, again=again, prefetch=prefetch, levels=1)
    assert run == one_by_one
    assert len(run) > 5
