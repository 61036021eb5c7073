"""Bodies without an end, transactions without a commit, readers without a window: counted, limited, given back."""

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from tests.engine.amqp10.peer import Peer as Peer10
from tests.engine.amqp10.peer import Session, declare, message
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp091.frames import FRAME_BODY, FRAME_HEADER, frame
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.transactions import Coordinator, Declare, Declared, TransactionalState

LIMIT = 1 << 20
PIECE = bytes(100_000)
BEGUN = b"\x00\x53\x75\xb0\x00\x40\x00\x00"
EXCEEDED = "amqp:resource-limit-exceeded"


@pytest.fixture
def bench() -> NodeBench:
    bench = NodeBench(Cut.WHOLE)
    bench.node.limits.held_per_connection_max = LIMIT
    return bench


def held(bench: NodeBench) -> int:
    return int(bench.node.runtime.held_bytes)


def begin_body(channel: Channel, size: int) -> None:
    channel.send(BasicPublish("", "q"))
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00"
    channel.peer.write(frame(FRAME_HEADER, channel.number, header))


def send_piece(channel: Channel, piece: bytes = PIECE) -> None:
    channel.peer.write(frame(FRAME_BODY, channel.number, piece))


def connect(bench: NodeBench) -> Session:
    peer = Peer10(bench)
    peer.open()
    return peer.begin()


# --- 0-9-1 ---


def test_bodies_in_pieces_are_counted_and_given_back(bench: NodeBench) -> None:
    channel = bench.channel()
    channel.declare("q")
    begin_body(channel, 3 * len(PIECE))
    send_piece(channel)
    assert len(PIECE) <= held(bench) <= len(PIECE) + 1000
    send_piece(channel)
    send_piece(channel)
    assert held(bench) == 0
    assert channel.depth() == 1


def test_bodies_without_an_end_close_their_channel_and_no_other(bench: NodeBench) -> None:
    first = bench.channel()
    first.declare("q")
    peer = first.peer
    others = [peer.open_channel(number) for number in range(2, 14)]
    for channel in others:
        begin_body(channel, 1 << 20)
        send_piece(channel)
    others[-2].expect_refused(406)
    assert held(bench) <= LIMIT
    first.publish(b"goes on")
    assert first.depth() == 1
    peer.wire.cut()
    assert held(bench) == 0


def test_the_sum_of_the_node_is_limited_too(bench: NodeBench) -> None:
    bench.node.runtime.held_max_bytes = 250_000
    channels = [bench.channel() for _ in range(3)]
    channels[0].declare("q")
    for channel in channels:
        begin_body(channel, 1 << 20)
        send_piece(channel)
    channels[2].expect_refused(406)
    assert held(bench) <= 250_000
    for channel in channels:
        channel.peer.wire.cut()
    assert held(bench) == 0


def test_unfinished_bodies_raise_no_alarm_that_would_keep_them_unfinished(bench: NodeBench) -> None:
    node = bench.node
    node._memory_alarm_bytes = 50_000
    channel = bench.channel()
    channel.declare("q")
    begin_body(channel, 3 * len(PIECE))
    send_piece(channel)
    send_piece(channel)
    assert node.alarm == ""
    send_piece(channel)
    assert node.alarm != ""


def test_nor_do_they_beside_a_backlog() -> None:
    bench = DiskBench(memory_limit_bytes=4 << 20)
    channel = bench.channel()
    number = 0
    while bench.memory_bytes < bench.memory_limit_bytes - len(PIECE):
        channel.declare(f"q{number}")
        channel.publish(PIECE, f"q{number}")
        number += 1
        bench.settle()
    attacker = bench.channel()
    begin_body(attacker, 30 << 20)
    for _ in range(60):
        send_piece(attacker)
    bench.settle()
    assert held(bench) > bench.memory_limit_bytes
    assert bench.node.alarm == ""
    bench.close()


@pytest.mark.parametrize("end", ["commit", "rollback", "cut"])
def test_transactions_are_counted_and_given_back(bench: NodeBench, end: str) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.call(TxSelect(), TxSelectOk)
    for _ in range(5):
        channel.publish(PIECE, properties=BasicProperties())
    assert 5 * len(PIECE) <= held(bench) <= 5 * len(PIECE) + 5000
    if end == "commit":
        channel.call(TxCommit(), TxCommitOk)
    elif end == "rollback":
        channel.call(TxRollback(), TxRollbackOk)
    else:
        channel.peer.wire.cut()
    assert held(bench) == 0


def test_a_transaction_without_an_end_is_refused(bench: NodeBench) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.call(TxSelect(), TxSelectOk)
    for _ in range(11):
        channel.publish(PIECE)
    channel.expect_refused(406)
    assert held(bench) == 0


# --- 1.0 ---


def test_deliveries_in_pieces_are_counted_and_given_back(bench: NodeBench) -> None:
    declare(bench)
    session = connect(bench)
    links = [session.sender("/queues/q") for _ in range(12)]
    for link in links[:-2]:
        link.transfer(BEGUN + PIECE, more=True)
    assert 10 * len(PIECE) <= held(bench) <= LIMIT
    links[-2].transfer(BEGUN + PIECE, more=True)
    links[-2].expect_detached(EXCEEDED)
    links[-1].send(message())
    links[0].detach()
    assert 9 * len(PIECE) <= held(bench) <= 10 * len(PIECE)
    session.peer.wire.cut()
    assert held(bench) == 0


def test_transactions_of_links_are_counted_and_given_back(bench: NodeBench) -> None:
    declare(bench)
    session = connect(bench)
    control = session.sender(None, target=Coordinator())
    declared = control.send(b"\x00\x53\x77" + Declare().encode()).state
    assert isinstance(declared, Declared)
    link = session.sender("/queues/q")
    state = TransactionalState(declared.txn_id)
    for _ in range(5):
        link.send(message(PIECE), state=state)
    assert 5 * len(PIECE) <= held(bench) <= 5 * len(PIECE) + 5000
    control.detach()
    assert held(bench) == 0


def test_readers_that_take_the_first_frame_only(bench: NodeBench) -> None:
    declare(bench)
    source = connect(bench)
    for _ in range(15):
        source.sender("/queues/q").send(message(PIECE))
    peer = Peer10(bench)
    peer.open(max_frame_size=512)
    for number in range(15):
        session = peer.begin(number, incoming_window=1)
        session.receiver("/queues/q").flow(1, incoming_window=1)
    assert LIMIT < held(bench) <= LIMIT + 2 * len(PIECE)
    peer.wire.cut()
    assert held(bench) == 0
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 15


def test_links_of_a_connection(bench: NodeBench) -> None:
    bench.node.limits.links_per_connection_max = 3
    declare(bench)
    session = connect(bench)
    links = [session.receiver("/queues/q") for _ in range(3)]
    session.expect_refused(session.receiver_attach("/queues/q"), EXCEEDED)
    links[0].detach()
    session.receiver("/queues/q")
    connect(bench).receiver("/queues/q")


def test_outcomes_that_are_never_settled(bench: NodeBench) -> None:
    bench.node.limits.settling_per_connection_max = 100
    declare(bench)
    link = connect(bench).sender("/queues/q", rcv_settle_mode=1)
    for _ in range(127):
        link.send(message())
    link.transfer(message())
    link.expect_detached(EXCEEDED)
