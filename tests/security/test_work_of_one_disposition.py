"""A peer ends or settles a great many deliveries of AMQP 1.0 by one frame: others are served before all is done."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engine.amqp091.peer import Cut, NodeBench
from tests.engine.amqp10.peer import Peer, Receiver, Session, declare
from waybill.engine.amqp091.server.connection import Connection
from waybill.model.entry import Entry
from waybill.model.queue import Queue
from waybill.model.runtime import TURN_UNITS
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Released, Source, Target
from waybill.wire.amqp10.performatives import Attach, Close, Detach, Disposition, End, Flow, Performative, Transfer
from waybill.wire.amqp10.types import Described

SHORT_TURN_UNITS = 256
MESSAGES = 700
WINDOW = 2**31 - 1


def receive_frame(peer: Peer, channel: int, *performatives: Performative) -> None:
    """One read of the engine, and nothing else yet."""
    data = b"".join(frame(channel, performative.encode()) for performative in performatives)
    peer.wire.engine.receive_data(data, peer.bench.now)


def deliver(bench: NodeBench, links: int = 1) -> tuple[Session, Queue]:
    """A session with `MESSAGES` unsettled deliveries, spread over its links."""
    queue = declare(bench)
    filling = bench.channel()
    content = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), b"1", 4096)
    filling.peer.write(content * MESSAGES)
    peer = Peer(bench)
    peer.open()
    session = peer.begin(incoming_window=WINDOW)
    for handle in range(links):
        session.receiver("/queues/q")
        session.flow(handle=handle, delivery_count=0, link_credit=MESSAGES // links, incoming_window=WINDOW)
    bench.settle()
    assert queue.unsettled_count == MESSAGES
    peer.receive()
    peer.received.clear()
    return session, queue


@pytest.fixture
def whole_bench() -> Iterator[NodeBench]:
    """What is sent here is large, and how it is cut makes no difference."""
    bench = NodeBench(Cut.WHOLE)
    bench.node.runtime.turn_units = SHORT_TURN_UNITS
    yield bench
    bench.close()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("state", [Accepted(), Rejected(), Released(), Modified(delivery_failed=True)], ids=repr)
def test_one_disposition_of_a_great_many_takes_turns(whole_bench: NodeBench, state: Composite, settled: bool) -> None:
    session, queue = deliver(whole_bench)
    channel = session.channel
    receive_frame(session.peer, channel, Disposition(True, 0, MESSAGES - 1, settled, state), End())
    assert whole_bench.node.runtime.work_left <= 0
    assert 0 < queue.unsettled_count < MESSAGES
    whole_bench.settle()
    assert queue.unsettled_count == 0
    # What is asked for behind it comes after all its answers.
    answers = [session.expect(Disposition) for _ in range(0 if settled else MESSAGES)]
    assert [answer.first for answer in answers] == list(range(len(answers)))
    session.expect(End)
    assert queue.ready_count == (MESSAGES if isinstance(state, (Released, Modified)) else 0)


def test_a_disposition_holds_if_the_connection_is_lost_before_all_of_it_is_done(whole_bench: NodeBench) -> None:
    session, queue = deliver(whole_bench)
    receive_frame(session.peer, session.channel, Disposition(True, 0, MESSAGES - 1, True, Accepted()))
    assert queue.unsettled_count > 0
    session.peer.wire.cut()
    whole_bench.settle()
    assert queue.message_count == 0


def test_released_messages_come_again_in_their_order(whole_bench: NodeBench) -> None:
    session, queue = deliver(whole_bench)
    other = whole_bench.channel()
    other.consume("q", no_ack=False)
    receive_frame(session.peer, session.channel, Disposition(True, 0, MESSAGES - 1, True, Released()))
    whole_bench.settle()
    assert queue.unsettled_count == MESSAGES
    deliveries = [entry.sequence for entry in unsettled_of(whole_bench, queue)]
    assert deliveries == sorted(deliveries)


def unsettled_of(bench: NodeBench, queue: Queue) -> list[Entry]:
    """What the 0-9-1 consumers of a queue hold, in the order of delivery."""
    for engine in bench.node.connections:
        if isinstance(engine, Connection):
            for channel in engine.channels.values():
                if channel.unsettled:
                    return list(channel.unsettled.values())
    return []


@pytest.mark.parametrize("links", [1, 100])
@pytest.mark.parametrize("end", [Detach(0, closed=True), End(), Close()], ids=lambda end: end.NAME)
def test_the_end_of_what_holds_a_great_many_takes_turns(whole_bench: NodeBench, end: Performative, links: int) -> None:
    session, queue = deliver(whole_bench, links)
    receive_frame(session.peer, session.channel, end)
    if links == 1:
        assert whole_bench.node.runtime.work_left <= 0
        assert queue.unsettled_count > 0
    whole_bench.settle()
    left = (MESSAGES // links) * (links - 1) if isinstance(end, Detach) else 0
    assert queue.unsettled_count == left + (MESSAGES % links if left else 0)


def test_resuming_a_great_many_takes_turns(whole_bench: NodeBench) -> None:
    session, _ = deliver(whole_bench)
    link = Receiver(session, session.receiver_attach("/queues/q", name="link-0-0"))
    session.send(Detach(0, closed=False))
    session.expect(Detach)
    link.handle = link.attach.handle
    tags: dict[bytes, Composite | Described | None] = {
        number.to_bytes(8, "big"): None for number in range(1, MESSAGES + 1)
    }
    session.attach(replace(link.attach, unsettled=tags))
    flow = Flow(
        next_incoming_id=MESSAGES,
        incoming_window=WINDOW,
        next_outgoing_id=0,
        outgoing_window=1,
        handle=link.handle,
        delivery_count=0,
        link_credit=MESSAGES,
    )
    receive_frame(session.peer, session.channel, flow, End())
    assert whole_bench.node.runtime.work_left <= 0
    whole_bench.settle()
    session.peer.receive()
    resumed = [value for _, value, _ in session.peer.received if isinstance(value, Transfer)]
    assert [transfer.delivery_tag for transfer in resumed] == list(tags)
    session.expect(End)


def test_an_attach_that_names_a_great_many_is_charged_for_them(whole_bench: NodeBench) -> None:
    session, _ = deliver(whole_bench)
    link = Receiver(session, session.receiver_attach("/queues/q", name="link-0-0"))
    session.send(Detach(0, closed=False))
    session.expect(Detach)
    whole_bench.settle()
    runtime = whole_bench.node.runtime
    runtime.begin_turn()
    few = Attach("few", 9, True, source=Source("/queues/q"), target=Target())
    receive_frame(session.peer, session.channel, few)
    spent = runtime.turn_units - runtime.work_left
    runtime.begin_turn()
    receive_frame(session.peer, session.channel, link.attach)
    assert runtime.turn_units - runtime.work_left > spent + (MESSAGES >> 5)


def test_ranges_that_name_nothing_new_are_charged(whole_bench: NodeBench) -> None:
    session, queue = deliver(whole_bench)
    whole_bench.node.runtime.turn_units = TURN_UNITS
    whole_bench.settle()
    again = [Disposition(True, 0, 59, False, Accepted()) for _ in range(TURN_UNITS // 4)]
    receive_frame(session.peer, session.channel, *again)
    assert whole_bench.node.runtime.work_left <= 0
    whole_bench.settle()
    assert queue.unsettled_count == MESSAGES - 60
