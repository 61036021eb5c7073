"""Cron jobs over HTTP (ojs-cron section 8, ojs-http-binding section 13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backend.conftest import Client
from waybill.backend.backend import Backend
from waybill.broker import Broker
from waybill.ojs import Jobs

CRON = "/ojs/v1/cron"
TEMPLATE = {"type": "report.make", "args": [1], "options": {"queue": "report"}}


async def register(client: Client, name: str = "nightly", status: int = 201, **fields: object) -> Any:
    body = {"name": name, "expression": "0 3 * * *", "job_template": TEMPLATE, **fields}
    return (await client.ask("POST", CRON, body, status))["cron_job"]


async def get(client: Client, name: str = "nightly") -> Any:
    return (await client.ask("GET", f"{CRON}/{name}"))["cron_job"]


async def test_the_flat_form_of_the_text(client: Client) -> None:
    body = {"name": "daily", "cron": "@daily", "type": "report.make", "args": [2], "options": {"queue": "report"}}
    made = await client.ask("POST", CRON, body, 201)
    found = made["cron_job"]
    assert (found["cron"], found["expression"]) == ("@daily", "@daily")
    assert (found["type"], found["args"], found["queue"]) == ("report.make", [2], "report")
    assert (found["enabled"], found["status"], found["last_run_at"]) == (True, "active", None)
    assert found["next_run_at"]
    assert made["name"] == "daily"


async def test_registering_again_changes(client: Client) -> None:
    await register(client)
    assert (await register(client, status=200, expression="0 4 * * *"))["expression"] == "0 4 * * *"
    assert len((await client.ask("GET", CRON))["cron_jobs"]) == 1


async def test_patch_disables_and_enables(client: Client) -> None:
    await register(client)
    found = (await client.ask("PATCH", f"{CRON}/nightly", {"enabled": False}))["cron_job"]
    assert (found["enabled"], found["next_run_at"]) == (False, None)
    assert [one["name"] for one in (await client.ask("GET", f"{CRON}?enabled=false"))["crons"]] == ["nightly"]
    assert (await client.ask("GET", f"{CRON}?enabled=true"))["crons"] == []
    found = (await client.ask("PATCH", "/ojs/v1/crons/nightly", {"enabled": True}))["cron_job"]
    assert found["enabled"]
    assert found["next_run_at"]


async def test_patch_changes_what_it_names(client: Client) -> None:
    await register(client, overlap_policy="cancel", timezone="Asia/Tokyo")
    await client.ask("PATCH", f"{CRON}/nightly", {"cron": "*/5 * * * *", "args": [9]})
    found = await get(client)
    assert (found["expression"], found["args"], found["timezone"]) == ("*/5 * * * *", [9], "Asia/Tokyo")
    assert (found["type"], found["queue"], found["overlap_policy"]) == ("report.make", "report", "cancel_previous")


async def test_trigger_enqueues_a_job_that_is_shown_whole(client: Client) -> None:
    await register(client)
    made = await client.ask("POST", f"{CRON}/nightly/trigger", status=201)
    assert (made["job"]["args"], made["job"]["state"]) == ([1], "available")
    (job,) = await client.fetch("report")
    assert (job["id"], job["meta"]["cron_name"]) == (made["job_id"], "nightly")
    await client.ack(job["id"])
    runs = (await client.ask("GET", f"{CRON}/nightly/history"))["history"]
    assert [(one["job_id"], one["kind"]) for one in runs] == [(job["id"], "manual")]
    assert (await get(client))["run_count"] == 1


async def test_the_list_has_pages(client: Client) -> None:
    for name in "abcde":
        await register(client, name)
    page = await client.ask("GET", f"{CRON}?limit=2")
    assert [one["name"] for one in page["crons"]] == ["a", "b"]
    assert (page["pagination"]["total"], page["pagination"]["has_more"]) == (5, True)
    await client.ask("DELETE", f"{CRON}/a")
    page = await client.ask("GET", f"{CRON}?limit=2&cursor={page['pagination']['next_cursor']}")
    assert [one["name"] for one in page["crons"]] == ["c", "d"]
    assert [one["name"] for one in (await client.ask("GET", f"{CRON}?offset=3"))["crons"]] == ["e"]


async def test_what_is_wrong_is_refused(client: Client) -> None:
    cases: list[dict[str, object]] = [
        {"expression": None},
        {"expression": 3},
        {"expression": "* * *"},
        {"name": None},
        {"name": "Not Good"},
        {"timezone": "Mars/Olympus"},
        {"timezone": 3},
        {"overlap_policy": "sometimes"},
        {"enabled": "yes"},
        {"job_template": 3},
        {"job_template": {"args": []}},
        {"job_template": {"type": "a", "args": 3}},
        {"job_template": {"type": "a", "options": {"queue": "UPPER"}}},
    ]
    for fields in cases:
        body = {"name": "nightly", "expression": "0 3 * * *", "job_template": TEMPLATE, **fields}
        found = await client.ask("POST", CRON, body, 400)
        assert found["error"]["code"] == "invalid_request"


async def test_a_change_that_is_wrong_is_refused(client: Client) -> None:
    await register(client)
    cases: list[object] = [{"enabled": 3}, {"cron": "no"}, {"job_template": 3}, {"args": "x"}]
    for body in cases:
        await client.ask("PATCH", f"{CRON}/nightly", body, 400)


async def test_unknown(client: Client) -> None:
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/trigger"), ("GET", "/history")):
        await client.ask(method, f"{CRON}/nobody{path}", {} if method == "PATCH" else None, 404)


async def test_the_jobs_of_a_cron_job_have_its_options(client: Client) -> None:
    """ojs-cron section 2.2: options are those of a push."""
    options = {"queue": "ticks", "total_timeout": 100, "enqueue_ttl": 50, "heartbeat_timeout": 20, "grace_period": 5}
    options |= {"result_ttl": 60, "result_size_limit": 1000}
    body = {"name": "often", "cron": "* * * * * *", "type": "report.make", "version": "2.0", "options": options}
    made = await client.ask("POST", "/ojs/v1/cron", body, 201)
    assert made["cron_job"]["options"] == options | {"version": "2.0"}
    [job] = await client.fetch("ticks", wait_ms=10_000)
    assert {name: job[name] for name in made["cron_job"]["options"]} == made["cron_job"]["options"]
    await client.ask("POST", "/ojs/v1/cron", body | {"options": {"enqueue_ttl": "soon"}}, 400)


async def test_the_metadata_of_a_cron_job_are_also_shown_among_its_options(client: Client) -> None:
    """ojs-cron section 2.2: `meta` is an option. A change of other fields keeps it."""
    options = {"queue": "report", "retry": {"max_attempts": 3, "initial_interval": "PT5M"}, "meta": {"partner": 7}}
    made = await register(client, job_template=TEMPLATE | {"options": options})
    assert (made["options"], made["job_template"]["options"], made["meta"]) == (options, options, {"partner": 7})
    await client.ask("PATCH", f"{CRON}/nightly", {"options": options, "description": "new"})
    assert (await get(client))["options"] == options
    job = (await client.ask("POST", f"{CRON}/nightly/trigger", status=201))["job"]
    assert (job["meta"]["partner"], job["retry"]) == (7, options["retry"])


UNIQUE = {**TEMPLATE, "options": {"queue": "report", "unique": {"keys": ["type"], "on_conflict": "reject"}}}


@pytest.fixture(params=["memory", "sqlite"])
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    database = ":memory:" if request.param == "memory" else f"{tmp_path}/jobs.sqlite"
    async with Broker(port=0) as broker, Backend(Jobs(broker.uri(), results=False), database=database) as backend:
        yield Client(backend)


async def test_the_job_of_a_cron_job_is_unique(stored: Client) -> None:
    """Its overlap policy comes first (ojs-extension-interactions section 13)."""
    client = stored
    made = await register(client, overlap_policy="allow", job_template=UNIQUE)
    assert made["job_template"]["options"]["unique"]["keys"] == ["type"]
    job_id = (await client.ask("POST", f"{CRON}/nightly/trigger", status=201))["job_id"]
    assert (await client.job(job_id))["unique"]["keys"] == ["type"]
    refused = await client.ask("POST", f"{CRON}/nightly/trigger", None, 409)
    assert (refused["error"]["code"], refused["error"]["details"]["existing_job_id"]) == ("duplicate", job_id)
    pushed = await client.ask("POST", "/ojs/v1/jobs", UNIQUE, 409)
    assert pushed["error"]["details"]["existing_job_id"] == job_id
    history = (await client.ask("GET", f"{CRON}/nightly/history"))["items"]
    assert [(one["state"], one.get("reason")) for one in history] == [("skipped", "duplicate"), ("available", None)]
    assert (await get(client))["run_count"] == 1
    assert [one["id"] for one in await client.fetch("report", count=5)] == [job_id]
    await client.ack(job_id)
    assert await client.fetch("report") == []
    again = (await client.ask("POST", f"{CRON}/nightly/trigger", status=201))["job_id"]
    assert [one["id"] for one in await client.fetch("report", count=5)] == [again]


async def test_the_job_of_a_cron_job_replaces_a_waiting_one(stored: Client) -> None:
    unique = {"keys": ["type"], "on_conflict": "replace"}
    await register(stored, job_template={**TEMPLATE, "options": {"queue": "report", "unique": unique}})
    first, second = [(await stored.ask("POST", f"{CRON}/nightly/trigger", status=201))["job_id"] for _ in range(2)]
    assert (await stored.job(first))["state"] == "cancelled"
    assert [one["id"] for one in await stored.fetch("report", count=5)] == [second]


async def test_ticks_of_a_unique_cron_job_are_skipped_while_its_job_waits(stored: Client) -> None:
    await register(stored, expression="@every 1s", overlap_policy="allow", job_template=UNIQUE)
    while not any(one.get("reason") for one in (await stored.ask("GET", f"{CRON}/nightly/history"))["items"]):
        await asyncio.sleep(0.05)
    [job] = await stored.fetch("report", count=5)
    assert job["unique"]["keys"] == ["type"]
    await stored.ask("DELETE", f"{CRON}/nightly")


async def test_an_odd_unique_policy_of_a_cron_job_is_refused(client: Client) -> None:
    body = {"name": "x", "expression": "@daily", "type": "a.b", "options": {"unique": {"on_conflict": "never"}}}
    found = await client.ask("POST", CRON, body, 400)
    assert "unique" in found["error"]["message"]
