"""The admin API: what operators see is what the jobs' side knows, and what they change is in the audit log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.backend.conftest import FAST, Client, client_of
from waybill.backend.application import Application
from waybill.backend.history import History
from waybill.backend.keys import Key, KeyRing, hash_of
from waybill.backend.message import Request
from waybill.backend.router import ADMIN
from waybill.backend.routes import routes_of
from waybill.ojs.coordinator.job_counts import CountChanges, CountMark, JobCounts

ADMIN_PATH = "/ojs/v1/admin"


async def get(client: Client, path: str, status: int = 200) -> Any:
    return await client.ask("GET", f"{ADMIN_PATH}/{path}", status=status)


async def post(client: Client, path: str, body: object = None, status: int = 200) -> Any:
    return await client.ask("POST", f"{ADMIN_PATH}/{path}", body, status)


async def test_statistics_count_all_jobs(client: Client) -> None:
    done = await client.push()
    await client.push("report")
    await client.fetch()
    await client.ack(done)
    stats = await get(client, "stats")
    assert (stats["queues"], stats["workers"]) == (2, 1)
    assert (stats["jobs"]["available"], stats["jobs"]["completed"], stats["jobs"]["discarded"]) == (1, 1, 0)
    assert set(stats["throughput"]) >= {"processed_per_minute", "failed_per_minute"}
    assert (await get(client, "stats/history"))["period"] == "5m"
    await get(client, "stats/history?period=7m", 400)
    await get(client, "stats/history?since=yesterday", 400)


async def test_a_page_of_jobs_has_20_and_at_most_100(client: Client) -> None:
    """ojs-admin-api section 7.1; every page tells the total and how to go on."""
    for _ in range(21):
        await client.push()
    for query in ("jobs", "jobs?type=email.send", "jobs?order=asc"):
        page = await get(client, query)
        assert (len(page["items"]), page["pagination"]["per_page"], page["pagination"]["total"]) == (20, 20, 21)
        mark = "&" if "?" in query else "?"
        rest = await get(client, f"{query}{mark}cursor={page['pagination']['next_cursor']}")
        assert (len(rest["items"]), rest["pagination"]["has_more"]) == (1, False)
        assert rest["items"][0]["id"] not in {one["id"] for one in page["items"]}
    assert (await get(client, "jobs?per_page=1000"))["pagination"]["per_page"] == 100
    assert (await get(client, "dead-letter"))["pagination"]["per_page"] == 20


async def test_queues_are_counted_paused_and_resumed(client: Client) -> None:
    for queue in ("a", "b", "c"):
        await client.push(queue)
    page = await get(client, "queues?per_page=2&page=2")
    assert [one["name"] for one in page["items"]] == ["c"]
    assert (page["pagination"]["total"], page["pagination"]["page"], page["pagination"]["per_page"]) == (3, 2, 2)
    assert (await post(client, "queues/a/pause"))["paused"]
    assert (await get(client, "queues/a"))["state"] == "paused"
    assert await client.fetch("a") == []
    assert not (await post(client, "queues/a/resume"))["paused"]
    queue = await get(client, "queues/a")
    assert (queue["state"], queue["counts"]["available"]) == ("active", 1)
    await get(client, "queues/nothing", 404)


async def test_queues_tell_when_they_were_created_and_how_long_jobs_waited(client: Client, uri: str) -> None:
    for queue in ("a", "b"):
        await client.push(queue)
    await client.push("a")
    [job] = await client.fetch("a")
    await client.ack(job["id"])
    waiting, idle = (await get(client, "queues"))["items"]
    assert waiting["latency_ms"] == (await get(client, "queues/a"))["latency_ms"]
    assert sorted(waiting["latency_ms"]) == ["p50", "p95", "p99"]
    assert "latency_ms" not in idle
    made = await client.ask("POST", "/ojs/v1/queues", {"name": "b"}, 201)
    assert idle["created_at"] == made["created_at"] == (await client.ask("GET", "/ojs/v1/queues/b"))["created_at"]
    async with client_of(uri) as other:
        assert (await get(other, "queues/b"))["created_at"] == idle["created_at"]
    await client.ask("DELETE", "/ojs/v1/queues/b", {"strategy": "discard"})
    await client.push("b")
    assert (await get(client, "queues/b"))["created_at"] > idle["created_at"]


async def test_jobs_are_searched(client: Client) -> None:
    low = await client.push(priority=-5)
    high = await client.push(priority=9, meta={"tenant_id": "acme"})
    other = await client.push("report", "report.make")
    assert {job["id"] for job in (await get(client, "jobs"))["items"]} == {low, high, other}
    for query, found in (
        ("queue=email&sort=priority", [high, low]),
        ("queue=email&sort=priority&order=asc", [low, high]),
        ("type=report.*", [other]),
        ("type=report.make", [other]),
        ("state=completed", []),
        ("since=2099-01-01T00:00:00Z", []),
        ("until=2099-01-01T00:00:00Z&order=asc&per_page=1&page=2", [high]),
        ("tenant=acme", [high]),
    ):
        assert [job["id"] for job in (await get(client, f"jobs?{query}"))["items"]] == found, query
    for query in ("state=odd", "sort=id&order=asc", "order=up", "since=now&order=asc", "page=x", "state=odd&order=asc"):
        await get(client, f"jobs?{query}", 400)


async def test_a_job_is_shown_whole_retried_and_cancelled(client: Client) -> None:
    job_id = await client.push(retry={**FAST, "max_attempts": 1})
    job = await get(client, f"jobs/{job_id}")
    assert (job["args"], job["errors"], job["result"], job["state"]) == (["a@example.com"], [], None, "available")
    assert job["metadata"]["enqueued_at"] == job["enqueued_at"]
    await post(client, f"jobs/{job_id}/retry", status=409)
    await client.fetch()
    await client.nack(job_id)
    assert (await get(client, f"jobs/{job_id}"))["errors"][0]["message"] == "no"
    assert (await post(client, f"jobs/{job_id}/retry"))["state"] == "available"
    assert (await post(client, f"jobs/{job_id}/cancel"))["state"] == "cancelled"
    await post(client, f"jobs/{job_id}/cancel", status=409)
    await post(client, f"jobs/{job_id}/retry", status=409)
    await get(client, "jobs/nothing", 404)


async def test_workers_are_known_and_told_to_be_quiet_even_after_a_restart(uri: str) -> None:
    async with client_of(uri) as client:
        job_id = await client.push()
        await client.fetch(worker="w1")
        beat = {"worker_id": "w1", "active_jobs": [job_id], "hostname": "pod-1", "concurrency": 4}
        await client.ask("POST", "/ojs/v1/workers/heartbeat", beat)
        workers = await get(client, "workers")
        [worker] = workers["items"]
        assert (worker["id"], worker["state"], worker["active_jobs"], worker["queues"]) == (
            "w1",
            "running",
            1,
            ["email"],
        )
        assert (worker["hostname"], worker["concurrency"], workers["summary"]["running"]) == ("pod-1", 4, 1)
        assert [job["id"] for job in (await get(client, "workers/w1"))["jobs"]] == [job_id]
        await post(client, "workers/w1/quiet")
        assert (await get(client, "workers/w1"))["state"] == "quiet"
        await client.ask("DELETE", f"{ADMIN_PATH}/workers/w1", status=409)
        await get(client, "workers/w2", 404)
    async with client_of(uri) as client:
        told = await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1"})
        assert told["directive"] == "quiet"
        await post(client, "workers/w1/resume")
        assert (await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1"}))["directive"] == "running"


async def test_a_worker_is_known_as_its_heartbeat_tells(client: Client) -> None:
    """ojs-worker-protocol section 4.2; the queues of a fetch are those that count."""
    told = {"hostname": "web-1", "pid": 12345, "concurrency": 10, "labels": ["canary"], "queues": ["email", "default"]}
    began = {"started_at": "2025-06-01T10:00:00+02:00"}
    await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "active_jobs": 0, **told, **began})
    found = await get(client, "workers/w1")
    assert {name: found[name] for name in told} == told
    assert (found["id"], found["worker_id"]) == ("w1", "w1")
    assert found["started_at"] == "2025-06-01T08:00:00.000Z"
    await client.fetch("email")
    await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "queues": 7, "started_at": "long ago"})
    found = await get(client, "workers/w1")
    assert (found["queues"], found["started_at"] > "2026") == (["email"], True)


async def test_a_stale_worker_is_deregistered_and_its_jobs_go_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await client.push()
    await client.fetch(worker="w1")
    monkeypatch.setattr("waybill.backend.workers.STALE_SECONDS", -1.0)
    assert (await get(client, "workers"))["summary"]["stale"] == 1
    assert (await client.ask("DELETE", f"{ADMIN_PATH}/workers/w1"))["jobs_rescheduled"] == 1
    [fetched] = await client.fetch(worker="w2", wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 2)


async def test_a_worker_with_the_longest_name_can_be_directed(client: Client) -> None:
    name = "w" * 255
    await client.fetch(worker=name)
    for directive in ("quiet", "resume"):
        await client.ask("POST", f"{ADMIN_PATH}/workers/directive", {"directive": directive})
        beat = await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": name})
        assert beat["directive"] == {"quiet": "quiet", "resume": "running"}[directive]


async def test_what_operators_change_is_in_the_audit_log(client: Client) -> None:
    ring = KeyRing([Key("ada", ADMIN, hash_of("wb_1"))])
    application = Application(routes_of(client.backend), ring)

    async def ask(method: str, path: str, body: object = None) -> Any:
        raw = b"" if body is None else msgspec.json.encode(body)
        response = await application.handle(Request(method, path, {}, {"x-api-key": "wb_1"}, raw))
        return msgspec.json.decode(response.body)

    await ask("POST", "/ojs/v1/jobs", {"type": "email.send", "args": [], "options": {"queue": "email"}})
    await ask("POST", f"{ADMIN_PATH}/queues/email/pause")
    await ask("POST", f"{ADMIN_PATH}/queues/email/resume")
    await ask("POST", f"{ADMIN_PATH}/queues/nothing/resume")
    await ask("GET", f"{ADMIN_PATH}/stats")
    await client.backend.extensions.settings.records.remove("thing/none")
    entries = (await ask("GET", f"{ADMIN_PATH}/audit"))["items"]
    assert [(one["actor"], one["path"].rpartition("/")[2], one["status"]) for one in entries] == [
        ("ada", "resume", 200),
        ("ada", "pause", 200),
    ]


async def test_what_was_done_when_is_the_difference_of_counts() -> None:
    now = 0.0
    history = History(lambda: now)
    counts = JobCounts({("a", "available"): 0, ("a", "completed"): 0, ("b", "discarded"): 0})
    for minute in range(11):
        now = minute * 60.0
        new = {("a", "completed"): 10 * minute, ("b", "discarded"): minute, ("a", "available"): 5 * minute}
        counts.take(CountChanges(CountMark(0, minute), new))
        history.add(counts)
        history.add(counts)
    periods = history.periods(5, 0.0, now, None)
    assert [(one["enqueued"], one["processed"], one["failed"]) for one in periods] == [(80, 50, 5)] * 2
    assert [one["processed"] for one in history.periods(1, 0.0, now, "b")] == [0] * 10
    # The running period is shown, too.
    assert [one["processed"] for one in history.periods(60, 0.0, now, None)] == [100]
    rate = {"processed_per_minute": 10.0, "failed_per_minute": 0.0, "enqueued_per_minute": 15.0}
    assert history.throughput("a") == rate


async def test_the_waits_of_a_period_count_by_the_jobs_that_completed() -> None:
    now = 0.0
    history = History(lambda: now)
    counts = JobCounts({("a", "completed"): 0, ("b", "completed"): 0})
    history.add(counts)
    for minute, (wait_a, wait_b) in enumerate([((10, 100), (1, 2)), ((20, 50), (3, 4))], 1):
        now = minute * 60.0
        counts.take(CountChanges(CountMark(0, minute), {("a", "completed"): 90 * minute, ("b", "completed"): minute}))
        history.add(counts)
        assert history.untimed() == ["a", "b"]
        history.time({"a": wait_a})
        history.time({"b": wait_b})
        assert history.untimed() == []

    def waits(minutes: int, queue: str | None) -> list[tuple[object, object]]:
        found = history.periods(minutes, 0.0, now, queue)
        return [(one["latency_p50_ms"], one["latency_p99_ms"]) for one in found]

    assert (waits(1, None), waits(5, None)) == ([(10, 100), (20, 50)], [(10, 100)])
    assert (waits(1, "b"), waits(5, "b"), waits(5, "none")) == ([(1, 2), (3, 4)], [(1, 4)], [(0, 0)])
