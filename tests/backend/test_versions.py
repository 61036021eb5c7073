"""Versions of jobs: a job goes to a worker that can do it, or waits for one (ojs-job-versioning)."""

from __future__ import annotations

import pytest

from tests.backend.conftest import Client
from waybill.backend.versions import read_range, read_version


async def push(client: Client, version: str | None, kind: str = "invoice.make") -> str:
    body = {"type": kind, "args": [], "options": {"queue": "email"}}
    if version is not None:
        body["version"] = version
    found: str = (await client.ask("POST", "/ojs/v1/jobs", body, 201))["id"]
    return found


async def fetched(client: Client, versions: str | None, worker: str = "w1") -> list[str]:
    handlers = None if versions is None else [{"type": "invoice.make", "versions": versions}]
    return [job["id"] for job in await client.fetch(count=10, worker=worker, handlers=handlers)]


async def test_a_job_goes_to_a_worker_that_can_do_it(client: Client) -> None:
    old, new, unversioned = [await push(client, version) for version in ("1.0", "2.1", None)]
    other = await push(client, "9.0", "other.make")
    assert await fetched(client, ">=3.0") == [unversioned, other]
    assert await fetched(client, "3.0") == []
    assert (await client.job(old))["state"] == "available"
    assert await fetched(client, ">=2.0 <3.0") == [new]
    assert await fetched(client, "1.0") == [old]


async def test_what_a_heartbeat_says_counts(client: Client) -> None:
    job_id = await push(client, "2.0")
    handlers = [{"type": "invoice.make", "versions": "1.0"}]
    await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "old", "handlers": handlers})
    assert await fetched(client, None, worker="old") == []
    assert await fetched(client, None, worker="new") == [job_id]


async def test_the_type_may_have_the_version(client: Client) -> None:
    job_id = await push(client, None, "invoice.make@2.0")
    both = await push(client, "3.0", "invoice.make@2.0")
    assert [(await client.job(one))["version"] for one in (job_id, both)] == ["2.0", "3.0"]
    assert (await client.job(job_id))["type"] == "invoice.make"
    assert await fetched(client, "2.0") == [job_id]


async def test_a_version_may_have_a_patch(client: Client) -> None:
    """As in the schema registry (ojs-schema-registry section 9.1)."""
    jobs = [await push(client, version) for version in ("2.0.0", "2.1.5", "3.0")]
    assert await fetched(client, ">=1.0.0 <2.0.0") == []
    assert await fetched(client, ">=2.1.6 <3.0.0") == []
    assert await fetched(client, ">=2.1.5 <3.0.0") == [jobs[1]]
    assert await fetched(client, "2.0") == [jobs[0]]
    assert await fetched(client, ">=3.0.0 <4.0.0") == [jobs[2]]


@pytest.mark.parametrize("kind", ["email@send!", "email@", "@2.0", "email@two", "email@2.0@3.0"])
async def test_what_is_no_version_is_no_type(client: Client, kind: str) -> None:
    await client.ask("POST", "/ojs/v1/jobs", {"type": kind, "args": []}, 400)


@pytest.mark.parametrize(
    "handlers", [3, [3], [{"type": 1}], [{"type": "a", "versions": "x"}], [{"type": "a", "versions": ""}]]
)
async def test_bad_handlers_are_refused(client: Client, handlers: object) -> None:
    await client.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["email"], "handlers": handlers}, 400)
    await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "handlers": handlers}, 400)


def test_ranges_are_read() -> None:
    assert read_range("*") == []
    assert read_range(">=1.0 <3.0") == [(">=", (1, 0)), ("<", (3, 0))]
    assert read_range("2") == [("=", (2, 0))]
    assert (read_version("2.10"), read_version("2.10.3")) == ((2, 10), (2, 10, 3))
    assert read_version("two") is None


async def test_rules_give_versions_their_share(client: Client) -> None:
    path = "/ojs/v1/admin/routing/invoice.make"
    rules = {"rules": [{"version": "2.0", "weight": 25}, {"version": "1.0", "weight": 75}]}
    await client.ask("GET", path, status=404)
    assert (await client.ask("PUT", path, rules))["rules"] == rules["rules"]
    assert [one["type"] for one in (await client.ask("GET", "/ojs/v1/admin/routing"))["items"]] == ["invoice.make"]
    ids = {await push(client, "3.0") for _ in range(100)}
    other = await push(client, "3.0", "other.make")
    new = {one for _ in range(11) for one in await fetched(client, "2.0")}
    assert (10 < len(new - {other}) < 45, other in new) == (True, True)
    old = {one for _ in range(11) for one in await fetched(client, "<2.0")}
    assert new | old == ids | {other}
    await client.ask("DELETE", path)
    await client.ask("DELETE", path, status=404)
    job_id = await push(client, "2.0")
    assert await fetched(client, "2.0") == [job_id]


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ({}, 400),
        ({"rules": []}, 400),
        ({"rules": [{"version": "new"}]}, 400),
        ({"rules": [{"version": "1.0", "weight": 0}]}, 400),
        ({"rules": [{"version": "1.0", "weight": -1}]}, 400),
        ({"rules": [{"version": "1.0", "weight": 1}], "auto_rollback": {"error_rate_threshold": 0.05}}, 422),
    ],
)
async def test_other_rules_are_refused(client: Client, rules: object, status: int) -> None:
    await client.ask("PUT", "/ojs/v1/admin/routing/invoice.make", rules, status)
    await client.ask("PUT", "/ojs/v1/admin/routing/Invoice", {"rules": [{"version": "1.0"}]}, 400)
