"""Transactions that would take long to commit: refused before they do, and given back."""

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from tests.engine.amqp10.peer import Peer as Peer10
from tests.engine.amqp10.peer import Sender, Session, declare, message
from waybill.model.death_headers import DEATH_UNITS
from waybill.model.transaction import OTHER_UNITS
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicAck, BasicNack, BasicPublish
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.messaging import Accepted, Rejected, Released
from waybill.wire.amqp10.performatives import Disposition
from waybill.wire.amqp10.sections import encode_amqp_value
from waybill.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState

UNITS_MAX = 256
PUBLISHES_MAX = UNITS_MAX // 2
EXCEEDED = "amqp:resource-limit-exceeded"


@pytest.fixture
def bench() -> NodeBench:
    bench = NodeBench(Cut.WHOLE)
    bench.node.limits.transaction_units_max = UNITS_MAX
    return bench


def publish(channel: Channel, count: int, exchange: str = "", key: str = "q") -> None:
    octets = method_frame(1, BasicPublish(exchange, key)) + content_frames(1, BasicProperties(), b"1", 4096)
    channel.peer.write(octets * count)


def transactional(bench: NodeBench) -> Channel:
    channel = bench.channel()
    channel.declare("q")
    channel.call(TxSelect(), TxSelectOk)
    return channel


def holding(bench: NodeBench, count: int) -> Channel:
    """A channel that holds so many messages."""
    channel = bench.channel()
    channel.declare("q")
    publish(channel, count)
    channel.consume("q", no_ack=False)
    bench.settle()
    channel.call(TxSelect(), TxSelectOk)
    return channel


# --- 0-9-1 ---


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_publishes_as_many_as_may_be(bench: NodeBench, end: str) -> None:
    channel = transactional(bench)
    publish(channel, PUBLISHES_MAX)
    if end == "commit":
        channel.call(TxCommit(), TxCommitOk)
    else:
        channel.call(TxRollback(), TxRollbackOk)
    # The count begins again.
    publish(channel, PUBLISHES_MAX)
    channel.sync()


def test_one_publish_more(bench: NodeBench) -> None:
    channel = transactional(bench)
    publish(channel, PUBLISHES_MAX + 1)
    assert "a transaction holds more" in channel.expect_refused(406).reply_text
    channel.reopen()
    assert channel.depth() == 0
    assert bench.node.runtime.held_bytes == 0


def test_commits_at_the_same_time_take_turns(bench: NodeBench) -> None:
    bench.node.limits.transaction_units_max = 16_384
    channels = [transactional(bench) for _ in range(4)]
    for channel in channels:
        publish(channel, 8192)
        channel.sync()
    queue = bench.node.virtual_hosts["/"].queues["q"]
    bench.node.end_turn()
    for channel in channels:
        channel.peer.wire.engine.receive_data(method_frame(1, TxCommit()), bench.now)  # type: ignore[attr-defined]
    assert queue.ready_count == 2 * 8192
    for count in (3, 4):
        bench.node.work(bench.now)
        bench.node.end_turn()
        assert queue.ready_count == count * 8192


def test_octets_count(bench: NodeBench) -> None:
    channel = transactional(bench)
    octets = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), bytes(40_960), 4096)
    fits = UNITS_MAX // (OTHER_UNITS + 10)
    channel.peer.write(octets * fits)
    channel.call(TxCommit(), TxCommitOk)
    channel.peer.write(octets * (fits + 1))
    assert "4096 octets of a message 1" in channel.expect_refused(406).reply_text


def test_copies_count(bench: NodeBench) -> None:
    channel = transactional(bench)
    channel.exchange("all", "fanout")
    for number in range(8):
        channel.declare(f"q{number}")
        channel.bind("all", f"q{number}")
    publish(channel, PUBLISHES_MAX // 8 + 1, "all")
    channel.expect_refused(406)


@pytest.mark.parametrize("multiple", [True, False])
def test_acknowledgements(bench: NodeBench, multiple: bool) -> None:
    channel = holding(bench, UNITS_MAX + 1)
    if multiple:
        channel.send(BasicAck(UNITS_MAX, multiple=True))
    else:
        channel.send(*[BasicAck(tag) for tag in range(1, UNITS_MAX + 1)])
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert queue.unsettled_count == UNITS_MAX + 1
    channel.send(BasicAck(UNITS_MAX + 1))
    bench.settle()
    # The channel is closed, and everything is given back.
    assert (queue.unsettled_count, queue.ready_count) == (0, UNITS_MAX + 1)


@pytest.mark.parametrize("requeue", [True, False])
def test_rejections_count_twice(bench: NodeBench, requeue: bool) -> None:
    channel = holding(bench, PUBLISHES_MAX + 1)
    channel.send(BasicNack(0, multiple=True, requeue=requeue))
    bench.settle()
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert (queue.unsettled_count, queue.ready_count) == (0, PUBLISHES_MAX + 1)


@pytest.mark.parametrize("limit", [{"x-max-length": 1}, {"x-max-length-bytes": 1}])
def test_publishes_that_may_end_as_dead_letters_count_more(bench: NodeBench, limit: dict[str, object]) -> None:
    channel = bench.channel()
    channel.declare("full", {**limit, "x-dead-letter-exchange": "amq.fanout"})
    channel.declare("plain", {"x-dead-letter-exchange": "amq.fanout"})
    channel.call(TxSelect(), TxSelectOk)
    fits = UNITS_MAX // (OTHER_UNITS + DEATH_UNITS)
    publish(channel, fits, key="full")
    channel.call(TxCommit(), TxCommitOk)
    publish(channel, PUBLISHES_MAX, key="plain")
    channel.call(TxCommit(), TxCommitOk)
    publish(channel, fits + 1, key="full")
    assert "a transaction holds more" in channel.expect_refused(406).reply_text


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("more", [0, 1])
def test_outcomes_that_may_end_as_dead_letters_count_more(bench: NodeBench, more: int, requeue: bool) -> None:
    channel = bench.channel()
    channel.declare("q", {"x-dead-letter-exchange": "amq.fanout"})
    fits = UNITS_MAX // (OTHER_UNITS + DEATH_UNITS)
    publish(channel, fits + more)
    channel.consume("q", no_ack=False)
    bench.settle()
    channel.call(TxSelect(), TxSelectOk)
    channel.send(BasicNack(0, multiple=True, requeue=requeue))
    bench.settle()
    queue = bench.node.virtual_hosts["/"].queues["q"]
    # The channel is closed, and everything is given back.
    assert queue.ready_count == (fits + 1 if more else 0)


def test_a_commit_is_charged_to_its_turn(bench: NodeBench) -> None:
    channel = transactional(bench)
    publish(channel, PUBLISHES_MAX)
    bench.settle()
    runtime = bench.node.runtime
    runtime.begin_turn()
    server = next(iter(bench.node.connections))
    server.receive_data(method_frame(1, TxCommit()), bench.now)
    assert runtime.work_left <= runtime.turn_units - UNITS_MAX // 2


# --- 1.0 ---


def connect(bench: NodeBench) -> Session:
    peer = Peer10(bench)
    peer.open()
    return peer.begin()


def begin(bench: NodeBench) -> tuple[Session, Sender, TransactionalState]:
    session = connect(bench)
    control = session.sender(None, target=Coordinator())
    declared = control.send(encode_amqp_value(Declare())).state
    assert isinstance(declared, Declared)
    return session, control, TransactionalState(declared.txn_id)


def test_posts_beyond_it_leave_a_rollback_only(bench: NodeBench) -> None:
    queue = declare(bench)
    session, control, state = begin(bench)
    link = session.sender("/queues/q")
    for _ in range(PUBLISHES_MAX):
        link.send(message(), state=state)
    link.transfer(message(), state=state)
    link.expect_detached(EXCEEDED)
    refused = control.send(encode_amqp_value(Discharge(state.txn_id, fail=False))).state
    assert isinstance(refused, Rejected)
    assert refused.error is not None
    assert refused.error.condition == "amqp:transaction:rollback"
    assert queue.message_count == 0
    assert bench.node.runtime.held_bytes == 0


def test_outcomes_beyond_it_end_the_coordinator_and_are_undone(bench: NodeBench) -> None:
    queue = declare(bench)
    sender = connect(bench).sender("/queues/q")
    for _ in range(PUBLISHES_MAX + 1):
        sender.send(message())
    session, control, state = begin(bench)
    receiver = session.receiver("/queues/q", credit=PUBLISHES_MAX + 1)
    numbers = [receiver.delivery().number for _ in range(PUBLISHES_MAX + 1)]
    released = TransactionalState(state.txn_id, Released())
    session.send(Disposition(role=True, first=numbers[0], last=numbers[0] + PUBLISHES_MAX, state=released))
    control.expect_detached(EXCEEDED)
    assert (queue.unsettled_count, queue.message_count) == (PUBLISHES_MAX + 1, 0)
    session.send(
        Disposition(role=True, first=numbers[0], last=numbers[0] + PUBLISHES_MAX, settled=True, state=Released())
    )
    assert queue.message_count == PUBLISHES_MAX + 1


def test_as_many_acceptances_as_may_be(bench: NodeBench) -> None:
    queue = declare(bench)
    sender = connect(bench).sender("/queues/q")
    for _ in range(UNITS_MAX):
        sender.send(message())
    session, control, state = begin(bench)
    receiver = session.receiver("/queues/q", credit=UNITS_MAX)
    numbers = [receiver.delivery().number for _ in range(UNITS_MAX)]
    accepted = TransactionalState(state.txn_id, Accepted())
    session.send(
        Disposition(role=True, first=numbers[0], last=numbers[0] + UNITS_MAX - 1, settled=True, state=accepted)
    )
    assert control.send(encode_amqp_value(Discharge(state.txn_id, fail=False))).state == Accepted()
    assert (queue.unsettled_count, queue.message_count) == (0, 0)


@pytest.mark.parametrize("outcome", [Rejected(), Released()])
def test_a_retired_delivery_that_may_end_as_a_dead_letter_counts_more(bench: NodeBench, outcome: Composite) -> None:
    declare(bench, x_dead_letter_exchange="amq.fanout")
    sender = connect(bench).sender("/queues/q")
    fits = UNITS_MAX // (OTHER_UNITS + DEATH_UNITS)
    for _ in range(fits + 1):
        sender.send(message())
    session, control, state = begin(bench)
    receiver = session.receiver("/queues/q", credit=fits + 1)
    numbers = [receiver.delivery().number for _ in range(fits + 1)]
    retired = TransactionalState(state.txn_id, outcome)
    session.send(Disposition(role=True, first=numbers[0], last=numbers[-2], state=retired))
    session.expect_nothing()
    session.send(Disposition(role=True, first=numbers[-1], state=retired))
    control.expect_detached(EXCEEDED)
