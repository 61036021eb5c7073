"""Transactions: publishes and acknowledgements that count together or not at all (0-9-1, 1.9)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties


@pytest.fixture
def tx(channel: Channel) -> Channel:
    """A transactional channel with a queue."""
    channel.declare("q")
    channel.call(TxSelect(), TxSelectOk)
    return channel


def commit(channel: Channel) -> None:
    channel.call(TxCommit(), TxCommitOk)


def rollback(channel: Channel) -> None:
    channel.call(TxRollback(), TxRollbackOk)


@requirement("M010-041")
def test_publishes_count_from_their_commit_on(tx: Channel) -> None:
    tx.publish(b"1")
    tx.publish(b"2")
    assert tx.depth() == 0
    commit(tx)
    assert tx.depth() == 2
    tx.publish(b"3")
    assert tx.depth() == 2
    commit(tx)
    assert tx.take_all() == [b"1", b"2", b"3"]


@requirement("M010-041")
def test_a_rollback_forgets_publishes(tx: Channel) -> None:
    tx.publish(b"1")
    rollback(tx)
    commit(tx)
    assert tx.depth() == 0


@requirement("M010-041", "M010-042")
def test_acknowledgements_count_from_their_commit_on(bench: Bench, tx: Channel) -> None:
    for text in ("1", "2", "3"):
        tx.publish(text)
    commit(tx)
    tx.consume()
    held = tx.deliveries(3)
    tx.ack(held[0].tag)
    commit(tx)
    tx.ack(held[1].tag)
    tx.sync()
    tx.peer.wire.cut()
    bench.advance(0.05)
    other = bench.channel()
    back = [other.take(), other.take()]
    assert [(delivery.body, delivery.redelivered) for delivery in back] == [(b"2", True), (b"3", True)]


@requirement("M010-041")
def test_a_rollback_brings_deliveries_back_under_their_tags(tx: Channel) -> None:
    for text in ("1", "2", "3"):
        tx.publish(text)
    commit(tx)
    tx.consume()
    held = tx.deliveries(3)
    tx.ack(held[1].tag, multiple=True)
    tx.nack(held[2].tag, requeue=False)
    rollback(tx)
    tx.expect_nothing()
    tx.ack(held[2].tag, multiple=True)
    commit(tx)
    assert tx.depth() == 0


@requirement("M010-042")
def test_deliveries_come_within_a_transaction(bench: Bench, tx: Channel) -> None:
    tx.consume()
    tx.publish(b"own")
    tx.expect_nothing()
    bench.channel().publish(b"foreign")
    assert tx.deliveries(1)[0].body == b"foreign"


def test_a_requeue_waits_for_the_commit(tx: Channel) -> None:
    tx.publish(b"1")
    commit(tx)
    held = tx.get(no_ack=False)
    assert held is not None
    tx.nack(held.tag)
    assert tx.depth() == 0
    commit(tx)
    again = tx.take()
    assert (again.body, again.redelivered) == (b"1", True)


def test_a_discard_waits_for_the_commit(tx: Channel) -> None:
    tx.declare("dead")
    tx.declare("mortal", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    tx.publish(b"1", "mortal")
    commit(tx)
    held = tx.get("mortal", no_ack=False)
    assert held is not None
    tx.reject(held.tag, requeue=False)
    assert tx.depth("dead") == 0
    commit(tx)
    assert tx.take("dead").body == b"1"


@requirement("M010-006")
def test_moving_a_message_from_queue_to_queue(tx: Channel) -> None:
    tx.declare("next")
    tx.publish(b"1")
    commit(tx)
    for end, depths in ((rollback, (0, 0)), (commit, (0, 1))):
        held = tx.get(no_ack=False)
        if held is not None:
            tag = held.tag
        tx.publish(b"1 done", "next")
        tx.ack(tag)
        end(tx)
        assert (tx.depth(), tx.depth("next")) == depths


@requirement("091-tx.not-multiple-queues")
def test_a_transaction_over_several_queues(tx: Channel) -> None:
    tx.exchange("x", "fanout")
    for name in ("a", "b"):
        tx.declare(name, durable=True)
        tx.bind("x", name)
    tx.publish(b"1", "", "x", properties=BasicProperties(delivery_mode=2))
    tx.publish(b"2", "a", properties=BasicProperties(delivery_mode=2))
    commit(tx)
    assert tx.take_all("a") == [b"1", b"2"]
    assert tx.take_all("b") == [b"1"]


def test_closing_the_channel_rolls_back(tx: Channel) -> None:
    tx.publish(b"1")
    commit(tx)
    held = tx.get(no_ack=False)
    assert held is not None
    tx.publish(b"2")
    tx.ack(held.tag)
    tx.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    tx.reopen()
    assert tx.take_all() == [b"1"]


def test_losing_the_connection_rolls_back(bench: Bench, tx: Channel) -> None:
    tx.publish(b"1")
    tx.sync()
    tx.peer.wire.cut()
    bench.advance(0.05)
    assert bench.channel().depth() == 0


@requirement("091-basic.ack.multiple.exists")
def test_settling_twice_in_one_transaction_closes_the_channel(tx: Channel) -> None:
    tx.publish(b"1")
    commit(tx)
    held = tx.get(no_ack=False)
    assert held is not None
    tx.ack(held.tag)
    tx.ack(held.tag)
    tx.expect_refused(406)
    tx.reopen()
    assert tx.take_all() == [b"1"]


@pytest.mark.parametrize("method", [TxCommit(), TxRollback()], ids=lambda method: method.NAME)
@requirement("091-tx.commit.transacted", "091-tx.rollback.transacted")
def test_a_channel_must_be_made_transactional_first(channel: Channel, method: TxCommit | TxRollback) -> None:
    channel.refuses(method, 406)


def test_transactions_and_confirms_exclude_each_other(channel: Channel, tx: Channel) -> None:
    tx.refuses(ConfirmSelect(), 406)
    tx.reopen()
    tx.select_confirms()
    tx.refuses(TxSelect(), 406)


def test_selecting_twice_changes_nothing(tx: Channel) -> None:
    tx.publish(b"1")
    tx.call(TxSelect(), TxSelectOk)
    commit(tx)
    assert tx.depth() == 1


def test_an_empty_commit(tx: Channel) -> None:
    commit(tx)
    rollback(tx)


@requirement("M010-041")
def test_no_commit_ok_before_the_disk_has_it(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("q", durable=True)
    channel.call(TxSelect(), TxSelectOk)
    channel.publish(b"1", properties=BasicProperties(delivery_mode=2))
    node_bench.is_stuck = True
    channel.send(TxCommit())
    channel.expect_nothing()
    node_bench.is_stuck = False
    node_bench.settle()
    channel.expect(TxCommitOk)


@requirement("091-tx.not-mandatory")
def test_returns_come_with_the_commit(tx: Channel) -> None:
    tx.publish(b"1", "nowhere", mandatory=True)
    tx.send(TxCommit())
    assert tx.expect_return().body == b"1"
    tx.expect(TxCommitOk)


def test_a_queue_may_go_before_the_commit(bench: Bench, tx: Channel) -> None:
    tx.publish(b"1")
    bench.channel().call(QueueDelete("q"), QueueDeleteOk)
    commit(tx)
    tx.declare("q")
    assert tx.depth() == 0


def test_prefetch_is_freed_by_the_commit(tx: Channel) -> None:
    for text in ("1", "2"):
        tx.publish(text)
    commit(tx)
    tx.qos(1)
    tag = tx.consume()
    first = tx.deliveries(1)[0]
    tx.ack(first.tag)
    tx.expect_nothing()
    commit(tx)
    assert tx.bodies(1) == [b"2"]
    tx.call(BasicCancel(tag), BasicCancelOk)


def test_no_return_comes_before_the_commit(bench: Bench, tx: Channel) -> None:
    tx.publish(b"1", "nowhere", mandatory=True)
    tx.publish(b"2", mandatory=True)
    tx.expect_nothing()
    bench.channel().call(QueueDelete("q"), QueueDeleteOk)
    tx.send(TxCommit())
    assert [tx.expect_return().body for _ in range(2)] == [b"1", b"2"]
    tx.expect(TxCommitOk)
    commit(tx)


def test_what_was_rolled_back_is_not_returned(tx: Channel) -> None:
    tx.publish(b"1", "nowhere", mandatory=True)
    rollback(tx)
    commit(tx)
    tx.expect_nothing()


def test_the_time_to_live_begins_with_the_commit(bench: Bench, tx: Channel) -> None:
    tx.declare("short", {"x-message-ttl": 1000})
    tx.publish(b"1", "short")
    bench.advance(1.5)
    commit(tx)
    bench.advance(0.5)
    assert tx.depth("short") == 1
    bench.advance(1.0)
    assert tx.depth("short") == 0
