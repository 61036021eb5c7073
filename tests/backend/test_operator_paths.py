"""What the public admin page and command line ask for beside the specification."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client


async def get(client: Client, path: str, status: int = 200) -> Any:
    return await client.ask("GET", f"/ojs/v1/{path}", status=status)


async def direct(client: Client, body: object, status: int = 200) -> Any:
    return await client.ask("POST", "/ojs/v1/admin/workers/directive", body, status)


@pytest.mark.parametrize("base", ["", "admin/"])
async def test_unique_jobs_are_those_that_may_be_in_the_way(client: Client, base: str) -> None:
    unique = {"keys": ["args"], "period": "PT1H", "on_conflict": "reject"}
    done = await client.push(unique=unique)
    await client.push("other")
    await client.fetch()
    await client.ack(done)
    job_id = await client.push("report", unique=unique)
    found = await get(client, f"{base}unique-jobs")
    assert [(one["job_id"], one["queue"], one["keys"]) for one in found["items"]] == [(job_id, "report", ["args"])]
    assert (found["pagination"]["total"], found["pagination"]["page"], found["pagination"]["per_page"]) == (1, 1, 20)
    assert (await get(client, f"{base}unique-jobs?queue=email"))["items"] == []
    assert (await get(client, f"{base}unique-jobs?page=2"))["items"] == []


@pytest.mark.parametrize("base", ["", "admin/"])
async def test_the_server_has_no_middleware(client: Client, base: str) -> None:
    found = await get(client, f"{base}middleware")
    assert (found["items"], found["enqueue"], found["execution"], found["pagination"]["total"]) == ([], [], [], 0)


async def test_a_directive_reaches_one_worker_some_or_all(client: Client) -> None:
    for worker in ("w1", "w2", "w3"):
        await client.fetch(worker=worker)
    assert (await direct(client, {"worker_id": "w1", "directive": "quiet"}))["worker_ids"] == ["w1"]
    assert (await direct(client, {"worker_ids": ["w1", "w2"], "directive": "terminate"}))["workers_affected"] == 2
    beat = await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w2"})
    assert beat["directive"] == "terminate"
    assert (await direct(client, {"directive": "resume"}))["workers_affected"] == 3
    assert (await get(client, "admin/workers"))["summary"]["running"] == 3
    await direct(client, {"worker_id": "nobody", "directive": "quiet"}, 404)
    for wrong in (
        {},
        {"directive": "dance"},
        {"directive": "quiet", "worker": "w1"},
        {"directive": "quiet", "worker_ids": 7},
    ):
        await direct(client, wrong, 400)


async def test_statistics_are_streamed(client: Client) -> None:
    await client.push()
    response = await client.send("GET", "/ojs/v1/admin/stats/stream")
    assert response.stream is not None
    pieces = [await anext(response.stream) for _ in range(2)]
    client.backend.events.listeners.end()
    assert [piece async for piece in response.stream] == []
    names = [line for line in pieces[1].splitlines() if line.startswith(b"event:")]
    assert names == [b"event: stats", b"event: message"]
    data = next(line for line in pieces[1].splitlines() if line.startswith(b"data: "))
    stats = await get(client, "admin/stats")
    assert msgspec.json.decode(data[6:])["jobs"] == stats["jobs"]


async def test_maintenance_and_configuration_have_two_paths(client: Client) -> None:
    await client.ask("POST", "/ojs/v1/admin/maintenance", {"enabled": True, "reason": "upgrade"})
    assert (await get(client, "admin/system/maintenance"))["reason"] == "upgrade"
    assert not (await client.ask("PUT", "/ojs/v1/admin/system/maintenance", {"enabled": False}))["maintenance"]
    assert (await get(client, "admin/config")) == (await get(client, "admin/system/config"))


async def test_events_are_a_list_of_items(client: Client) -> None:
    await client.push()
    found = await get(client, "events?limit=1")
    assert found["items"] == found["events"]
    assert found["pagination"]["per_page"] == 1
