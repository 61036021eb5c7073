"""One command that concerns a great many messages or subscriptions takes turns: others are served meanwhile."""

from collections.abc import Iterator

import pytest

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp010.strict import UNLIMITED
from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from waybill.model.message_queue import MessageQueue
from waybill.wire.amqp010.class_message import Acquired, MessageAcquire, MessageFlush, MessageSubscribe
from waybill.wire.amqp010.struct import Command
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.properties import BasicProperties

SHORT_TURN_UNITS = 256
MESSAGES = 1000
LEVELS = 256
BROWSERS = 60
"""So many that one look at all levels for each of them is more than a turn."""
LATE = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), b"late", 4096)


@pytest.fixture
def whole_bench() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    bench.node.runtime.turn_units = SHORT_TURN_UNITS
    yield bench
    bench.close()


@pytest.fixture
def publisher(whole_bench: NodeBench) -> Channel:
    return whole_bench.channel()


@pytest.fixture
def session(whole_bench: NodeBench) -> Session:
    peer = Peer(whole_bench)
    peer.open()
    return peer.session()


def queue_of(bench: NodeBench) -> MessageQueue:
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert isinstance(queue, MessageQueue)
    return queue


def receive(session: Session, *commands: Command) -> None:
    """One read of the engine, and nothing else yet."""
    for command in commands:
        session.send(command)
    peer = session.peer
    peer.wire.engine.receive_data(peer.client.take_output(), peer.bench.now)


def turns(bench: NodeBench) -> int:
    """How many turns the node needs until nothing is left to do."""
    count = 0
    while bench.node.has_work or bench.node.has_late_work or count == 0:
        count += 1
        bench.node.work(bench.now)
        for engine in bench.node.take_dirty():
            bench.node.work(bench.now)
            engine.transport.serve(engine)  # type: ignore[attr-defined]
        bench.node.end_turn()
        assert count < 10_000
    return count


@pytest.fixture
def browsed(publisher: Channel, session: Session, whole_bench: NodeBench) -> Session:
    """A session that has copies of all messages."""
    publisher.declare()
    for number in range(MESSAGES):
        publisher.publish(str(number))
    session.subscribe("q", acquire_mode=1)
    whole_bench.settle()
    session.peer.pump()
    assert len(session.transfers) == MESSAGES
    return session


def test_acquiring_a_great_many_messages(browsed: Session, whole_bench: NodeBench) -> None:
    queue = queue_of(whole_bench)
    first, last = browsed.transfers[0].id, browsed.transfers[-1].id
    receive(browsed, MessageAcquire(((first, last),)))
    assert 0 < queue.unsettled_count < MESSAGES
    whole_bench.settle()
    browsed.peer.pump()
    assert queue.unsettled_count == MESSAGES
    assert list(browsed.results.values()) == [Acquired(((first, last),))]


def test_acquiring_ends_with_the_connection(browsed: Session, whole_bench: NodeBench) -> None:
    queue = queue_of(whole_bench)
    receive(browsed, MessageAcquire(((browsed.transfers[0].id, browsed.transfers[-1].id),)))
    browsed.peer.cut()
    whole_bench.settle()
    assert (queue.ready_count, queue.unsettled_count) == (MESSAGES, 0)


def test_many_flushes_beside_many_transfers(publisher: Channel, session: Session, whole_bench: NodeBench) -> None:
    """Each takes a look at all transfers that are not completed."""
    publisher.declare()
    publisher.declare("empty")
    for number in range(MESSAGES * 4):
        publisher.publish("x" * (number % 2))
    session.call(MessageSubscribe("q", "d", 1, 0))
    session.flow("d", messages=UNLIMITED, octets=UNLIMITED)
    session.call(MessageSubscribe("empty", "e", 1, 0))
    session.flow("e", messages=UNLIMITED, octets=UNLIMITED)
    whole_bench.settle()
    receive(session, *[MessageFlush("e")] * 30)
    # A look at 16 transfers costs a unit.
    assert turns(whole_bench) > 30 * MESSAGES * 4 / 16 / SHORT_TURN_UNITS / 4
    session.sync()


def browse(bench: NodeBench, publisher: Channel, session: Session) -> MessageQueue:
    """A queue of very many priorities, with many browsers that have seen all."""
    publisher.declare(arguments={"x-max-priority": LEVELS - 1})
    for priority in range(LEVELS):
        publisher.publish("m", properties=BasicProperties(priority=priority))
    for number in range(BROWSERS):
        session.subscribe("q", f"d{number}", acquire_mode=1, accept_mode=1)
    bench.settle()
    session.peer.pump()
    assert len(session.transfers) == BROWSERS * LEVELS
    session.transfers.clear()
    return queue_of(bench)


def test_a_message_for_many_browsers_of_many_priorities(
    publisher: Channel, session: Session, whole_bench: NodeBench
) -> None:
    browse(whole_bench, publisher, session)
    publisher.peer.wire.engine.receive_data(LATE, whole_bench.now)  # type: ignore[attr-defined]
    assert turns(whole_bench) >= BROWSERS * LEVELS / 16 / SHORT_TURN_UNITS
    whole_bench.settle()
    session.peer.pump()
    assert len(session.transfers) == BROWSERS


def test_browsers_that_have_seen_all_are_passed(publisher: Channel, session: Session, whole_bench: NodeBench) -> None:
    queue = browse(whole_bench, publisher, session)
    whole_bench.node.runtime.begin_turn()
    whole_bench.node.runtime.mark_dirty(queue)
    whole_bench.node.work(whole_bench.now)
    assert whole_bench.node.runtime.work_left > SHORT_TURN_UNITS - BROWSERS


def test_what_comes_back_is_seen_by_who_has_not_seen_it(
    publisher: Channel, session: Session, whole_bench: NodeBench
) -> None:
    queue = browse(whole_bench, publisher, session)
    taken = publisher.get(no_ack=False)
    assert taken is not None
    session.subscribe("q", "late", acquire_mode=1, accept_mode=1)
    whole_bench.settle()
    session.peer.pump()
    assert len(session.take_all()) == LEVELS - 1
    publisher.reject(taken.tag, requeue=True)
    whole_bench.settle()
    session.peer.pump()
    assert queue.ready_count == LEVELS
    assert len(session.transfers) == 1


def test_the_places_of_browsers_are_counted(publisher: Channel, session: Session, whole_bench: NodeBench) -> None:
    runtime = whole_bench.node.runtime
    before = runtime.footprint_bytes
    browse(whole_bench, publisher, session)
    assert runtime.footprint_bytes - before > BROWSERS * LEVELS * 8
    session.peer.cut()
    publisher.call(QueueDelete("q"), QueueDeleteOk)
    whole_bench.settle()
    assert runtime.footprint_bytes < before
