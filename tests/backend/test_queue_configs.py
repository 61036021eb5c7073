"""The configuration of queues (ojs-queue-config): bounds, limits, defaults for jobs, retention, allowed types."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend.application import Application
from waybill.backend.keys import Key, KeyRing, hash_of
from waybill.backend.message import Request
from waybill.backend.queue_retention import PAUSE_SECONDS, QueueRetention
from waybill.backend.router import ADMIN, OPERATE
from waybill.backend.routes import routes_of
from waybill.ojs.dead_letters import DeadJob, DeadLetters

QUEUES = "/ojs/v1/queues"
JOB = {"type": "email.send", "args": [], "options": {"queue": "email"}}

RETRY = {
    "max_attempts": 3,
    "initial_interval": "PT1S",
    "backoff_coefficient": 2.0,
    "max_interval": "PT5M",
    "jitter": True,
    "non_retryable_errors": [],
    "on_exhaustion": "dead_letter",
    "backoff_strategy": "exponential",
}
DEFAULTS = {
    "overflow_policy": "reject",
    "visibility_timeout": 1800,
    "default_timeout": 1800,
    "default_retry": RETRY,
    "allowed_job_types": ["*"],
    "producers": ["*"],
}
"""What applies to a queue that sets nothing."""


async def configure(client: Client, config: object, queue: str = "email", status: int = 200) -> Any:
    return await client.ask("PUT", f"{QUEUES}/{queue}/config", config, status)


async def config_of(client: Client, queue: str = "email") -> Any:
    return (await client.ask("GET", f"{QUEUES}/{queue}/config"))["config"]


async def test_a_queue_is_made_with_a_configuration(client: Client) -> None:
    config = {
        "max_size": 2,
        "concurrency": 1,
        "visibility_timeout": 300,
        "default_timeout": 1800,
        "retention": {"completed": "P3D", "discarded": "P30D"},
        "allowed_job_types": ["payment.*"],
        "default_retry": {"max_attempts": 5, "initial_interval": "PT5S", "backoff_coefficient": 3.0},
    }
    config["dead_letter_queue"] = "payments-dlq"
    config["max_size_bytes"] = 9000
    given = {"name": "payments", "config": config}
    made = await client.ask("POST", QUEUES, given, 201)
    assert made["config"] == {
        **DEFAULTS,
        **config,
        "default_retry": {**RETRY, "max_attempts": 5, "initial_interval": "PT5S", "backoff_coefficient": 3.0},
    }
    assert (
        (await client.ask("GET", f"{QUEUES}/payments"))["config"]
        == made["config"]
        == await config_of(client, "payments")
    )
    admin = await client.ask("GET", "/ojs/v1/admin/queues/payments/config")
    assert (admin["configuration"]["concurrency"], admin["backpressure"]["max_depth"]) == (1, 2)
    job = {"type": "payment.take", "args": [], "queue": "payments"}
    await client.ask("POST", "/ojs/v1/jobs", job, 201)
    await client.ask("POST", "/ojs/v1/jobs", job | {"timeout_ms": 9}, 201)
    await client.ask("POST", "/ojs/v1/jobs", job, 429)
    first, *rest = await client.fetch("payments", count=2)
    assert (rest, first["timeout_ms"], first["max_attempts"]) == ([], 1_800_000, 5)
    await client.ack(first["id"])
    assert [one["timeout_ms"] for one in await client.fetch("payments", count=2)] == [9]


async def test_only_producers_may_push(client: Client) -> None:
    await configure(client, {"producers": ["shop-*", "ada"]})
    names = ("shop-web", "ada", "bob")
    ring = KeyRing([Key(name, OPERATE, hash_of(f"wb_{name}")) for name in names])
    application = Application(routes_of(client.backend), ring)
    for body, path in ((JOB, "/ojs/v1/jobs"), ({"jobs": [JOB]}, "/ojs/v1/jobs/batch")):
        raw = msgspec.json.encode(body)
        asked = [application.handle(Request("POST", path, {}, {"x-api-key": f"wb_{one}"}, raw)) for one in names]
        assert [(await one).status for one in asked] == [201, 201, 403]
    # Without keys, nobody has a name.
    await client.ask("POST", "/ojs/v1/jobs", JOB, 201)


async def test_only_admins_make_queues_with_a_configuration(client: Client) -> None:
    ring = KeyRing([Key(role, role, hash_of(f"wb_{role}")) for role in (OPERATE, ADMIN)])
    application = Application(routes_of(client.backend), ring)
    for role, config, status in ((OPERATE, {"max_size": 1}, 403), (OPERATE, {}, 201), (ADMIN, {"max_size": 1}, 201)):
        raw = msgspec.json.encode({"name": "email", "config": config})
        request = Request("POST", QUEUES, {}, {"x-api-key": f"wb_{role}"}, raw)
        assert (await application.handle(request)).status == status


async def test_a_change_keeps_what_it_does_not_name(client: Client) -> None:
    await configure(client, {"concurrency": 3, "rate_limit": {"limit": 100, "period": "PT1M"}, "max_size": 9})
    changed = await configure(client, {"concurrency": None, "retention": {"cancelled": "P1D"}})
    assert changed["config"] == {
        **DEFAULTS,
        "max_size": 9,
        "rate_limit": {"limit": 100, "period": "PT1M"},
        "retention": {"cancelled": "P1D"},
    }
    assert (await configure(client, {"rate_limit": None, "retention": None, "max_size": None}))["config"] == DEFAULTS
    assert len(client.backend.extensions.queue_configs) == len(client.backend.limits.queues) == 0


async def test_defaults_are_for_queues_that_set_nothing_else(client: Client) -> None:
    default = {"default_timeout": 60, "max_size": 1, "concurrency": 1, "retention": {"completed": "P7D"}}
    await configure(client, default, "_default")
    await configure(client, {"default_timeout": 5}, "report")
    assert (await config_of(client, "report")) == {**DEFAULTS, **default, "default_timeout": 5}
    await client.push("other")
    await client.ask("POST", "/ojs/v1/jobs", {"type": "a.b", "args": [], "queue": "other"}, 429)
    [job] = await client.fetch("other")
    await client.push("other")
    assert (job["timeout_ms"], await client.fetch("other")) == (60_000, [])
    assert [one["timeout_ms"] for one in [await client.job(await client.push("report"))]] == [5000]


async def test_a_configuration_that_is_read_can_be_written(client: Client) -> None:
    assert (await configure(client, await config_of(client)))["config"] == DEFAULTS
    await client.push()
    assert len(await client.fetch()) == 1


async def test_only_allowed_types_are_accepted(client: Client) -> None:
    await configure(client, {"allowed_job_types": ["payment.*", "email.send"]})
    await client.push()
    error = (await client.ask("POST", "/ojs/v1/jobs", {"type": "a.b", "args": [], "queue": "email"}, 422))["error"]
    assert (error["code"], error["details"]["type"]) == ("JOB_TYPE_NOT_ALLOWED", "a.b")


async def test_jobs_are_deleted_after_their_retention(client: Client) -> None:
    await configure(client, {"retention": {"completed": "PT1H", "discarded": "P30D"}})
    jobs = {}
    for queue in ("email", "other"):
        jobs[queue] = await client.push(queue), await client.push(queue, retry={"max_attempts": 1})
        await client.fetch(queue, count=2)
        await client.ack(jobs[queue][0])
        await client.nack(jobs[queue][1])
    retention, now = QueueRetention(client.backend), datetime.now(UTC)
    assert await retention.prune(now + timedelta(minutes=59)) == 0
    assert await retention.prune(now + timedelta(minutes=61)) == 1
    await client.ask("GET", f"/ojs/v1/jobs/{jobs['email'][0]}", status=404)
    for job_id in (jobs["email"][1], *jobs["other"]):
        await client.job(job_id)
    assert await retention.prune(now + timedelta(days=31)) == 1
    assert (await client.ask("GET", "/ojs/v1/dead-letter"))["count"] == 1
    await retention.close()


async def test_the_time_of_the_next_pruning_is_told(client: Client) -> None:
    retention = (await client.ask("GET", "/ojs/v1/dead-letter/stats"))["retention"]
    passed = datetime.fromisoformat(retention["next_prune_at"]) - datetime.now(UTC)
    assert timedelta(0) < passed <= timedelta(seconds=PAUSE_SECONDS)


async def test_dead_letters_are_deleted_by_age_and_number(client: Client) -> None:
    """ojs-dead-letter section 8.1."""
    nested = {"dead_letter": {"retention": {"max_age": "P180D", "max_count": 2}}}
    assert (await configure(client, nested))["config"] == {
        **DEFAULTS,
        "dead_letter_ttl": "P180D",
        "dead_letter_max_size": 2,
    }
    ids = [await client.push(retry={"max_attempts": 1}) for _ in range(3)]
    await client.fetch(count=3)
    for job_id in ids:
        await client.nack(job_id)
    retention, now = QueueRetention(client.backend), datetime.now(UTC)
    assert await retention.prune(now) == 1
    letters = (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"]
    assert sorted(one["id"] for one in letters) == ids[1:]
    assert await retention.prune(now + timedelta(days=181)) == 2
    assert (await client.ask("GET", "/ojs/v1/dead-letter/stats"))["total"] == 0
    async with asyncio.timeout(10):
        while len(found := (await client.ask("GET", "/ojs/v1/events?types=dead_letter.pruned"))["events"]) < 2:
            await asyncio.sleep(0.01)
    assert [one["data"] for one in found] == [{"queue": "email", "count": 2}, {"queue": "email", "count": 1}]
    await retention.close()


async def test_dead_letters_are_deleted_few_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be more than fit into memory."""
    monkeypatch.setattr("waybill.backend.queue_retention.DEAD_AT_A_TIME", 2)
    read: list[int] = []
    peek = DeadLetters.peek

    async def noted(dead: DeadLetters, limit: int | None = None) -> list[DeadJob]:
        found = await peek(dead, limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(DeadLetters, "peek", noted)
    await configure(client, {"dead_letter_max_size": 2})
    ids = [await client.push(retry={"max_attempts": 1}) for _ in range(7)]
    await client.fetch(count=7)
    for job_id in ids:
        await client.nack(job_id)
    retention = QueueRetention(client.backend)
    assert (await retention.prune(datetime.now(UTC)), max(read)) == (5, 2)
    assert await retention.prune(datetime.now(UTC) + timedelta(days=999)) == 0
    await retention.close()


@pytest.mark.parametrize(
    "config",
    [
        {"max_size": -1},
        {"overflow_policy": "sink", "max_size": 1},
        {"concurrency": 0},
        {"concurrency": "many"},
        {"rate_limit": {"limit": 0, "period": "PT1S"}},
        {"retention": {"active": "P1D"}},
        {"retention": {"completed": "a day"}},
        {"retention": {"completed": "P100000D"}},
        {"retention": 7},
        {"visibility_timeout": 0},
        {"default_timeout": True},
        {"default_retry": 7},
        {"default_retry": {"max_attempts": "x"}},
        {"allowed_job_types": "a"},
        {"allowed_job_types": [""]},
        {"dead_letter_ttl": 7},
        {"dead_letter_max_size": -1},
        {"colour": "red"},
    ],
)
async def test_what_is_no_configuration_is_refused(client: Client, config: object) -> None:
    response = await client.send("PUT", f"{QUEUES}/email/config", config)
    assert response.status in {400, 422}
    assert await config_of(client) == DEFAULTS
    await configure(client, {"concurrency": 1}, "Bad Name", 400)


async def test_a_configured_queue_is_known_before_its_first_job(client: Client) -> None:
    await client.ask("GET", "/ojs/v1/admin/queues/new", status=404)
    await client.ask("PUT", "/ojs/v1/admin/queues/new/config", {"backpressure": {"max_depth": 5}})
    found = await client.ask("GET", "/ojs/v1/admin/queues/new")
    assert (found["configuration"]["backpressure"]["max_depth"], found["counts"]["available"]) == (5, 0)
    await client.push("new")
    await client.push("plain")
    changed = (await client.ask("GET", "/ojs/v1/queues/new"))["updated_at"]
    assert (await client.ask("GET", "/ojs/v1/queues/new/config"))["updated_at"] == changed <= client.backend.now()
    assert "updated_at" not in await client.ask("GET", "/ojs/v1/queues/plain")
