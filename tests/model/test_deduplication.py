"""Queues with x-message-deduplication: of messages with equal keys only one is there at a time."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel, Cut, NodeBench
from tests.engine.disk_bench import DiskBench
from waybill.model.message_queue import MessageQueue
from waybill.wire.amqp091.methods_queue import QueuePurge, QueuePurgeOk
from waybill.wire.amqp091.properties import BasicProperties

pytestmark = pytest.mark.ours

DEDUPLICATING: dict[str, object] = {"x-message-deduplication": True}


@pytest.fixture
def queue(channel: Channel) -> Channel:
    channel.declare("q", DEDUPLICATING, durable=True)
    return channel


def publish(channel: Channel, body: str, key: object, header: str = "x-deduplication-header") -> None:
    channel.publish(body, properties=BasicProperties(headers={header: key}, delivery_mode=2))


@pytest.mark.parametrize("header", ["x-deduplication-header", "x-ojs-idempotency-key"])
def test_the_first_one_stays(queue: Channel, header: str) -> None:
    publish(queue, "1", "a", header)
    publish(queue, "2", "a", header)
    publish(queue, "3", "b", header)
    queue.publish("4")
    queue.publish("5")
    assert queue.take_all() == [b"1", b"3", b"4", b"5"]


def test_a_duplicate_is_confirmed(queue: Channel) -> None:
    queue.select_confirms()
    publish(queue, "1", "a")
    publish(queue, "2", "a")
    queue.await_confirms()
    assert queue.confirmed == {1, 2}
    assert queue.depth() == 1


def test_a_key_is_held_until_its_message_is_settled(queue: Channel) -> None:
    publish(queue, "1", "a")
    taken = queue.get(no_ack=False)
    assert taken is not None
    publish(queue, "2", "a")
    assert queue.depth() == 0
    queue.ack(taken.tag)
    publish(queue, "3", "a")
    assert queue.take_all() == [b"3"]


@pytest.mark.parametrize("outcome", ["purge", "reject", "expire", "drop"])
def test_a_key_is_free_when_its_message_is_gone(bench: Bench, channel: Channel, outcome: str) -> None:
    channel.declare("q", {**DEDUPLICATING, "x-max-length": 1, "x-message-ttl": 60_000})
    publish(channel, "1", "a")
    if outcome == "purge":
        channel.call(QueuePurge("q"), QueuePurgeOk)
    elif outcome == "reject":
        taken = channel.get(no_ack=False)
        assert taken is not None
        channel.reject(taken.tag, requeue=False)
    elif outcome == "expire":
        bench.advance(61.0)
    else:
        publish(channel, "other", "b")
    publish(channel, "2", "a")
    assert channel.take_all() == [b"2"]


def test_a_requeued_message_keeps_its_key(queue: Channel) -> None:
    publish(queue, "1", "a")
    taken = queue.get(no_ack=False)
    assert taken is not None
    queue.nack(taken.tag)
    publish(queue, "2", "a")
    assert queue.take_all() == [b"1"]


def test_queues_do_not_share_keys(queue: Channel) -> None:
    queue.declare("other", DEDUPLICATING)
    for name in ("q", "other"):
        queue.bind("amq.fanout", name)
    for _ in range(2):
        queue.publish("1", "", "amq.fanout", headers={"x-deduplication-header": "a"})
        assert queue.depth() == 1
        assert queue.take_all("other") == [b"1"]


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_keys_outlive_a_restart_with_their_messages(how: str) -> None:
    bench = DiskBench()
    channel = bench.channel()
    channel.declare("q", DEDUPLICATING, durable=True)
    channel.select_confirms()
    for number in range(2000):
        publish(channel, "x" * 200, number)
    channel.await_confirms()
    bench.restart(how)
    channel = bench.channel()
    for number in range(2001):
        publish(channel, "y", number)
    assert channel.depth() == 2001
    assert channel.take_all()[-1] == b"y"
    publish(channel, "z", 1)
    assert channel.depth() == 1


def test_keys_take_little_memory_and_it_counts() -> None:
    """They stay in memory when their messages do not."""
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q", DEDUPLICATING)
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert isinstance(queue, MessageQueue)
    assert queue.deduplication is not None
    before = int(bench.node.runtime.memory_bytes)
    for number in range(20):
        publish(channel, "", "k" * 60_000 + str(number % 10))
    assert channel.depth() == 10
    assert max(map(len, queue.deduplication.keys())) < 100
    assert bench.node.runtime.memory_bytes - before > queue.ready_bytes + 10 * 100
    channel.take_all()
    assert bench.node.runtime.memory_bytes == before
