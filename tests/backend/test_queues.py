"""Queues and dead letters over HTTP (ojs-http-binding sections 11 and 12)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.backend.conftest import Client
from waybill.backend import dead_letter_list, operator_view
from waybill.backend.message import Request
from waybill.client import Inspector
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control import pauses

QUEUES = "/ojs/v1/queues"
DEAD = "/ojs/v1/dead-letter"


async def stats(client: Client, name: str = "email") -> Any:
    return (await client.ask("GET", f"{QUEUES}/{name}/stats"))["stats"]


async def test_counts_by_state(client: Client) -> None:
    for _ in range(3):
        await client.push()
    await client.push(scheduled_at="+PT1H")
    await client.push(pending=True)
    first, second = await client.fetch(count=2)
    await client.ack(first["id"])
    found = await stats(client)
    expected = {"available": 1, "active": 1, "completed": 1, "scheduled": 1, "pending": 1, "retryable": 0, "total": 5}
    assert {name: found[name] for name in expected} == expected
    assert (found["completed_last_hour"], found["failed_last_hour"]) == (1, 0)
    assert found["throughput_per_second"] > 0
    await client.nack(second["id"])
    assert (await stats(client))["retryable"] == 1
    whole = await client.ask("GET", f"{QUEUES}/email")
    assert (whole["queue"], whole["depth"], whole["status"], whole["available"]) == ("email", 1, "active", 1)


async def test_a_job_whose_time_has_come_is_not_scheduled(client: Client) -> None:
    await client.push(scheduled_at="+PT0.1S")
    while (found := await stats(client))["available"] == 0:
        assert found["scheduled"] <= 1
    assert (await stats(client))["scheduled"] == 0


async def test_purge_cancels_what_has_not_begun(client: Client) -> None:
    ids = [await client.push() for _ in range(3)]
    ids.append(await client.push(scheduled_at="+PT1H"))
    (running,) = await client.fetch()
    assert (await client.ask("POST", f"{QUEUES}/email/purge"))["purged"] == 3
    assert await client.fetch(count=5) == []
    assert (await client.job(ids[2]))["state"] == (await client.job(ids[3]))["state"] == "cancelled"
    await client.ack(running["id"])
    assert (await stats(client))["cancelled"] == 3
    await client.ask("POST", f"{QUEUES}/email/purge", {"states": ["active"]}, 400)
    await client.ask("POST", f"{QUEUES}/nobody/purge", status=404)


async def test_queues_are_made_and_deleted(client: Client) -> None:
    assert (await client.ask("POST", QUEUES, {"name": "fresh"}, 201))["queue"]["name"] == "fresh"
    assert (await stats(client, "fresh"))["total"] == 0
    job_id = await client.push("fresh")
    await client.ask("DELETE", f"{QUEUES}/fresh", status=409)
    assert (await client.ask("DELETE", f"{QUEUES}/fresh", {"strategy": "discard"}))["jobs_affected"] == 1
    job = await client.job(job_id)
    assert (job["state"], job["error"]["type"]) == ("discarded", "queue_deleted")
    assert (await client.ask("GET", QUEUES))["queues"] == []
    await client.push("fresh")
    assert [one["name"] for one in (await client.ask("GET", QUEUES))["queues"]] == ["fresh"]
    for body in ({}, {"name": 3}, {"name": "Not Good"}):
        await client.ask("POST", QUEUES, body, 400)


async def test_priorities_are_counted(client: Client) -> None:
    for priority in (5, 5, -1):
        await client.push(priority=priority)
    found = await client.ask("GET", f"{QUEUES}/email/priority-stats")
    assert (found["counts_by_priority"], found["total"]) == ({"5": 2, "-1": 1}, 3)


async def die(client: Client, count: int, queue: str = "email", job_type: str = "email.send") -> list[str]:
    ids = []
    for _ in range(count):
        job_id = await client.push(queue, job_type, retry={"max_attempts": 1})
        await client.fetch(queue)
        await client.nack(job_id, error={"type": "SmtpError", "message": "gone", "code": "smtp"})
        ids.append(job_id)
    while len((await client.ask("GET", f"{DEAD}?queue={queue}"))["jobs"]) < count:
        pass
    return ids


async def test_dead_letters_are_found(client: Client) -> None:
    ids = await die(client, 2)
    other = await die(client, 1, "report", "report.make")
    found = await client.ask("GET", DEAD)
    assert sorted(one["id"] for one in found["jobs"]) == sorted(ids + other)
    assert found["pagination"]["total"] == 3
    assert {one["state"] for one in found["jobs"]} == {"discarded"}
    for query, expected in (
        ("queue=report", other),
        ("type=report.make", other),
        ("error_type=SmtpError&queue=report", other),
        ("error_type=Nothing", []),
        ("until=2000-01-01T00:00:00Z", []),
        ("search=nobody", []),
    ):
        assert [one["id"] for one in (await client.ask("GET", f"{DEAD}?{query}"))["jobs"]] == expected
    assert (await client.ask("GET", f"{DEAD}?queue={'a' * 300}"))["jobs"] == []
    page = await client.ask("GET", f"{DEAD}?limit=2")
    rest = await client.ask("GET", f"{DEAD}?limit=2&cursor={page['pagination']['next_cursor']}")
    assert [one["id"] for one in page["jobs"] + rest["jobs"]] == [one["id"] for one in found["jobs"]]
    counts = await client.ask("GET", f"{DEAD}/stats")
    assert (counts["total"], counts["by_queue"]) == (3, {"email": 2, "report": 1})
    assert counts["by_error_type"] == {"SmtpError": 3}


async def test_dead_letters_are_found_by_the_beginning_of_their_type(client: Client) -> None:
    (job_id,) = await die(client, 1, "report", "report.make")
    await die(client, 1)
    found = (await client.ask("GET", f"{DEAD}?type=report.*"))["jobs"]
    assert [one["id"] for one in found] == [job_id]
    shown = await client.ask("GET", f"{DEAD}/{job_id}")
    assert shown["metadata"]["discarded_at"] == shown["discarded_at"]
    assert (shown["metadata"]["created_at"], shown["metadata"]["cancelled_at"]) == (shown["created_at"], None)


async def test_many_dead_letters_are_retried_or_dropped(client: Client) -> None:
    await die(client, 2)
    other = await die(client, 1, "report", "report.make")
    dry = await client.ask("POST", f"{DEAD}/retry", {"filter": {"queue": "email"}, "dry_run": True})
    assert (dry["matched"], dry["retried"]) == (2, 0)
    assert (await client.ask("POST", f"{DEAD}/retry", {"filter": {"queue": "email"}}))["retried"] == 2
    assert len(await client.fetch(count=5)) == 2
    await client.ask("DELETE", DEAD, {}, 400)
    assert (await client.ask("POST", f"{DEAD}/purge", {"dry_run": True}))["matched"] == 1
    assert (await client.ask("DELETE", DEAD, {"confirm": True}))["purged_count"] == 1
    await client.ask("GET", f"{DEAD}/{other[0]}", status=404)


async def test_a_dead_letter_is_retried_with_changes(client: Client) -> None:
    (job_id,) = await die(client, 1)
    found = await client.ask("POST", f"{DEAD}/{job_id}/retry", {"override": {"args": ["new"], "priority": 5}})
    assert (found["job"]["state"], found["job"]["attempt"]) == ("available", 0)
    assert found["job"]["re_enqueued_at"]
    (job,) = await client.fetch()
    assert (job["args"], job["priority"], job["attempt"]) == (["new"], 5, 1)
    await client.nack(job["id"], error={"message": "again", "retryable": False})
    for body in ({"override": 3}, {"override": {"args": 3}}, {"override": {"priority": "x"}}):
        await client.ask("POST", f"{DEAD}/{job_id}/retry", body, 400)
    await client.ask("POST", f"{DEAD}/{job_id}/retry", {"override": {"id": "x"}}, 422)


async def test_questions_that_make_no_sense(client: Client) -> None:
    cases: list[object] = [{"filter": 3}, {"filter": {"type": 3}}, {"ids": 3}, {"since": "x"}, {"dry_run": 1}]
    for body in cases:
        await client.ask("POST", f"{DEAD}/retry", body, 400)


@pytest.mark.parametrize("name", ["x" * 300, "\u20ac" * 128, "%00", "a\x00b", "no such queue!", "\ud800"])
async def test_a_list_of_a_queue_that_cannot_be_is_empty(client: Client, name: str) -> None:
    for path in ("jobs", "dead-letter", "admin/dead-letter", "admin/jobs", "events", "cron", "workflows", "queues"):
        query = {"queue": name, "queues": name}
        response = await client.application.handle(Request("GET", f"/ojs/v1/{path}", query))
        assert response.status in {200, 400, 422}, (path, response.body)


async def test_the_stream_is_read_once(client: Client) -> None:
    await client.push()
    broker = client.backend.broker
    found = await Inspector(broker.connection).queue(broker.declarer.topology.event_stream)
    assert found is not None
    assert found.consumer_count == 1
    assert [one["type"] for one in (await client.ask("GET", "/ojs/v1/events"))["events"]].count("job.enqueued") == 1


async def test_who_listens_does_not_keep_events_from_being_folded(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_events: object) -> None:
        raise ValueError

    client.backend.events.on_events.append(fail)
    job_id = await client.push()
    await client.fetch()
    await client.ack(job_id)
    while len((await client.ask("GET", f"/ojs/v1/events?job_id={job_id}"))["events"]) < 3:
        pass
    assert "a listener for events failed" in caplog.text


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the broker was asked whether a queue is paused, and how many questions there were at a time."""
    found = {"all": 0, "now": 0, "most": 0}
    ask = pauses.is_paused

    async def count(broker: BrokerConnection, queue: str) -> bool:
        found["all"] += 1
        found["now"] += 1
        found["most"] = max(found["most"], found["now"])
        try:
            return await ask(broker, queue)
        finally:
            found["now"] -= 1

    monkeypatch.setattr(pauses, "is_paused", count)
    return found


async def test_pauses_of_many_queues_are_asked_for_a_few_at_a_time(client: Client, asked: dict[str, int]) -> None:
    """A list of 1,000 queues kept others waiting for 0.4 s."""
    for number in range(45):
        await client.push(f"queue{number}")
    await client.backend.jobs.pause("queue7")
    asked["all"] = asked["most"] = 0
    found = (await client.ask("GET", "/ojs/v1/queues?limit=1000"))["queues"]
    assert (len(found), [one["name"] for one in found if one["paused"]]) == (45, ["queue7"])
    assert (asked["all"], asked["most"]) == (45, pauses.ASKED_AT_ONCE)


async def test_dead_letters_of_many_queues_are_counted_a_few_at_a_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each count takes a channel: 2,048 queues had none left for anybody."""
    now, most = [0], [0]
    count = dead_letter_list.DeadLetterList._count

    async def counted(self: dead_letter_list.DeadLetterList, queue: str) -> int | None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            return await count(self, queue)
        finally:
            now[0] -= 1

    monkeypatch.setattr(dead_letter_list.DeadLetterList, "_count", counted)
    for number in range(45):
        await client.push(f"queue{number}")
    ids = await die(client, 1, "last")
    assert [one["id"] for one in (await client.ask("GET", DEAD))["jobs"]] == ids
    assert (await client.ask("GET", f"{DEAD}/stats"))["by_queue"] == {"last": 1}
    assert most == [pauses.ASKED_AT_ONCE]


@pytest.mark.plain_source
async def test_another_queue_costs_no_question_about_the_others(client: Client, asked: dict[str, int]) -> None:
    """Fetching from 5,000 queues asked 12 million times whether one of them was paused."""
    names = [f"queue{number}" for number in range(10)]
    for name in names:
        await client.push(name)
    await client.backend.jobs.pause("queue7")
    await client.backend.jobs.resume("queue7")
    await client.backend.jobs.pause("queue8")
    asked["all"] = 0
    for name in names:
        await client.fetch(name, worker=name)
    assert asked["all"] == 10
    assert client.backend.fetcher.is_paused("queue8")
    await client.ask("POST", "/ojs/v1/queues/queue8/resume")
    await client.ask("POST", "/ojs/v1/queues/queue3/pause")
    assert [name for name in names if client.backend.fetcher.is_paused(name)] == ["queue3"]
    assert asked["all"] <= 20


@pytest.mark.plain_source
async def test_more_queues_than_a_connection_has_channels(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.fetcher.QUEUES_PER_CONNECTION", 2)
    for number in range(5):
        await client.push(f"queue{number}")
        (job,) = await client.fetch(f"queue{number}", worker=f"w{number}")
        await client.ack(job["id"])
        await client.push(f"queue{number}")
    assert len(client.backend.fetcher._connections) == 3
    for number in range(5):
        (job,) = await client.fetch(f"queue{number}", worker="w")
        await client.ack(job["id"])


async def test_times_of_many_queues_are_read_a_few_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes waited while those of 1,000 queues were read."""
    read: list[int] = []
    times = operator_view._times

    def count(names: Sequence[str], *rest: Any) -> Any:
        read.append(len(names))
        return times(names, *rest)

    monkeypatch.setattr(operator_view, "_times", count)
    for number in range(12):
        await client.push(f"queue{number}")
    found = await client.ask("GET", "/ojs/v1/admin/queue-summaries?limit=1000")
    assert (len(found["items"]), sum(read), max(read)) == (12, 12, operator_view.TIMED_AT_ONCE)


async def test_a_crowd_that_names_a_new_queue_notes_it_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    known, noted = client.backend.extensions.known_queues, list[str]()
    add = known.add

    async def counting(name: str, *, waits: bool = False) -> None:
        noted.append(name)
        await add(name, waits=waits)

    monkeypatch.setattr(known, "add", counting)
    await asyncio.gather(*(client.backend.coordinate_queue("new") for _ in range(100)))
    assert noted == ["new"]


async def test_a_queue_tells_its_depth_and_what_ended_today(client: Client) -> None:
    """ojs-queue-config section 9.3."""
    for _ in range(3):
        await client.push()
    (job,) = await client.fetch()
    await client.ack(job["id"])
    await client.fetch()
    stats = (await client.ask("GET", "/ojs/v1/queues/email"))["stats"]
    assert (stats["depth"], stats["completed_today"], stats["failed_today"]) == (2, 1, 0)
    (listed,) = (await client.ask("GET", "/ojs/v1/queues"))["queues"]
    assert listed["created_at"] <= client.backend.now()
