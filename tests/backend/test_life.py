"""The life of a job over HTTP, on both brokers: each step is true when it is answered."""

from __future__ import annotations

import pytest

from tests.backend.conftest import FAST, Client, client_of
from waybill.ojs import Topology


@pytest.fixture(params=["waybill", "rabbitmq"])
def any_uri(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("uri" if request.param == "waybill" else "rabbitmq_uri")
    return found


async def test_each_step_of_a_job_is_known_when_it_is_answered(any_uri: str) -> None:
    async with client_of(any_uri, Topology(prefix="life.")) as client:
        await _succeed(client)
        await _fail_until_dead(client)
        await _cancel(client)


async def _succeed(client: Client) -> None:
    job_id = await client.push(tags=["new"], timeout_ms=5000)
    job = await client.job(job_id)
    assert (job["state"], job["attempt"], job["args"], job["tags"]) == ("available", 0, ["a@example.com"], ["new"])
    [fetched] = await client.fetch()
    assert (fetched["id"], fetched["state"], fetched["attempt"]) == (job_id, "active", 1)
    job = await client.job(job_id)
    assert (job["state"], job["started_at"]) == ("active", fetched["started_at"])
    assert await client.fetch() == []
    assert (await client.ack(job_id, result={"sent": True}))["state"] == "completed"
    job = await client.job(job_id)
    assert (job["state"], job["result"], job["args"]) == ("completed", {"sent": True}, ["a@example.com"])
    assert job["completed_at"] >= job["started_at"]
    await client.ack(job_id, 409)
    await client.nack(job_id, 409)
    await client.ask("DELETE", f"/ojs/v1/jobs/{job_id}", status=409)


async def _fail_until_dead(client: Client) -> None:
    job_id = await client.push("report", retry=FAST | {"max_attempts": 2})
    await client.fetch("report")
    answer = await client.nack(job_id)
    assert (answer["state"], answer["attempt"], answer["retry_delay_ms"]) == ("retryable", 1, 1000)
    assert (await client.job(job_id))["next_attempt_at"] == answer["next_attempt_at"]
    [fetched] = await client.fetch("report", wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"], fetched["retry_delay_ms"]) == (job_id, 2, 1000)
    answer = await client.nack(job_id)
    assert (answer["state"], answer["attempt"]) == ("discarded", 2)
    job = await client.job(job_id)
    assert [error["attempt"] for error in job["errors"]] == [1, 2]
    dead = (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"]
    assert [one["id"] for one in dead] == [job_id]
    again = (await client.ask("POST", f"/ojs/v1/dead-letter/{job_id}/retry", {}))["job"]
    assert (again["state"], again["attempt"]) == ("available", 0)
    [fetched] = await client.fetch("report")
    assert (fetched["id"], fetched["attempt"]) == (job_id, 1)
    await client.nack(job_id, error={"code": "handler_error", "message": "no", "retryable": False})
    assert (await client.ask("DELETE", f"/ojs/v1/dead-letter/{job_id}"))["deleted"] is True
    assert (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"] == []
    await client.ask("DELETE", f"/ojs/v1/dead-letter/{job_id}", status=404)


async def _cancel(client: Client) -> None:
    waiting, running = await client.push("waits"), await client.push("runs")
    await client.fetch("runs")
    for job_id in (waiting, running):
        assert (await client.ask("DELETE", f"/ojs/v1/jobs/{job_id}"))["job"]["state"] == "cancelled"
        job = await client.job(job_id)
        assert job["state"] == "cancelled"
        assert "completed_at" not in job
        await client.ack(job_id, 409)
    assert await client.fetch("waits", "runs") == []


async def test_a_batch_is_taken_whole_or_not_at_all(client: Client) -> None:
    one = {"type": "email.send", "args": [], "options": {"queue": "email"}}
    await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [one, {**one, "type": "Not Good"}]}, 400)
    await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [one, {"args": []}]}, 400)
    assert await client.fetch() == []
    found = await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [one, one, one]}, 201)
    assert found["count"] == 3
    assert [job["id"] for job in await client.fetch(count=10)] == [job["id"] for job in found["jobs"]]


async def test_an_id_is_taken_once(client: Client) -> None:
    job = {"id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "type": "email.send", "args": []}
    await client.ask("POST", "/ojs/v1/jobs", job, 201)
    error = (await client.ask("POST", "/ojs/v1/jobs", job, 409))["error"]
    assert error["details"]["existing_job_id"] == job["id"]
    await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [job]}, 409)


async def test_a_unique_job_is_a_conflict(client: Client) -> None:
    first = await client.push(unique={"keys": ["type", "args"], "on_conflict": "reject"})
    body = {"type": "email.send", "args": ["a@example.com"], "queue": "email", "unique": {"keys": ["type", "args"]}}
    error = (await client.ask("POST", "/ojs/v1/jobs", body, 409))["error"]
    assert (error["code"], error["details"]["existing_job_id"]) == ("duplicate", first)
    body["unique"] = {"keys": ["type", "args"], "on_conflict": "ignore"}
    assert (await client.ask("POST", "/ojs/v1/jobs", body))["job"]["id"] == first


async def test_a_scheduled_job_waits_however_long(client: Client) -> None:
    near = await client.push(scheduled_at="+PT1S")
    far = await client.push("later", delay_until="2099-12-31T23:59:59Z")
    assert [(await client.job(one))["state"] for one in (near, far)] == ["scheduled", "scheduled"]
    [fetched] = await client.fetch("later", "email", wait_ms=10_000)
    assert fetched["id"] == near
    assert (await client.ask("DELETE", f"/ojs/v1/jobs/{far}"))["job"]["state"] == "cancelled"


async def test_an_expired_job_never_starts(client: Client) -> None:
    job_id = await client.push(expires_at="2020-01-01T00:00:00Z")
    assert (await client.job(job_id))["state"] == "discarded"
    assert await client.fetch() == []


async def test_a_paused_queue_takes_jobs_and_gives_none(client: Client) -> None:
    await client.push()
    await client.ask("POST", "/ojs/v1/queues/email/pause")
    job_id = await client.push()
    assert await client.fetch() == []
    stats = await client.ask("GET", "/ojs/v1/queues/email/stats")
    assert (stats["status"], stats["stats"]["available"]) == ("paused", 2)
    await client.ask("POST", "/ojs/v1/queues/email/resume")
    assert [job["id"] for job in await client.fetch(count=5)][1:] == [job_id]
    [queue] = (await client.ask("GET", "/ojs/v1/queues"))["queues"]
    assert (queue["name"], queue["paused"]) == ("email", False)


async def test_a_cron_job_is_registered_and_removed(client: Client) -> None:
    template = {"type": "report.make", "args": [1], "options": {"queue": "report"}}
    body = {"name": "nightly", "expression": "0 3 * * *", "timezone": "Asia/Tokyo", "job_template": template}
    found = (await client.ask("POST", "/ojs/v1/cron", body, 201))["cron"]
    assert (found["expression"], found["enabled"], found["timezone"]) == ("0 3 * * *", True, "Asia/Tokyo")
    job_id = (await client.ask("POST", "/ojs/v1/cron/nightly/trigger", status=201))["job_id"]
    [fetched] = await client.fetch("report", wait_ms=10_000)
    assert (fetched["id"], fetched["args"]) == (job_id, [1])
    await client.ack(job_id)
    await client.ask("POST", "/ojs/v1/cron", {**body, "expression": "no cron"}, 400)
    await client.ask("DELETE", "/ojs/v1/cron/nightly")
    await client.ask("DELETE", "/ojs/v1/cron/nightly", status=404)
    assert (await client.ask("GET", "/ojs/v1/cron"))["crons"] == []


@pytest.mark.parametrize("name", ["0" * 255, "x" * 5000, "a\0b", "ä" * 100])
async def test_no_queue_has_an_odd_name(client: Client, name: str) -> None:
    for path in (f"queues/{name}", f"queues/{name}/stats"):
        await client.ask("GET", f"/ojs/v1/{path}", status=404)
    assert (await client.ask("GET", f"/ojs/v1/dead-letter?queue={name}"))["jobs"] == []


async def test_a_fetch_makes_no_queues(client: Client) -> None:
    assert await client.fetch("tpyo") == []
    assert (await client.ask("GET", "/ojs/v1/queues"))["queues"] == []
    await client.ask("GET", "/ojs/v1/queues/tpyo/stats", status=404)
    await client.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["Not Good"]}, 400)
    await client.ask("POST", "/ojs/v1/workers/fetch", {"worker_id": "w1"}, 400)


async def test_large_jobs_are_fetched_and_listed_a_few_at_a_time(client: Client) -> None:
    """A hundred of them made an answer of 100 MB, and others waited for it."""
    large = {"type": "email.send", "args": ["x" * 900_000], "options": {"queue": "email"}}
    pushed = [(await client.ask("POST", "/ojs/v1/jobs", large, 201))["job"]["id"] for _ in range(25)]
    listed: list[str] = []
    for path in ("/ojs/v1/jobs?limit=100", "/ojs/v1/admin/jobs?limit=100&states=available"):
        cursor: str | None = ""
        listed = []
        while cursor is not None:
            found = await client.ask("GET", f"{path}&cursor={cursor}")
            assert 1 < len(found["jobs"]) < 15
            listed += [one["id"] for one in found["jobs"]]
            cursor = found["pagination"].get("next_cursor")
        assert listed == sorted(pushed, reverse=True)
    found = await client.ask("GET", "/ojs/v1/admin/jobs?limit=100&order=asc")
    assert [one["id"] for one in found["jobs"]] == sorted(pushed)
    assert 10 <= sum(len(one["args"]) for one in found["jobs"]) < 25
    fetched: list[str] = []
    while jobs := await client.fetch(count=100):
        assert len(jobs) < 25
        fetched += [one["id"] for one in jobs]
    assert fetched == pushed
