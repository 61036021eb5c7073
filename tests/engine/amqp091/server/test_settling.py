"""Settling deliveries: ack, nack, reject, recover, and where what comes back goes (0-9-1, 1.8.3)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel, Delivery, NodeBench
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicNack,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
)
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk


def hold(channel: Channel, count: int) -> list[Delivery]:
    """A queue with so many messages, all of them delivered and not settled."""
    channel.declare("q")
    for number in range(1, count + 1):
        channel.publish(str(number))
    channel.consume()
    return channel.deliveries(count)


def left_over(bench: Bench, channel: Channel) -> list[bytes]:
    """What comes back to the queue when the channel's connection is gone."""
    channel.peer.wire.cut()
    bench.advance(0.05)
    return bench.channel().take_all()


@requirement("M010-069", "OJS-033")
@requirement("091-basic.10")
def test_an_ack_settles_one(bench: Bench, channel: Channel) -> None:
    held = hold(channel, 3)
    channel.ack(held[1].tag)
    channel.declare("q", passive=True)
    assert left_over(bench, channel) == [b"1", b"3"]


@requirement("M010-069")
def test_an_ack_of_multiple_settles_all_up_to_it(bench: Bench, channel: Channel) -> None:
    held = hold(channel, 4)
    channel.ack(held[2].tag, multiple=True)
    channel.declare("q", passive=True)
    assert left_over(bench, channel) == [b"4"]


def test_multiple_with_tag_zero_means_all(bench: Bench, channel: Channel) -> None:
    hold(channel, 3)
    channel.ack(0, multiple=True)
    channel.declare("q", passive=True)
    assert left_over(bench, channel) == []


def test_acks_in_any_order(bench: Bench, channel: Channel) -> None:
    held = hold(channel, 5)
    for index in (4, 0, 2):
        channel.ack(held[index].tag)
    channel.declare("q", passive=True)
    assert left_over(bench, channel) == [b"2", b"4"]


@pytest.mark.parametrize(
    "method",
    [
        BasicAck(99),
        BasicAck(99, multiple=True),
        BasicAck(0),
        BasicNack(99),
        BasicNack(99, multiple=True),
        BasicReject(99),
    ],
    ids=str,
)
@requirement("091-basic.ack.multiple.exists")
def test_an_unknown_delivery_tag_closes_the_channel(
    channel: Channel, method: BasicAck | BasicNack | BasicReject
) -> None:
    hold(channel, 2)
    close = channel.refuses(method, 406)
    assert close.reply_text == f"PRECONDITION_FAILED - unknown delivery tag {method.delivery_tag}"


@requirement("OJS-126")
@pytest.mark.parametrize("again", [BasicAck(1), BasicNack(1, requeue=False), BasicReject(1)], ids=str)
@requirement("091-basic.ack.multiple.exists")
def test_settling_twice_closes_the_channel(channel: Channel, again: BasicAck | BasicNack | BasicReject) -> None:
    held = hold(channel, 2)
    assert held[0].tag == 1
    channel.ack(1)
    channel.refuses(again, 406)


@requirement("091-delivery-tag.channel-local")
def test_tags_belong_to_their_channel(channel: Channel) -> None:
    held = hold(channel, 1)
    other = channel.peer.open_channel(2)
    other.refuses(BasicAck(held[0].tag), 406)
    channel.ack(held[0].tag)
    channel.declare("q")


def test_without_acknowledgements_there_is_nothing_to_settle(channel: Channel) -> None:
    channel.declare("q")
    channel.consume(no_ack=True)
    channel.publish(b"1")
    channel.refuses(BasicAck(channel.delivery().tag), 406)


@requirement("M010-040")
def test_a_rejected_message_is_gone(channel: Channel) -> None:
    held = hold(channel, 2)
    channel.reject(held[0].tag, requeue=False)
    channel.nack(held[1].tag, requeue=False)
    channel.expect_nothing()
    assert channel.depth() == 0


@requirement("M010-040", "M010-102")
@pytest.mark.parametrize("method", [BasicReject(1, requeue=True), BasicNack(1, requeue=True)], ids=str)
@requirement("091-redelivered.implementation", "091-basic.reject.02")
def test_a_requeued_message_comes_again_with_its_flag(channel: Channel, method: BasicReject | BasicNack) -> None:
    held = hold(channel, 1)
    assert not held[0].redelivered
    channel.send(method)
    again = channel.deliveries(1)[0]
    assert (again.body, again.redelivered, again.tag) == (b"1", True, 2)


def test_a_requeued_message_takes_its_old_place(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    for number in range(1, 6):
        channel.publish(str(number))
    channel.qos(3)
    tag = channel.consume()
    held = channel.deliveries(3)
    channel.call(BasicCancel(tag), BasicCancelOk)
    channel.nack(held[1].tag)
    channel.nack(held[0].tag)
    channel.nack(held[2].tag)
    other = bench.channel()
    deliveries = []
    while (delivery := other.get()) is not None:
        deliveries.append((delivery.body, delivery.redelivered))
    assert deliveries == [(b"1", True), (b"2", True), (b"3", True), (b"4", False), (b"5", False)]


def test_a_nack_of_multiple_requeues_all_up_to_it(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    for number in range(1, 5):
        channel.publish(str(number))
    taken = [channel.get(no_ack=False) for _ in range(4)]
    assert taken[2] is not None
    channel.nack(taken[2].tag, multiple=True)
    assert bench.channel().take_all() == [b"1", b"2", b"3"]


@requirement("091-basic.reject.requeue.01")
def test_a_requeued_message_goes_to_another_consumer(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.qos(1)
    channel.consume()
    channel.publish(b"1")
    held = channel.delivery()
    other = bench.channel()
    other.consume()
    channel.publish(b"2")
    assert other.delivery().body == b"2"
    channel.publish(b"3")
    assert other.delivery().body == b"3"
    channel.nack(held.tag)
    again = (other if not channel.replies and not channel.peer.receive(0.1) else channel).delivery()
    assert (again.body, again.redelivered) == (b"1", True)


@pytest.mark.parametrize("asynchronous", [True, False])
@requirement("091-basic.recover-async.01", "091-basic.recover.01")
def test_recover_redelivers_all_that_is_unsettled(channel: Channel, asynchronous: bool) -> None:
    held = hold(channel, 3)
    channel.ack(held[1].tag)
    if asynchronous:
        channel.send(BasicRecoverAsync(requeue=True))
    else:
        channel.call(BasicRecover(requeue=True), BasicRecoverOk)
    again = channel.deliveries(2)
    assert [delivery.body for delivery in again] == [b"1", b"3"]
    assert all(delivery.redelivered for delivery in again)
    assert [delivery.tag for delivery in again] == [4, 5]


def test_nothing_is_delivered_again_before_recover_ok(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    hold(channel, 50)
    # So few that the messages come back in many turns.
    node_bench.node.runtime.turn_units = 4
    channel.send(BasicRecover(requeue=True))
    channel.expect(BasicRecoverOk)
    assert [delivery.redelivered for delivery in channel.deliveries(50)] == [True] * 50


def test_recover_without_requeue_is_not_implemented(channel: Channel, bystander: Channel) -> None:
    channel.send(BasicRecover(requeue=False))
    channel.peer.expect_refused(540)


def test_recover_of_nothing(channel: Channel) -> None:
    channel.call(BasicRecover(requeue=True), BasicRecoverOk)


def test_settling_after_the_queue_is_gone(bench: Bench, channel: Channel) -> None:
    hold(channel, 3)
    bench.channel().call(QueueDelete("q"), QueueDeleteOk)
    channel.expect(BasicCancel)
    channel.ack(1)
    channel.nack(2)
    channel.reject(3, requeue=False)
    assert channel.declare("q").message_count == 0


def test_every_message_is_settled_once_whatever_happens(bench: Bench) -> None:
    publisher = bench.channel()
    publisher.declare("q")
    sent = [str(number).encode() for number in range(30)]
    for body in sent:
        publisher.publish(body)
    settled = []
    for round_number in range(6):
        worker = bench.channel()
        worker.qos(10)
        worker.consume()
        for delivery in [worker.delivery() for _ in range(5)]:
            if (delivery.tag + round_number) % 2:
                worker.ack(delivery.tag)
                settled.append(delivery.body)
        worker.declare("q", passive=True)
        worker.peer.wire.cut()
        bench.advance(0.05)
    assert sorted(settled + bench.channel().take_all()) == sorted(sent)


@pytest.mark.parametrize(
    "again",
    [BasicAck(1, multiple=True), BasicNack(1, multiple=True), BasicNack(1, multiple=True, requeue=False)],
    ids=str,
)
def test_multiple_names_a_delivery_that_is_unsettled(channel: Channel, again: BasicAck | BasicNack) -> None:
    hold(channel, 2)
    channel.ack(1)
    channel.refuses(again, 406)
