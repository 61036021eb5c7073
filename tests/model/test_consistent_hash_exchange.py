"""Exchanges of type x-consistent-hash: equal keys always reach the same queue, and all queues get their share."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Channel, NodeBench
from tests.engine.disk_bench import DiskBench
from tests.security.restart import restarted
from waybill.model.routing import STEPS_MAX
from waybill.wire.amqp091.methods_exchange import ExchangeBind, ExchangeBindOk, ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueBind, QueueUnbind, QueueUnbindOk
from waybill.wire.amqp091.properties import BasicProperties

pytestmark = pytest.mark.ours

HASH = "x-consistent-hash"
KEYS = 2000


def prepare(channel: Channel, weights: dict[str, str], arguments: dict[str, object] | None = None) -> None:
    channel.exchange("spread", HASH, arguments or {}, durable=True)
    for name, weight in weights.items():
        channel.declare(name, durable=True)
        channel.bind("spread", name, weight)


def places(channel: Channel, queues: list[str], keys: int = KEYS) -> dict[int, str]:
    """The queue that each key leads to."""
    for number in range(keys):
        channel.publish(str(number), f"key-{number}", "spread")
    found = {int(body): name for name in queues for body in channel.take_all(name)}
    assert len(found) == keys
    return found


@requirement("091-exchange.extensions", "M010-081")
def test_each_key_has_its_queue_and_all_get_their_share(channel: Channel) -> None:
    names = ["a", "b", "c", "d"]
    prepare(channel, dict.fromkeys(names, "10"))
    first = places(channel, names, 800)
    assert places(channel, names, 800) == first
    for name in names:
        assert 0.1 < list(first.values()).count(name) / 800 < 0.45


def test_weights() -> None:
    channel = DiskBench().channel()
    prepare(channel, {"light": "5", "heavy": "15"})
    found = list(places(channel, ["light", "heavy"]).values())
    assert 0.6 < found.count("heavy") / KEYS < 0.9


def test_a_new_queue_takes_only_its_share_and_gives_it_back() -> None:
    channel = DiskBench().channel()
    names = ["a", "b", "c", "d"]
    prepare(channel, dict.fromkeys(names, "20"))
    before = places(channel, names)
    prepare(channel, {"e": "20"})
    after = places(channel, [*names, "e"])
    moved = {number for number in before if before[number] != after[number]}
    assert {after[number] for number in moved} == {"e"}
    assert 0.08 < len(moved) / KEYS < 0.4
    channel.call(QueueUnbind("e", "spread", "20"), QueueUnbindOk)
    assert places(channel, names) == before


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_moves_nothing(how: str) -> None:
    bench = DiskBench()
    channel = bench.channel()
    names = ["a", "b", "c"]
    prepare(channel, dict.fromkeys(names, "10"))
    before = places(channel, names)
    bench.restart(how)
    assert places(bench.channel(), names) == before


def test_hashing_a_header(channel: Channel) -> None:
    prepare(channel, {"a": "10", "b": "10"}, {"hash-header": "customer"})
    for number in range(100):
        channel.publish(str(number), "", "spread", headers={"customer": f"c{number % 10}"})
    found = {name: {int(body) % 10 for body in channel.take_all(name)} for name in ("a", "b")}
    assert found["a"] | found["b"] == set(range(10))
    assert not found["a"] & found["b"]
    channel.publish("without", "", "spread")
    assert len(channel.take_all("a") + channel.take_all("b")) == 1


def test_without_bindings_a_message_goes_nowhere(channel: Channel) -> None:
    channel.exchange("spread", HASH)
    channel.publish("1", "key", "spread", mandatory=True)
    assert channel.expect_return().method.reply_code == 312


@pytest.mark.parametrize("weight", ["", "0", "-1", "many", "10001", "\u0663"])
def test_a_binding_key_must_be_a_weight(channel: Channel, weight: str) -> None:
    channel.exchange("spread", HASH)
    channel.declare("weighed")
    channel.refuses(QueueBind("weighed", "spread", weight), 406)


def test_large_weights(channel: Channel) -> None:
    prepare(channel, {"light": "4000", "heavy": "10000"})
    found = list(places(channel, ["light", "heavy"], 400).values())
    assert 0.6 < found.count("heavy") / 400 < 0.85
    channel.declare("one-too-many")
    channel.refuses(QueueBind("one-too-many", "spread", "2385"), 406)


def test_stored_weights_are_taken_whatever_they_come_to(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    prepare(channel, {"a": "9000", "b": "00010"})
    store = node_bench.node.runtime.store
    stored = next(definition for _, definition in store.definitions("binding") if definition["destination"] == "a")
    store.define("binding", "/\0more", {**stored, "routing_key": "10000"})
    again = restarted(node_bench).virtual_hosts["/"]
    exchange = again.exchanges["spread"]
    assert len(exchange.bindings) == 3
    # A heavy ring is arranged once, and neither refused nor made without end.
    assert len(again.router.match(exchange, ["key"], {})) == 1
    assert exchange.steps < STEPS_MAX // 3
    exchange.match("key", {}, STEPS_MAX)
    assert exchange.steps == 0


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
def test_hashing_a_property(channel: Channel, name: str) -> None:
    prepare(channel, {"a": "10", "b": "10"}, {"hash-property": name})
    for number in range(100):
        value = f"id-{number % 10}"
        is_id = name == "message_id"
        properties = BasicProperties(message_id=value) if is_id else BasicProperties(correlation_id=value)
        channel.publish(str(number), f"key-{number}", "spread", properties=properties)
    found = {queue: {int(body) % 10 for body in channel.take_all(queue)} for queue in ("a", "b")}
    assert found["a"] | found["b"] == set(range(10))
    assert not found["a"] & found["b"]
    assert found["a"]
    assert found["b"]
    channel.publish("without", "", "spread")
    assert len(channel.take_all("a") + channel.take_all("b")) == 1


def test_a_property_is_hashed_behind_another_exchange_and_after_a_dead_letter(channel: Channel) -> None:
    """As jobs reach the partitions of their queue: through the direct exchange, some of them as dead letters."""
    prepare(channel, {"a": "10", "b": "10"}, {"hash-property": "message_id"})
    channel.exchange("jobs", "direct")
    channel.call(ExchangeBind("spread", "jobs", "orders"), ExchangeBindOk)
    late = {"x-dead-letter-exchange": "jobs", "x-dead-letter-routing-key": "orders", "x-max-length": 0}
    channel.declare("late", arguments=late)
    for exchange, key in (("jobs", "orders"), ("", "late")):
        for number in range(20):
            channel.publish(str(number), key, exchange, properties=BasicProperties(message_id=f"id-{number}"))
    found = {queue: sorted(channel.take_all(queue), key=int) for queue in ("a", "b")}
    assert found["a"]
    assert found["b"]
    assert all(one[::2] == one[1::2] for one in found.values())
    assert len(found["a"]) + len(found["b"]) == 40


@pytest.mark.parametrize(
    "arguments",
    [
        {"hash-header": 1},
        {"hash-property": "app_id"},
        {"hash-property": 1},
        {"hash-property": "message_id", "hash-header": "customer"},
    ],
)
def test_arguments_that_cannot_be_are_refused(channel: Channel, arguments: dict[str, object]) -> None:
    channel.refuses(ExchangeDeclare("bad", HASH, arguments=arguments), 406)
