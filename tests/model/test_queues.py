"""Queues: declaring, binding, purging and deleting them (0-9-1, 1.7)."""

from typing import Any

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk, BasicConsume, BasicGet
from waybill.wire.amqp091.methods_queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from waybill.wire.amqp091.properties import BasicProperties


@requirement("M010-025", "OJS-073")
@pytest.mark.parametrize(
    "flags",
    [{}, {"durable": True}, {"exclusive": True}, {"auto_delete": True}, {"exclusive": True, "auto_delete": True}],
    ids=str,
)
@requirement("091-queue.declare.durable.types", "091-queue.declare.exclusive.types")
def test_declaring_a_queue_twice_is_no_error(channel: Channel, flags: dict[str, Any]) -> None:
    assert channel.declare("q", **flags) == QueueDeclareOk("q", 0, 0)
    channel.publish(b"")
    assert channel.declare("q", **flags) == QueueDeclareOk("q", 1, 0)


@requirement("OJS-063")
@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"durable": False}, 406),
        ({"durable": True, "auto_delete": True}, 406),
        ({"durable": True, "exclusive": True}, 405),
    ],
    ids=str,
)
@requirement("091-queue.declare.passive.equivalent", "091-queue.declare.auto-delete.pre-existence")
def test_declaring_a_queue_with_another_flag_fails(channel: Channel, flags: dict[str, Any], code: int) -> None:
    channel.declare("q", durable=True)
    channel.refuses(QueueDeclare("q", **flags), code)


@requirement("OJS-064", "OJS-078")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"x-message-ttl": 1000}),
        ({"x-message-ttl": 1000}, {}),
        ({"x-message-ttl": 1000}, {"x-message-ttl": 1001}),
        ({"x-dead-letter-exchange": "x"}, {}),
        ({"x-dead-letter-exchange": "x"}, {"x-dead-letter-exchange": "y"}),
        ({"x-max-length": 5}, {"x-max-length": 6}),
        ({"x-max-priority": 5}, {}),
        ({}, {"x-queue-type": "quorum"}),
        ({"x-overflow": "reject-publish"}, {"x-overflow": "drop-head"}),
    ],
    ids=str,
)
@requirement("091-queue.declare.passive.equivalent")
def test_declaring_a_queue_with_other_arguments_fails(
    channel: Channel, before: dict[str, object], after: dict[str, object]
) -> None:
    channel.declare("q", before, durable=True)
    close = channel.refuses(QueueDeclare("q", durable=True, arguments=after), 406)
    assert close.reply_text.startswith("PRECONDITION_FAILED - inequivalent arg 'x-")
    assert "for queue 'q' in vhost '/'" in close.reply_text


@requirement("OJS-071")
def test_a_classic_queue_may_say_so(channel: Channel) -> None:
    channel.declare("q", {"x-queue-type": "classic"})
    channel.declare("q")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-expires": -1},
        {"x-max-length": -1},
        {"x-max-length-bytes": -1},
        {"x-max-length": "many"},
        {"x-overflow": "explode"},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-max-priority": 256},
        {"x-max-priority": -1},
        {"x-queue-type": "quantum"},
        {"x-single-active-consumer": "yes"},
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(channel: Channel, arguments: dict[str, object]) -> None:
    channel.refuses(QueueDeclare("q", arguments=arguments), 406)
    channel.reopen()
    channel.refuses(QueueDeclare("q", passive=True), 404)


def test_unknown_arguments_are_kept_and_ignored(channel: Channel) -> None:
    channel.declare("q", {"x-unheard-of": "yes", "other": 1})


@requirement("M010-051")
@requirement("091-queue.declare.queue.default-name")
def test_an_unnamed_queue_is_named_by_the_server(channel: Channel) -> None:
    names = [channel.declare("", exclusive=True).queue for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.startswith("amq.gen-") for name in names)


@requirement(
    "091-queue.bind.queue.queue-known",
    "091-queue.unbind.queue.queue-known",
    "091-queue.purge.queue.queue-known",
    "091-queue.delete.queue.queue-known",
)
def test_the_empty_name_means_the_queue_declared_last(channel: Channel) -> None:
    channel.declare("other")
    name = channel.declare("", exclusive=True).queue
    channel.publish(b"1", name)
    assert channel.take("").body == b"1"
    channel.bind("amq.direct", "")
    channel.publish(b"2", name, "amq.direct")
    assert channel.take(name).body == b"2"
    assert channel.call(QueuePurge(""), QueuePurgeOk).message_count == 0


@pytest.mark.parametrize("method", [BasicGet(""), BasicConsume(""), QueuePurge(""), QueueBind("", "amq.direct", "k")])
@requirement("091-queue.bind.queue.queue-known")
def test_the_empty_name_needs_a_queue_declared_before(
    channel: Channel, method: BasicGet | BasicConsume | QueuePurge | QueueBind
) -> None:
    channel.refuses(method, 404)


@requirement("091-queue.declare.queue.reserved")
def test_queue_names_that_begin_with_amq_are_reserved(channel: Channel) -> None:
    close = channel.refuses(QueueDeclare("amq.mine"), 403)
    assert close.reply_text.startswith("ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'")


@requirement("M010-100")
@pytest.mark.parametrize("name", ["q" * 255, "Schlüssel/鍵 🔑", "_", "with space"])
@requirement("091-queue.declare.queue.syntax")
def test_queue_names_may_be_long_and_in_any_script(channel: Channel, name: str) -> None:
    assert channel.declare(name).queue == name
    channel.publish(b"1", name)
    assert channel.take(name).method.routing_key == name


@requirement("M010-100")
def test_a_queue_name_that_is_no_utf_8_is_refused(bystander: Channel, channel: Channel) -> None:
    channel.send(QueueDeclare("q\udcff"))
    assert "Malformed UTF-8 in shortstr" in channel.peer.expect_refused(501)


@requirement("091-queue.declare.passive.passive")
def test_a_passive_declare_counts_messages_and_consumers(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    for _ in range(3):
        channel.publish(b"")
    other = bench.channel()
    other.qos(2)
    other.consume()
    other.deliveries(2)
    assert channel.declare("q", passive=True) == QueueDeclareOk("q", 1, 1)


@requirement("091-queue.declare.passive.passive")
def test_a_passive_declare_of_a_missing_queue_fails(channel: Channel) -> None:
    assert channel.refuses(QueueDeclare("q", passive=True), 404).reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"


@requirement("M010-025", "M010-020")
@pytest.mark.parametrize(
    "method",
    [
        QueueDeclare("q"),
        QueueDeclare("q", exclusive=True),
        QueueDeclare("q", passive=True),
        QueueBind("q", "amq.direct", "k"),
        QueuePurge("q"),
        QueueDelete("q"),
        BasicConsume("q"),
        BasicGet("q"),
    ],
    ids=lambda method: method.NAME,
)
@requirement("091-queue.declare.exclusive.exclusive")
def test_an_exclusive_queue_is_locked_for_others(bench: Bench, channel: Channel, method: QueueDeclare) -> None:
    channel.declare("q", exclusive=True)
    other = bench.channel()
    close = other.refuses(method, 405)
    assert close.reply_text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'")


@requirement("091-queue.declare.exclusive.types")
def test_an_exclusive_queue_serves_all_channels_of_its_connection(channel: Channel) -> None:
    channel.declare("q", exclusive=True)
    other = channel.peer.open_channel(2)
    other.publish(b"1")
    assert other.take().body == b"1"


@requirement("M010-055")
@pytest.mark.parametrize("orderly", [True, False])
def test_an_exclusive_queue_goes_with_its_connection(bench: Bench, channel: Channel, orderly: bool) -> None:
    owner = bench.channel()
    owner.declare("q", exclusive=True, durable=True)
    if orderly:
        owner.peer.close()
    else:
        owner.peer.wire.cut()
    bench.advance(0.05)
    channel.refuses(QueueDeclare("q", passive=True), 404)


@requirement("M010-053")
def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: Channel) -> None:
    channel.declare("q", auto_delete=True)
    channel.declare("q", auto_delete=True)
    first, second = channel.consume(), channel.consume()
    channel.call(BasicCancel(first), BasicCancelOk)
    assert channel.declare("q", passive=True).consumer_count == 1
    channel.call(BasicCancel(second), BasicCancelOk)
    channel.refuses(QueueDeclare("q", passive=True), 404)


def test_an_auto_delete_queue_goes_when_its_consumer_is_lost(bench: Bench, channel: Channel) -> None:
    channel.declare("q", auto_delete=True)
    other = bench.channel()
    other.consume()
    other.peer.wire.cut()
    bench.advance(0.05)
    channel.refuses(QueueDeclare("q", passive=True), 404)


@requirement("M010-056", "M010-105")
@requirement("091-queue.bind.duplicates")
def test_the_same_binding_twice_is_one(channel: Channel) -> None:
    channel.declare("q")
    channel.exchange("x", "fanout")
    channel.bind("x", key="k")
    channel.bind("x", key="k")
    channel.publish(b"1", "", "x")
    assert channel.take_all() == [b"1"]
    channel.call(QueueUnbind("q", "x", "k"), QueueUnbindOk)
    channel.publish(b"2", "", "x")
    assert channel.take_all() == []


def test_bindings_with_other_arguments_are_others(channel: Channel) -> None:
    channel.declare("q")
    channel.exchange("x", "headers")
    channel.bind("x", arguments={"a": 1})
    channel.bind("x", arguments={"a": 2})
    channel.call(QueueUnbind("q", "x", "", {"a": 1}), QueueUnbindOk)
    channel.publish(b"1", "", "x", headers={"a": 1})
    channel.publish(b"2", "", "x", headers={"a": 2})
    assert channel.take_all() == [b"2"]


@requirement("091-queue.bind.queue.must-exist", "091-queue.bind.exchange.exchange-existence")
def test_binding_what_is_missing_fails(channel: Channel) -> None:
    channel.declare("q")
    channel.refuses(QueueBind("q", "absent", "k"), 404)
    channel.reopen()
    channel.refuses(QueueBind("absent", "amq.direct", "k"), 404)


@requirement("M010-104")
def test_bindings_die_with_their_queue(channel: Channel) -> None:
    channel.declare("q")
    channel.exchange("x", "fanout")
    channel.bind("x")
    channel.call(QueueDelete("q"), QueueDeleteOk)
    channel.declare("q")
    channel.publish(b"1", "", "x")
    assert channel.take_all() == []


@requirement("091-queue.unbind.01", "091-queue.unbind.queue.must-exist", "091-queue.unbind.exchange.must-exist")
def test_unbinding_what_is_not_bound_is_no_error(channel: Channel) -> None:
    channel.declare("q")
    channel.call(QueueUnbind("q", "amq.direct", "never"), QueueUnbindOk)
    channel.call(QueueUnbind("q", "absent", "never"), QueueUnbindOk)
    channel.call(QueueUnbind("absent", "amq.direct", "never"), QueueUnbindOk)


def test_no_wait_gets_no_answer(channel: Channel) -> None:
    channel.send(
        QueueDeclare("q", no_wait=True),
        QueueBind("q", "amq.direct", "nowait", no_wait=True),
        QueuePurge("q", no_wait=True),
        QueueDelete("q", no_wait=True),
    )
    channel.refuses(QueueDeclare("q", passive=True), 404)


@requirement("091-queue.purge.02")
def test_purging_removes_what_waits_and_keeps_what_is_delivered(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    for text in ("1", "2", "3"):
        channel.publish(text)
    held = channel.get(no_ack=False)
    assert held is not None
    assert channel.call(QueuePurge("q"), QueuePurgeOk).message_count == 2
    channel.nack(held.tag)
    assert channel.take_all() == [b"1"]
    assert channel.call(QueuePurge("q"), QueuePurgeOk).message_count == 0


@requirement("091-queue.purge.queue.must-exist")
def test_purging_a_missing_queue_fails(channel: Channel) -> None:
    channel.refuses(QueuePurge("absent"), 404)


@requirement("091-queue.delete.queue.must-exist")
def test_deleting_a_queue_counts_what_it_held(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1")
    channel.publish(b"2")
    assert channel.call(QueueDelete("q"), QueueDeleteOk).message_count == 2
    assert channel.call(QueueDelete("q"), QueueDeleteOk).message_count == 0
    channel.declare("q")
    assert channel.depth() == 0


@requirement("091-queue.delete.if-unused.in-use", "091-queue.delete.if-empty.not-empty")
def test_deleting_only_an_unused_or_empty_queue(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1")
    channel.refuses(QueueDelete("q", if_empty=True), 406)
    channel.reopen()
    channel.take()
    tag = channel.consume()
    channel.refuses(QueueDelete("q", if_unused=True), 406)
    channel.reopen()
    assert tag
    channel.call(QueueDelete("q", if_unused=True, if_empty=True), QueueDeleteOk)


@requirement("091-queue.bind.transient-exchange", "091-queue.bind.binding-count", "M010-026")
def test_a_durable_queue_with_bindings_to_exchanges_of_all_kinds(bench: Bench, channel: Channel) -> None:
    """Two consumers share what came to one queue over four exchanges, one of them transient."""
    channel.declare("q", durable=True)
    channel.exchange("transient", "topic", durable=False)
    for exchange, key in (("transient", "a.#"), ("amq.topic", "a.*"), ("amq.direct", "a.b"), ("amq.fanout", "")):
        channel.bind(exchange, key=key)
    other = bench.channel()
    consumers = [(channel, channel.consume()), (other, other.consume())]
    publisher = bench.channel()
    for exchange in ("transient", "amq.topic", "amq.direct", "amq.fanout"):
        publisher.publish(exchange.encode(), "a.b", exchange)
    got = [consumer.delivery().body for consumer, _ in consumers for _ in range(2)]
    assert sorted(got) == [b"amq.direct", b"amq.fanout", b"amq.topic", b"transient"]


@requirement("091-queue.declare.minimum-queues")
def test_a_virtual_host_takes_many_queues(channel: Channel) -> None:
    names = [f"many.{number}" for number in range(300)]
    channel.send(*[QueueDeclare(name, exclusive=True) for name in names])
    assert [channel.expect(QueueDeclareOk).queue for _ in names] == names


@requirement("M010-054")
@requirement("M010-006")
def test_a_queue_collects_without_consumers(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1")
    channel.peer.close()
    assert bench.channel().take().body == b"1"


def test_binding_with_the_empty_name_uses_the_queue_name_as_key(channel: Channel) -> None:
    name = channel.declare("", exclusive=True).queue
    channel.call(QueueBind("", "amq.direct", ""), QueueBindOk)
    channel.publish(b"1", name, "amq.direct")
    assert channel.take_all(name) == [b"1"]


@requirement("M010-057", "M010-023", "M010-044")
@requirement("M010-006")
def test_a_shared_queue_from_nothing_to_nothing(bench: Bench) -> None:
    one, two = bench.channel(), bench.channel()
    one.declare("shared")
    two.declare("shared")
    first, second = one.consume("shared", no_ack=True), two.consume("shared", no_ack=True)
    publisher = bench.channel()
    for number in range(6):
        publisher.publish(str(number), "shared")
    assert sorted(one.bodies(3) + two.bodies(3)) == [str(number).encode() for number in range(6)]
    one.call(BasicCancel(first), BasicCancelOk)
    two.call(BasicCancel(second), BasicCancelOk)
    publisher.call(QueueDelete("shared"), QueueDeleteOk)


@requirement("M010-058")
@requirement("M010-006")
def test_a_reply_queue(bench: Bench) -> None:
    client, server = bench.channel(), bench.channel()
    server.declare("service")
    reply_queue = client.declare("", exclusive=True, auto_delete=True).queue
    client.consume(reply_queue, no_ack=True)
    client.publish(b"?", "service", properties=BasicProperties(reply_to=reply_queue, correlation_id="7"))
    client.sync()
    request = server.take("service")
    assert request.properties.reply_to == reply_queue
    server.publish(
        b"!",
        request.properties.reply_to or "",
        properties=BasicProperties(correlation_id=request.properties.correlation_id),
    )
    answer = client.delivery()
    assert (answer.body, answer.properties.correlation_id) == (b"!", "7")


@pytest.mark.parametrize("name", ["line\nfeed", "line\r\nfeed", "\nline\n\rfeed\r"])
def test_ends_of_lines_are_taken_out_of_names(channel: Channel, name: str) -> None:
    assert channel.declare(name).queue == "linefeed"
    assert channel.declare(name, passive=True).queue == "linefeed"
    channel.publish(b"1", "linefeed")
    assert channel.call(QueuePurge("linefeed"), QueuePurgeOk).message_count == 1
    channel.call(QueueDelete(name), QueueDeleteOk)
    channel.refuses(QueueDeclare("linefeed", passive=True), 404)


def test_unknown_arguments_make_no_difference(channel: Channel) -> None:
    channel.declare("q", {"colour": "blue"})
    channel.declare("q")
    channel.declare("q", {"colour": "red", "x-shape": "round"})


@pytest.mark.parametrize("name", ["x-message-ttl", "x-expires", "x-max-length"])
def test_a_number_that_is_no_integer_is_not_the_same(channel: Channel, name: str) -> None:
    channel.declare("q", {name: 60_000})
    channel.refuses(QueueDeclare("q", arguments={name: 60_000.0}), 406)
