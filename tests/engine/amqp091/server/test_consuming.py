"""Consuming: deliveries, prefetch windows, cancelling, polling (0-9-1, 1.8.3)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import CLIENT_PROPERTIES, Bench, Channel
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk, BasicConsume, BasicGet, BasicQos, BasicQosOk
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionOpenOk, ConnectionTune, ConnectionTuneOk
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk, QueueDelete, QueueDeleteOk


def fill(channel: Channel, count: int, queue: str = "q") -> list[bytes]:
    bodies = [str(number).encode() for number in range(count)]
    for body in bodies:
        channel.publish(body, queue)
    return bodies


@requirement("M010-037", "M010-097")
def test_one_consumer_gets_everything_in_order(channel: Channel) -> None:
    channel.declare("q")
    early = fill(channel, 10)
    channel.consume(no_ack=True)
    assert channel.bodies(10) == early
    channel.publish(b"late")
    delivery = channel.delivery()
    assert delivery.body == b"late"
    assert (delivery.method.exchange, delivery.method.routing_key) == ("", "q")
    assert not delivery.redelivered


def test_a_delivery_says_where_the_message_was_published(channel: Channel) -> None:
    channel.declare("q")
    channel.exchange("x", "topic")
    channel.bind("x", key="#")
    tag = channel.consume(no_ack=True)
    for exchange, key in (("x", "a.b"), ("", "q"), ("x", "a.b"), ("x", "c")):
        channel.publish(b"", key, exchange)
        method = channel.delivery().method
        assert (method.exchange, method.routing_key, method.consumer_tag) == (exchange, key, tag)


@requirement("M010-039", "M010-068")
@requirement("091-basic.09")
def test_without_acknowledgements_a_delivered_message_is_gone(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    other = bench.channel()
    other.consume(no_ack=True)
    channel.publish(b"1")
    assert other.delivery().body == b"1"
    other.peer.wire.cut()
    bench.advance(0.05)
    assert channel.depth() == 0


@requirement("M010-024", "M010-101")
def test_consumers_take_turns(bench: Bench) -> None:
    channels = [bench.channel() for _ in range(3)]
    channels[0].declare("q")
    for channel in channels:
        channel.consume(no_ack=True)
    publisher = bench.channel()
    sent = fill(publisher, 30)
    received = [channel.bodies(10) for channel in channels]
    assert sorted(body for bodies in received for body in bodies) == sorted(sent)
    for bodies in received:
        numbers = [int(body) for body in bodies]
        assert numbers == sorted(numbers)


@requirement("OJS-008")
@requirement("091-basic.consume.consumer-tag.01")
def test_a_consumer_tag_may_be_used_once_on_a_channel(bench: Bench, channel: Channel, bystander: Channel) -> None:
    channel.declare("q")
    assert channel.consume(tag="mine") == "mine"
    other = channel.peer.open_channel(2)
    assert other.consume(tag="mine") == "mine"
    channel.send(BasicConsume("q", "mine"))
    channel.peer.expect_refused(530)


def test_unnamed_consumers_are_named_by_the_server(channel: Channel) -> None:
    channel.declare("q")
    tags = [channel.consume() for _ in range(3)]
    assert len(set(tags)) == 3
    assert all(tag.startswith("amq.ctag-") for tag in tags)


def test_consuming_without_waiting_gets_no_answer(channel: Channel) -> None:
    channel.declare("q")
    channel.send(BasicConsume("q", "mine", no_ack=True, no_wait=True))
    channel.publish(b"1")
    assert channel.delivery().method.consumer_tag == "mine"
    channel.send(BasicCancel("mine", no_wait=True))
    assert channel.declare("q") == QueueDeclareOk("q", 0, 0)


@requirement("091-basic.consume.consumer-tag.02")
def test_consumer_tags_belong_to_their_channel(bench: Bench) -> None:
    peer = bench.connect()
    first, second = peer.open_channel(1), peer.open_channel(2)
    first.declare("q")
    second.declare("other")
    assert first.consume("q", tag="same") == second.consume("other", tag="same") == "same"
    first.call(BasicCancel("same"), BasicCancelOk)
    second.publish(b"1", "other")
    assert second.delivery().body == b"1"


@requirement("091-basic.consume.01")
def test_a_queue_takes_many_consumers(channel: Channel) -> None:
    channel.declare("q")
    tags = {channel.consume() for _ in range(100)}
    assert len(tags) == 100
    assert channel.call(QueueDeclare("q", passive=True), QueueDeclareOk).consumer_count == 100


@requirement("OJS-091")
def test_consuming_from_a_missing_queue_fails(channel: Channel) -> None:
    channel.refuses(BasicConsume("absent"), 404)


@requirement("M010-106")
def test_nothing_comes_after_a_cancel(channel: Channel) -> None:
    channel.declare("q")
    tag = channel.consume()
    channel.publish(b"1")
    delivery = channel.delivery()
    assert channel.call(BasicCancel(tag), BasicCancelOk).consumer_tag == tag
    channel.publish(b"2")
    channel.expect_nothing()
    channel.ack(delivery.tag)
    assert channel.take_all() == [b"2"]


def test_a_cancelled_consumer_keeps_what_it_holds(channel: Channel) -> None:
    channel.declare("q")
    tag = channel.consume()
    channel.publish(b"1")
    delivery = channel.delivery()
    channel.call(BasicCancel(tag), BasicCancelOk)
    assert channel.depth() == 0
    channel.nack(delivery.tag)
    assert channel.take().redelivered


@requirement("091-basic.cancel.01")
def test_cancelling_an_unknown_consumer_is_no_error(channel: Channel) -> None:
    assert channel.call(BasicCancel("nobody"), BasicCancelOk).consumer_tag == "nobody"


def test_a_cancelled_tag_may_be_used_again(channel: Channel) -> None:
    channel.declare("q")
    channel.consume(tag="mine")
    channel.call(BasicCancel("mine"), BasicCancelOk)
    channel.consume(tag="mine")


@requirement("OJS-098")
def test_deleting_a_queue_cancels_its_consumers(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    other = bench.channel()
    tag = other.consume()
    channel.call(QueueDelete("q"), QueueDeleteOk)
    assert other.expect(BasicCancel).consumer_tag == tag
    other.declare("q")
    assert other.consume(tag=tag) == tag


def test_who_deletes_a_queue_hears_of_that_before_its_consumer_is_cancelled(channel: Channel) -> None:
    """py-amqp takes a cancel in the place of delete-ok for a failure of the delete."""
    channel.declare("q")
    tag = channel.consume()
    channel.send(QueueDelete("q"))
    assert isinstance(channel.next().method, QueueDeleteOk)
    cancel = channel.next().method
    assert isinstance(cancel, BasicCancel)
    assert cancel.consumer_tag == tag


def test_a_client_that_does_not_know_cancels_is_told_nothing(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    peer = bench.plug()
    peer.start()
    capabilities = CLIENT_PROPERTIES["capabilities"]
    assert isinstance(capabilities, dict)
    peer.log_in(client_properties={"capabilities": {**capabilities, "consumer_cancel_notify": False}})
    peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(2047, 131_072, 0))
    peer.connection.call(ConnectionOpen("/"), ConnectionOpenOk)
    other = peer.open_channel(1)
    other.consume()
    channel.call(QueueDelete("q"), QueueDeleteOk)
    other.expect_nothing()


@requirement("091-basic.consume.exclusive.01")
def test_an_exclusive_consumer_is_alone(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    tag = channel.consume(exclusive=True)
    other = bench.channel()
    other.refuses(BasicConsume("q"), 403)
    other.reopen()
    other.refuses(BasicConsume("q", exclusive=True), 403)
    channel.call(BasicCancel(tag), BasicCancelOk)
    other.reopen()
    other.consume()
    channel.refuses(BasicConsume("q", exclusive=True), 403)


@requirement("OJS-032", "M010-067")
@requirement("091-basic.qos.prefetch-count.01")
def test_prefetch_limits_each_consumer_by_itself(channel: Channel) -> None:
    channel.declare("a")
    channel.declare("b")
    fill(channel, 10, "a")
    fill(channel, 10, "b")
    channel.qos(5)
    channel.consume("a")
    channel.consume("b")
    first = channel.deliveries(10)
    assert [delivery.method.routing_key for delivery in first].count("a") == 5
    channel.ack(first[0].tag)
    assert channel.deliveries(1)[0].method.routing_key == first[0].method.routing_key


def test_a_new_prefetch_concerns_later_consumers(channel: Channel) -> None:
    channel.declare("a")
    channel.declare("b")
    fill(channel, 9, "a")
    fill(channel, 9, "b")
    channel.qos(2)
    channel.consume("a")
    assert len(channel.deliveries(2)) == 2
    channel.qos(3)
    channel.expect_nothing()
    channel.consume("b")
    assert len(channel.deliveries(3)) == 3


@requirement("091-basic.qos.prefetch-count.01")
def test_a_global_prefetch_limits_the_channel(channel: Channel) -> None:
    channel.declare("a")
    channel.declare("b")
    fill(channel, 5, "a")
    fill(channel, 5, "b")
    channel.qos(3, global_=True)
    channel.consume("a")
    channel.consume("b")
    held = channel.deliveries(3)
    channel.ack(held[-1].tag, multiple=True)
    held = channel.deliveries(3)
    channel.qos(4, global_=True)
    assert len(channel.deliveries(1)) == 1


def test_both_limits_hold_together(channel: Channel) -> None:
    channel.declare("a")
    channel.declare("b")
    fill(channel, 5, "a")
    fill(channel, 5, "b")
    channel.qos(2)
    channel.qos(3, global_=True)
    channel.consume("a")
    channel.consume("b")
    keys = [delivery.method.routing_key for delivery in channel.deliveries(3)]
    assert max(keys.count("a"), keys.count("b")) == 2


def test_no_ack_consumers_know_no_prefetch(channel: Channel) -> None:
    channel.declare("q")
    fill(channel, 5)
    channel.qos(1)
    channel.consume(no_ack=True)
    channel.deliveries(5)


def test_a_prefetch_of_one_is_one_at_a_time(channel: Channel) -> None:
    channel.declare("q")
    sent = fill(channel, 5)
    channel.call(BasicQos(0, 1), BasicQosOk)
    channel.consume()
    for body in sent:
        delivery = channel.deliveries(1)[0]
        assert delivery.body == body
        channel.ack(delivery.tag)
    channel.expect_nothing()


def test_a_consumer_out_of_credit_leaves_messages_to_others(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    slow, quick = bench.channel(), bench.channel()
    slow.qos(1)
    slow.consume()
    quick.consume(no_ack=True)
    fill(channel, 10)
    assert len(slow.deliveries(1)) == 1
    assert len(quick.deliveries(9)) == 9


def test_higher_priority_consumers_are_served_first(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    low, high, middle = bench.channel(), bench.channel(), bench.channel()
    for other, priority in ((low, -5), (high, 10), (middle, 0)):
        other.qos(2)
        other.consume(arguments={"x-priority": priority})
    fill(channel, 5)
    assert high.bodies(2) == [b"0", b"1"]
    assert middle.bodies(2) == [b"2", b"3"]
    held = low.deliveries(1)
    assert held[0].body == b"4"
    high.ack(1)
    channel.publish(b"5")
    assert high.bodies(1) == [b"5"]


@pytest.mark.parametrize("priority", ["high", 1.5, True])
def test_a_consumer_priority_is_an_integer(channel: Channel, priority: object) -> None:
    channel.declare("q")
    channel.refuses(BasicConsume("q", arguments={"x-priority": priority}), 406)


def test_a_single_active_consumer_gets_all_until_it_goes(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-single-active-consumer": True})
    first, second, third = bench.channel(), bench.channel(), bench.channel()
    tag = first.consume(no_ack=True)
    second.consume(no_ack=True)
    third.consume(no_ack=True)
    fill(channel, 5)
    assert len(first.bodies(5)) == 5
    second.expect_nothing()
    first.call(BasicCancel(tag), BasicCancelOk)
    fill(channel, 3)
    assert len(second.bodies(3)) == 3
    second.peer.wire.cut()
    bench.advance(0.05)
    channel.publish(b"1")
    assert third.bodies(1) == [b"1"]


def test_a_single_active_consumer_out_of_credit_is_not_replaced(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-single-active-consumer": True})
    first, second = bench.channel(), bench.channel()
    first.qos(1)
    first.consume()
    second.consume()
    fill(channel, 2)
    held = first.deliveries(1)
    second.expect_nothing()
    first.ack(held[0].tag)
    assert first.bodies(1) == [b"1"]


def test_polling_takes_one_message_at_a_time(channel: Channel) -> None:
    channel.declare("q")
    assert channel.get() is None
    fill(channel, 3)
    taken = channel.get(no_ack=False)
    assert taken is not None
    assert (taken.body, taken.method.message_count, taken.redelivered) == (b"0", 2, False)
    assert (taken.method.exchange, taken.method.routing_key) == ("", "q")
    channel.nack(taken.tag)
    again = channel.get()
    assert again is not None
    assert (again.body, again.method.message_count, again.redelivered) == (b"0", 2, True)
    assert channel.depth() == 2


def test_polling_a_missing_queue_fails(channel: Channel) -> None:
    channel.refuses(BasicGet("absent"), 404)


def test_polling_and_consuming_share_a_queue(channel: Channel) -> None:
    channel.declare("q")
    fill(channel, 4)
    channel.qos(1)
    channel.consume()
    held = channel.deliveries(1)
    assert channel.take().body == b"1"
    channel.ack(held[0].tag)
    assert channel.bodies(1) == [b"2"]


def test_consuming_through_many_queues_at_once(channel: Channel) -> None:
    for number in range(10):
        channel.declare(f"q{number}")
        channel.consume(f"q{number}", no_ack=True)
    for number in range(10):
        channel.publish(str(number), f"q{number}")
    assert channel.bodies(10) == [str(number).encode() for number in range(10)]


def test_a_global_prefetch_holds_for_consumers_without_acknowledgements_too(channel: Channel) -> None:
    for name in ("a", "b"):
        channel.declare(name)
    channel.qos(1, global_=True)
    channel.consume("a")
    channel.consume("b", no_ack=True)
    channel.publish(b"1", "a")
    held = channel.deliveries(1)
    channel.publish(b"2", "b")
    channel.expect_nothing()
    channel.ack(held[0].tag)
    assert channel.bodies(1) == [b"2"]


def test_polled_messages_do_not_count_for_a_global_prefetch(channel: Channel) -> None:
    channel.declare("q")
    fill(channel, 5)
    channel.qos(2, global_=True)
    polled = [channel.get(no_ack=False) for _ in range(2)]
    channel.consume()
    held = channel.deliveries(2)
    for delivery in polled:
        assert delivery is not None
        channel.ack(delivery.tag)
    channel.expect_nothing()
    channel.ack(held[0].tag)
    assert channel.bodies(1) == [b"4"]


@pytest.mark.parametrize("multiple", [False, True])
def test_a_global_prefetch_is_shared_fairly_between_queues(channel: Channel, *, multiple: bool) -> None:
    names = ("a", "b", "c")
    for name in names:
        channel.declare(name)
        fill(channel, 20, name)
    channel.qos(1, global_=True)
    for name in names:
        channel.consume(name)
    keys = []
    for _ in range(30):
        delivery = channel.delivery()
        keys.append(delivery.method.routing_key)
        channel.ack(delivery.tag, multiple=multiple)
    assert min(keys.count(name) for name in names) >= 5


def test_a_global_prefetch_is_shared_fairly_between_consumers(channel: Channel) -> None:
    channel.declare("q")
    channel.qos(1, global_=True)
    tags = [channel.consume(), channel.consume()]
    fill(channel, 20)
    taken = []
    for _ in range(20):
        delivery = channel.delivery()
        taken.append(delivery.method.consumer_tag)
        channel.ack(delivery.tag)
    assert min(taken.count(tag) for tag in tags) >= 5
