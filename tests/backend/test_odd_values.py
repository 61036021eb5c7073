"""Whatever a client sends as a value: it is refused or taken, and what was taken stands in nobody's way."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend.queue_retention import QueueRetention
from waybill.backend.routes.rate_limits import BASE as LIMITS
from waybill.client import BasicProperties

ID = "018f0000-0000-7000-8000-000000000000"
JOB = {"type": "email.send", "args": [1]}


def nested(depth: int) -> Any:
    return msgspec.json.decode(b"[" * depth + b"]" * depth)


@pytest.mark.parametrize("field", ["scheduled_at", "expires_at"])
@pytest.mark.parametrize(
    "time", ["+P999999999D", "+-P999999999D", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"]
)
async def test_a_time_that_nobody_can_reckon_with_is_refused(client: Client, field: str, time: str) -> None:
    await client.ask("POST", "/ojs/v1/jobs", {**JOB, "options": {field: time}}, 400)


@pytest.mark.parametrize("mode", [[], {}, ["strict"], 1, True])
async def test_a_mode_that_is_no_text_is_refused(client: Client, mode: object) -> None:
    schema = {"job_type": "email.send", "version": "1.0", "schema": {}}
    await client.ask("POST", "/ojs/v1/schemas", {**schema, "mode": mode}, 400)
    await client.ask("PUT", "/ojs/v1/schemas/email.send/mode", {"mode": mode}, 400)
    await client.ask("POST", "/ojs/v1/jobs/bulk", {"jobs": [JOB], "atomicity": mode}, 400)
    backpressure = {"max_depth": 1, "strategy": mode}
    await client.ask("PUT", "/ojs/v1/admin/queues/email/config", {"backpressure": backpressure}, 422)


async def test_an_override_that_lets_nothing_through_can_be_looked_at(client: Client) -> None:
    body = {"concurrency": 0, "rate": {"limit": 5, "period": "PT1S"}}
    found = await client.ask("PUT", f"{LIMITS}/api", body)
    assert found["concurrency"]["limit"] == 0
    assert [one["key"] for one in (await client.ask("GET", LIMITS))["items"]] == ["api"]
    await client.ask("PUT", f"{LIMITS}/api", {**body, "expires_at": "9999-12-31T23:59:59-23:59"}, 400)


@pytest.mark.parametrize("options", [{}, {"scheduled_at": "+PT1H"}, {"pending": True}], ids=str)
async def test_a_job_is_nested_no_deeper_than_its_events_can_carry(uri: str, options: dict[str, object]) -> None:
    """Otherwise no coordinator would take the events in which the job travels."""
    async with client_of(uri) as client:
        for depth in (120, 128, 240, 254):
            body = {**JOB, "more": nested(depth), "options": options}
            status = 201 if depth == 120 else 400
            await client.ask("POST", "/ojs/v1/jobs", body, status)
            await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [body]}, status)
    async with client_of(uri) as client:
        assert len((await client.ask("GET", "/ojs/v1/jobs?limit=10"))["jobs"]) == 2


async def test_what_is_set_is_nested_no_deeper_than_its_record_can_carry(client: Client) -> None:
    subscription = {"url": "https://example.com/", "events": ["*"]}
    base = "/ojs/v1/webhooks/subscriptions"
    await client.ask("POST", base, {**subscription, "metadata": {"a": nested(120)}}, 201)
    await client.ask("POST", base, {**subscription, "metadata": {"a": nested(250)}}, 400)


async def test_a_body_that_is_no_json_is_refused_at_once(client: Client) -> None:
    """A string that is not closed was searched anew from each quote in it."""
    body = b'{"x":' + b"[" * 300 + b'"' + b'\\"' * 500_000
    for path in ("jobs", "jobs/batch", "workers/ack"):
        await client.ask("POST", f"/ojs/v1/{path}", body, 400)


async def test_a_body_of_too_many_values_is_refused(client: Client) -> None:
    job = b'{"type": "email.send", "args": [' + b",".join([b"{}"] * 900_000) + b"]}"
    await client.ask("POST", "/ojs/v1/jobs/batch", b'{"jobs": [' + job + b"]}", 413)


NO_JOBS = [
    b"",
    b"\xff",
    b"[" * 3000,
    b'{"args": ' + b"[" * 240 + b"]" * 240 + b"}",
    b'{"id": null, "type": 5, "args": 7, "error": {"type": [1], "code": {}}, "errors": 5, "discarded_at": 5}',
    b'{"id": "x", "type": "a.b", "args": [], "error": {"type": "E"}, "specversion": "7", "queue": "other"}',
]


async def test_dead_letters_that_are_no_jobs_hide_no_others(client: Client) -> None:
    """Anybody who pushes may push what is no job: a worker puts it aside."""
    broker = client.backend.broker
    job_id = await client.push(retry={"max_attempts": 1})
    await client.fetch()
    await client.nack(job_id)
    channel = await broker.connection.channel()
    place = broker.declarer.topology.dead_letter_queue("email")
    headers: dict[str, object] = {"x-ojs-attempt": "x", "x-death": [{"time": 5, "count": "y", "queue": 7}]}
    for body in NO_JOBS:
        await channel.publish(body, routing_key=place, properties=BasicProperties(headers=headers, type="\0"))
    job_ids = [one["id"] for one in (await client.ask("GET", "/ojs/v1/dead-letter?limit=50"))["jobs"]]
    assert len(set(job_ids)) == len(NO_JOBS) + 1
    for filtered in ("type=email.send", "queue=email&error_type=E", "since=2020-01-01T00:00:00Z", "search=x"):
        await client.ask("GET", f"/ojs/v1/dead-letter?{filtered}")
    assert (await client.ask("GET", "/ojs/v1/dead-letter/stats"))["total"] == len(NO_JOBS) + 1
    assert (await client.ask("POST", "/ojs/v1/dead-letter/retry", {"queue": "email"}))["retried"] == 1
    async with asyncio.timeout(10):
        # Retries of several are not awaited in the state of each.
        while (await client.job(job_id))["state"] != "available":
            await asyncio.sleep(0.01)
    assert (await client.ask("POST", "/ojs/v1/dead-letter/purge", {"queue": "email"}))["purged"] == len(NO_JOBS)


ENVELOPES: list[object] = [
    {"id": None}, {"id": ["x"]}, {"id": "another"}, {"id": ID, "type": 5}, {"id": ID, "type": "a.b", "args": 5},
    {"id": ID, "type": "a.b", "args": [], "tags": 5}, {"id": ID, "type": "a.b", "retry": {"max_attempts": -1}},
    {"id": ID, "type": "a.b", "errors": [5]}, {"id": ID, "type": "a.b", "meta": []},
]  # fmt: skip


@pytest.mark.parametrize("envelope", ENVELOPES, ids=str)
async def test_an_event_of_an_odd_job_hides_no_others(client: Client, envelope: object) -> None:
    """Whoever may write events may say anything of a job, and is believed as far as it makes sense."""
    broker = client.backend.broker
    channel = await broker.connection.channel()
    event = {"source": "x", "time": "2026-01-01T00:00:00Z", "subject": ID}
    data = {"job_type": "a.b", "queue": "email", "job": envelope}
    events = [
        {**event, "id": "e1", "type": "job.enqueued", "data": data},
        {**event, "id": "e2", "type": "job.started", "data": {**data, "worker_id": "w", "attempt": True}},
    ]
    await channel.publish(msgspec.json.encode(events), exchange=broker.declarer.topology.events, routing_key="x")
    known = await client.push()
    async with asyncio.timeout(20):
        while (await client.send("GET", f"/ojs/v1/jobs/{ID}")).status != 200:
            await asyncio.sleep(0.01)
    found = await client.job(ID)
    assert (found["id"], found["type"], found["args"], found["attempt"]) == (ID, "a.b", [], 0)
    listed = (await client.ask("GET", "/ojs/v1/jobs"))["jobs"]
    assert {one["id"] for one in listed} == {ID, known}
    await client.ask("GET", "/ojs/v1/queues/email/stats")
    await client.ask("GET", "/ojs/v1/queues/email/priority-stats")
    await client.ask("POST", "/ojs/v1/jobs/bulk/cancel", {"filter": {"queue": "email"}, "dry_run": True})


async def test_a_job_that_is_pushed_twice_at_once_is_enqueued_once(client: Client) -> None:
    """A client that gets no answer pushes again under the same id, and the first push may still be under way."""
    body = {**JOB, "id": ID, "options": {"queue": "email"}}
    responses = await asyncio.gather(*(client.send("POST", "/ojs/v1/jobs", body) for _ in range(5)))
    assert sorted(one.status for one in responses) == [201, 409, 409, 409, 409]
    batch = {"jobs": [{**body, "id": ID.replace("018f", "018e")}]}
    responses = await asyncio.gather(*(client.send("POST", "/ojs/v1/jobs/batch", batch) for _ in range(5)))
    assert sorted(one.status for one in responses) == [201, 409, 409, 409, 409]
    assert len(await client.fetch(count=10)) == 2


async def test_events_of_queues_that_no_broker_can_have_stand_in_nobodys_way(client: Client) -> None:
    """Anyone may publish an event."""
    await client.push()
    broker = client.backend.broker
    async with await broker.connection.channel(confirms=True) as channel:
        for number, queue in enumerate(("q" * 255, "\u00e9" * 127, "Not good", " ", "#")):
            event = {"id": f"evt_{number}", "type": "job.enqueued", "source": "x", "subject": f"job{number}"}
            data = {"queue": queue, "job_type": "a.b"}
            body = msgspec.json.encode(event | {"time": "2026-01-01T00:00:00Z", "data": data})
            await channel.publish(body, exchange=broker.declarer.topology.events, routing_key="job.enqueued")
    while len((await client.ask("GET", "/ojs/v1/jobs?limit=10"))["jobs"]) < 6:
        pass
    for path in (
        "queues",
        "dead-letter",
        "dead-letter/stats",
        "admin/queues",
        "admin/overview",
        "admin/queue-summaries",
    ):
        await client.ask("GET", f"/ojs/v1/{path}")
    await client.ask(
        "PUT", "/ojs/v1/queues/_default/config", {"dead_letter_ttl": "PT1S", "dead_letter_queue": "failed"}
    )
    retention = QueueRetention(client.backend)
    assert await retention.prune(datetime.now(UTC)) == 0
    await retention.close()
    for is_enabled in (True, False):
        await client.ask("POST", "/ojs/v1/admin/system/maintenance", {"enabled": is_enabled})
        assert len(await client.fetch()) == (not is_enabled)
