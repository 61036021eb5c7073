"""Messages of the event stream are decoded in portions: one read of the broker may bring many large ones."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from waybill.backend.recent_events import READ_AT_ONCE_BYTES, RecentEvents
from waybill.ojs.spec.events import ReceivedEvent, WorkerHeartbeat, encode_event, join_events, make_event
from waybill.ojs.spec.timestamps import format_timestamp


def heartbeats(name: str, count: int) -> bytes:
    now = format_timestamp(datetime.now(UTC))
    data = WorkerHeartbeat(worker_id=name, active_jobs=0, queues=["q"])
    texts = [encode_event(make_event("/workers/w", now, f"{name}-{number}", data)) for number in range(count)]
    return join_events("worker.heartbeat", texts)[1]


async def test_a_burst_of_events_is_told_in_several_turns_of_the_loop() -> None:
    recent, told = RecentEvents(), list[int]()

    def take(events: list[ReceivedEvent]) -> None:
        told.append(len(events))

    recent.on_events.append(take)  # type: ignore[arg-type]
    bodies = [heartbeats(f"w{number}", 100) for number in range(30)]
    for body in bodies:
        recent.take(body)
    most_at_once = READ_AT_ONCE_BYTES // len(bodies[0]) + 1
    assert len(told) == recent.seen_count == most_at_once < 15
    turns = 0
    while recent.seen_count < 30:
        seen = len(told)
        await asyncio.sleep(0)
        assert len(told) - seen <= most_at_once
        turns += 1
    assert turns > 1
    assert told == [100] * 30
    assert len(recent.workers.all()) == 3000
    # Numbers and messages belong together.
    events = recent.events_of(29)
    assert events is not None
    assert events[0].subject == "w29-0"


async def test_what_waits_to_be_told_is_bounded() -> None:
    recent = RecentEvents()
    body = heartbeats("w", 2000)
    for _ in range(60):
        recent.take(body)
    assert 60 - recent.seen_count <= 8 * 1024 * 1024 // len(body) + 1


async def test_a_little_is_told_at_once() -> None:
    recent = RecentEvents()
    recent.take(heartbeats("w", 5))
    assert len(recent.workers.all()) == 5
