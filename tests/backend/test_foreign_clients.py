"""Requests as the public clients in other languages write them, and what each of them reads in the answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend.conftest import Client
from waybill.ojs.spec.identifiers import new_id

JOBS = "/ojs/v1/jobs"
FETCH = "/ojs/v1/workers/fetch"


def both(answer: dict[str, Any]) -> dict[str, Any]:
    """The job of an answer, which Go and Python read under `job`, Rust and Ruby flat."""
    job: dict[str, Any] = answer["job"]
    assert {name: answer[name] for name in job} == job
    return job


async def test_go_and_rust_push_with_options(client: Client) -> None:
    options = {"queue": "email", "unique": {"key": "report-7", "period_ms": 60_000}, "timeout_ms": 5000}
    body = {"type": "report.make", "args": [7], "options": options}
    job = both(await client.ask("POST", JOBS, body, 201))
    assert (job["queue"], job["state"], job["args"]) == ("email", "available", [7])
    assert both(await client.ask("GET", f"{JOBS}/{job['id']}"))["id"] == job["id"]
    again = await client.ask("POST", JOBS, body, 409)
    assert (again["error"]["code"], again["error"]["details"]["existing_job_id"]) == ("duplicate", job["id"])
    assert both(await client.ask("DELETE", f"{JOBS}/{job['id']}"))["state"] == "cancelled"


async def test_ruby_pushes_a_flat_envelope_and_fetches_without_a_name(client: Client) -> None:
    job_id = new_id()
    unique = {"keys": ["type", "args"], "period": "PT1M"}
    body = {"specversion": "1.0", "id": job_id, "type": "email.send", "queue": "email", "args": ["a"], "unique": unique}
    assert both(await client.ask("POST", JOBS, body, 201))["id"] == job_id
    await client.ask("POST", JOBS, body | {"id": new_id()}, 409)
    fetched = await client.ask("POST", FETCH, {"queues": ["email"], "batch_size": 5})
    assert [job["id"] for job in fetched["jobs"]] == [job_id]
    assert (await client.ask("POST", "/ojs/v1/workers/ack", {"job_id": job_id, "result": {}}))["acknowledged"]
    stats = await client.ask("GET", "/ojs/v1/queues/email/stats")
    assert (stats["depth"], stats["paused"]) == (0, False)
    assert (await client.ask("GET", "/ojs/v1/health"))["version"] == "1.0"


async def test_javascript_asks_for_a_visibility_with_its_fetch(client: Client) -> None:
    job_id = await client.push()
    [job] = await client.fetch(count=1, visibility_timeout_ms=45_000)
    assert (job["id"], job["visibility_timeout_ms"]) == (job_id, 45_000)
    assert await client.fetch(count=1) == []


async def test_go_counts_its_jobs_in_heartbeats_and_the_suites_list_them(client: Client) -> None:
    job_id = await client.push()
    await client.fetch()
    for body in (
        {"worker_id": "w1", "active_jobs": 1, "active_job_ids": [job_id]},
        {"worker_id": "w1", "active_jobs": [job_id]},
        {"worker_id": "w1", "job_id": job_id},
    ):
        answer = await client.ask("POST", "/ojs/v1/workers/heartbeat", body)
        assert (answer["state"], answer["jobs_extended"]) == ("running", [job_id])


@pytest.mark.parametrize("field", ["expression", "cron"])
async def test_cron_jobs_are_registered_under_both_names(client: Client, field: str) -> None:
    for body in (
        {"name": "flat", field: "0 3 * * *", "type": "report.make", "args": []},
        {"name": "template", field: "0 3 * * *", "job_template": {"type": "report.make", "args": []}},
    ):
        found = await client.ask("POST", "/ojs/v1/cron", body, 201)
        assert (found["cron_job"]["name"], found["name"]) == (body["name"], body["name"])
        assert (found["cron_job"]["cron"], found["expression"]) == ("0 3 * * *", "0 3 * * *")
    listed = await client.ask("GET", "/ojs/v1/cron")
    for name in ("cron_jobs", "entries", "crons"):
        assert sorted(one["name"] for one in listed[name]) == ["flat", "template"]


async def test_what_go_and_rust_read_of_queues_and_the_manifest(client: Client) -> None:
    await client.push()
    stats = await client.ask("GET", "/ojs/v1/queues/email/stats")
    assert (stats["queue"], stats["status"], stats["stats"]["available"]) == ("email", "active", 1)
    assert stats["computed_at"].endswith("Z")
    manifest = await client.ask("GET", "/ojs/manifest")
    assert manifest["specversion"] == manifest["ojs_version"] == "1.0"
    assert manifest["implementation"]["language"] == "python"
    assert all(isinstance(value, bool) for value in manifest["capabilities"].values())


async def test_no_version_of_the_protocol_is_refused_and_empty_lists_are_lists(client: Client) -> None:
    for version in ("1.0.0-rc.1", "1.0", "nonsense", ""):
        response = await client.send("GET", "/ojs/manifest", **{"ojs-version": version})
        assert (response.status, dict(response.headers)["OJS-Version"]) == (200, "1.0")
    assert (await client.ask("POST", FETCH, {"queues": ["nothing"]}))["jobs"] == []
    assert (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"] == []
    assert (await client.ask("GET", "/ojs/v1/cron"))["crons"] == []
    assert (await client.ask("GET", "/ojs/v1/queues"))["queues"] == []


async def test_the_python_client_reads_json_only(client: Client) -> None:
    response = await client.send("GET", "/ojs/v1/health", **{"user-agent": "python-httpx/0.28"})
    assert dict(response.headers)["Content-Type"] == 'application/openjobspec+json; alt="application/json"'
    job_id = await client.push()
    await client.fetch()
    error = {"code": "handler_error", "message": "no", "retryable": False, "details": {"error_class": "ValueError"}}
    assert (await client.nack(job_id, error=error))["state"] == "discarded"
    [dead] = (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"]
    assert dead["id"] == job_id


async def test_an_attempt_ends_by_the_path_of_its_job(client: Client) -> None:
    """As in ojs-results section 10.1."""
    done, failed = await client.push(), await client.push()
    await client.fetch(count=2)
    found = await client.ask("POST", f"{JOBS}/{done}/ack", {"result": {"sent": 1}})
    assert (found["state"], (await client.job(done))["result"]) == ("completed", {"sent": 1})
    await client.ask("POST", f"{JOBS}/{done}/ack", status=409)
    error = {"code": "handler_error", "message": "no", "retryable": False}
    assert (await client.ask("POST", f"{JOBS}/{failed}/nack", {"error": error}))["state"] == "discarded"
    await client.ask("POST", f"{JOBS}/nobody/ack", status=404)
