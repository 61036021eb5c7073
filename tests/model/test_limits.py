"""What limits a queue: times to live, lengths, priorities, disuse."""

from typing import Any

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel, Cut, NodeBench
from waybill.model.message_queue import MessageQueue
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk, BasicNack
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp091.properties import BasicProperties


def expiring(ms: int) -> BasicProperties:
    return BasicProperties(expiration=str(ms))


@requirement("OJS-070")
def test_the_time_to_live_of_a_queue(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-message-ttl": 200})
    channel.publish(b"1")
    bench.advance(0.1)
    channel.publish(b"2")
    assert channel.depth() == 2
    bench.advance(0.15)
    assert channel.take_all() == [b"2"]


@requirement("OJS-052")
def test_the_time_to_live_of_a_message(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1", properties=expiring(100))
    channel.publish(b"2", properties=expiring(60_000))
    assert channel.depth() == 2
    bench.advance(0.15)
    taken = channel.take()
    assert (taken.body, taken.properties.expiration) == (b"2", "60000")


@requirement("OJS-070")
@pytest.mark.parametrize(("queue_ms", "message_ms"), [(100, 60_000), (60_000, 100)])
def test_the_shorter_time_to_live_counts(bench: Bench, channel: Channel, queue_ms: int, message_ms: int) -> None:
    channel.declare("q", {"x-message-ttl": queue_ms})
    channel.publish(b"1", properties=expiring(message_ms))
    bench.advance(0.15)
    assert channel.depth() == 0


@requirement("OJS-079")
def test_messages_expire_at_the_head_of_the_queue_only(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"long", properties=expiring(60_000))
    channel.publish(b"short", properties=expiring(50))
    bench.advance(0.1)
    assert channel.depth() == 2
    assert channel.take_all() == [b"long"]


def test_an_expired_message_is_never_delivered(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"long", properties=expiring(60_000))
    channel.publish(b"short", properties=expiring(50))
    bench.advance(0.1)
    channel.consume(no_ack=True)
    assert channel.bodies(1) == [b"long"]


def test_a_time_to_live_of_zero_is_for_consumers_that_wait(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-message-ttl": 0})
    channel.publish(b"nobody waits")
    bench.advance(0.01)
    assert channel.depth() == 0
    channel.consume(no_ack=True)
    channel.publish(b"somebody waits")
    assert channel.bodies(1) == [b"somebody waits"]


def test_a_delivered_message_does_not_expire_until_it_comes_back(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-message-ttl": 100})
    channel.publish(b"1")
    held = channel.get(no_ack=False)
    assert held is not None
    bench.advance(0.2)
    channel.nack(held.tag)
    bench.advance(0.05)
    assert channel.depth() == 0


def test_a_published_message_keeps_its_own_clock_in_each_queue(bench: Bench, channel: Channel) -> None:
    channel.exchange("x", "fanout")
    channel.declare("quick", {"x-message-ttl": 50})
    channel.declare("slow", {"x-message-ttl": 60_000})
    channel.bind("x", "quick")
    channel.bind("x", "slow")
    channel.publish(b"1", "", "x")
    bench.advance(0.1)
    assert channel.depth("quick") == 0
    assert channel.take_all("slow") == [b"1"]


@pytest.mark.parametrize("milliseconds", [4_294_967_295])
@requirement("OJS-086")
def test_times_to_live_up_to_49_days(channel: Channel, milliseconds: int) -> None:
    channel.declare("q", {"x-message-ttl": milliseconds})
    channel.publish(b"1", properties=expiring(milliseconds))
    assert channel.take_all() == [b"1"]


def test_an_unused_queue_expires(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-expires": 200})
    bench.advance(0.1)
    channel.declare("q", {"x-expires": 200})
    bench.advance(0.15)
    channel.get()
    bench.advance(0.15)
    channel.declare("q", passive=True)
    bench.advance(0.4)
    channel.refuses(QueueDeclare("q", passive=True), 404)


def test_a_queue_with_consumers_does_not_expire(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-expires": 100})
    tag = channel.consume()
    bench.advance(0.3)
    assert channel.depth() == 0
    channel.call(BasicCancel(tag), BasicCancelOk)
    bench.advance(0.3)
    channel.refuses(QueueDeclare("q", passive=True), 404)


@requirement("OJS-066")
def test_a_queue_that_is_too_long_drops_its_head(channel: Channel) -> None:
    channel.declare("q", {"x-max-length": 3})
    for number in range(5):
        channel.publish(str(number))
    assert channel.take_all() == [b"2", b"3", b"4"]


@requirement("OJS-067")
def test_a_queue_that_is_too_large_drops_its_head(channel: Channel) -> None:
    channel.declare("q", {"x-max-length-bytes": 100})
    for number in range(4):
        channel.publish(str(number) * 40)
    assert channel.take_all() == [b"2" * 40, b"3" * 40]


def test_only_what_waits_counts(channel: Channel) -> None:
    channel.declare("q", {"x-max-length": 2})
    channel.publish(b"1")
    channel.publish(b"2")
    held = [channel.get(no_ack=False), channel.get(no_ack=False)]
    channel.publish(b"3")
    channel.publish(b"4")
    assert channel.depth() == 2
    assert all(held)
    assert channel.take_all() == [b"3", b"4"]


def test_what_comes_back_to_a_full_queue_is_its_oldest(channel: Channel) -> None:
    channel.declare("q", {"x-max-length": 2})
    channel.publish(b"1")
    channel.publish(b"2")
    held = [channel.get(no_ack=False), channel.get(no_ack=False)]
    channel.publish(b"3")
    channel.publish(b"4")
    assert all(held)
    channel.send(BasicNack(0, multiple=True))
    assert channel.depth() == 2
    assert channel.take_all() == [b"3", b"4"]


def test_a_queue_of_length_zero_hands_over_only(channel: Channel) -> None:
    channel.declare("q", {"x-max-length": 0})
    channel.publish(b"1")
    assert channel.depth() == 0


@requirement("OJS-068", "OJS-122")
def test_a_full_queue_may_refuse_instead(channel: Channel) -> None:
    channel.declare("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.select_confirms()
    for number in range(4):
        channel.publish(str(number))
    channel.await_confirms()
    assert (channel.confirmed, channel.refused) == ({1, 2}, {3, 4})
    assert channel.take_all() == [b"0", b"1"]


@requirement("OJS-068")
def test_a_full_queue_may_refuse_by_octets(channel: Channel) -> None:
    channel.declare("q", {"x-max-length-bytes": 100, "x-overflow": "reject-publish"})
    channel.select_confirms()
    for number in range(4):
        channel.publish(str(number) * 60)
    channel.await_confirms()
    assert channel.refused
    assert channel.depth() + len(channel.refused) == 4


def test_a_queue_that_refuses_keeps_what_comes_back() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.publish(b"0")
    delivery = channel.get(no_ack=False)
    assert delivery is not None
    channel.publish(b"1")
    channel.nack(delivery.tag)
    assert channel.depth() == 2
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert isinstance(queue, MessageQueue)
    queue.read_again()
    queue.set_policy(queue.policy)
    assert channel.take_all() == [b"0", b"1"]
    bench.close()


@requirement("M010-063", "OJS-069", "OJS-123")
@requirement("091-basic.06", "091-basic.07")
def test_higher_priorities_overtake(channel: Channel) -> None:
    channel.declare("q", {"x-max-priority": 10})
    for priority in (1, 9, 5, None, 200, 10, 1):
        channel.publish(str(priority), properties=BasicProperties(priority=priority))
    assert channel.take_all() == [b"200", b"10", b"9", b"5", b"1", b"1", b"None"]


def test_priorities_are_ignored_where_none_are_declared(channel: Channel) -> None:
    channel.declare("q")
    for priority in (1, 9, 5):
        channel.publish(str(priority), properties=BasicProperties(priority=priority))
    assert channel.take_all() == [b"1", b"9", b"5"]


@requirement("091-basic.08")
def test_equal_priorities_keep_their_order(channel: Channel) -> None:
    channel.declare("q", {"x-max-priority": 255})
    for number in range(20):
        channel.publish(str(number), properties=BasicProperties(priority=200 if number % 2 else 100))
    channel.consume(no_ack=True)
    assert [int(body) for body in channel.bodies(20)] == [*range(1, 20, 2), *range(0, 20, 2)]


@requirement("M010-064")
@pytest.mark.ours  # RabbitMQ drops whatever is at the head
@requirement("091-basic.05")
def test_low_priorities_are_dropped_first(channel: Channel) -> None:
    channel.declare("q", {"x-max-priority": 5, "x-max-length": 2})
    for priority in (5, 1, 3):
        channel.publish(str(priority), properties=BasicProperties(priority=priority))
    assert channel.take_all() == [b"5", b"3"]


def test_a_requeued_message_keeps_its_priority(channel: Channel) -> None:
    channel.declare("q", {"x-max-priority": 5})
    for priority in (1, 5):
        channel.publish(str(priority), properties=BasicProperties(priority=priority))
    held = channel.get(no_ack=False)
    assert held is not None
    assert held.body == b"5"
    channel.publish(b"4", properties=BasicProperties(priority=4))
    channel.nack(held.tag)
    assert channel.take_all() == [b"5", b"4", b"1"]


def test_each_priority_expires_by_itself(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-max-priority": 5})
    channel.publish(b"high", properties=BasicProperties(priority=5, expiration="60000"))
    channel.publish(b"low", properties=BasicProperties(priority=1, expiration="50"))
    bench.advance(0.1)
    assert channel.take_all() == [b"high"]


@requirement("OJS-071")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_durable_queues_of_either_type(channel: Channel, kind: str) -> None:
    channel.declare("q", {"x-queue-type": kind}, durable=True)
    channel.select_confirms()
    channel.publish(b"1", properties=BasicProperties(delivery_mode=2))
    channel.await_confirms()
    assert channel.take_all() == [b"1"]


@pytest.mark.parametrize("kind", ["quorum", "stream"])
@pytest.mark.parametrize("flags", [{}, {"durable": True, "exclusive": True}, {"durable": True, "auto_delete": True}])
def test_replicated_queues_are_durable_and_shared(channel: Channel, kind: str, flags: dict[str, Any]) -> None:
    channel.refuses(QueueDeclare("q", arguments={"x-queue-type": kind}, **flags), 406)


def test_a_quorum_queue_counts_failed_deliveries(channel: Channel) -> None:
    channel.declare("q", {"x-queue-type": "quorum", "x-delivery-limit": 2}, durable=True)
    channel.select_confirms()
    channel.publish(b"poison", properties=BasicProperties(delivery_mode=2))
    channel.await_confirms()
    channel.consume()
    for count in (None, 1, 2):
        delivery = channel.delivery()
        assert delivery.headers.get("x-delivery-count") == count
        channel.nack(delivery.tag)
    channel.expect_nothing()
    assert channel.depth() == 0


@pytest.mark.ours  # 3.10 has no limit unless one is set
@requirement("091-basic.deliver.01")
def test_a_quorum_queue_has_a_delivery_limit_of_20(channel: Channel) -> None:
    channel.declare("q", {"x-queue-type": "quorum"}, durable=True)
    channel.publish(b"poison")
    channel.consume()
    for _ in range(21):
        channel.nack(channel.delivery().tag)
    channel.expect_nothing()
    assert channel.depth() == 0


@pytest.mark.parametrize("way", ["get", "get and ack", "consume", "drop", "expire"])
def test_what_comes_to_the_head_expires_there(bench: Bench, channel: Channel, way: str) -> None:
    """The message before it had no time to live, or a longer one, and is gone."""
    channel.declare("q", {"x-max-length": 2, "x-dead-letter-exchange": "amq.fanout"})
    channel.declare("dead")
    channel.bind("amq.fanout", "dead")
    channel.publish(b"1", properties=expiring(100) if way == "expire" else None)
    channel.publish(b"2", properties=expiring(200))
    if way == "drop":
        channel.publish(b"3")
        assert channel.take("dead").body == b"1"
    elif way == "consume":
        channel.qos(1)
        channel.consume()
        channel.delivery()
    elif way != "expire":
        first = channel.get(no_ack=way == "get")
        assert first is not None
        if way == "get and ack":
            channel.ack(first.tag)
    bench.advance(0.3)
    assert channel.depth() == (1 if way == "drop" else 0)
    assert channel.depth("dead") == (2 if way == "expire" else 1)
