"""A few octets that make a node hold far more: what is declared, put off or begun costs no more than what is used."""

import tracemalloc
from collections.abc import Callable

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from waybill.model.timers import SWEEP_LENGTH
from waybill.wire.amqp091.methods_basic import BasicNack
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk, QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.properties import BasicProperties


def bench() -> NodeBench:
    return NodeBench(Cut.WHOLE)


def grown(work: Callable[[], None]) -> int:
    """Bytes that are held after `work` and were not before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def declare(channel: Channel, name: str, **arguments: object) -> None:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.call(QueueDeclare(name, arguments=named), QueueDeclareOk)


def test_priorities_that_nobody_uses() -> None:
    channel = bench().channel()
    declare(channel, "warm", x_max_priority=255)

    def work() -> None:
        for number in range(20):
            declare(channel, f"q{number}", x_max_priority=255)

    assert grown(work) < 20 * 32_000


def test_a_queue_with_priorities_keeps_their_order() -> None:
    channel = bench().channel()
    declare(channel, "q", x_max_priority=255)
    for priority in (3, 255, 0, 7):
        channel.publish(str(priority), properties=BasicProperties(priority=priority))
    channel.consume("q")
    assert [delivery.body for delivery in channel.deliveries(4)] == [b"255", b"7", b"3", b"0"]


def test_what_goes_back_to_a_queue_without_priorities_comes_again() -> None:
    channel = bench().channel()
    declare(channel, "q")
    channel.publish("again", key="q")
    delivery = channel.get(no_ack=False)
    assert delivery is not None
    channel.send(BasicNack(delivery.tag, requeue=True))
    assert channel.take().body == b"again"


def test_a_queue_that_is_touched_again_and_again() -> None:
    node = bench()
    channel = node.channel()
    for number in range(200):
        node.now += 0.001
        declare(channel, "q", x_expires=3_600_000)
        assert len(node.node.runtime.timers) <= 3, number
    node.advance(3601)
    assert "q" not in node.node.virtual_hosts["/"].queues


def test_queues_that_would_have_expired_in_weeks() -> None:
    node = bench()
    channel = node.channel()
    for number in range(SWEEP_LENGTH + 100):
        declare(channel, f"q{number}", x_expires=2_000_000_000)
        channel.call(QueueDelete(f"q{number}"), QueueDeleteOk)
    assert len(node.node.runtime.timers) <= SWEEP_LENGTH
