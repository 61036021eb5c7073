"""The dashboard's files, and the endpoints that its pages stand on."""

from __future__ import annotations

import asyncio
import gzip
import re
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend.application import Application
from waybill.backend.dashboard import read_files
from waybill.backend.keys import Key, KeyRing, hash_of
from waybill.backend.redaction import HIDDEN, Redaction
from waybill.backend.routes import routes_of, search
from waybill.ojs import Jobs, Worker

MOST_BYTES = 100_000
"""Of all files together, as a browser gets them: compressed. `test_a_file_is_compressed_if_the_client_takes_that`."""
MOST_SOURCE_BYTES = 200_000


def test_the_files_are_small_and_need_nothing_from_elsewhere() -> None:
    files = read_files()
    assert sum(len(page.compressed) for page in files.values()) < MOST_BYTES
    assert sum(len(page.content) for page in files.values()) < MOST_SOURCE_BYTES
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


async def test_a_file_is_compressed_if_the_client_takes_that(client: Client) -> None:
    plain = await client.send("GET", "/ui/app.js")
    small = await client.send("GET", "/ui/app.js", **{"accept-encoding": "br;q=1.0, gzip, deflate"})
    assert dict(small.headers)["Content-Encoding"] == "gzip"
    assert gzip.decompress(small.body) == plain.body
    refusing = await client.send("GET", "/ui/app.js", **{"accept-encoding": "gzip;q=0"})
    assert refusing.body == plain.body


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
    assert "series" not in summary[0]
    (own,) = (await client.ask("GET", "/ojs/v1/admin/queue-summaries?name=email"))["items"]
    assert (own["series"]["step_seconds"], len(own["series"]["completed"])) == (60, 60)


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


async def test_a_search_by_time_looks_at_so_many_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing fits, an answer does not take longer the more jobs there are: it says where to go on."""
    monkeypatch.setattr(search, "MAX_SEARCHED", 2)
    for _ in range(5):
        await client.push()
    query, rounds = "since=2100-01-01T00:00:00Z", 0
    while query:
        found = await client.ask("GET", f"/ojs/v1/admin/search?{query}")
        assert found["items"] == []
        rounds += 1
        query = f"since=2100-01-01T00:00:00Z&cursor={found['next_cursor']}" if found["has_more"] else ""
    assert rounds == 3


async def test_a_list_of_workers_has_what_each_runs(client: Client) -> None:
    pushed = {await client.push() for _ in range(2)}
    (first,) = await client.fetch(count=1)
    for worker in (await client.ask("GET", "/ojs/v1/admin/workers?jobs=true"))["items"]:
        (job,) = worker["jobs"]
        assert {"id": first["id"], "type": first["type"], "queue": "email", "attempt": 1}.items() <= job.items()
        assert first["id"] in pushed
        assert job["started_at"]
    assert "jobs" not in (await client.ask("GET", "/ojs/v1/admin/workers"))["items"][0]


async def test_what_the_overview_shows_is_of_now(client: Client) -> None:
    """What is kept for those who look each second is not older than what they see."""
    for number in range(1, 4):
        await client.push()
        found = await client.ask("GET", "/ojs/v1/admin/overview")
        assert (found["counts"]["available"], found["queues"][0]["counts"]["available"]) == (number, number)
    oldest = found["oldest_at"]
    await client.fetch(count=1)
    await client.push()
    found = await client.ask("GET", "/ojs/v1/admin/overview")
    # As many wait as before, but not the same.
    assert found["counts"]["available"] == 3
    assert found["oldest_at"] > oldest


async def test_a_worker_is_told_to_terminate(client: Client) -> None:
    assert await client.fetch("email", worker="w9") == []
    await client.ask("POST", "/ojs/v1/admin/workers/w9/terminate")
    beat = await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w9"})
    assert beat["directive"] == "terminate"
    await client.ask("POST", "/ojs/v1/admin/workers/w10/terminate", status=404)


async def test_workers_over_amqp_do_what_they_are_told(client: Client, uri: str) -> None:
    jobs = Jobs(uri, create_queues=True)
    jobs.handler("mail.send", queue="mail")(lambda: None)

    async def state() -> str:
        found = (await client.ask("GET", "/ojs/v1/admin/workers"))["items"]
        return next((one["state"] for one in found if one["id"] == worker.id), "gone")

    async def until(wanted: str) -> None:
        async with asyncio.timeout(10):
            while await state() != wanted:
                await asyncio.sleep(0.01)

    worker = Worker(jobs)
    running = asyncio.ensure_future(worker.run())
    await until("running")
    for verb, wanted in (("quiet", "quiet"), ("resume", "running"), ("terminate", "gone")):
        await client.ask("POST", f"/ojs/v1/admin/workers/{worker.id}/{verb}")
        await until(wanted)
    await running


async def test_the_last_error_of_a_job_has_its_trace(client: Client) -> None:
    job = await client.push(retry={"max_attempts": 2, "initial_interval": "PT0.01S"})
    for number in range(2):
        await client.fetch(wait_ms=5000)
        error = {"type": "ValueError", "message": f"no {number}", "backtrace": ["a.py:1", f"b.py:{number}"]}
        await client.nack(job, error=error)
    errors = (await client.ask("GET", f"/ojs/v1/admin/jobs/{job}"))["job"]["errors"]
    assert [one.get("stack_trace") for one in errors] == [None, "a.py:1\nb.py:1"]


async def _ended(client: Client, operation: str) -> dict[str, object]:
    async with asyncio.timeout(20):
        while True:
            found: dict[str, object] = await client.ask("GET", f"/ojs/v1/admin/operations/{operation}")
            if found["ended_at"] is not None:
                return found
            await asyncio.sleep(0.01)


async def test_many_jobs_are_changed_in_the_background(client: Client) -> None:
    jobs = [await client.push(retry={"max_attempts": 1}) for _ in range(5)]
    for job in await client.fetch(count=4):
        await client.nack(job["id"])
    path = "/ojs/v1/admin/operations"

    async def begin(action: str, **more: object) -> dict[str, object]:
        body = {"action": action, "filter": {"queue": "email"}, **more}
        found: dict[str, object] = await client.ask("POST", path, body, 200 if more.get("dry_run") else 202)
        return found

    planned = await begin("retry", dry_run=True)
    assert (planned["state"], planned["matched"], planned["dry_run"]) == ("planned", 4, True)
    assert (await client.ask("GET", path))["items"] == []
    slow = await begin("retry", rate_per_second=1)
    await client.ask("POST", f"{path}/{slow['id']}/stop")
    stopped = await _ended(client, str(slow["id"]))
    assert (stopped["state"], stopped["matched"]) == ("stopped", 4)
    dropped = await _ended(client, str((await begin("discard"))["id"]))
    done = await _ended(client, str((await begin("retry", rate_per_second=1000))["id"]))
    # What is no dead letter any more is pushed again, as its arguments are known here.
    assert int(str(dropped["done"])) + int(str(stopped["done"])) == 4
    assert (done["state"], done["failed"]) == ("done", 0)
    assert (await client.job(jobs[0]))["state"] == "available"
    cancelled = await _ended(client, str((await begin("cancel"))["id"]))
    assert (cancelled["done"], cancelled["matched"], cancelled["state"]) == (5, 5, "done")
    assert (await client.ask("GET", path))["running"] == 0
    bad: list[dict[str, object]] = [{"action": "burn"}, {"filter": {}}, {"filter": {"color": "x"}}]
    bad.append({"rate_per_second": -1})
    for wrong in bad:
        await client.ask("POST", path, {"action": "cancel", "filter": {"queue": "email"}, **wrong}, 400)
    await client.ask("GET", f"{path}/none", status=404)


async def test_what_is_set_for_a_type_holds_for_jobs_that_do_not_say(client: Client) -> None:
    path = "/ojs/v1/admin/job-types"
    await client.ask("PUT", f"{path}/email.send/defaults", {"max_attempts": 7, "timeout_seconds": 9})
    assert (await client.ask("GET", path))["items"] == [{"type": "email.send", "max_attempts": 7, "timeout_seconds": 9}]
    job = await client.job(await client.push())
    assert (job["retry"]["max_attempts"], job["timeout_ms"]) == (7, 9000)
    own = await client.job(await client.push(retry={"max_attempts": 2}, timeout_ms=1000))
    assert (own["retry"]["max_attempts"], own["timeout_ms"]) == (2, 1000)
    assert "retry" not in await client.job(await client.push(job_type="other.send"))
    await client.ask("DELETE", f"{path}/email.send/defaults")
    await client.ask("DELETE", f"{path}/email.send/defaults", status=404)
    bad: list[dict[str, object]] = [{}, {"max_attempts": 0}, {"max_attempts": True}, {"color": 1}, {"evidence": 1}]
    for wrong in bad:
        await client.ask("PUT", f"{path}/email.send/defaults", wrong, 400 if "color" not in wrong else 422)


async def test_the_report_of_the_pipeline_is_kept(client: Client) -> None:
    path = "/ojs/v1/admin/pipeline/report"
    assert (await client.ask("GET", path))["report"] is None
    report: dict[str, object] = {"totals": {}, "timeline": [], "job_types": [], "recommendations": []}
    await client.ask("POST", path, report, 201)
    assert (await client.ask("GET", path))["report"] == report
    await client.ask("POST", path, {"totals": {}}, 400)
    await client.ask("POST", path, {**report, "timeline": ["x" * 300_000]}, 413)


async def test_the_pages_of_a_tenant_tell_what_is_its_own(client: Client) -> None:
    keys = [Key(name, "admin", hash_of(name), name) for name in ("acme", "beta")]
    tenants = Client(client.backend, KeyRing(keys))
    authorised = {"authorization": "Bearer acme"}

    async def ask(path: str, name: str = "acme") -> Any:
        response = await tenants.send("GET", f"/ojs/v1/admin/{path}", authorization=f"Bearer {name}")
        assert response.status == 200, response.body
        return msgspec.json.decode(response.body)

    job = {"type": "mail.send", "args": [1], "options": {"queue": "mail", "retry": {"max_attempts": 1}}}
    made = await tenants.send("POST", "/ojs/v1/jobs", job, **authorised)
    job_id = msgspec.json.decode(made.body)["id"]
    await client.push("other")
    assert (await ask("session"))["tenant"] == "acme"
    assert ((await ask("overview"))["counts"]["available"], (await ask("overview", "beta"))["queues"]) == (1, [])
    assert [one["name"] for one in (await ask("queue-summaries"))["items"]] == ["mail"]
    assert [one["name"] for one in (await ask("queue-summaries?name=mail"))["items"]] == ["mail"]
    assert (await ask("queue-summaries?search=acme"))["items"] == []
    found = await ask("search?queue=mail")
    assert ([one["id"] for one in found["items"]], found["total"]) == ([job_id], 1)
    assert (await ask("search", "beta"))["total"] == 0
    assert (await ask(f"jobs/{job_id}/why"))["reasons"][0]["code"] == "no_worker"
    await tenants.send("POST", "/ojs/v1/workers/fetch", {"queues": ["mail"], "worker_id": "w"}, **authorised)
    assert ([one["queues"] for one in (await ask("workers"))["items"]], (await ask("workers", "beta"))["items"]) == (
        [["mail"]],
        [],
    )
    error = {"job_id": job_id, "error": {"code": "x", "message": "no"}}
    await tenants.send("POST", "/ojs/v1/workers/nack", error, **authorised)
    (group,) = (await ask("failures"))["items"]
    assert (group["queue"], group["count"], sum(group["series"]), (await ask("failures", "beta"))["items"]) == (
        "mail",
        1,
        1,
        [],
    )
    plan = {"action": "retry", "filter": {"fingerprint": group["fingerprint"]}, "dry_run": True}
    for name, count in (("acme", 1), ("beta", 0)):
        response = await tenants.send("POST", "/ojs/v1/admin/operations", plan, authorization=f"Bearer {name}")
        assert msgspec.json.decode(response.body)["matched"] == count


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
