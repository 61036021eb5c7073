"""Many jobs at once: each is told of, a dry run changes nothing, and what is atomic is done whole or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.backend.conftest import FAST, Client

JOB = {"type": "email.send", "args": [1], "options": {"queue": "email"}}


async def bulk(client: Client, action: str, body: object, status: int = 200) -> Any:
    return await client.ask("POST", f"/ojs/v1/jobs/bulk{action}", body, status)


async def states(client: Client, *ids: str) -> list[str]:
    return [(await client.job(one))["state"] for one in ids]


async def test_each_job_of_a_bulk_is_told_of(client: Client) -> None:
    taken = await client.push()
    jobs = [JOB, {"type": "email.send"}, {**JOB, "id": taken}, 7, {**JOB, "type": "Not Good"}]
    found = await bulk(client, "", {"jobs": jobs}, 207)
    assert (found["total"], found["succeeded"], found["failed"]) == (5, 2, 3)
    told = [(one["index"], one["status"]) for one in found["items"]]
    assert told == [(0, "created"), (1, "failed"), (2, "duplicate"), (3, "failed"), (4, "failed")]
    assert found["items"][1]["error"]["details"] == {"field": "args"}
    assert (await states(client, found["items"][0]["job"]["id"])) == ["available"]
    await bulk(client, "", {"jobs": [JOB, JOB]}, 201)
    await bulk(client, "", {"jobs": [7]}, 422)
    unique = JOB | {"type": "email.once", "unique": {"keys": ["type"]}}
    twice = (await bulk(client, "", {"jobs": [unique, unique]}, 207))["items"]
    assert twice[1]["error"]["details"]["existing_job_id"] == twice[0]["job"]["id"]
    assert len(twice[1]["error"]["details"]["uniqueness_key"]) == 64
    ignored = unique | {"unique": {"keys": ["type"], "on_conflict": "ignore"}}
    (created, there) = (await bulk(client, "", {"jobs": [JOB, ignored]}, 201))["items"]
    assert (created["status"], there["status"]) == ("created", "duplicate")
    assert there["job"] == {"id": twice[0]["job"]["id"], "type": "email.once", "state": "available"}
    await bulk(client, "", {"jobs": []}, 400)
    await bulk(client, "", {"jobs": [JOB], "atomicity": "some"}, 400)


async def test_what_is_atomic_is_all_or_nothing(client: Client) -> None:
    found = await bulk(client, "", {"atomicity": "atomic", "jobs": [JOB, {"type": "email.send"}]}, 422)
    assert (found["succeeded"], found["failed"]) == (0, 2)
    assert await client.fetch() == []
    one, two = await client.push(), await client.push()
    await bulk(client, "/cancel", {"atomicity": "atomic", "job_ids": [one, two, "nobody"]}, 422)
    assert await states(client, one, two) == ["available", "available"]


async def test_the_end_of_a_bulk_operation_is_an_event(client: Client) -> None:
    """ojs-bulk-operations section 12.1."""
    job_id = (await bulk(client, "", {"jobs": [JOB, {}]}, 207))["items"][0]["job"]["id"]
    await bulk(client, "/cancel", {"job_ids": [job_id], "dry_run": True})
    await bulk(client, "/cancel", {"job_ids": [job_id]})
    await bulk(client, "/retry", {"job_ids": [job_id]}, 422)
    await bulk(client, "/delete", {"job_ids": [job_id]})
    async with asyncio.timeout(20):
        while True:
            found = (await client.ask("GET", "/ojs/v1/events?limit=1000"))["events"][::-1]
            told = [(one["type"], one["data"]) for one in found if one["type"].startswith("bulk.")]
            if len(told) >= 4:
                break
            await asyncio.sleep(0.01)
    assert told == [
        ("bulk.enqueue.completed", {"total": 2, "succeeded": 1, "failed": 1, "atomicity": "partial"}),
        ("bulk.cancel.completed", {"total": 1, "cancelled": 1, "skipped": 0}),
        ("bulk.retry.completed", {"total": 1, "retried": 0, "skipped": 1}),
        ("bulk.delete.completed", {"total": 1, "deleted": 1, "skipped": 0}),
    ]


async def test_too_many_are_refused(client: Client) -> None:
    for path, body in (("", {"jobs": [JOB] * 1001}), ("/cancel", {"job_ids": ["x"] * 1001})):
        response = await client.send("POST", f"/ojs/v1/jobs/bulk{path}", body)
        assert (response.status, dict(response.headers)["X-OJS-Max-Batch-Size"]) == (413, "1000")


async def test_jobs_are_cancelled_by_id(client: Client) -> None:
    one, two, done = await client.push(), await client.push("later", scheduled_at="+PT1H"), await client.push("other")
    await client.fetch("other")
    await client.ack(done)
    found = await bulk(client, "/cancel", {"job_ids": [one, two, done, "nobody"]}, 207)
    assert [item["status"] for item in found["items"]] == ["cancelled", "cancelled", "skipped", "failed"]
    assert (found["cancelled"], found["skipped"], found["total_matched"]) == (2, 1, 4)
    assert await states(client, one, two, done) == ["cancelled", "cancelled", "completed"]
    await bulk(client, "/cancel", {"job_ids": [done]}, 422)


async def test_a_dry_run_tells_what_would_be_changed(client: Client) -> None:
    ids = [await client.push() for _ in range(3)]
    body = {"filter": {"queue": "email"}, "dry_run": True}
    found = await bulk(client, "/cancel", body)
    assert (found["dry_run"], found["matched"], found["would_change"]) == (True, 3, 3)
    assert {job["id"] for job in found["jobs"]} == set(ids)
    assert await states(client, *ids) == ["available"] * 3
    assert (await bulk(client, "/cancel", {"filter": {"queue": "email"}}))["cancelled"] == 3
    assert (await bulk(client, "/cancel", {"filter": {"queue": "email"}}))["matched"] == 0


async def test_a_filter_is_about_the_fields_of_jobs(client: Client) -> None:
    plain = await client.push()
    high = await client.push(priority=9)
    tenant = await client.push("report", "report.make", meta={"tenant_id": "acme"})
    wanted = {
        plain: {"queue": "email", "priority": 0},
        high: {"priority": 9},
        tenant: {"meta": {"tenant_id": "acme"}, "type": "report.*", "enqueued_after": "2020-01-01T00:00:00Z"},
    }
    for job_id, given in wanted.items():
        found = await bulk(client, "/cancel", {"filter": given, "dry_run": True})
        assert [job["id"] for job in found["jobs"]] == [job_id]
    past = {"filter": {"enqueued_before": "2020-01-01T00:00:00Z"}, "dry_run": True}
    assert (await bulk(client, "/cancel", past))["matched"] == 0


async def ended(client: Client, queue: str = "email") -> tuple[str, str, str]:
    """Make a completed, a cancelled and a discarded job."""
    done, dead, stopped = [await client.push(queue, retry={"max_attempts": 1}) for _ in range(3)]
    await client.fetch(queue, count=2)
    await client.ack(done)
    await client.nack(dead)
    await client.ask("DELETE", f"/ojs/v1/jobs/{stopped}")
    return done, stopped, dead


async def test_jobs_that_have_ended_are_deleted(client: Client) -> None:
    """ojs-bulk-operations section 8."""
    waiting, gone = await client.push("later"), await ended(client)
    body = {"job_ids": [*gone, waiting, "nobody"]}
    plan = await bulk(client, "/delete", {**body, "dry_run": True})
    assert (plan["would_change"], await states(client, *gone)) == (3, ["completed", "cancelled", "discarded"])
    found = await bulk(client, "/delete", body, 207)
    assert [item["status"] for item in found["items"]] == ["deleted", "deleted", "deleted", "skipped", "failed"]
    assert (found["deleted"], found["skipped"], found["total_matched"]) == (3, 1, 5)
    for job_id in gone:
        await client.ask("GET", f"/ojs/v1/jobs/{job_id}", status=404)
    assert await states(client, waiting) == ["available"]
    assert (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"] == []
    assert (await client.ask("GET", "/ojs/v1/admin/stats"))["jobs"]["completed"] == 0
    assert (await bulk(client, "/delete", {"filter": {"queue": "email"}}))["matched"] == 0


async def test_a_job_that_was_cancelled_and_deleted_does_not_come_back(client: Client) -> None:
    """A worker meets its message later, and tells that it was cancelled."""
    job_id = await client.push()
    await client.ask("DELETE", f"/ojs/v1/jobs/{job_id}")
    await bulk(client, "/delete", {"job_ids": [job_id]})
    told = client.backend.view.expect("job.cancelled", job_id)
    assert await client.fetch() == []
    async with asyncio.timeout(20):
        await told
    await client.ask("GET", f"/ojs/v1/jobs/{job_id}", status=404)


async def test_an_operator_deletes_with_a_filter(client: Client) -> None:
    path = "/ojs/v1/admin/jobs/bulk/delete"
    done, *_ = await ended(client)
    await client.ask("POST", path, {"filter": {"state": "completed"}}, 400)
    found = await client.ask("POST", path, {"filter": {"state": "completed"}, "confirm": True})
    assert (found["action"], found["matched"], found["succeeded"], found["failed"]) == ("delete", 1, 1, 0)
    await client.ask("GET", f"/ojs/v1/jobs/{done}", status=404)


async def test_a_queue_is_purged_by_states_and_time(client: Client) -> None:
    """ojs-admin-api section 6.5."""
    path = "/ojs/v1/admin/queues/email/jobs"
    done, stopped, dead = await ended(client)
    other, *_ = await ended(client, "other")
    waiting = await client.push()
    body = {"states": ["completed", "discarded", "available"], "confirm": True}
    for wrong in ({"confirm": False}, {"states": None}, {"states": ["active"]}, {"older_than": 7}):
        await client.ask("DELETE", path, body | wrong, 400)
    await client.ask("DELETE", "/ojs/v1/admin/queues/nothing/jobs", body, 404)
    assert (await client.ask("DELETE", path, {**body, "dry_run": True}))["matched"] == 3
    assert (await client.ask("DELETE", path, {**body, "older_than": "2020-01-01T00:00:00Z"}))["purged_count"] == 0
    found = await client.ask("DELETE", path, body)
    assert (found["purged_count"], found["states"], found["has_more"]) == (3, body["states"], False)
    for job_id in (done, dead):
        await client.ask("GET", f"/ojs/v1/jobs/{job_id}", status=404)
    assert await states(client, stopped, other, waiting) == ["cancelled", "completed", "cancelled"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"job_ids": [], "filter": {}},
        {"job_ids": []},
        {"job_ids": [7]},
        {"filter": {"stat": "available"}},
        {"filter": {"state": "odd"}},
        {"filter": {"state": 7}},
        {"filter": {"since": "now"}},
        {"filter": {"priority": "9"}},
        {"filter": {"meta": []}},
        {"filter": []},
        {"filter": {}, "dry_run": "yes"},
        {"filter": {"until": "0001-01-01T00:00:00+14:00"}},
    ],
)
async def test_what_is_not_understood_changes_nothing(client: Client, body: object) -> None:
    job_id = await client.push()
    await bulk(client, "/cancel", body, 400)
    assert await states(client, job_id) == ["available"]


async def test_what_has_failed_is_retried(client: Client) -> None:
    dead = [await client.push(retry={**FAST, "max_attempts": 1}) for _ in range(2)]
    for job in await client.fetch(count=2):
        await client.nack(job["id"])
    dropped = await client.push(retry={**FAST, "max_attempts": 1, "on_exhaustion": "discard"})
    await client.fetch()
    await client.nack(dropped)
    cancelled = await client.push()
    await client.ask("DELETE", f"/ojs/v1/jobs/{cancelled}")
    waiting = await client.push()
    assert (await bulk(client, "/retry", {"filter": {"queue": "email"}}))["retried"] == 3
    found = await bulk(client, "/retry", {"job_ids": [cancelled, waiting]}, 422)
    assert [item["status"] for item in found["items"]] == ["skipped", "skipped"]
    assert await states(client, *dead, dropped, cancelled) == ["available"] * 3 + ["cancelled"]
    fetched = await client.fetch(count=9)
    assert {job["id"]: job["attempt"] for job in fetched} == dict.fromkeys((*dead, dropped, waiting), 1)


async def test_operators_confirm_what_changes_many_jobs(client: Client) -> None:
    job_id = await client.push()
    body = {"filter": {"queue": "email", "state": "available"}}
    path = "/ojs/v1/admin/jobs/bulk/cancel"
    await client.ask("POST", path, body, 400)
    assert (await client.ask("POST", path, {**body, "dry_run": True}))["would_change"] == 1
    found = await client.ask("POST", path, {**body, "confirm": True})
    assert (found["action"], found["matched"], found["succeeded"], found["failed"]) == ("cancel", 1, 1, 0)
    assert await states(client, job_id) == ["cancelled"]
