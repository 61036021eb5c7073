"""One coordinator leads, by beats that the broker gives to one of them; the middle clock counts."""

import logging

import pytest

from tests.client.breaking import until
from waybill.broker import Broker
from waybill.client import connect
from waybill.ojs import Coordinator, Jobs
from waybill.ojs.coordinator.leader import CLOCK_SECONDS, LEASE_SECONDS, Beat, Leader, Lease


class Clocks:
    """Clocks that a test sets."""

    def __init__(self) -> None:
        self.monotonic = 100.0
        self.wall = 1_000_000.0

    def lease(self, name: str = "a") -> Lease:
        return Lease(name, lambda: self.monotonic, lambda: self.wall)


def test_an_own_beat_makes_the_leader_for_as_long_as_the_lease() -> None:
    clocks = Clocks()
    lease = clocks.lease()
    assert not lease.is_held
    beat = lease.beat()
    clocks.monotonic += 1
    lease.take(beat)
    assert lease.is_held
    clocks.monotonic += LEASE_SECONDS - 1.1
    assert lease.is_held
    clocks.monotonic += 0.2
    assert not lease.is_held


def test_a_beat_counts_from_when_it_was_sent_and_not_from_when_it_came() -> None:
    clocks = Clocks()
    lease = clocks.lease()
    beat = lease.beat()
    clocks.monotonic += 600
    lease.take(beat)
    assert not lease.is_held
    lease.take(Beat("a", clocks.monotonic + 1e9, 0.0))
    assert not lease.is_held
    lease.take(Beat("b", clocks.monotonic, clocks.wall))
    assert not lease.is_held


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((), 0.0),
        ((1.5,), 0.0),
        ((3600.0,), 0.0),
        ((-3600.0,), -3600.0),
        ((3600.0, 3600.5), 3600.0),
        ((-3600.0, 0.2), 0.0),
        ((3600.0, -3600.0), 0.0),
        ((3600.0, 3600.0, 0.0), 0.0),
        ((float("inf"), float("inf"), float("nan")), 0.0),
    ],
)
def test_the_middle_clock_counts(others: tuple[float, ...], expected: float) -> None:
    clocks = Clocks()
    lease = clocks.lease()
    for number, ahead in enumerate(others):
        lease.take(Beat(f"other{number}", 0.0, clocks.wall + ahead))
    assert lease.now() - clocks.wall == pytest.approx(expected)
    clocks.monotonic += CLOCK_SECONDS
    assert lease.now() == clocks.wall


def test_a_wrong_clock_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    lease = clocks.lease()
    for name in "bc":
        lease.take(Beat(name, 0.0, clocks.wall - 60))
    for _ in range(3):
        lease.now()
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "the clock of this coordinator is 60.0 s ahead of the others, whose time is used: synchronise this clock"
    ]


def leader_of(coordinator: Coordinator) -> Leader:
    leader = coordinator._features._leader
    assert leader is not None
    return leader


async def test_one_leads_and_the_next_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.02)
    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs:
        first, second = Coordinator(jobs, queues=["a"]), Coordinator(jobs, queues=["b"])
        async with first:
            await until(lambda: leader_of(first).leads)
            async with second:
                await until(lambda: len(leader_of(first).lease._clocks) == 1)
                assert not leader_of(second).leads
                await first.close()
                await until(lambda: leader_of(second).leads)


async def test_odd_beats_are_skipped_and_a_lost_queue_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.02)
    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=["a"]) as coordinator:
        await until(lambda: leader_of(coordinator).leads)
        counters = leader_of(coordinator)._broker.events.counters
        async with connect(broker.uri()) as connection:
            channel = await connection.channel()
            for body in (b"", b"[]", b"{" * 10_000, b'{"coordinator":"x","sent":1,"time":1}'):
                await channel.publish(body, routing_key=jobs.topology.leader_queue)
            await until(lambda: counters.skipped["leader"] == 4)
            leader_of(coordinator).lease.resign()
            await channel.delete_queue(jobs.topology.leader_queue)
        await until(lambda: leader_of(coordinator).leads)
