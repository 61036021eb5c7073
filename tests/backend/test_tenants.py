"""What operators set for tenants: limits of pushes and of what runs, counts of their jobs; and maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend import shared_jobs
from waybill.backend.backend import Backend
from waybill.backend.shared_jobs import SharedJobs
from waybill.ojs import Jobs

TENANTS = "/ojs/v1/admin/tenants"
MAINTENANCE = "/ojs/v1/admin/system/maintenance"


async def limit(client: Client, **limits: object) -> Any:
    return await client.ask("PUT", f"{TENANTS}/acme", {"limits": limits})


async def push(client: Client, status: int = 201, count: int = 1, **options: object) -> Any:
    job = {"type": "a.b", "args": [], "options": {"queue": "acme.email", **options}}
    return await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [job] * count}, status)


async def test_a_tenant_has_so_many_jobs_at_most(client: Client) -> None:
    await limit(client, max_queue_depth=3, max_scheduled=1)
    await push(client, count=2)
    error = (await push(client, 429, count=2))["error"]
    assert error["code"] == "TENANT_LIMIT_EXCEEDED"
    assert error["details"] == {"tenant_id": "acme", "limit": "max_queue_depth", "current": 2, "maximum": 3}
    await push(client, scheduled_at="+PT1H")
    await client.push("other")
    changed = await client.ask("PUT", f"{TENANTS}/acme/limits", {"max_queue_depth": 10, "reason": "they pay"})
    assert changed["limits"]["max_queue_depth"] == 10
    assert (await client.ask("GET", f"{TENANTS}/acme"))["limits"] == changed["limits"]
    assert (await push(client, 429, scheduled_at="+PT1H"))["error"]["details"]["limit"] == "max_scheduled"
    await push(client)
    found = await client.ask("GET", f"{TENANTS}/acme/stats")
    assert (found["jobs"]["available"], found["jobs"]["scheduled"], found["reason"]) == (3, 1, "they pay")
    assert found["limits"]["max_queue_depth"] == {"limit": 10, "current": 4}
    assert (found["jobs"]["completed_24h"], found["jobs"]["failed_24h"]) == (0, 0)
    assert found["fairness"] == {"weight": 1, "effective_share": 1.0, "actual_share": 0.0}
    assert len((await client.ask("GET", f"{TENANTS}/acme/jobs?state=available"))["items"]) == 3
    assert [one["id"] for one in (await client.ask("GET", TENANTS))["items"]] == ["acme"]
    await client.ask("DELETE", f"{TENANTS}/acme")
    await client.ask("GET", f"{TENANTS}/acme", status=404)
    await push(client, count=20)


class Unread(dict[Any, Any]):
    """The counts of all queues, which nobody is to look through."""

    def items(self) -> Any:
        raise AssertionError

    __iter__ = values = keys = items


async def test_a_tenant_costs_no_look_at_the_jobs_of_others(client: Client) -> None:
    await limit(client, max_queue_depth=9)
    await client.push("other.email")
    counts = await client.backend.job_counts()
    counts.by_pair, counts.by_queue = Unread(counts.by_pair), Unread(counts.by_queue)
    await push(client, count=2)
    assert (await client.ask("GET", f"{TENANTS}/acme"))["jobs"]["available"] == 2
    assert [one["jobs"]["available"] for one in (await client.ask("GET", TENANTS))["items"]] == [2]


async def test_a_tenant_pushes_so_fast_at_most(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(client.backend.extensions.push_checks.tenants, "_clock", lambda: now[0])
    await limit(client, max_enqueue_rate={"limit": 2, "period": "PT1M"})
    await push(client, count=2)
    assert (await push(client, 429))["error"]["details"]["limit"] == "max_enqueue_rate"
    now[0] = 61
    await push(client, count=2)


async def test_so_many_jobs_of_a_tenant_run_at_most(uri: str) -> None:
    async with client_of(uri) as one:
        await limit(one, max_concurrency=2)
        jobs = (await push(one, count=4))["jobs"]
        assert len(await one.fetch("acme.email", count=10)) == 2
        await one.ack(jobs[0]["id"])
        assert len(await one.fetch("acme.email", count=10)) == 1
    async with client_of(uri) as again:
        assert len(await again.fetch("acme.email", count=10)) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"limits": 3}, 400),
        ({"limits": {"max_queue_depth": -1}}, 400),
        ({"limits": {"max_enqueue_rate": {"limit": 1}}}, 400),
        ({"limits": {"max_enqueue_rate": {"limit": 1, "period": "PT0S"}}}, 400),
        ({"limits": {"depth": 1}}, 422),
        ({"fairness_weight": 0}, 400),
        ({"priority_boost": 3}, 422),
    ],
)
async def test_bad_limits_are_refused(client: Client, body: object, status: int) -> None:
    await client.ask("PUT", f"{TENANTS}/acme", body, status)
    await client.ask("PUT", f"{TENANTS}/a.b", {}, 400)


@pytest.fixture(params=["memory", "sqlite"])
async def stored(request: pytest.FixtureRequest, uri: str, tmp_path: Path) -> AsyncIterator[Client]:
    database = ":memory:" if request.param == "memory" else f"{tmp_path}/jobs.sqlite"
    async with Backend(Jobs(uri, results=False), database=database) as backend:
        yield Client(backend)


async def share(client: Client, status: int = 201, tenant: str = "acme", **options: Any) -> Any:
    """Push a job of a tenant into a queue that tenants share."""
    body = {"type": "a.b", "args": [{"tenant_id": "other"}], "meta": {"tenant_id": tenant}, "options": options}
    return await client.ask("POST", "/ojs/v1/jobs", body, status)


async def test_jobs_of_a_tenant_in_shared_queues_count(stored: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """ojs-multi-tenancy section 6.2: a job names its tenant."""
    monkeypatch.setattr(shared_jobs, "COST", 0)
    client = stored
    await limit(client, max_queue_depth=3, max_scheduled=1)
    await push(client)
    for _ in range(2):
        await share(client)
    for tenant in ("other", "beta"):
        await share(client, tenant=tenant)
    refused = (await share(client, 429))["error"]
    assert (refused["code"], refused["details"]["limit"]) == ("TENANT_LIMIT_EXCEEDED", "max_queue_depth")
    assert refused["details"]["current"] == 3
    stats = await client.ask("GET", f"{TENANTS}/acme/stats")
    assert (stats["jobs"]["available"], stats["limits"]["max_queue_depth"]["current"]) == (3, 3)
    jobs = await client.fetch("default", count=2)
    await client.ack(jobs[0]["id"])
    assert jobs[1]["meta"]["tenant_id"] == "acme"
    await share(client, scheduled_at="+PT1H")
    await client.fetch("acme.email")
    refused = (await share(client, 429, scheduled_at="+PT1H"))["error"]
    assert refused["details"]["limit"] == "max_scheduled"


async def test_jobs_of_a_tenant_in_shared_queues_are_listed_and_counted(
    stored: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ojs-multi-tenancy section 10."""
    monkeypatch.setattr(shared_jobs, "COST", 0)
    client = stored
    await limit(client, max_queue_depth=9)
    own = (await push(client))["jobs"][0]["id"]
    shared = [(await share(client))["job"]["id"] for _ in range(3)]
    await share(client, tenant="beta")
    await client.push("acme-x")
    first, second, _, _ = await client.fetch("default", count=4)
    await client.ack(first["id"])
    await client.nack(second["id"], error={"message": "no", "retryable": False})
    for path in (f"{TENANTS}/acme/stats", f"{TENANTS}/acme", TENANTS):
        found = await client.ask("GET", path)
        jobs = (found["items"][0] if path == TENANTS else found)["jobs"]
        counted = ("available", "active", "completed_24h", "failed_24h")
        assert [jobs[name] for name in counted] == [1, 1, 1, 1]
    listed = await client.ask("GET", f"{TENANTS}/acme/jobs")
    assert [one["id"] for one in listed["items"]] == [*reversed(shared), own]
    assert listed["pagination"]["total"] == 4
    done = await client.ask("GET", f"{TENANTS}/acme/jobs?state=completed")
    assert [one["id"] for one in done["items"]] == [first["id"]]


async def test_the_jobs_of_a_tenant_have_pages(stored: Client) -> None:
    client = stored
    await limit(client, max_queue_depth=9)
    ids = [(await share(client))["job"]["id"] for _ in range(3)][::-1]
    await share(client, tenant="beta")
    page = await client.ask("GET", f"{TENANTS}/acme/jobs?per_page=2")
    assert ([one["id"] for one in page["items"]], page["pagination"]["total"]) == (ids[:2], 3)
    for rest in ("per_page=2&page=2", f"limit=2&cursor={page['pagination']['next_cursor']}"):
        found = await client.ask("GET", f"{TENANTS}/acme/jobs?{rest}")
        assert ([one["id"] for one in found["items"]], found["pagination"]["has_more"]) == (ids[2:], False)
    await client.ask("GET", f"{TENANTS}/acme/jobs?offset=10001", status=400)


async def test_jobs_are_looked_through_only_where_tenants_share_queues(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(client, max_queue_depth=9)
    await push(client)
    searched: list[object] = []
    count = SharedJobs._count

    async def note(shared: SharedJobs, *given: Any) -> Any:
        searched.append(given)
        return await count(shared, *given)

    monkeypatch.setattr(SharedJobs, "_count", note)
    for path in ("", "/acme", "/acme/stats", "/acme/jobs"):
        await client.ask("GET", TENANTS + path)
    assert searched == []
    await share(client)
    await client.ask("GET", f"{TENANTS}/acme/stats")
    assert searched


async def test_an_operator_waits_for_no_long_search(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_jobs, "LOOK_SECONDS", 0.01)
    await limit(client, max_queue_depth=9)
    await share(client)
    goes_on = asyncio.Event()

    async def wait(_shared: SharedJobs, *_given: object) -> None:
        await goes_on.wait()

    monkeypatch.setattr(SharedJobs, "_look", wait)
    for _ in range(2):
        found = await client.ask("GET", f"{TENANTS}/acme/stats")
        assert found["jobs"]["available"] == 1
    goes_on.set()


async def test_so_many_jobs_of_a_tenant_run_at_most_in_shared_queues(stored: Client) -> None:
    await limit(stored, max_concurrency=1)
    for tenant in ("acme", "acme", "beta"):
        await share(stored, tenant=tenant)
    first = await stored.fetch("default", count=5)
    assert [one["meta"]["tenant_id"] for one in first] == ["acme", "beta"]
    await push(stored)
    assert await stored.fetch("default", "acme.email", count=5) == []
    await stored.ack(first[0]["id"])
    assert len(await stored.fetch("default", "acme.email", count=5)) == 1


async def test_a_tenant_that_pushes_beyond_its_limit_is_not_searched_for_each_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_jobs, "COST", 1e9)
    monkeypatch.setattr(shared_jobs, "CHEAP_SECONDS", 0.0)
    await limit(client, max_queue_depth=1)
    await share(client)
    searched: list[object] = []
    search = client.backend.view.read

    def note(call: Any) -> Any:
        searched.append(call)
        return search(call)

    monkeypatch.setattr(client.backend.view, "read", note)
    for _ in range(5):
        await share(client, 429)
    assert searched == []


async def test_nothing_is_given_out_during_maintenance(uri: str) -> None:
    async with client_of(uri) as one, client_of(uri) as two:
        await one.push()
        await one.push("paused")
        await one.ask("POST", "/ojs/v1/queues/paused/pause")
        await one.ask("POST", "/ojs/v1/cron", {"name": "n", "expression": "0 0 1 1 *", "type": "a.b"}, 201)
        await one.ask("POST", "/ojs/v1/cron", {"name": "p", "expression": "0 0 1 1 *", "type": "a.b"}, 201)
        await one.ask("POST", "/ojs/v1/cron/p/pause")
        body = {"enabled": True, "reason": "moving", "estimated_duration": "PT30M"}
        found = await one.ask("POST", MAINTENANCE, body)
        assert (found["maintenance"], found["reason"], found["queues_paused"]) == (True, "moving", ["default", "email"])
        assert found["estimated_end"] > found["enabled_at"]
        await one.push("new")
        for client in (one, two):
            while not (await client.ask("GET", MAINTENANCE))["maintenance"]:
                pass
            assert await client.fetch("email", "new", "paused", count=10) == []
        assert not (await two.ask("GET", "/ojs/v1/cron/n"))["enabled"]
        assert not (await two.ask("POST", MAINTENANCE, {"enabled": False}))["maintenance"]
        assert len(await two.fetch("email", "new", "paused", count=10)) == 2
        assert [(await two.ask("GET", f"/ojs/v1/cron/{name}"))["enabled"] for name in "np"] == [True, False]
        assert (await two.ask("GET", "/ojs/v1/queues/paused/stats"))["paused"]
        for bad in ({}, {"enabled": 1}, {"enabled": True, "reason": 3}, {"enabled": True, "estimated_duration": "x"}):
            await one.ask("POST", MAINTENANCE, bad, 400)
