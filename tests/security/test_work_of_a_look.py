"""What is looked at again and again, or for many at once: each look is charged, and stops where the turn is over."""

import pytest

from tests.engine.amqp091.peer import Cut, EngineWire, NodeBench
from tests.engine.amqp10.peer import Peer
from waybill.engine.server_engine import ServerEngine
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.filters import SELECTOR
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.messaging import Source
from waybill.wire.amqp10.performatives import Flow
from waybill.wire.amqp10.types import Described, Symbol, ULong

DATA = encode_value(Described(ULong(0x75), b"1"))


class Asked(ServerEngine):
    """A connection that is only asked whether it holds something for too long."""

    is_asked = False

    def check_timeouts(self, now: float) -> None:
        self.is_asked = True


@pytest.mark.plain_source
def test_connections_are_asked_in_turns_for_what_they_hold_too_long() -> None:
    bench = NodeBench(Cut.WHOLE)
    node = bench.node
    engines = [Asked(None) for _ in range(node.runtime.turn_units * 2)]
    node.connections.update(dict.fromkeys(engines))
    bench.advance(61.0)
    node.runtime.begin_turn()
    node.maintain(bench.now)
    assert 0 < sum(engine.is_asked for engine in engines) < len(engines)
    for _ in range(10):
        node.end_turn()
        node.work(bench.now)
    assert all(engine.is_asked for engine in engines)


def test_patterns_of_a_selector_are_charged_and_have_a_limit_by_message() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q")
    peer = Peer(bench)
    peer.open()
    session = peer.begin(incoming_window=1 << 20)
    properties = encode_value(Described(ULong(0x74), {"p": "a" * 16_000, "last": "z"}))
    sender = session.sender("/queues/q")
    for _ in range(10):
        sender.send(properties + DATA)
    bench.settle()
    text = " OR ".join(["p LIKE '%a%b'"] * 200 + ["last = 'z'"])
    source = Source("/queues/q", filter={Symbol(SELECTOR): Described(Symbol(SELECTOR), text)})
    link = session.receiver(None, source=source)
    bench.settle()
    queue = bench.node.virtual_hosts["/"].queues["q"]
    flow = Flow(
        next_incoming_id=0,
        incoming_window=1 << 20,
        next_outgoing_id=session.next_outgoing_id,
        outgoing_window=2048,
        handle=link.handle,
        delivery_count=0,
        link_credit=1000,
    )
    peer.wire.engine.receive_data(frame(session.channel, flow.encode()), bench.now)
    bench.node.work(bench.now)
    assert 0 < queue.unsettled_count < 10
    bench.settle()
    # Beyond the limit a pattern is unknown, and what needs none goes on.
    assert queue.unsettled_count == 10


def test_a_key_of_deduplication_is_read_once_for_all_queues() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    for name in ("a", "b", "c"):
        channel.declare(name, arguments={"x-message-deduplication": True})
        channel.bind("amq.fanout", name)
    headers: dict[str, object] = {f"h{number}": "v" * 20 for number in range(1500)}
    headers["x-deduplication-header"] = "k"
    message = method_frame(1, BasicPublish("amq.fanout", "")) + content_frames(
        1, BasicProperties(headers=headers), b"", 131_072
    )
    runtime = bench.node.runtime
    runtime.turn_units = 4096
    runtime.begin_turn()
    wire = channel.peer.wire
    assert isinstance(wire, EngineWire)
    wire.engine.receive_data(message * 2, bench.now)
    used = runtime.turn_units - runtime.work_left
    # Each message is checked once, and its key read once.
    assert len(message) * 4 >> 5 < used < len(message) * 5 >> 5
    bench.settle()
    assert [queue.ready_count for queue in bench.node.virtual_hosts["/"].queues.values()] == [1, 1, 1]
