"""Dead letters: what dies where and why, and what the message tells of it."""

from datetime import UTC, datetime

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDelete, QueueDeleteOk, QueuePurge, QueuePurgeOk
from waybill.wire.amqp091.properties import BasicProperties

TO_DEAD: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def deaths_of(headers: dict[str, object]) -> list[dict[str, object]]:
    deaths = headers["x-death"]
    assert isinstance(deaths, list)
    for death in deaths:
        assert isinstance(death.pop("time"), datetime)
    return deaths


@requirement("OJS-009")
@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_a_dead_letter_tells_how_it_died(bench: Bench, channel: Channel, reason: str) -> None:
    channel.declare("dead")
    arguments: dict[str, object] = {**TO_DEAD}
    if reason == "maxlen":
        arguments["x-max-length"] = 0
    if reason == "expired":
        arguments["x-message-ttl"] = 50
    channel.declare("q", arguments)
    channel.exchange("x", "topic")
    channel.bind("x", key="#")
    channel.publish(b"body", "a.b", "x", headers={"mine": 1})
    if reason == "rejected":
        held = channel.get(no_ack=False)
        assert held is not None
        channel.reject(held.tag, requeue=False)
    elif reason == "expired":
        bench.advance(0.1)
    dead = channel.take("dead")
    assert dead.body == b"body"
    assert dead.headers["mine"] == 1
    assert deaths_of(dead.headers) == [
        {"count": 1, "reason": reason, "queue": "q", "exchange": "x", "routing-keys": ["a.b"]}
    ]
    for field, value in (("reason", reason), ("queue", "q"), ("exchange", "x")):
        assert dead.headers[f"x-first-death-{field}"] == value
    assert channel.depth() == 0


@pytest.mark.ours  # RabbitMQ sends header frames of any size
def test_a_consumer_with_small_frames_is_spared_a_record_that_does_not_fit(bench: Bench) -> None:
    """A header frame cannot be divided: what brokers add gives way."""
    narrow = bench.connect(frame_max=4096)
    channel = narrow.open_channel(1)
    channel.declare("dead")
    channel.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.publish(b"body", "q", properties=BasicProperties(headers={"own": "x" * 3900}))
    channel.reject(channel.get(no_ack=False).tag, requeue=False)  # type: ignore[union-attr]
    assert channel.take("dead").headers.keys() & {"own", "x-death"} == {"own"}
    channel.publish(b"body", "q", properties=BasicProperties(headers={"own": "x" * 3000}))
    channel.reject(channel.get(no_ack=False).tag, requeue=False)  # type: ignore[union-attr]
    channel.consume("dead", no_ack=True)
    assert channel.delivery().headers.keys() >= {"own", "x-death", "x-first-death-queue"}
    assert max(narrow.frame_sizes) <= 4096


def test_the_time_of_death_is_the_node_s(bench: Bench, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", {**TO_DEAD, "x-max-length": 0})
    channel.publish(b"")
    deaths = channel.take("dead").headers["x-death"]
    assert isinstance(deaths, list)
    now = getattr(bench, "now", datetime.now(UTC).timestamp())
    assert abs(deaths[0]["time"].timestamp() - now) < 60


@requirement("OJS-065")
def test_the_routing_key_may_be_replaced_or_kept(channel: Channel) -> None:
    channel.exchange("dlx", "direct")
    for name in ("own", "kept"):
        channel.declare(f"dead.{name}")
    channel.bind("dlx", "dead.own", "replaced")
    channel.bind("dlx", "dead.kept", "original")
    channel.declare("a", {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "replaced", "x-max-length": 0})
    channel.declare("b", {"x-dead-letter-exchange": "dlx", "x-max-length": 0})
    channel.exchange("in", "fanout")
    channel.bind("in", "a")
    channel.publish(b"1", "original", "in")
    assert channel.take("dead.own").method.routing_key == "replaced"
    channel.exchange("in2", "fanout")
    channel.bind("in2", "b")
    channel.publish(b"2", "original", "in2")
    dead = channel.take("dead.kept")
    assert (dead.method.exchange, dead.method.routing_key) == ("dlx", "original")
    assert channel.depth("dead.own") == 0


@requirement("OJS-022")
def test_a_dead_letter_reaches_its_own_queue_only(channel: Channel) -> None:
    channel.exchange("dlx", "direct")
    for name in ("email", "files"):
        channel.declare(f"dead.{name}")
        channel.bind("dlx", f"dead.{name}", name)
        channel.declare(name, {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": name})
    channel.publish(b"1", "email")
    held = channel.get("email", no_ack=False)
    assert held is not None
    channel.nack(held.tag, requeue=False)
    assert channel.take_all("dead.email") == [b"1"]
    assert channel.depth("dead.files") == 0


@requirement("OJS-077", "OJS-080")
def test_a_time_to_live_of_its_own_does_not_survive_death(bench: Bench, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", TO_DEAD)
    properties = BasicProperties(
        expiration="50", message_id="id", priority=3, correlation_id="c", headers={"mine": "kept"}, delivery_mode=2
    )
    channel.publish(b"body", properties=properties)
    bench.advance(0.1)
    bench.advance(0.2)
    dead = channel.take("dead")
    assert dead.properties.expiration is None
    assert dead.properties.message_id == "id"
    assert dead.properties.priority == 3
    assert dead.properties.correlation_id == "c"
    assert dead.properties.delivery_mode == 2
    assert dead.headers["mine"] == "kept"
    assert deaths_of(dead.headers)[0]["original-expiration"] == "50"


@requirement("OJS-075", "OJS-079", "OJS-117")
def test_a_retry_ladder(bench: Bench, channel: Channel) -> None:
    channel.exchange("retry", "direct")
    channel.exchange("jobs", "direct")
    channel.declare("job")
    channel.bind("jobs", "job", "job")
    for delay in (300, 50):
        name = f"job.{delay}"
        channel.declare(
            name,
            {"x-dead-letter-exchange": "jobs", "x-dead-letter-routing-key": "job", "x-message-ttl": delay},
        )
        channel.bind("retry", name, name)
        channel.publish(str(delay), name, "retry")
    assert channel.depth("job") == 0
    bench.advance(0.15)
    first = channel.take("job")
    assert (first.body, first.method.exchange, first.method.routing_key) == (b"50", "jobs", "job")
    assert channel.depth("job") == 0
    bench.advance(0.25)
    assert channel.take("job").body == b"300"


def test_deaths_of_one_kind_are_counted_and_the_newest_comes_first(bench: Bench, channel: Channel) -> None:
    channel.declare("work", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    channel.declare("wait", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 20})
    channel.publish(b"1", "work")
    for count in (1, 2, 3):
        held = channel.get("work", no_ack=False)
        assert held is not None
        if count > 1:
            deaths = deaths_of(held.headers)
            assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == [
                ("wait", "expired", count - 1),
                ("work", "rejected", count - 1),
            ]
            assert held.headers["x-first-death-queue"] == "work"
        channel.reject(held.tag, requeue=False)
        bench.advance(0.1)
    assert channel.depth("work") == 1


def test_a_cycle_without_rejections_is_cut(bench: Bench, channel: Channel) -> None:
    channel.declare("a", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b", "x-message-ttl": 20})
    channel.declare("b", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-message-ttl": 20})
    channel.publish(b"1", "a")
    bench.advance(0.3)
    assert channel.depth("a") + channel.depth("b") == 0


def test_a_queue_that_feeds_itself_drops_what_it_lets_expire(bench: Bench, channel: Channel) -> None:
    channel.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 20})
    channel.publish(b"1")
    bench.advance(0.2)
    assert channel.depth() == 0


def test_a_queue_that_feeds_itself_keeps_what_is_rejected(channel: Channel) -> None:
    channel.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    channel.publish(b"1")
    for _ in range(3):
        held = channel.get(no_ack=False)
        assert held is not None
        channel.reject(held.tag, requeue=False)
    assert channel.take_all() == [b"1"]


def test_without_a_route_a_dead_letter_is_dropped(channel: Channel) -> None:
    channel.declare("a", {"x-dead-letter-exchange": "absent", "x-max-length": 0})
    channel.declare("b", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "absent", "x-max-length": 0})
    channel.publish(b"1", "a")
    channel.publish(b"1", "b")
    assert channel.depth("a") + channel.depth("b") == 0


def test_a_full_queue_may_refuse_and_bury(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", {**TO_DEAD, "x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    channel.select_confirms()
    channel.publish(b"1")
    channel.publish(b"2")
    channel.await_confirms()
    assert channel.refused == {2}
    dead = channel.take("dead")
    assert dead.body == b"2"
    assert deaths_of(dead.headers)[0]["reason"] == "maxlen"
    assert channel.take_all() == [b"1"]


def test_a_full_queue_that_refuses_without_burying(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", {**TO_DEAD, "x-max-length": 1, "x-overflow": "reject-publish"})
    channel.publish(b"1")
    channel.publish(b"2")
    assert channel.depth("dead") == 0
    assert channel.take_all() == [b"1"]


def test_copies_die_by_all_their_keys(channel: Channel) -> None:
    channel.exchange("dlx", "topic")
    channel.declare("dead")
    channel.bind("dlx", "dead", "copy")
    channel.declare("q", {"x-dead-letter-exchange": "dlx", "x-max-length": 0})
    channel.publish(b"1", headers={"CC": ["copy"], "BCC": ["secret"]})
    dead = channel.take("dead")
    assert deaths_of(dead.headers)[0]["routing-keys"] == ["q", "copy"]


def test_a_new_routing_key_removes_the_copies(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", {**TO_DEAD, "x-max-length": 0})
    channel.publish(b"1", headers={"CC": ["elsewhere"]})
    dead = channel.take("dead")
    assert "CC" not in dead.headers
    assert deaths_of(dead.headers)[0]["routing-keys"] == ["q", "elsewhere"]


def test_dead_letters_keep_their_order(bench: Bench, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", {**TO_DEAD, "x-message-ttl": 50})
    for number in range(10):
        channel.publish(str(number))
    bench.advance(0.1)
    assert channel.take_all("dead") == [str(number).encode() for number in range(10)]


@requirement("091-queue.delete.01")
def test_purging_and_deleting_bury_nothing(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", TO_DEAD)
    channel.publish(b"1")
    channel.call(QueuePurge("q"), QueuePurgeOk)
    channel.publish(b"2")
    channel.call(QueueDelete("q"), QueueDeleteOk)
    assert channel.depth("dead") == 0


def test_a_dead_letter_may_be_delivered_at_once(bench: Bench, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", {**TO_DEAD, "x-message-ttl": 50})
    other = bench.channel()
    other.consume("dead", no_ack=True)
    channel.publish(b"1")
    bench.advance(0.1)
    assert other.bodies(1) == [b"1"]


@requirement("091-basic.deliver.01")
def test_a_quorum_queue_buries_poison(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", {**TO_DEAD, "x-queue-type": "quorum", "x-delivery-limit": 1}, durable=True)
    channel.publish(b"poison", properties=BasicProperties(delivery_mode=2))
    channel.consume()
    for _ in range(2):
        channel.nack(channel.delivery().tag)
    channel.expect_nothing()
    dead = channel.take("dead")
    assert deaths_of(dead.headers)[0]["reason"] == "delivery_limit"


@requirement("OJS-078")
def test_a_delay_queue_is_declared_one_way_only(channel: Channel) -> None:
    arguments: dict[str, object] = {
        "x-dead-letter-exchange": "ojs.exchange.direct",
        "x-dead-letter-routing-key": "email",
        "x-message-ttl": 1000,
    }
    channel.declare("q", arguments, durable=True)
    channel.declare("q", arguments, durable=True)
    for name, value in (("x-message-ttl", 2000), ("x-dead-letter-routing-key", "other")):
        channel.refuses(QueueDeclare("q", durable=True, arguments={**arguments, name: value}), 406)
        channel.reopen()
