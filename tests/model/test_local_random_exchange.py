"""Exchanges of type x-local-random: each message to one queue, by chance."""

import pytest

from tests.engine.amqp091.peer import Channel
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp091.methods_exchange import ExchangeBind
from waybill.wire.amqp091.methods_queue import QueueBind

pytestmark = pytest.mark.ours

RANDOM = "x-local-random"
NAMES = ("a", "b", "c")


def prepare(channel: Channel) -> None:
    channel.exchange("any", RANDOM, {}, durable=True)
    for name in NAMES:
        channel.declare(name, durable=True)
        channel.bind("any", name)


def depths(channel: Channel, count: int, key: str = "k") -> list[int]:
    for _ in range(count):
        channel.publish("m", key, "any")
    return [len(channel.take_all(name)) for name in NAMES]


def test_each_message_goes_to_one_queue_and_all_get_their_share(channel: Channel) -> None:
    prepare(channel)
    found = depths(channel, 900)
    assert sum(found) == 900
    assert min(found) > 200
    found = depths(channel, 300, "another key")
    assert (sum(found), min(found) > 50) == (300, True)


def test_a_queue_that_leaves_gets_nothing_more(channel: Channel) -> None:
    prepare(channel)
    depths(channel, 10)
    channel.declare("d", durable=True)
    channel.bind("any", "d")
    depths(channel, 200)
    assert channel.depth("d") > 10


def test_bindings_have_no_key_and_lead_to_queues(channel: Channel) -> None:
    prepare(channel)
    refused = channel.refuses(QueueBind("a", "any", "key", no_wait=False, arguments={}), 406)
    assert "Non empty binding 'key' key not permitted" in refused.reply_text
    channel.reopen()
    channel.refuses(ExchangeBind("amq.fanout", "any", "", no_wait=False, arguments={}), 406)


def test_it_is_there_after_a_restart() -> None:
    bench = DiskBench()
    prepare(bench.channel())
    bench.restart("clean")
    assert sum(depths(bench.channel(), 30)) == 30


def test_without_queues_the_message_is_returned(channel: Channel) -> None:
    channel.exchange("any", RANDOM, {})
    channel.publish("m", "k", "any", mandatory=True)
    assert channel.expect_return().body == b"m"
