"""Clients that come back get the events that they have missed, in portions: there may be megabytes and thousands."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend.missed_events import Gap, missed_events
from waybill.backend.recent_events import MOST_MESSAGES, READ_AT_ONCE_BYTES, RecentEvents
from waybill.ojs.spec import events
from waybill.ojs.spec.events import ReceivedEvent


def message(*ids: str, **data: object) -> bytes:
    made: list[dict[str, Any]] = [
        {
            "specversion": "1.0",
            "id": one,
            "type": "job.enqueued",
            "source": "urn:test",
            "time": "2026-01-01T00:00:00Z",
            "subject": f"job-{one}",
            "data": {"queue": "email", **data},
        }
        for one in ids
    ]
    return msgspec.json.encode(made)


def filled(count: int) -> RecentEvents:
    recent = RecentEvents()
    for number in range(count):
        recent.take(message(f"evt_{number}a", f"evt_{number}b"))
    return recent


async def missed(recent: RecentEvents, event_id: str) -> list[str]:
    found: list[str] = []
    async for group in missed_events(recent, event_id, recent.seen_count):
        found += ["gap"] if isinstance(group, Gap) else [event.id for event in group]
    return found


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("evt_1a", ["evt_1b", "evt_2a", "evt_2b"]),
        ("evt_1b", ["evt_2a", "evt_2b"]),
        ("evt_2b", []),
        ("evt_", ["gap"]),
        ('evt_1a"', ["gap"]),
        ("\ud800", ["gap"]),
    ],
)
async def test_all_after_the_last_one(last: str, expected: list[str]) -> None:
    assert await missed(filled(3), last) == expected


async def test_an_id_that_is_only_mentioned_is_not_the_event() -> None:
    recent = filled(2)
    recent.take(message("evt_other", note="evt_0b"))
    assert await missed(recent, "evt_0b") == ["evt_1a", "evt_1b", "evt_other"]


async def test_what_is_dropped_meanwhile_is_a_gap() -> None:
    recent = filled(10)
    groups = missed_events(recent, "evt_0a", recent.seen_count)
    first = await anext(groups)
    assert not isinstance(first, Gap)
    for number in range(10, 8 + MOST_MESSAGES):
        recent.take(message(f"evt_{number}a"))
    left = [group async for group in groups]
    assert isinstance(left[0], Gap)
    assert [event.id for group in left[1:] if isinstance(group, list) for event in group][:1] == ["evt_8a"]


async def test_others_have_their_turns_between_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = filled(200)
    read = turns = most = 0

    def count(body: bytes) -> tuple[list[ReceivedEvent], int]:
        nonlocal read
        read += 1
        return events.read_events(body)

    monkeypatch.setattr("waybill.backend.recent_events.read_events", count)
    clients = [asyncio.ensure_future(missed(recent, "evt_0a")) for _ in range(20)]
    while not all(one.done() for one in clients):
        before = read
        await asyncio.sleep(0)
        turns += 1
        most = max(most, read - before)
    assert most <= 2
    assert read == 20 * 200


async def test_a_search_through_all_events_is_done_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = RecentEvents()
    for number in range(40):
        recent.take(message(f"evt_{number}", text="x" * 20_000))
    size = most = 0

    def count(body: bytes) -> tuple[list[ReceivedEvent], int]:
        nonlocal size
        size += len(body)
        return events.read_events(body)

    monkeypatch.setattr("waybill.backend.recent_events.read_events", count)
    searches = [asyncio.ensure_future(recent.newest({"job.cancelled"}, (), None, 10)) for _ in range(5)]
    while not all(one.done() for one in searches):
        before = size
        await asyncio.sleep(0)
        most = max(most, size - before)
    assert most <= READ_AT_ONCE_BYTES
    assert [await one for one in searches] == [[]] * 5
    assert len(await recent.newest((), (), "job-evt_7", 10)) == 1


async def test_recent_events_are_listed_page_by_page(client: Client) -> None:
    pushed = [await client.push() for _ in range(5)]
    path = "/ojs/v1/events?types=job.enqueued&limit=2"
    page = await client.ask("GET", path)
    found = page["events"]
    while page["pagination"]["has_more"]:
        page = await client.ask("GET", f"{path}&cursor={page['pagination']['next_cursor']}")
        found += page["events"]
    assert [one["subject"] for one in found] == pushed[::-1]
    # An event that is no longer stored has nothing before it.
    assert (await client.ask("GET", f"{path}&cursor=ZXZ0XzA"))["events"] == []
