"""The same histories over both bindings: a job pushed and done over AMQP, over HTTP, and over one after the other.

What is compared is what others see: the envelope that the handler gets, the events with their attempts, the end as the
server tells of it, and the outcome that the pusher gets.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any, Final

import msgspec
import pytest

from tests.conformance.requirement import requirement
from tests.http.conftest import URL, Wire
from waybill.ojs import DeadLetterJob, DiscardJob, Jobs, PostponeJob, Retry, Worker, current_job
from waybill.ojs.results.errors import JobFailed
from waybill.ojs.spec.identifiers import new_id

AMQP: Final = "amqp"
HTTP: Final = "http"
POLICY: Final = Retry(
    max_attempts=2,
    initial_interval=timedelta(seconds=1),
    backoff_strategy="none",
    jitter=False,
    non_retryable_errors=("TypeError",),
)
SCENARIOS: Final = (
    "succeed", "fail once", "fail always", "fail for good", "discard", "bury", "postpone", "cancel",
)  # fmt: skip
CONTENT: Final = ("type", "args", "meta", "priority", "retry", "tags", "schema", "custom")
EXPECTED: Final = {
    "succeed": ["job.enqueued", ("job.started", 1), ("job.completed", 1)],
    "fail once": [
        "job.enqueued", ("job.started", 1), ("job.failed", 1), ("job.retrying", 1), ("job.started", 2),
        ("job.completed", 2),
    ],
    "fail always": [
        "job.enqueued", ("job.started", 1), ("job.failed", 1), ("job.retrying", 1), ("job.started", 2),
        ("job.failed", 2), "job.discarded",
    ],
    "cancel": ["job.enqueued", "job.cancelled"],
}  # fmt: skip


@dataclass
class History:
    """What is seen of one job."""

    envelope: dict[str, object] = field(default_factory=dict)
    events: list[object] = field(default_factory=list)
    end: dict[str, object] = field(default_factory=dict)
    outcome: object = None


class Program:
    """The handlers, on whichever binding, and what they have seen."""

    def __init__(self, uri: str, queue: str) -> None:
        self.jobs = Jobs(uri, create_queues=True)
        self.queue = queue
        self.seen: dict[str, dict[str, object]] = {}
        self.postponed: set[str] = set()
        self.jobs.handler("scenario.run", queue=queue, retry=POLICY)(self.run)

    async def run(self, scenario: str, number: int) -> dict[str, object]:
        job = current_job()
        known: dict[str, object] = msgspec.to_builtins(job.envelope)
        self.seen.setdefault(job.id, {name: (known | job.envelope.unknown).get(name) for name in CONTENT})
        match scenario:
            case "fail once" if job.attempt == 1:
                raise ValueError("the first time")
            case "fail always":
                raise ValueError("every time")
            case "fail for good":
                raise TypeError("of a kind that is not retried")
            case "discard":
                raise DiscardJob("of no further interest")
            case "bury":
                raise DeadLetterJob("for somebody to look at", details={"number": number})
            case "postpone" if job.id not in self.postponed:
                self.postponed.add(job.id)
                raise PostponeJob(1.0)
        return {"number": number, "attempt": job.attempt}


def pushed(scenario: str, queue: str) -> dict[str, object]:
    """The envelope of a scenario, with everything that a caller may set."""
    return {
        "specversion": "1.0",
        "id": new_id(),
        "type": "scenario.run",
        "queue": queue,
        "args": [scenario, 7],
        "meta": {"tenant": "ü", "deep": {"list": [1, None, 2.5]}},
        "priority": 3,
        "tags": ["one", "two"],
        "retry": msgspec.to_builtins(POLICY) | {"initial_interval": "PT1S"},
        "custom": {"kept": True},
    }


async def histories(push: Program, work: Program, wire: Wire) -> dict[str, History]:
    """Run every scenario once."""
    await wire.client.backend.coordinate_queue(push.queue)
    handles = {scenario: await push.jobs.push_job(pushed(scenario, push.queue)) for scenario in SCENARIOS}
    await handles["cancel"].cancel()
    assert await handles["cancel"].wait(20) == "cancelled"
    found = {scenario: History() for scenario in handles}
    async with Worker(work.jobs, queues=[push.queue], concurrency=20):
        for scenario, handle in handles.items():
            try:
                found[scenario].outcome = await handle.result(30)
            except JobFailed as failed:
                outcome = (type(failed).__name__, failed.state, failed.type, failed.message, failed.attempts)
                found[scenario].outcome = outcome
    for scenario, handle in handles.items():
        found[scenario].envelope = work.seen.get(handle.id, {})
        form = await ended(wire, handle.id)
        error = form.get("error") or {}
        found[scenario].end = {name: form.get(name) for name in ("type", "queue", "state", "attempt", "result")}
        found[scenario].end |= {"queue": "", "code": error.get("code"), "message": error.get("message")}
        found[scenario].events = await events_of(wire, handle.id)
    return found


async def ended(wire: Wire, job_id: str) -> dict[str, Any]:
    """What the server shows of a job that has ended: its result may have been there before the event was read."""
    form: dict[str, Any] = await wire.client.job(job_id)
    async with asyncio.timeout(30):
        while form["state"] not in {"completed", "discarded", "cancelled"}:
            form = await wire.client.job(job_id)
    return form


async def events_of(wire: Wire, job_id: str) -> list[object]:
    """The lifecycle of a job as the stream tells it."""
    events = await wire.client.backend.events.newest(set(), set(), job_id, 100)
    found: list[object] = []
    # One that several may write has one id: that of a cancellation.
    for event in {event["id"]: event for event in reversed(events)}.values():
        data = event["data"]
        assert isinstance(data, dict)
        attempt = data.get("attempt")
        if event["type"] not in {"job.heartbeat", "job.progress"}:
            found.append(event["type"] if attempt is None else (event["type"], attempt))
    return found


@pytest.fixture
async def all_histories(uri: str, wire: Wire) -> dict[tuple[str, str], dict[str, History]]:
    """Every scenario, over each pair of bindings."""
    uris = {AMQP: uri, HTTP: URL}
    ways = list(product(uris, uris))
    async with AsyncExitStack() as stack:
        pairs = []
        for way in ways:
            programs = [Program(uris[binding], "-".join(way)) for binding in way]
            for program in programs:
                await stack.enter_async_context(program.jobs)
            pusher, worker = programs
            pairs.append(histories(pusher, worker, wire))
        return dict(zip(ways, await asyncio.gather(*pairs), strict=True))


@requirement("OJS-002")
async def test_a_job_has_the_same_history_over_both_bindings(
    all_histories: dict[tuple[str, str], dict[str, History]],
) -> None:
    over_amqp = all_histories[AMQP, AMQP]
    for scenario, events in EXPECTED.items():
        assert over_amqp[scenario].events == events, scenario
    for way, found in all_histories.items():
        for scenario, history in found.items():
            assert history == over_amqp[scenario], (way, scenario)


@requirement("OJS-001")
async def test_everything_is_there_over_http_alone_and_both_bindings_share_the_jobs(wire: Wire, uri: str) -> None:
    client = wire.client
    # Nobody but the server itself speaks AMQP.
    ids = [await client.push(retry={"max_attempts": 1}) for _ in range(4)]
    batch = await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [{"type": "email.send", "args": []}]}, 201)
    assert (await client.job(batch["jobs"][0]["id"]))["state"] == "available"
    assert (await client.ask("DELETE", f"/ojs/v1/jobs/{ids.pop()}"))["state"] == "cancelled"
    fetched = await client.fetch(count=10)
    assert sorted(job["id"] for job in fetched) == sorted(ids)
    beat = {"worker_id": "w1", "active_jobs": ids}
    assert sorted((await client.ask("POST", "/ojs/v1/workers/heartbeat", beat))["jobs_extended"]) == sorted(ids)
    assert (await client.ack(ids[0], result=1))["state"] == "completed"
    assert (await client.nack(ids[1]))["state"] == "discarded"
    assert (await client.ask("POST", f"/ojs/v1/dead-letter/{ids[1]}/retry", {}))["job"]["state"] == "available"
    await client.nack(ids[2], requeue=True)
    await client.ask("POST", "/ojs/v1/queues/email/pause", {})
    assert await client.fetch() == []
    await client.ask("POST", "/ojs/v1/queues/email/resume", {})
    assert (await client.ask("GET", "/ojs/v1/queues/email/stats"))["queue"] == "email"
    cron = {"name": "nightly", "expression": "0 3 * * *", "type": "email.send", "args": []}
    await client.ask("POST", "/ojs/v1/cron", cron, 201)
    assert (await client.ask("GET", "/ojs/v1/health"))["status"] == "ok"
    assert {"http", "amqp"} <= set((await client.ask("GET", "/ojs/manifest"))["protocols"])
    # With AMQP, both work against the same jobs.
    done: list[str] = []
    async with Jobs(uri, create_queues=True) as jobs:

        @jobs.handler("email.send", queue="email")
        async def send(*_: object) -> None:
            done.append(current_job().id)

        over_amqp = await send.push("b@example.com")
        [taken] = await client.fetch(count=1)
        await client.nack(taken["id"], requeue=True)
        async with Worker(jobs):
            for job_id in (ids[1], ids[2], over_amqp.id):
                assert await jobs.job(job_id).wait(20) == "completed"
                assert (await client.job(job_id))["state"] == "completed"
        assert sorted(done) == sorted([ids[1], ids[2], over_amqp.id])
