"""What the sampler sees of queues: all that changed, sums that are right, and no look at what is quiet."""

import random
import time

import pytest

from tests.management.test_rates import Clock
from waybill.broker import Broker
from waybill.client import Channel, connect
from waybill.management.sampler import Sampler, steady_clock
from waybill.management.statistic_kinds import QUEUES, TOTALS, VIRTUAL_HOSTS
from waybill.model.changed_queues import changed_queues
from waybill.model.queue import Queue


async def looked(sampler: Sampler, clock: Clock) -> None:
    clock.now += 5
    await sampler.sample()


def sums_are_right(broker: Broker, sampler: Sampler) -> None:
    """Compare what was summed up by changes with a count of everything."""
    hosts = broker.node.virtual_hosts
    in_all = [*(broker.node.runtime.counters.retired or [0] * 7), 0, 0]
    for host in hosts.values():
        rows = [(*one.counts(), one.message_count, int(one.unsettled_count)) for one in host.queues.values()]
        sums = tuple(map(sum, zip(*rows, strict=True))) if rows else (0,) * len(VIRTUAL_HOSTS.names)
        series = sampler.series(VIRTUAL_HOSTS, (host.name,))
        assert (series.last if series else (0,) * len(sums)) == sums
        assert sampler.consumers[host.name] == sum(len(one.consumers) for one in host.queues.values())
        in_all = [one + other for one, other in zip(in_all, sums, strict=True)]
        for queue, row in zip(host.queues.values(), rows, strict=True):
            own = sampler.series(QUEUES, (host.name, queue.name))
            assert (own.last if own else (0,) * len(row)) == row
    totals = sampler.series(TOTALS)
    assert totals
    assert [*totals.last[:7], *totals.last[-2:]] == in_all
    kept = set(sampler._series[QUEUES.name])
    assert kept <= {(host.name, name) for host in hosts.values() for name in host.queues}


async def change_something(channel: Channel, chance: random.Random) -> None:
    name = f"q{chance.randrange(6)}"
    await channel.declare_queue(name)
    action = chance.randrange(6)
    if action == 0:
        await channel.delete_queue(name)
    elif action == 1:
        await channel.purge_queue(name)
    elif action == 2:
        await channel.get(name, no_ack=True)
    elif action == 3:
        await channel.get(name)
    else:
        await channel.publish(b"x", routing_key=name)


async def test_sums_by_changes_are_those_of_a_count() -> None:
    chance, clock = random.Random(3), Clock()
    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        sampler = Sampler(broker, clock)
        channel = await connection.channel()
        for _ in range(120):
            await change_something(channel, chance)
            if chance.random() < 0.3:
                await looked(sampler, clock)
                sums_are_right(broker, sampler)


async def test_quiet_queues_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    read: list[str] = []
    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        sampler = Sampler(broker, clock)
        channel = await connection.channel()
        for number in range(20):
            await channel.declare_queue(f"q{number}")
        await looked(sampler, clock)

        def noted(queues: list[Queue], known: dict[Queue, tuple[int, int, int, int]]) -> list[Queue]:
            found = changed_queues(queues, known)
            read.extend(queue.name for queue in found)
            return found

        monkeypatch.setattr("waybill.management.sampler.changed_queues", noted)
        await channel.publish(b"x", routing_key="q7")
        await channel.publish(b"x", routing_key="q9")
        await channel.get("q9")
        await looked(sampler, clock)
        assert read == ["q7", "q9"]
        await looked(sampler, clock)
        assert read == ["q7", "q9"]
        sums_are_right(broker, sampler)


def test_samples_are_in_order_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wall = steady_clock(), time.time
    before = clock()
    monkeypatch.setattr(time, "time", lambda: wall() - 86_400)
    assert before <= clock() < before + 3600
