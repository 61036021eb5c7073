"""What the model promises in numbers: bodies up to the limit, thousands of channels, ten thousand topics."""

import hashlib
from collections.abc import Iterator
from random import Random

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Cut, NodeBench
from waybill.wire.amqp091.content import body_of
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicConsumeOk
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare
from waybill.wire.amqp091.properties import BasicProperties

LARGE = 64 << 20
CHANNELS = 2047
TOPICS = 10_000


@pytest.fixture
def whole() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    yield bench
    bench.close()


@requirement("M010-002")
@pytest.mark.parametrize("size", [1, LARGE])
def test_a_body_of_many_megabytes_is_kept_as_it_came(whole: NodeBench, size: int) -> None:
    whole.node.limits.message_size_max = 2 * LARGE
    whole.node.change_alarms(4 * LARGE, 0)
    channel = whole.channel()
    channel.declare("q")
    body = hashlib.shake_128(b"seed").digest(1 << 20) * (size >> 20) or b"x"
    channel.publish(body)
    entry = whole.node.virtual_hosts["/"].queues["q"].take(no_ack=True)
    assert entry is not None
    taken = body_of(entry.message.content)
    assert len(taken) == size
    assert hashlib.sha256(taken).digest() == hashlib.sha256(body).digest()


@requirement("M010-003")
def test_each_of_2047_channels_works_on_one_connection(whole: NodeBench) -> None:
    peer = whole.connect()
    channels = [peer.open_channel(number) for number in range(1, CHANNELS + 1)]
    for channel in channels:
        name = f"q{channel.number}"
        channel.declare(name, exclusive=True)
        channel.publish(name, name)
    for channel in reversed(channels):
        assert channel.take(f"q{channel.number}").body == f"q{channel.number}".encode()


@requirement("M010-005")
def test_ten_thousand_topics_match_as_one_by_one(whole: NodeBench) -> None:
    channel = whole.channel()
    channel.exchange("x", "topic")
    random = Random(5)
    words = [f"w{number}" for number in range(40)]
    patterns = [".".join(random.choices([*words, "*", "#"], k=random.randint(1, 4))) for _ in range(TOPICS)]
    names = [f"q{number}" for number in range(100)]
    for name in names:
        channel.declare(name)
    for index, pattern in enumerate(patterns):
        channel.send(QueueBind(names[index % len(names)], "x", pattern, no_wait=True))
    for _ in range(15):
        key = ".".join(random.choices(words, k=random.randint(1, 4)))
        channel.publish(b"", key, "x")
        channel.sync()
        expected = {names[index % len(names)] for index, pattern in enumerate(patterns) if _fits(pattern, key)}
        queues = whole.node.virtual_hosts["/"].queues
        assert {name for name in names if queues[name].purge() == 1} == expected


def _fits(pattern: str, key: str) -> bool:
    """The rule of 0-9-1, 3.1.3.3, word by word."""

    def fits(left: list[str], right: list[str]) -> bool:
        if not left:
            return not right
        if left[0] == "#":
            return any(fits(left[1:], right[start:]) for start in range(len(right) + 1))
        return bool(right) and left[0] in {"*", right[0]} and fits(left[1:], right[1:])

    return fits(pattern.split("."), key.split("."))


@requirement("M010-053")
def test_an_auto_delete_queue_that_nobody_consumed_stays(whole: NodeBench) -> None:
    channel = whole.channel()
    channel.declare("q", auto_delete=True)
    channel.publish(b"polling is no consuming")
    assert channel.take().body == b"polling is no consuming"
    channel.peer.close()
    whole.advance(3600.0)
    other = whole.channel()
    other.declare("q", passive=True)
    tag = other.call(BasicConsume("q"), BasicConsumeOk).consumer_tag
    assert tag
    other.peer.close()
    whole.channel().refuses(QueueDeclare("q", passive=True), 404)


@requirement("M010-059")
def test_publish_and_subscribe_by_a_queue_that_the_server_names(whole: NodeBench) -> None:
    subscriber, publisher = whole.channel(), whole.channel()
    name = subscriber.declare("", exclusive=True, auto_delete=True).queue
    assert name.startswith("amq.gen-")
    subscriber.bind("amq.topic", name, "STOCK.USD.*")
    subscriber.consume(name, no_ack=True)
    for key in ("STOCK.USD.IBM", "STOCK.EUR.IBM", "STOCK.USD", "STOCK.USD.IBM.N"):
        publisher.publish(key, key, "amq.topic")
    assert subscriber.bodies(1) == [b"STOCK.USD.IBM"]
    subscriber.peer.close()
    publisher.refuses(QueueDeclare(name, passive=True), 404)


@requirement("M010-066")
def test_a_broker_adds_headers_and_changes_none(whole: NodeBench) -> None:
    channel = whole.channel()
    channel.declare("dead")
    channel.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 10})
    headers: dict[str, object] = {
        "text": "t", "number": 5, "negative": -1, "flag": True, "none": None, "real": 1.5, "octets": b"\xff",
        "table": {"a": {"b": [1, "two", {"c": None}]}}, "array": [[], {}, [1]], "": "empty", "x-own": "mine",
    }  # fmt: skip
    properties = BasicProperties(
        content_type="a/b", content_encoding="c", headers=headers, delivery_mode=2, priority=3, correlation_id="i",
        reply_to="r", message_id="m", timestamp=1_700_000_000, type="t", user_id="guest", app_id="a",
    )  # fmt: skip
    channel.publish(b"x", properties=properties)
    assert channel.take().properties == properties
    channel.publish(b"x", properties=properties)
    whole.advance(1.0)
    dead = channel.take("dead").properties
    assert dead.headers is not None
    added = set(dead.headers) - set(headers)
    assert {key: value for key, value in dead.headers.items() if key in headers} == headers
    assert added == {"x-death"} | {
        f"x-{w}-death-{f}" for w in ("first", "last") for f in ("reason", "queue", "exchange")
    }
    dead.headers = headers
    assert dead == properties


@requirement("M010-070")
def test_the_server_stops_a_publisher_and_lets_it_go_on(whole: NodeBench) -> None:
    channel = whole.channel()
    channel.declare("q")
    channel.publish(b"before")
    whole.node._is_disk_low = True
    whole.node._check_alarms()
    whole.settle()
    channel.publish(b"is not taken further")
    channel.peer.receive(0.0)
    told = [arrival.method.NAME for arrival in channel.peer.connection.replies]
    assert told == ["connection.blocked"]
    whole.node._is_disk_low = False
    whole.node._check_alarms()
    whole.settle()
    channel.peer.receive(0.0)
    assert channel.peer.connection.replies[-1].method.NAME == "connection.unblocked"
    assert channel.take_all() == [b"before", b"is not taken further"]


@requirement("M010-098")
def test_what_one_consumer_requeues_comes_back_in_its_place(whole: NodeBench) -> None:
    channel = whole.channel()
    channel.declare("q")
    for number in range(6):
        channel.publish(str(number))
    channel.qos(3)
    channel.consume()
    assert channel.bodies(3) == [b"0", b"1", b"2"]
    channel.nack(3, multiple=True)
    assert channel.bodies(3) == [b"0", b"1", b"2"]
    for tag in (5, 4, 6):
        channel.nack(tag)
    channel.peer.close()
    assert whole.channel().take_all() == [b"0", b"1", b"2", b"3", b"4", b"5"]
