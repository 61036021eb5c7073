"""Exchanges of type x-delayed-message: what has a header x-delay is routed that many milliseconds later."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp091.frames import method_frame
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare, ExchangeDelete, ExchangeDeleteOk
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties

pytestmark = pytest.mark.ours

DELAYED = "x-delayed-message"
# Longer than what the plugin for RabbitMQ can do.
HUNDRED_DAYS_MS = 100 * 86_400_000


@pytest.fixture
def delayed(channel: Channel) -> Channel:
    return prepare(channel)


def prepare(channel: Channel, kind: str = "direct", key: str = "q") -> Channel:
    channel.exchange("later", DELAYED, {"x-delayed-type": kind}, durable=True)
    channel.declare("q", durable=True)
    channel.bind("later", "q", key)
    return channel


def publish(channel: Channel, body: str, delay: object, key: str = "q") -> None:
    properties = BasicProperties(headers={"x-delay": delay}, delivery_mode=2)
    channel.publish(body, key, "later", properties=properties)


@requirement("M010-096")
@requirement("091-exchange.extensions", "M010-030", "OJS-082")
def test_messages_come_when_they_are_due(bench: Bench, delayed: Channel) -> None:
    publish(delayed, "second", 2000)
    publish(delayed, "first", 1000)
    publish(delayed, "third", 2000)
    assert delayed.depth() == 0
    bench.advance(0.999)
    assert delayed.depth() == 0
    bench.advance(0.002)
    assert delayed.take_all() == [b"first"]
    bench.advance(1.0)
    assert delayed.take_all() == [b"second", b"third"]


@pytest.mark.parametrize("delay", [0, -5, "1000", True, None])
def test_without_a_delay_they_come_at_once(delayed: Channel, delay: object) -> None:
    publish(delayed, "now", delay)
    delayed.publish("plain", "q", "later")
    assert delayed.take_all() == [b"now", b"plain"]


def test_a_delay_of_a_hundred_days(bench: Bench, delayed: Channel) -> None:
    publish(delayed, "patient", HUNDRED_DAYS_MS)
    publish(delayed, "for ever", 2**63 - 1)
    bench.advance(HUNDRED_DAYS_MS / 1000 - 1)
    assert delayed.depth() == 0
    bench.advance(2)
    assert delayed.take_all() == [b"patient"]


def test_the_delay_is_negated_so_that_nobody_delays_twice(bench: Bench, delayed: Channel) -> None:
    publish(delayed, "1", 1000)
    bench.advance(1.1)
    taken = delayed.take()
    assert taken.headers["x-delay"] == -1000
    delayed.publish(taken.body, "q", "later", properties=taken.properties)
    assert delayed.take().headers["x-delay"] == -1000


@pytest.mark.parametrize(
    ("kind", "binding", "key"), [("topic", "a.#", "a.b.c"), ("fanout", "", "x"), ("direct", "k", "k")]
)
def test_it_routes_as_the_type_that_it_names(bench: Bench, channel: Channel, kind: str, binding: str, key: str) -> None:
    prepare(channel, kind, binding)
    publish(channel, "1", 1000, key)
    publish(channel, "0", 0, key)
    if kind != "fanout":
        publish(channel, "elsewhere", 1000, "nobody")
    bench.advance(1.1)
    assert channel.take_all() == [b"0", b"1"]


def test_it_routes_by_the_bindings_of_the_time_when_due(bench: Bench, delayed: Channel) -> None:
    publish(delayed, "1", 1000, "other")
    delayed.declare("late")
    delayed.bind("later", "late", "other")
    bench.advance(1.1)
    assert delayed.take_all("late") == [b"1"]


@pytest.mark.parametrize(
    "arguments", [{}, {"x-delayed-type": DELAYED}, {"x-delayed-type": 1}, {"x-delayed-type": "foo"}]
)
@requirement("OJS-082")
def test_a_type_that_cannot_be_is_refused(channel: Channel, arguments: dict[str, object]) -> None:
    channel.refuses(ExchangeDeclare("bad", DELAYED, arguments=arguments), 406)


def test_confirms_do_not_wait_for_the_delay(delayed: Channel) -> None:
    delayed.select_confirms()
    publish(delayed, "1", 60_000)
    delayed.await_confirms()
    assert delayed.confirmed == {1}


def test_transactions(bench: Bench, delayed: Channel) -> None:
    delayed.call(TxSelect(), TxSelectOk)
    publish(delayed, "undone", 1000)
    delayed.call(TxRollback(), TxRollbackOk)
    publish(delayed, "done", 1000)
    bench.advance(2.0)
    assert delayed.depth() == 0
    delayed.call(TxCommit(), TxCommitOk)
    bench.advance(2.0)
    assert delayed.take_all() == [b"done"]


def test_a_deleted_exchange_forgets_what_it_held(node_bench: NodeBench) -> None:
    channel = prepare(node_bench.channel())
    publish(channel, "1", 1000)
    publish(channel, "2", 60_000)
    channel.call(ExchangeDelete("later"), ExchangeDeleteOk)
    node_bench.advance(120.0)
    assert channel.depth() == 0
    assert node_bench.node.runtime.memory_bytes == 0


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_a_restart_keeps_what_is_stored_and_its_time(how: str) -> None:
    bench = DiskBench()
    channel = prepare(bench.channel())
    channel.select_confirms()
    for number in range(300):
        publish(channel, str(number), 30_000 + 100 * number)
    channel.await_confirms()
    bench.restart(how)
    bench.advance(44.95)
    channel = bench.channel()
    assert channel.take_all() == [b"%d" % number for number in range(150)]
    channel.declare("q", durable=True)
    bench.restart(how)
    bench.advance(60.0)
    assert bench.channel().take_all() == [b"%d" % number for number in range(150, 300)]


def test_many_that_wait_long_are_on_the_disk() -> None:
    bench = DiskBench()
    channel = prepare(bench.channel())
    for number in range(2000):
        properties = BasicProperties(headers={"x-delay": 60_000 - number}, delivery_mode=1 + number % 2)
        channel.publish(b"%d " % number + bytes(1000), "q", "later", properties=properties)
    assert bench.memory_bytes == 0
    bench.advance(61.0)
    assert [int(body.split()[0]) for body in channel.take_all()] == list(reversed(range(2000)))
    assert bench.memory_bytes == 0


def test_a_disk_that_hangs_delays_more_and_loses_nothing() -> None:
    bench = DiskBench()
    channel = prepare(bench.channel())
    bench.is_stuck = True
    publish(channel, "1", 20_000)
    bench.advance(30.0)
    assert channel.depth() == 0
    bench.is_stuck = False
    bench.advance(2.0)
    assert channel.take_all() == [b"1"]


def test_delayed_messages_are_refused_when_they_take_too_much_memory() -> None:
    """Each takes some, wherever its content is."""
    bench = DiskBench()
    channel = prepare(bench.channel())
    channel.select_confirms()
    runtime = bench.node.runtime
    publish(channel, "first", 60_000)
    channel.await_confirms()
    each = int(runtime.delayed_bytes)
    assert each > 0
    runtime.delayed_bytes = runtime.footprint_limit_bytes >> 1
    publish(channel, "one too many", 60_000)
    publish(channel, "not delayed", 0)
    channel.await_confirms()
    assert channel.confirmed == {1, 3}
    assert channel.take_all() == [b"not delayed"]
    bench.advance(61)
    publish(channel, "there is room again", 1000)
    channel.await_confirms()
    assert channel.confirmed == {1, 3, 4}
    bench.advance(1.1)
    assert channel.take_all() == [b"first", b"there is room again"]


def test_deleting_an_exchange_with_many_delayed_messages_takes_turns() -> None:
    bench = DiskBench()
    channel = prepare(bench.channel())
    before = int(bench.node.runtime.footprint_bytes)
    bench.node.runtime.turn_units = 16
    for number in range(1000):
        publish(channel, str(number), 60_000)
    assert bench.node.runtime.footprint_bytes > before + 1000 * 50
    channel.peer.wire.engine.receive_data(method_frame(1, ExchangeDelete("later")), bench.now)  # type: ignore[attr-defined]
    assert bench.node.has_late_work
    bench.settle()
    channel.expect(ExchangeDeleteOk)
    assert bench.node.runtime.delayed_bytes == 0
    assert bench.node.runtime.footprint_bytes < before
