"""What pushes have to pass: bounds of queues, and the tenant that a header names."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend.message import Response
from waybill.broker import Broker

JOB = {"type": "email.send", "args": [1], "options": {"queue": "email"}}


async def bound(client: Client, depth: int, status: int = 200, **fields: object) -> Any:
    body = {"backpressure": {"max_depth": depth, **fields}}
    return await client.ask("PUT", "/ojs/v1/admin/queues/email/config", body, status)


async def push(client: Client, body: object = JOB, path: str = "jobs", **headers: str) -> Response:
    return await client.send("POST", f"/ojs/v1/{path}", body, **headers)


async def events(client: Client, prefix: str, count: int) -> list[Any]:
    """Return the first events of some types, when there are so many."""
    async with asyncio.timeout(20):
        while True:
            found = (await client.ask("GET", "/ojs/v1/events?limit=1000"))["events"][::-1]
            found = [one for one in found if one["type"].startswith(prefix)]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


def read(response: Response) -> Any:
    return msgspec.json.decode(response.body)


async def test_a_queue_may_be_bounded_by_size(client: Client) -> None:
    job = {**JOB, "args": ["x" * 1000]}
    before = (await push(client, job)).status
    found = await client.ask("PUT", "/ojs/v1/queues/email/config", {"max_size_bytes": 4500})
    assert found["config"].items() >= {"max_size_bytes": 4500, "overflow_policy": "reject"}.items()
    statuses = [(await push(client, job)).status for _ in range(4)]
    assert (before, statuses) == (201, [201, 201, 429, 429])
    full = await push(client, {"jobs": [job]}, "jobs/batch")
    assert read(full)["error"]["details"] == {
        "queue": "email",
        "depth": 3,
        "bound": None,
        "max_size_bytes": 4500,
        "strategy": "reject",
    }
    [first] = await client.fetch()
    assert (await push(client, job)).status == 429
    await client.ack(first["id"])
    assert (await push(client, job)).status == 201
    assert (await push(client)).status == 201
    await client.ask("PUT", "/ojs/v1/queues/email/config", {"overflow_policy": "drop_oldest"})
    assert (await push(client, job)).status == 201
    assert (await push(client, {**JOB, "args": ["x" * 9000]})).status == 429
    await client.ask("PUT", "/ojs/v1/queues/email/config", {"max_size_bytes": None})
    assert (await push(client, {**JOB, "args": ["x" * 9000]})).status == 201


async def test_a_full_queue_takes_no_more(uri: str) -> None:
    async with client_of(uri) as client:
        assert (await bound(client, 3))["configuration"]["backpressure"]["max_depth"] == 3
        assert [(await push(client)).status for _ in range(2)] == [201, 201]
        assert (await push(client, {"jobs": [JOB, JOB]}, "jobs/batch")).status == 429
    async with client_of(uri) as client:
        last = await push(client)
        assert (last.status, dict(last.headers)["X-OJS-Queue-Pressure"]) == (201, "1.00")
        full = await push(client)
        assert (full.status, read(full)["error"]["code"]) == (429, "QUEUE_FULL")
        shown = read(full)["error"]
        assert {name: shown[name] for name in shown["details"]} == shown["details"]
        assert read(full)["error"]["details"] == {"queue": "email", "depth": 3, "bound": 3, "strategy": "reject"}
        headers = dict(full.headers)
        assert (headers["X-OJS-Queue-Depth"], headers["X-OJS-Queue-Bound"]) == ("3", "3")
        assert int(headers["Retry-After"]) > 0
        await client.push("other")
        await client.fetch()
        assert (await push(client)).status == 201
        await bound(client, 0)
        assert (await push(client)).status == 201


async def test_no_more_get_in_at_once_than_there_is_room_for(client: Client) -> None:
    await bound(client, 3)
    answers = await asyncio.gather(*(push(client) for _ in range(10)))
    assert sorted(one.status for one in answers) == [201] * 3 + [429] * 7


async def test_who_wants_to_wait_gets_in_when_there_is_room(client: Client) -> None:
    await bound(client, 1, strategy="block")
    await push(client)
    assert (await push(client)).status == 429
    waiting = asyncio.ensure_future(push(client, **{"ojs-block-timeout": "30"}))
    await asyncio.sleep(0)
    await client.fetch()
    assert (await waiting).status == 201


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"backpressure": 7}, 400),
        ({"backpressure": {"max_depth": -1}}, 400),
        ({"backpressure": {"max_depth": "9"}}, 400),
        ({"backpressure": {"warning_threshold": 2}}, 400),
        ({"backpressure": {"strategy": "drop_newest"}}, 422),
        ({"colour": 9}, 422),
    ],
)
async def test_what_is_no_bound_is_refused(client: Client, body: object, status: int) -> None:
    await client.ask("PUT", "/ojs/v1/admin/queues/email/config", body, status)


async def test_a_header_names_the_tenant(client: Client) -> None:
    found = read(await push(client, **{"x-ojs-tenant": "acme"}))
    assert found["meta"] == {"tenant_id": "acme"}
    both = {**JOB, "meta": {"tenant_id": "beta", "a": 1}}
    assert read(await push(client, both, **{"x-ojs-tenant": "beta"}))["meta"] == both["meta"]
    assert (await push(client, both, **{"x-ojs-tenant": "acme"})).status == 400
    assert (await push(client, **{"x-ojs-tenant": "no good"})).status == 400
    page = await client.ask("GET", "/ojs/v1/admin/jobs?tenant=acme")
    assert [job["id"] for job in page["items"]] == [found["id"]]


async def test_the_oldest_make_room_for_the_newest(client: Client) -> None:
    await bound(client, 2, strategy="drop_oldest")
    ids = [read(await push(client))["id"] for _ in range(4)]
    states = [(await client.job(job_id))["state"] for job_id in ids]
    assert states == ["discarded", "discarded", "available", "available"]
    dropped = [one for one in await events(client, "backpressure.", 3) if one["type"] == "backpressure.dropped"]
    assert [one["data"]["job_id"] for one in dropped] == ids[:2]
    assert (await client.job(ids[0]))["error"]["type"] == "backpressure_dropped"
    assert (await push(client, {"jobs": [JOB] * 3}, "jobs/batch")).status == 429
    more = [job["id"] for job in read(await push(client, {"jobs": [JOB] * 2}, "jobs/batch"))["jobs"]]
    assert [job["id"] for job in await client.fetch(count=10)] == more
    assert (await push(client)).status == 201


async def test_a_queue_that_fills_up_is_an_event(client: Client) -> None:
    """ojs-backpressure section 10.1; of many refused pushes, one is told."""
    await bound(client, 2, warning_threshold=1.0)
    for status in (201, 201, 429, 429, 429):
        assert (await push(client)).status == status
    await client.fetch(count=2)
    assert (await push(client)).status == 201
    found = await events(client, "backpressure.", 3)
    assert [(one["type"], one["data"]["depth"], one["data"].get("job_type")) for one in found] == [
        ("backpressure.warning", 2, None),
        ("backpressure.rejected", 2, "email.send"),
        ("backpressure.cleared", 1, None),
    ]
    assert {(one["subject"], one["data"]["queue"], one["data"]["bound"]) for one in found} == {("email", "email", 2)}


async def test_what_runs_or_is_for_later_is_not_dropped(client: Client) -> None:
    await client.push(scheduled_at="+PT1H")
    await bound(client, 1, strategy="drop_oldest")
    assert (await push(client)).status == 429


async def test_a_broker_that_keeps_no_more_queues_is_named() -> None:
    async with Broker(port=0) as broker, client_of(broker.uri()) as client:
        assert (await push(client)).status == 201
        broker.administration.set_virtual_host_limits("/", max_connections=-1, max_queues=1)
        other = {**JOB, "options": {"queue": "other"}}
        for path, body in (("jobs", other), ("jobs/batch", {"jobs": [JOB, other]})):
            refused = await push(client, body, path)
            error = read(refused)["error"]
            assert (refused.status, error["code"], error["retryable"]) == (503, "overloaded", True)
            assert ".other' in vhost '/': queue limit" in error["message"]
        assert (await push(client)).status == 201
        broker.administration.set_virtual_host_limits("/", max_connections=-1, max_queues=-1)
        assert (await push(client, other)).status == 201
