"""The execution history of jobs: from their events as long as these are remembered, then from their state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.backend.conftest import FAST, Client, client_of
from waybill.backend.backend import Backend
from waybill.backend.job_form import Form
from waybill.backend.job_history import CHANGED, CREATED, JobEvent, entries_of
from waybill.backend.job_search import SearchFilter, search
from waybill.backend.routes.job_history import MOST_SEARCHES

TYPES = frozenset(
    {CREATED, CHANGED, "job.attempt_started", "job.attempt_completed", "job.attempt_failed", "job.cancelled"}
    | {"job.discarded", "job.checkpoint_saved", "job.progress"}
)


async def history(client: Client, job_id: str, query: str = "") -> Any:
    return await client.ask("GET", f"/ojs/v1/jobs/{job_id}/history{query}")


def told(found: Any) -> list[tuple[str, Any]]:
    """Return the types of entries, changes with their states."""
    return [
        (one["event_type"], (one["data"]["from"], one["data"]["to"]) if one["event_type"].endswith("changed") else None)
        for one in found["events"]
    ]


COMPLETED = [
    ("job.created", None),
    ("job.state_changed", ("available", "active")),
    ("job.attempt_started", None),
    ("job.attempt_completed", None),
    ("job.state_changed", ("active", "completed")),
]
RETRIED = [
    ("job.created", None),
    ("job.state_changed", ("available", "active")),
    ("job.attempt_started", None),
    ("job.attempt_failed", None),
    ("job.state_changed", ("active", "retryable")),
    ("job.state_changed", ("retryable", "available")),
    ("job.state_changed", ("available", "active")),
    ("job.attempt_started", None),
    ("job.attempt_failed", None),
    ("job.discarded", None),
    ("job.state_changed", ("active", "discarded")),
]


async def completed(client: Client) -> str:
    job_id = await client.push()
    await client.fetch()
    await client.ack(job_id)
    return job_id


async def retried(client: Client) -> str:
    job_id = await client.push("report", retry={**FAST, "max_attempts": 2, "initial_interval": "PT0.05S"})
    await client.fetch("report")
    await client.nack(job_id)
    await client.fetch("report", wait_ms=5000)
    await client.nack(job_id)
    return job_id


async def test_the_history_of_a_job_is_its_life(client: Client) -> None:
    """Section 7.1: the steps with their times, who made them, and what is to be said of them."""
    job_id = await completed(client)
    found = await history(client, job_id)
    assert (told(found), found["total"], found["next_cursor"]) == (COMPLETED, 5, None)
    created, _, started, done, _ = found["events"]
    assert created["data"] == {"queue": "email", "type": "email.send", "args_size_bytes": len('["a@example.com"]')}
    assert (created["actor"], started["actor"]) == ({"type": "client"}, {"type": "worker", "id": "w1"})
    assert started["data"] == {"worker_id": "w1", "attempt": 1}
    assert done["data"]["attempt"] == 1
    assert done["data"]["duration_ms"] >= 0
    assert len({one["id"] for one in found["events"]}) == 5
    assert {one["job_id"] for one in found["events"]} == {job_id}
    assert [one["timestamp"] for one in found["events"]] == sorted(one["timestamp"] for one in found["events"])


async def test_failed_attempts_say_whether_another_follows(client: Client) -> None:
    found = await history(client, await retried(client))
    assert told(found) == RETRIED
    failures = [one["data"] for one in found["events"] if one["event_type"] == "job.attempt_failed"]
    assert [(one["error"], one["attempt"], one["will_retry"]) for one in failures] == [
        ("no", 1, True),
        ("no", 2, False),
    ]
    assert found["events"][-2]["data"] == {"total_attempts": 2, "last_error": "no"}


async def test_pages_follow_each_other(client: Client) -> None:
    job_id = await completed(client)
    whole, cursor, pages = await history(client, job_id), "", []
    while cursor is not None:
        page = await history(client, job_id, f"?limit=2&cursor={cursor}")
        pages.append(page["events"])
        cursor = page["next_cursor"]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [entry for page in pages for entry in page] == whole["events"]
    response = await client.send("GET", f"/ojs/v1/jobs/{job_id}/history?limit=5000")
    assert dict(response.headers)["X-OJS-Limit-Clamped"] == "true"
    await client.ask("GET", "/ojs/v1/jobs/nobody/history", status=404)


async def test_what_is_no_longer_remembered_is_reconstructed(uri: str) -> None:
    """Section 9.5: such entries say so, and none is invented."""
    async with client_of(uri) as client:
        done, failed = await completed(client), await retried(client)
    async with client_of(uri) as other:
        other.backend.events._messages.clear()
        found = await history(other, done)
        assert told(found) == COMPLETED
        assert all(one["metadata"] == {"reconstructed": True} for one in found["events"])
        kinds = [kind for kind, _ in told(await history(other, failed))]
        assert (kinds.count("job.attempt_failed"), kinds.count("job.attempt_started"), kinds[-2]) == (
            2,
            1,
            "job.discarded",
        )
        rebuilt = await other.ask("POST", f"/ojs/v1/history/rebuild?job_id={failed}")
        assert (rebuilt["events_reconstructed"], rebuilt["approximate"], len(rebuilt["gaps"])) == (len(kinds), True, 1)
        await other.ask("POST", "/ojs/v1/history/rebuild", status=400)


async def test_the_histories_of_all_jobs_are_deleted(client: Client) -> None:
    path = "/ojs/v1/history"
    for query in ("", "?before=yesterday"):
        await client.ask("DELETE", f"{path}{query}", status=400)
    first, other = await client.push(), await client.push("other")
    [entry] = (await history(client, other))["events"]
    time = datetime.fromisoformat(entry["timestamp"]) + timedelta(milliseconds=1)
    before = time.isoformat().replace("+00:00", "Z")
    found = await client.ask("DELETE", f"{path}?before={before}&queues=email&event_types=job.created")
    assert found == {"purged": True, "events_purged": 1, "async": False}
    assert ((await history(client, first))["events"], (await history(client, other))["events"]) == ([], [entry])
    assert [one["job_id"] for one in (await client.ask("GET", path))["events"]] == [other]
    assert (await client.ask("DELETE", f"{path}?before={before}"))["events_purged"] == 1
    assert (await client.ask("GET", path))["events"] == []
    while datetime.now(UTC) <= time:
        await client.ask("GET", path)
    later = await client.push()
    assert [one["job_id"] for one in (await client.ask("GET", path))["events"]] == [later]


async def test_a_deleted_history_stays_away(client: Client) -> None:
    job_id = await client.push()
    assert await client.ask("DELETE", f"/ojs/v1/jobs/{job_id}/history") == {
        "deleted": True,
        "job_id": job_id,
        "events_deleted": 1,
    }
    assert (await history(client, job_id))["events"] == []
    await client.fetch()
    assert told(await history(client, job_id)) == COMPLETED[1:3]


async def test_histories_of_all_jobs_are_searched(client: Client) -> None:
    """Section 7.4."""
    done, failed = await completed(client), await retried(client)

    async def search(query: str) -> Any:
        return (await client.ask("GET", f"/ojs/v1/history?{query}"))["events"]

    found = await search("")
    assert [one["timestamp"] for one in found] == sorted((one["timestamp"] for one in found), reverse=True)
    assert {one["event_type"] for one in found} <= TYPES
    assert {one["job_id"] for one in await search("queues=report")} == {failed}
    assert {one["job_id"] for one in await search("event_types=job.attempt_completed,job.created")} == {done, failed}
    assert len(await search("event_types=job.attempt_failed&query=NO")) == 2
    assert {one["actor"]["type"] for one in await search("actor_type=worker")} == {"worker"}
    assert await search("job_types=a.b") == await search("end=2020-01-01T00:00:00Z") == []
    assert await search("start=2020-01-01T00:00:00Z") == found
    await client.ask("GET", "/ojs/v1/history?start=yesterday", status=400)
    stats = await client.ask("GET", "/ojs/v1/history/stats?group_by=day")
    [bucket] = stats["buckets"]
    assert (bucket["events"]["job.created"], bucket["events"]["job.attempt_completed"]) == (2, 1)
    assert bucket["avg_duration_ms"] == bucket["p95_duration_ms"]
    assert bucket["timestamp"].endswith("T00:00:00Z")
    await client.ask("GET", "/ojs/v1/history/stats?group_by=week", status=400)


async def test_the_lineage_of_a_job_is_its_family(client: Client) -> None:
    """Section 7.2."""

    async def push(**fields: str) -> str:
        body = {"type": "email.send", "args": [], **fields}
        found = await client.ask("POST", "/ojs/v1/jobs", body, 201)
        assert {name: found["job"][name] for name in fields} == fields
        made: str = found["job"]["id"]
        return made

    root = await push()
    one, two = await push(parent_id=root), await push(parent_id=root)
    leaf = await push(parent_id=one)
    lineage = await client.ask("GET", f"/ojs/v1/jobs/{root}/lineage")
    leaves = [{"job_id": leaf, "children": []}]
    assert lineage["children"] == [{"job_id": one, "children": leaves}, {"job_id": two, "children": []}]
    assert (lineage["parent_id"], lineage["root_id"], lineage["workflow_id"]) == (None, root, None)
    lineage = await client.ask("GET", f"/ojs/v1/jobs/{leaf}/lineage")
    assert (lineage["parent_id"], lineage["root_id"], lineage["children"]) == (one, root, [])
    circle = await push(id="019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", parent_id="019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f")
    assert (await client.ask("GET", f"/ojs/v1/jobs/{circle}/lineage"))["children"] == []


async def test_a_large_family_is_not_searched_for_ever(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child was looked for in all jobs: one request took minutes."""
    searched: list[str] = []

    async def counted(backend: Backend, wanted: SearchFilter, most: int) -> list[Form]:
        searched.append(wanted.text)
        return await search(backend, wanted, most)

    monkeypatch.setattr("waybill.backend.routes.job_history.search", counted)
    root = await client.push()
    jobs = [{"type": "email.send", "args": [], "parent_id": root}] * (MOST_SEARCHES + 10)
    await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}, 201)
    assert len((await client.ask("GET", f"/ojs/v1/jobs/{root}/lineage"))["children"]) == MOST_SEARCHES + 10
    assert len(searched) == MOST_SEARCHES


async def test_the_attempts_of_a_job_are_its_traces(client: Client) -> None:
    job_id = await retried(client)
    base = "/ojs/v1/debug"
    traces = (await client.ask("GET", f"{base}/jobs/{job_id}/traces"))["traces"]
    assert [(one["attempt"], one["state"], one["error"], one["worker_id"]) for one in traces] == [
        (1, "failed", "no", "w1"),
        (2, "failed", "no", "w1"),
    ]
    assert traces[0]["started_at"] <= traces[0]["ended_at"] <= traces[1]["started_at"]
    assert (await client.ask("GET", f"{base}/jobs/{job_id}/traces/2"))["trace"] == traces[1]
    for attempt in ("3", "x"):
        await client.ask("GET", f"{base}/jobs/{job_id}/traces/{attempt}", status=404)
    [failure] = (await client.ask("GET", f"{base}/failures"))["failures"]
    assert (failure["job_id"], failure["state"], failure["error"]["message"]) == (job_id, "discarded", "no")
    status = await client.ask("GET", f"{base}/status")
    assert (status["leases"], status["workers"], status["event_streams"][0]["is_folded_here"]) == (0, 1, True)


@pytest.mark.parametrize("kind", ["job.completed", "job.failed", "job.discarded", "job.progress", "job.odd"])
def test_events_of_others_may_have_any_data(kind: str) -> None:
    odd = [JobEvent("e", kind, "now", {"attempt": [], "error": 7, "last_error": [1], "checkpoint": {}})]
    assert all(one["event_type"] in TYPES for one in entries_of("x", odd, {"args": 7}))
