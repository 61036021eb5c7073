"""A move of a whole system, cut off anywhere and run again: jobs, places, events and the lead end as they should."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.move.cuts import Cut, Cutter, cutting
from tests.move.stream_events import found_events
from waybill.broker import Broker
from waybill.client import Connection, connect
from waybill.move import JobsMove, System
from waybill.move.leadership import is_held
from waybill.ojs import Jobs, Topology, Unique

QUEUE = "cut"
NAMES = Topology()
STEP = 71
"""Every so-manieth request is tried: each takes two brokers."""


async def fill(uri: str) -> list[str]:
    """Push jobs that wait, one of them unique, and one that is scheduled; return their ids."""
    async with Jobs(uri, create_queues=True) as jobs:
        pushed = [await jobs.push("cut.run", [number], queue=QUEUE) for number in range(4)]
        pushed.append(await jobs.push("cut.run", [], queue=QUEUE, unique=Unique()))
        pushed.append(await jobs.push("cut.run", [9], queue=QUEUE, delay=timedelta(hours=1)))
        return [job.id for job in pushed]


async def found_jobs(connection: Connection) -> list[str]:
    found = []
    async with await connection.channel() as channel:
        for name in (NAMES.job_queue(QUEUE), *(NAMES.delay_level(level) for level in range(28))):
            while (delivery := await channel.get(name)) is not None:
                found.append(str(delivery.properties.message_id))
    return found


async def move_cut_at(cutter: Cutter, cut_at: int, *, after: bool) -> bool:
    """Move between two new brokers, cut off at a request, and again; whether there was such a request."""
    async with Broker(port=0) as one, Broker(port=0) as other:
        ids = await fill(one.uri())
        systems = System(one.uri(), NAMES), System(other.uri(), NAMES)
        cutter.arm(cut_at, after=after)
        was_cut = False
        try:
            await JobsMove(*systems, [QUEUE]).run()
        except Cut:
            was_cut = True
            cutter.arm(-1, after=after)
            await JobsMove(*systems, [QUEUE]).run()
        cutter.arm(-1, after=after)
        async with connect(one.uri()) as source, connect(other.uri()) as target:
            assert sorted(await found_jobs(target)) == sorted(ids), f"cut at request {cut_at}"
            assert await found_jobs(source) == []
            events = await found_events(target, NAMES)
            assert events == await found_events(source, NAMES)
            assert set(events.values()) == {1}
            assert await is_held(source, NAMES)
            assert not await is_held(target, NAMES)
        async with Jobs(one.uri(), create_queues=True) as jobs:
            # Its place is free at the source.
            await jobs.push("cut.run", [], queue=QUEUE, unique=Unique())
    return was_cut


@pytest.mark.parametrize("after", [False, True])
async def test_wherever_a_move_is_cut_off_it_ends_well(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    # There is no coordinator whose lease could go on.
    monkeypatch.setattr("waybill.move.jobs_move.LEASE_ENDS_SECONDS", 0.0)
    with cutting(monkeypatch) as cutter:
        cut_at = 3 if after else 8
        while await move_cut_at(cutter, cut_at, after=after):
            cut_at += STEP
        assert cut_at > 2 * STEP
