"""The prefetch window in octets (0-9-1, basic.qos prefetch-size), which RabbitMQ does not have."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.methods_basic import BasicQos, BasicQosOk, BasicRecover, BasicRecoverOk
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk

pytestmark = pytest.mark.ours

BODY = b"x" * 1000
THREE = 3300
"""Octets for three bodies with their headers, and not for four."""


def window(channel: Channel, octets: int, count: int = 0, *, shared: bool = False) -> None:
    channel.call(BasicQos(octets, count, shared), BasicQosOk)


def fill(channel: Channel, count: int, queue: str = "q", body: bytes = BODY) -> None:
    for _ in range(count):
        channel.publish(body, queue)


@requirement("091-basic.qos.prefetch-size.01")
@requirement("M010-067")
def test_octets_limit_what_is_sent_in_advance(channel: Channel) -> None:
    channel.declare("q")
    window(channel, THREE)
    channel.consume()
    fill(channel, 6)
    taken = channel.deliveries(3)
    channel.ack(taken[0].tag)
    taken += channel.deliveries(1)
    channel.ack(taken[-1].tag, multiple=True)
    channel.deliveries(2)


@requirement("091-basic.qos.prefetch-size.01")
def test_a_single_message_is_never_held_back(channel: Channel) -> None:
    """Of any size, to a consumer that holds nothing; behind a small one it waits."""
    channel.declare("q")
    window(channel, 500)
    channel.consume()
    fill(channel, 2, body=b"x" * 300_000)
    for _ in range(2):
        channel.ack(channel.deliveries(1)[0].tag)
    fill(channel, 1, body=b"small")
    fill(channel, 1)
    small = channel.deliveries(1)[0]
    channel.ack(small.tag)
    assert channel.deliveries(1)[0].body == BODY


def test_small_messages_do_not_pass_a_large_one(channel: Channel) -> None:
    channel.declare("q")
    window(channel, 1500)
    channel.consume()
    for body in (b"1", BODY * 2, b"2"):
        channel.publish(body)
    first = channel.deliveries(1)[0]
    channel.ack(first.tag)
    large = channel.deliveries(1)[0]
    channel.ack(large.tag)
    assert (first.body, large.body, channel.deliveries(1)[0].body) == (b"1", BODY * 2, b"2")


def test_the_window_is_that_of_each_consumer_and_for_those_that_come(channel: Channel) -> None:
    channel.declare("free")
    channel.consume("free")
    window(channel, THREE)
    for name in ("a", "b"):
        channel.declare(name)
        channel.consume(name)
    for name in ("a", "b", "free"):
        fill(channel, 5, name)
    keys = [delivery.method.routing_key for delivery in channel.deliveries(11)]
    assert {name: keys.count(name) for name in ("a", "b", "free")} == {"a": 3, "b": 3, "free": 5}


def test_the_window_of_a_channel_counts_what_all_its_consumers_hold(channel: Channel) -> None:
    """Also what they had before, but not what was polled."""
    for name in ("a", "b"):
        channel.declare(name)
        channel.consume(name)
    fill(channel, 1, "a")
    held = channel.deliveries(1)
    channel.declare("polled")
    fill(channel, 1, "polled")
    channel.get("polled")
    window(channel, THREE, shared=True)
    for name in ("a", "b"):
        fill(channel, 3, name)
    held += channel.deliveries(2)
    channel.ack(held[0].tag)
    held += channel.deliveries(1)
    window(channel, 0, shared=True)
    channel.deliveries(3)


def test_both_windows_hold(channel: Channel) -> None:
    channel.declare("q")
    window(channel, THREE, 2)
    channel.consume()
    fill(channel, 5, body=b"")
    for delivery in channel.deliveries(2):
        channel.ack(delivery.tag)
    channel.deliveries(2)


@pytest.mark.parametrize("outcome", ["nack", "requeue", "recover", "transaction", "rollback"])
def test_every_outcome_gives_room(bench: Bench, channel: Channel, outcome: str) -> None:
    channel.declare("q")
    window(channel, THREE)
    if outcome in {"transaction", "rollback"}:
        channel.call(TxSelect(), TxSelectOk)
    channel.consume()
    other = bench.channel()
    fill(other, 6)
    tags = [delivery.tag for delivery in channel.deliveries(3)]
    if outcome == "nack":
        channel.nack(tags[-1], multiple=True, requeue=False)
        channel.deliveries(3)
    elif outcome == "requeue":
        channel.nack(tags[0], requeue=True)
        assert channel.deliveries(1)[0].redelivered
    elif outcome == "recover":
        channel.call(BasicRecover(requeue=True), BasicRecoverOk)
        assert all(delivery.redelivered for delivery in channel.deliveries(3))
    else:
        channel.ack(tags[0])
        channel.expect_nothing()
        if outcome == "rollback":
            channel.call(TxRollback(), TxRollbackOk)
            channel.expect_nothing()
        else:
            channel.call(TxCommit(), TxCommitOk)
            channel.deliveries(1)


def test_without_acknowledgements_there_is_no_window(channel: Channel) -> None:
    channel.declare("q")
    window(channel, 1)
    window(channel, 1, shared=True)
    channel.consume(no_ack=True)
    fill(channel, 5)
    channel.deliveries(5)


def test_a_stream_keeps_the_window(channel: Channel) -> None:
    """The content of what a stream has delivered is not kept, its size is."""
    channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    fill(channel, 6, "s")
    window(channel, THREE, 100)
    channel.consume("s", arguments={"x-stream-offset": "first"})
    taken = channel.deliveries(3)
    channel.ack(taken[1].tag, multiple=True)
    channel.deliveries(2)


def test_others_take_what_does_not_fit(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    window(channel, 1)
    channel.consume()
    other = bench.channel()
    window(other, THREE)
    other.consume("q")
    fill(channel, 6)
    assert len(channel.deliveries(1)) == 1
    other.deliveries(3)
