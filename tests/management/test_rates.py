"""Counters, rates and their history."""

from pathlib import Path

from tests.management.api import Api, running
from waybill.client import connect
from waybill.management.history import HOURS, SAMPLE_SECONDS, Series
from waybill.management.history_file import read_history
from waybill.management.sampler import FILE, Sampler
from waybill.management.statistic_kinds import QUEUES, TOTALS

START = 1_700_000_000


class Clock:
    """A time that moves by hand."""

    def __init__(self) -> None:
        self.now = float(START)

    def __call__(self) -> float:
        return self.now


def with_clock(api: Api) -> tuple[Sampler, Clock]:
    """Have the sampler of an API look at another clock."""
    clock = Clock()
    sampler = Sampler(api.broker, clock)
    api.management.context.sampler = sampler
    return sampler, clock


async def test_counts_of_a_queue() -> None:
    async with running() as api, connect(api.broker.uri()) as connection:
        sampler, clock = with_clock(api)
        await api.queue("q")
        await sampler.sample()
        channel = await connection.channel(prefetch_count=10)
        for _ in range(4):
            await channel.publish(b"x", routing_key="q")
        consumer = await channel.consume("q")
        deliveries = [await anext(consumer) for _ in range(4)]
        deliveries[0].ack()
        deliveries[1].nack(requeue=True)
        again = await anext(consumer)
        again.ack()
        deliveries[2].reject(requeue=False)
        await connection.channel()
        clock.now += SAMPLE_SECONDS
        await sampler.sample()
        item = await api.get("/queues/%2F/q")
        stats = {name: value for name, value in item["message_stats"].items() if not name.endswith("_details")}
        assert stats == {
            "ack": 2,
            "deliver": 5,
            "deliver_get": 5,
            "deliver_no_ack": 0,
            "get": 0,
            "get_no_ack": 0,
            "publish": 4,
            "redeliver": 1,
        }
        assert item["messages_unacknowledged"] == 1
        assert item["message_stats"]["publish_details"]["rate"] == 4 / SAMPLE_SECONDS
        overview = await api.get("/overview?msg_rates_age=60&msg_rates_incr=5&lengths_age=60&lengths_incr=5")
        assert overview["message_stats"]["publish"] == 4
        assert overview["message_stats"]["confirm"] == 4
        samples = overview["message_stats"]["publish_details"]["samples"]
        assert [one["sample"] for one in samples[:2]] == [4, 0]
        assert samples[0]["timestamp"] == (START + SAMPLE_SECONDS) * 1000
        assert overview["queue_totals"]["messages"] == 1
        assert overview["object_totals"]["consumers"] == 1


async def test_counts_of_what_is_gone_stay_in_the_totals() -> None:
    async with running() as api:
        sampler, _ = with_clock(api)
        await api.queue("q")
        await api.put("/exchanges/%2F/x", {"type": "fanout"})
        await api.ask("POST", "/bindings/%2F/e/x/q/q", {})
        await api.publish("", exchange="x")
        await api.ask("DELETE", "/queues/%2F/q")
        await api.ask("DELETE", "/exchanges/%2F/x")
        await sampler.sample()
        overview = await api.get("/overview")
        assert overview["message_stats"]["publish"] == 1
        assert overview["churn_rates"]["queue_deleted"] == 1


async def test_history_outlives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        await api.queue("q")
        await api.publish("q")
        await api.management.sampler.sample()
    async with running(tmp_path) as api:
        await api.publish("q")
        await api.management.sampler.sample()
        assert (await api.get("/queues/%2F/q"))["message_stats"]["publish"] == 2
        overview = await api.get("/overview?msg_rates_age=600&msg_rates_incr=5")
        assert overview["message_stats"]["publish"] == 2


async def test_a_history_that_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    for octets in (b"", b"nonsense", b"\x93\x09\x80\x80"):
        (tmp_path / FILE).write_bytes(octets)
        assert read_history(tmp_path / FILE, START) == {}
    async with running(tmp_path) as api:
        assert (await api.get("/overview"))["queue_totals"]["messages"] == 0


def test_a_series_forgets_what_is_old() -> None:
    series = Series(HOURS)
    for index in range(5000):
        series.add(START + index * SAMPLE_SECONDS, (index,))
    now = START + 4999 * SAMPLE_SECONDS
    assert sum(len(times) for times, _ in series.packed()) < 400
    assert series.rate((0,), now) == 1 / SAMPLE_SECONDS
    assert len(series.samples((0,), now, 600, 5)) == 121
    assert len(series.samples((0,), now, 7200, 60)) == 121
    assert series.samples((0,), now, 60, 5)[0] == {"sample": 4999, "timestamp": now * 1000}


def test_a_series_keeps_nothing_for_what_does_not_change() -> None:
    series = Series(HOURS)
    for index in range(1000):
        series.add(START + index * SAMPLE_SECONDS, (7, 7))
    assert [len(times) for times, _ in series.packed()] == [1, 1]
    restored = Series.restored(HOURS, series.packed(), 2)
    assert restored is not None
    assert restored.last == (7, 7)
    assert Series.restored(HOURS, series.packed(), 3) is None


async def test_a_thing_had_nothing_before_it_was_there() -> None:
    """Clients look at the newest sample of a queue that is a moment old, at steps that are longer than that."""
    series = Series(HOURS)
    series.add(600_000, (0,))
    series.add(600_005, (3,))
    samples = series.samples((0,), 600_009, 60, 30)
    assert [one["sample"] for one in samples] == [0, 0, 0]
    assert [one["sample"] for one in series.samples((0,), 600_005, 15, 5)] == [3, 0, 0, 0]
    async with running() as api:
        await api.queue("q")
        await api.management.sampler.sample()
        queue = await api.get("/queues/%2F/q?lengths_age=1800&lengths_incr=30")
        assert [one["sample"] for one in queue["messages_details"]["samples"]] == [0] * 61
        assert queue["messages_details"]["avg"] == 0


async def test_samples_that_cannot_be_had() -> None:
    async with running() as api:
        for query, status in (
            ("lengths_age=x&lengths_incr=5", 200),
            ("lengths_age=60&lengths_incr=0", 200),
            ("msg_rates_age=999999&msg_rates_incr=1", 400),
        ):
            assert (await api.ask("GET", f"/overview?{query}")).status == status


def test_kinds_have_the_counts_of_the_model() -> None:
    assert TOTALS.counters[: len(QUEUES.counters)] == QUEUES.counters
