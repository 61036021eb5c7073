"""The conformance table of the binding (section 13.1), row by row, on both brokers: what was said on the wire.

The scenario is played once for each broker; each test looks at the frames that passed.
"""

import asyncio
import json
import re
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.binding_scenario import (
    FIRST_DELAY_S,
    FULL,
    QUEUE,
    QUORUM,
    REFUSED_ATTEMPTS,
    TRACEPARENT,
    Recording,
    record,
)
from tests.ojs.wire_tap import Said, WireTap

DIRECT = "ojs.exchange.direct"
JOB_QUEUE = f"ojs.queue.{QUEUE}"
CONTROL_QUEUE = f"ojs.queue.control.{QUEUE}"
NAMES = re.compile(
    r"ojs\.exchange\.(direct|dlx|retry|delayed|events|control)"
    r"|ojs\.queue\.((dlx|control|delay)\.)?[a-z]+|ojs\.queue\.retry\.[a-z]+\.\d+"
)
"""The binding's conventions, and the names of ours for what it has no name for."""


@pytest.fixture(scope="module")
def recording(broker_uri: str) -> Recording:
    return asyncio.run(record(broker_uri))


@pytest.fixture
def tap(recording: Recording) -> WireTap:
    return recording.tap


def declared_exchange(tap: WireTap, name: str) -> Any:
    return tap.by_client("Exchange.Declare", lambda one: one.method.exchange == name)[0].method


def declared_queue(tap: WireTap, name: str) -> Any:
    return tap.by_client("Queue.Declare", lambda one: one.method.queue == name and not one.method.passive)[0].method


def pushes(tap: WireTap) -> list[Said]:
    return tap.by_client("Basic.Publish", lambda one: one.method.exchange == DIRECT and is_job(one))


def is_job(one: Said) -> bool:
    return str(one.properties.type).startswith("binding.")


def deliveries(tap: WireTap, message_id: str) -> list[Said]:
    """How often the broker gave a job to a worker, first attempt first."""
    return tap.by_broker("Basic.Deliver", lambda one: one.properties.message_id == message_id)


def settled(tap: WireTap, delivery: Said, name: str) -> list[Said]:
    return tap.by_client(
        name,
        lambda one: (
            (one.connection, one.channel, one.method.delivery_tag)
            == (delivery.connection, delivery.channel, delivery.method.delivery_tag)
        ),
    )


@requirement("AMQP-001", "OJS-011", "OJS-019", "OJS-113")
def test_001_direct_exchange(tap: WireTap) -> None:
    declared = declared_exchange(tap, DIRECT)
    assert (declared.type, declared.durable, declared.auto_delete, declared.passive) == ("direct", True, False, False)


@requirement("AMQP-002", "OJS-012", "OJS-021")
def test_002_dead_letter_exchange(tap: WireTap) -> None:
    declared = declared_exchange(tap, "ojs.exchange.dlx")
    assert (declared.type, declared.durable, declared.auto_delete) == ("direct", True, False)


@requirement("AMQP-003", "OJS-063")
def test_003_job_queues(tap: WireTap) -> None:
    declared = declared_queue(tap, JOB_QUEUE)
    assert (declared.durable, declared.exclusive, declared.auto_delete) == (True, False, False)


@requirement("AMQP-004", "OJS-064", "OJS-065")
def test_004_dead_letter_arguments(tap: WireTap) -> None:
    for name in (QUEUE, FULL, QUORUM):
        arguments = declared_queue(tap, f"ojs.queue.{name}").arguments
        assert arguments["x-dead-letter-exchange"] == "ojs.exchange.dlx"
        assert arguments["x-dead-letter-routing-key"] == name


@requirement("AMQP-005", "OJS-024")
def test_005_push(tap: WireTap, recording: Recording) -> None:
    (published,) = tap.published(recording.ids["done"])
    assert (published.method.exchange, published.method.routing_key) == (DIRECT, QUEUE)


@requirement("AMQP-006", "OJS-029", "OJS-031")
def test_006_fetch(tap: WireTap) -> None:
    consumes = tap.by_client("Basic.Consume", lambda one: one.method.queue == JOB_QUEUE)
    assert consumes
    assert not any(one.method.no_ack for one in consumes)
    assert not tap.by_client("Basic.Get")


@requirement("AMQP-007", "OJS-030")
def test_007_prefetch(tap: WireTap) -> None:
    consume = tap.by_client("Basic.Consume", lambda one: one.method.queue == JOB_QUEUE)[0]
    before = tap.said[: tap.said.index(consume)]
    limits = [one for one in before if one.name == "Basic.Qos" and one.channel == consume.channel]
    limits = [one for one in limits if one.connection == consume.connection]
    assert limits[-1].method.prefetch_count == 3
    assert not limits[-1].method.global_qos


@requirement("AMQP-008", "OJS-033")
def test_008_ack(tap: WireTap, recording: Recording) -> None:
    (delivery,) = deliveries(tap, recording.ids["done"])
    (ack,) = settled(tap, delivery, "Basic.Ack")
    assert not ack.method.multiple
    assert tap.said.index(ack) > tap.said.index(delivery)


@requirement("AMQP-009", "OJS-036")
def test_009_discard(tap: WireTap, recording: Recording) -> None:
    last = deliveries(tap, recording.ids["discarded"])[-1]
    (nack,) = settled(tap, last, "Basic.Nack")
    assert (nack.method.requeue, nack.method.multiple) == (False, False)
    assert not settled(tap, last, "Basic.Ack")


@requirement("OJS-035")
def test_nothing_that_failed_is_requeued(tap: WireTap, recording: Recording) -> None:
    for delivery in deliveries(tap, recording.ids["discarded"]):
        rejected = settled(tap, delivery, "Basic.Nack") + settled(tap, delivery, "Basic.Reject")
        assert not any(one.method.requeue for one in rejected)
    assert len(deliveries(tap, recording.ids["discarded"])) == 2


@requirement("OJSW-008")
def test_jobs_are_fetched_with_manual_acknowledgement(tap: WireTap) -> None:
    consumers = tap.by_client("Basic.Consume", lambda one: one.method.queue == JOB_QUEUE)
    assert consumers
    assert not any(one.method.no_ack for one in consumers)
    assert not tap.by_client("Basic.Get")


@requirement("AMQP-010", "OJS-006", "OJS-045", "OJS-051")
def test_010_content_type(tap: WireTap) -> None:
    assert {one.properties.content_type for one in pushes(tap)} == {"application/openjobspec+json"}
    assert {one.properties.content_encoding for one in pushes(tap)} == {"utf-8"}
    assert {one.properties.app_id for one in pushes(tap)} == {"ojs"}


@requirement("AMQP-011", "OJS-047")
def test_011_persistent(tap: WireTap) -> None:
    jobs = tap.by_client("Basic.Publish", is_job)
    assert len(jobs) > 10
    assert {one.properties.delivery_mode for one in jobs} == {2}


@requirement("AMQP-012", "OJS-043", "OJS-044", "OJS-046")
def test_012_message_id(tap: WireTap, recording: Recording) -> None:
    (published,) = tap.published(recording.ids["done"])
    envelope = json.loads(published.body)
    assert published.properties.message_id == envelope["id"] == recording.ids["done"]
    assert published.properties.type == envelope["type"]
    assert published.properties.timestamp == int(datetime.fromisoformat(envelope["created_at"]).timestamp())


@requirement("AMQP-013", "OJS-005", "OJS-026", "OJS-062", "OJS-114")
def test_013_body(tap: WireTap, recording: Recording) -> None:
    (published,) = tap.published(recording.ids["done"])
    envelope = json.loads(published.body.decode("utf-8"))
    assert (envelope["specversion"], envelope["queue"], envelope["args"]) == ("1.0", QUEUE, ["done"])
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", envelope["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", envelope["created_at"])


@requirement("AMQP-014", "OJS-025", "OJS-115")
def test_014_confirms(tap: WireTap) -> None:
    for one in tap.by_client("Basic.Publish", is_job):
        before = tap.said[: tap.said.index(one)]
        channel = [said for said in before if (said.connection, said.channel) == (one.connection, one.channel)]
        assert any(said.name == "Confirm.SelectOk" for said in channel)


@requirement("AMQP-015", "OJS-027")
def test_015_mandatory(tap: WireTap) -> None:
    assert all(one.method.mandatory for one in tap.by_client("Basic.Publish", is_job))


@requirement("AMQP-016", "OJS-097", "OJS-116")
def test_016_returns(tap: WireTap, recording: Recording) -> None:
    returned = tap.by_broker("Basic.Return", lambda one: one.properties.message_id == recording.ids["unroutable"])
    assert returned
    assert {one.method.reply_code for one in returned} == {312}
    assert recording.errors["unroutable"] == "NOT_FOUND"


@requirement("AMQP-017", "OJS-014", "OJS-015", "OJS-034", "OJS-075", "OJS-076", "OJS-078", "OJS-117")
def test_017_retry(tap: WireTap, recording: Recording) -> None:
    first, second = tap.published(recording.ids["discarded"])
    assert first.method.exchange == DIRECT
    assert (second.method.exchange, second.method.routing_key) == ("ojs.exchange.retry", f"{QUEUE}.1000")
    arguments = declared_queue(tap, f"ojs.queue.retry.{QUEUE}.1000").arguments
    assert arguments["x-message-ttl"] == 1000
    assert arguments["x-dead-letter-exchange"] == DIRECT
    assert arguments["x-dead-letter-routing-key"] == QUEUE
    attempts = deliveries(tap, recording.ids["discarded"])
    (ack,) = settled(tap, attempts[0], "Basic.Ack")
    assert tap.said.index(ack) > tap.said.index(second), "a crash between the two must not lose the job"


@requirement("AMQP-018", "OJS-061", "OJS-080", "OJS-081", "OJS-118")
def test_018_attempts(tap: WireTap, recording: Recording) -> None:
    first, second = deliveries(tap, recording.ids["discarded"])
    assert (first.headers["x-ojs-attempt"], second.headers["x-ojs-attempt"]) == (1, 2)
    assert second.headers["x-ojs-max-attempts"] == 2
    assert second.headers["x-ojs-error-message"] == "discarded"
    assert second.headers["x-ojs-error-code"]
    kept = ("x-ojs-queue", "x-ojs-created-at", "x-ojs-enqueued-at", "x-ojs-tags", "x-ojs-trace-id")
    assert [first.headers[name] for name in kept] == [second.headers[name] for name in kept]


@requirement("AMQP-019", "OJS-037", "OJS-038", "OJS-039", "OJS-119")
def test_019_cancel(tap: WireTap, recording: Recording) -> None:
    (request,) = tap.by_client("Basic.Publish", lambda one: one.properties.type == "ojs.control.cancel")[:1]
    assert (request.method.exchange, request.method.routing_key) == (DIRECT, CONTROL_QUEUE)
    assert json.loads(request.body) == {"job_id": recording.ids["cancelled"]}
    (received,) = tap.by_broker("Basic.Deliver", lambda one: one.body == request.body)[:1]
    assert settled(tap, received, "Basic.Ack")


@requirement("AMQP-020")
def test_020_beat(tap: WireTap, recording: Recording) -> None:
    beats = tap.by_client("Basic.Publish", lambda one: one.properties.type == "ojs.control.heartbeat")
    assert {(one.method.exchange, one.method.routing_key) for one in beats} == {(DIRECT, CONTROL_QUEUE)}
    told = [json.loads(one.body) for one in beats]
    assert recording.ids["long"] in {one["job_id"] for one in told}
    assert all(one["worker_id"] for one in told)


@requirement("AMQP-021", "OJS-050")
def test_021_info(tap: WireTap, recording: Recording) -> None:
    requests = tap.by_client("Basic.Publish", lambda one: one.properties.type == "ojs.control.info")
    # Workers ask too, for checkpoints; the last one to ask for this job was the client.
    requests = [one for one in requests if one.method.exchange == DIRECT]
    request = [one for one in requests if recording.ids["done"].encode() in one.body][-1]
    assert request.method.routing_key == CONTROL_QUEUE
    assert request.properties.reply_to
    assert request.properties.correlation_id
    (answer,) = tap.by_broker(
        "Basic.Deliver", lambda one: one.properties.correlation_id == request.properties.correlation_id
    )[-1:]
    assert recording.ids["done"] in answer.body.decode()


@requirement("AMQP-022", "OJS-083", "OJS-084", "OJS-085", "OJS-120")
def test_022_schedule(tap: WireTap, recording: Recording) -> None:
    (published,) = tap.published(recording.ids["scheduled"])
    assert re.fullmatch(r"ojs\.delay\.\d\d", published.method.exchange)
    (delivery,) = deliveries(tap, recording.ids["scheduled"])
    assert delivery.method.routing_key == QUEUE
    assert delivery.headers["x-death"]


@requirement("AMQP-023", "OJS-059")
def test_023_trace_context(tap: WireTap, recording: Recording) -> None:
    passed = tap.published(recording.ids["discarded"]) + deliveries(tap, recording.ids["discarded"])
    assert [one.headers["x-ojs-trace-id"] for one in passed] == [TRACEPARENT] * 4


@requirement("AMQP-024", "OJS-106")
def test_024_metrics(tap: WireTap, recording: Recording) -> None:
    values = dict(line.rsplit(" ", 1) for line in recording.metrics.splitlines() if not line.startswith("#"))
    before = tap.said[: recording.before_loss]
    received = [
        one for one in before if one.name == "Basic.Deliver" and is_job(one) and one.method.routing_key == QUEUE
    ]
    nacks = [one for one in before if one.name == "Basic.Nack" and not one.by_broker]
    label = f'{{queue="{QUEUE}"}}'
    assert float(values[f"ojs_amqp_messages_consumed_total{label}"]) == len(received)
    assert float(values[f"ojs_amqp_messages_nacked_total{label}"]) == len(nacks) == 1
    for name in (
        "ojs_amqp_connections_active",
        "ojs_amqp_channels_active",
        f"ojs_amqp_messages_acked_total{label}",
        "ojs_amqp_messages_returned_total",
        "ojs_amqp_publish_confirm_latency_seconds_count",
        "ojs_amqp_reconnections_total",
        f"ojs_amqp_consumer_utilization{label}",
        f'ojs_amqp_messages_unacked{{consumer="{QUEUE}"}}',
    ):
        assert name in values


@requirement("AMQP-025", "OJS-096", "OJS-103", "OJSW-025")
def test_025_backoff(tap: WireTap, recording: Recording) -> None:
    # Three connections were lost at once and tried in parallel; none may try earlier than its delay.
    attempts = tap.attempts[recording.loss_at_attempt :]
    rounds = [attempts[3 * number] for number in range(REFUSED_ATTEMPTS)]
    for number, (earlier, later) in enumerate(pairwise(rounds)):
        assert later - earlier >= 0.9 * FIRST_DELAY_S * 2 ** (number + 1)


@requirement("AMQP-026", "OJS-105")
def test_026_topology_is_declared_again(tap: WireTap, recording: Recording) -> None:
    before, after = tap.said[: recording.before_loss], tap.said[recording.before_loss : recording.before_cancel]

    def has(said: list[Said], name: str, attribute: str, value: object) -> bool:
        return any(one.name == name and getattr(one.method, attribute) == value for one in said if not one.by_broker)

    for one in (
        ("Exchange.Declare", "exchange", DIRECT),
        ("Queue.Declare", "queue", JOB_QUEUE),
        ("Queue.Bind", "queue", JOB_QUEUE),
        ("Basic.Qos", "prefetch_count", 3),
        ("Basic.Consume", "queue", JOB_QUEUE),
    ):
        assert has(before, *one)
        assert has(after, *one), one


@requirement("AMQP-027", "OJS-121")
def test_027_consumer_cancellation(tap: WireTap, recording: Recording) -> None:
    after = tap.said[recording.before_cancel :]
    names = [one.name for one in after if one.by_broker or one.name == "Basic.Consume"]
    assert "Basic.Consume" in names[names.index("Basic.Cancel") :]
    assert deliveries(tap, recording.ids["after"])


@requirement("AMQP-028", "OJS-102")
def test_028_a_channel_for_each_thread(tap: WireTap, recording: Recording) -> None:
    channels: dict[tuple[int, int], set[str]] = {}
    for one in tap.by_client("Basic.Publish", lambda one: one.method.routing_key.startswith("thread")):
        channels.setdefault((one.connection, one.channel), set()).add(one.method.routing_key)
    assert len(channels) == recording.threads
    assert all(len(keys) == 1 for keys in channels.values())


@requirement("AMQP-029", "OJS-066", "OJS-068", "OJS-122")
def test_029_back_pressure(tap: WireTap, recording: Recording) -> None:
    arguments = declared_queue(tap, f"ojs.queue.{FULL}").arguments
    assert (arguments["x-max-length"], arguments["x-overflow"]) == (2, "reject-publish")
    assert tap.by_broker("Basic.Nack")
    assert recording.errors["full"] == "QUEUE_FULL"


@requirement("AMQP-030", "OJS-048", "OJS-069", "OJS-123")
def test_030_priorities(tap: WireTap, recording: Recording) -> None:
    levels = [
        tap.published(recording.ids[f"priority {priority}"])[0].properties.priority for priority in (-100, 0, 100)
    ]
    assert levels == sorted(set(levels))
    assert (levels[0], levels[-1]) == (0, 9)
    assert declared_queue(tap, JOB_QUEUE).arguments["x-max-priority"] == 10
    order = [tap.said.index(deliveries(tap, recording.ids[f"priority {priority}"])[0]) for priority in (100, 0, -100)]
    assert order == sorted(order)


@requirement("AMQP-031", "OJS-010", "OJS-013", "OJS-017")
def test_031_names(tap: WireTap) -> None:
    exchanges = {one.method.exchange for one in tap.by_client("Exchange.Declare")}
    queues = {one.method.queue for one in tap.by_client("Queue.Declare") if one.method.queue[:4] == "ojs."}
    assert {DIRECT, "ojs.exchange.dlx", "ojs.exchange.retry"} <= exchanges
    assert {JOB_QUEUE, f"ojs.queue.dlx.{QUEUE}", CONTROL_QUEUE, f"ojs.queue.retry.{QUEUE}.1000"} <= queues
    named = {name for name in exchanges | queues if name.startswith(("ojs.exchange.", "ojs.queue."))}
    assert [name for name in named if NAMES.fullmatch(name) is None] == []


@requirement("AMQP-032", "OJS-071", "OJS-124")
def test_032_quorum_queues(tap: WireTap, recording: Recording) -> None:
    arguments = declared_queue(tap, f"ojs.queue.{QUORUM}").arguments
    assert arguments["x-queue-type"] == "quorum"
    assert "x-max-priority" not in arguments
    assert tap.published(recording.ids["quorum"])
