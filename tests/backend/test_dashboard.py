"""The dashboard's files, and the endpoints that its pages stand on."""

from __future__ import annotations

import asyncio
import re

from tests.backend.conftest import Client
from waybill.backend.application import Application
from waybill.backend.dashboard import read_files
from waybill.backend.keys import Key, KeyRing, hash_of
from waybill.backend.redaction import HIDDEN, Redaction
from waybill.backend.routes import routes_of

MOST_BYTES = 100_000


def test_the_files_are_small_and_need_nothing_from_elsewhere() -> None:
    files = read_files()
    assert sum(len(page.content) for page in files.values()) < MOST_BYTES
    text = b"\n".join(page.content for page in files.values()).decode()
    for banned in ("innerHTML", "eval(", "style=", "onclick=", "document.write", "@import", "url("):
        assert banned not in text, banned
    assert set(re.findall(r"https?://([^/\s\"'`]+)", text)) <= {"www.w3.org"}


async def test_a_file_is_served_with_a_strict_policy_and_a_tag(client: Client) -> None:
    response = await client.send("GET", "/ui/")
    headers = dict(response.headers)
    assert (response.status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    again = await client.send("GET", "/ui/", **{"if-none-match": headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert dict((await client.send("GET", "/")).headers)["Location"] == "ui/"
    assert (await client.send("GET", "/ui/nothing.js")).status == 404


async def test_the_session_says_what_a_key_may(client: Client) -> None:
    own = await client.ask("GET", "/ojs/v1/admin/session")
    assert own["role"] == "admin"
    guarded = Client(client.backend, KeyRing([Key("eve", "read", hash_of("wb_eve"))]))
    response = await guarded.send("GET", "/ojs/v1/admin/session", authorization="Bearer wb_eve")
    assert b'"name":"eve","role":"read"' in response.body
    assert (await guarded.send("GET", "/ojs/v1/admin/session")).status == 401
    assert (await guarded.send("GET", "/ui/")).status == 200


async def test_the_overview_counts(client: Client) -> None:
    await client.push()
    found = await client.ask("GET", "/ojs/v1/admin/overview")
    assert found["counts"]["available"] == 1
    assert found["queues"][0]["name"] == "email"
    assert found["oldest_at"] == found["queues"][0]["oldest_at"]
    summary = (await client.ask("GET", "/ojs/v1/admin/queue-summaries?search=MAI"))["items"]
    assert [one["name"] for one in summary] == ["email"]


async def test_jobs_are_found_by_parts_of_them(client: Client) -> None:
    first = await client.push(tags=["welcome"])
    second = await client.push("reports", "report.make")

    async def ids(query: str) -> list[str]:
        return [one["id"] for one in (await client.ask("GET", f"/ojs/v1/admin/search?{query}"))["items"]]

    assert await ids("text=WELCOME") == [first]
    assert await ids("text=a@example") == [second, first]
    assert await ids(f"id={second[:-2]}") in ([second], [second, first])
    assert await ids("type=report.make") == await ids("queue=reports") == [second]
    assert await ids("since=2100-01-01T00:00:00Z") == await ids("text=100%") == []
    page = await client.ask("GET", "/ojs/v1/admin/search?limit=1")
    assert (page["total"], page["has_more"]) == (2, True)
    assert await ids(f"limit=1&cursor={page['next_cursor']}") == [first]


async def test_failures_are_grouped_until_somebody_sees_to_them(client: Client) -> None:
    jobs = [await client.push(retry={"max_attempts": 1}) for _ in range(2)]
    for number, job in enumerate(await client.fetch(count=2)):
        error = {"type": "ValueError", "message": f"row {number} is bad"}
        await client.ask("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "worker_id": "w1", "error": error})
    (group,) = (await client.ask("GET", "/ojs/v1/admin/failures"))["items"]
    assert (group["count"], group["error_type"], group["dismissed"]) == (2, "ValueError", False)
    chosen = {"filter": {"fingerprint": group["fingerprint"], "state": "discarded"}, "dry_run": True}
    assert (await client.ask("POST", "/ojs/v1/jobs/bulk/retry", chosen))["matched"] == 2
    found = await client.ask("GET", f"/ojs/v1/admin/search?fingerprint={group['fingerprint']}")
    assert {one["id"] for one in found["items"]} == set(jobs)
    await client.ask("POST", f"/ojs/v1/admin/failures/{group['fingerprint']}/dismiss")
    assert (await client.ask("GET", "/ojs/v1/admin/failures"))["items"] == []
    assert (await client.ask("GET", "/ojs/v1/admin/failures?all=true"))["items"][0]["dismissed"]


async def test_it_says_why_a_job_does_not_run(client: Client) -> None:
    async def codes(job_id: str) -> list[str]:
        found = await client.ask("GET", f"/ojs/v1/admin/jobs/{job_id}/why")
        return [one["code"] for one in found["reasons"]]

    job = await client.push("mail")
    assert await codes(job) == ["no_worker"]
    await client.ask("POST", "/ojs/v1/queues/mail/pause")
    assert await codes(job) == ["paused", "no_worker"]
    await client.ask("POST", "/ojs/v1/queues/mail/resume")
    later = await client.push("mail", delay_until="2100-01-01T00:00:00Z")
    assert (await codes(later))[0] == "scheduled"
    await client.fetch("mail")
    assert await codes(job) == ["running"]
    await client.ack(job)
    assert await codes(job) == ["ended"]


async def test_a_worker_is_told_to_terminate(client: Client) -> None:
    assert await client.fetch("email", worker="w9") == []
    await client.ask("POST", "/ojs/v1/admin/workers/w9/terminate")
    beat = await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w9"})
    assert beat["directive"] == "terminate"
    await client.ask("POST", "/ojs/v1/admin/workers/w10/terminate", status=404)


async def test_the_stream_tells_that_something_has_changed(client: Client) -> None:
    response = await client.send("GET", "/ojs/v1/admin/changes")
    assert response.stream is not None
    assert (await anext(response.stream)).startswith(b"retry:")
    assert (await anext(response.stream)).startswith(b"event: change")
    await client.push()
    async with asyncio.timeout(10):
        assert (await anext(response.stream)).startswith(b"event: change")


async def test_arguments_are_hidden_by_their_names(client: Client) -> None:
    hidden = Redaction(["password", "*_TOKEN"])
    routes = [hidden.wrapped(route) for route in routes_of(client.backend)]
    guarded = Client(client.backend)
    guarded.application = Application(routes)
    body = {"type": "login", "args": [{"user": "ada", "password": "x", "deep": [{"api_token": "y"}]}]}
    job = (await guarded.ask("POST", "/ojs/v1/jobs", body, 201))["job"]["id"]
    for path in (f"jobs/{job}", f"admin/jobs/{job}"):
        shown = (await guarded.ask("GET", f"/ojs/v1/{path}"))["job"]
        assert shown["args"] == [{"user": "ada", "password": HIDDEN, "deep": [{"api_token": HIDDEN}]}]
        assert shown["args_redacted"]
    for path in ("jobs", "admin/jobs", "admin/search", "events"):
        assert b'"y"' not in (await guarded.send("GET", f"/ojs/v1/{path}")).body
    (fetched,) = await guarded.fetch("default")
    assert fetched["args"] == body["args"]
    assert Redaction(["*"]).hidden([1, {"a": 2}]) == [HIDDEN, HIDDEN]
    assert not Redaction([])
