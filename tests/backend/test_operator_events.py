"""What operators do, and what limits refuse, is in the event stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.backend.conftest import Client
from tests.backend.test_webhooks import Endpoint, endpoint
from waybill.backend import webhooks

__all__ = ["endpoint"]
JOBS = "/ojs/v1/jobs"
QUEUES = "/ojs/v1/queues"


async def told(client: Client, kind: str, count: int = 1) -> list[tuple[str, Any]]:
    """Return the subjects and the data of these events, oldest first, once there are so many."""
    async with asyncio.timeout(10):
        while len(found := (await client.ask("GET", f"/ojs/v1/events?types={kind}"))["events"]) < count:
            await asyncio.sleep(0.01)
    return [(one["subject"], one["data"]) for one in reversed(found)]


async def test_queues(client: Client) -> None:
    for _ in range(2):
        await client.ask("POST", QUEUES, {"name": "reports"}, 201)
    assert await told(client, "queue.created") == [("reports", {"queue": "reports"})]
    await client.ask("PUT", f"{QUEUES}/reports/config", {"max_size": 3, "default_timeout": 60})
    changed = {"queue": "reports", "fields": ["default_timeout", "max_size"]}
    assert await told(client, "queue.config_updated") == [("reports", changed)]
    await client.ask("DELETE", f"{QUEUES}/reports")
    assert await told(client, "queue.deleted") == [("reports", {"queue": "reports"})]


async def test_a_queue_is_full_once_until_it_had_room(client: Client) -> None:
    await client.ask("PUT", f"{QUEUES}/email/config", {"max_size": 1})
    push = {"type": "a.b", "args": [], "options": {"queue": "email"}}
    job_id = await client.push()
    for _ in range(2):
        await client.ask("POST", JOBS, push, 429)
        client.backend.extensions.push_checks._rejected_at.clear()
    await client.ask("DELETE", f"{JOBS}/{job_id}")
    await client.push()
    await client.ask("POST", JOBS, push, 429)
    assert await told(client, "queue.full", 2) == [("email", {"queue": "email", "depth": 1, "bound": 1})] * 2
    await client.ask("PUT", f"{QUEUES}/email/config", {"overflow_policy": "drop_oldest"})
    await client.ask("POST", JOBS, push, 201)
    assert await told(client, "queue.overflow") == [("email", {"queue": "email", "count": 1})]


async def test_priorities(client: Client) -> None:
    ids = [await client.push(priority=1) for _ in range(2)]
    await client.ask("PATCH", f"{JOBS}/{ids[0]}", {"priority": 7})
    await client.ask("PATCH", JOBS, {"job_ids": ids, "priority": 7})
    changed = {"job_type": "email.send", "queue": "email", "previous_priority": 1, "new_priority": 7}
    assert await told(client, "priority.changed", 2) == [(one, {"job_id": one, **changed}) for one in ids]


async def test_checkpoints(client: Client) -> None:
    job_id = await client.push()
    await client.fetch()
    await client.ask("POST", f"{JOBS}/{job_id}/checkpoint", {"state": {"row": 7}})
    saved = {"job_type": "email.send", "queue": "email", "attempt": 1, "sequence": 1}
    assert await told(client, "job.checkpointed") == [(job_id, saved)]
    assert (await client.job(job_id))["state"] == "active"


async def test_tenants(client: Client) -> None:
    for _ in range(2):
        await client.ask("PUT", "/ojs/v1/admin/tenants/acme", {"limits": {"max_queue_depth": 0}})
    assert await told(client, "tenant.created") == [("acme", {"tenant_id": "acme"})]
    for _ in range(3):
        await client.ask("POST", JOBS, {"type": "a.b", "args": [], "options": {"queue": "acme.email"}}, 429)
    exceeded = {"tenant_id": "acme", "limit": "max_queue_depth", "current": 0, "maximum": 0}
    assert await told(client, "tenant.limit_exceeded") == [("acme", exceeded)]


async def test_pools(client: Client) -> None:
    path, pool = "/ojs/v1/admin/pools/general", {"queues": ["a", "b"]}
    for strategy in ("strict", "round-robin", "round-robin"):
        await client.ask("PUT", path, {**pool, "strategy": strategy})
    changed = {"pool": "general", "previous_strategy": "strict", "new_strategy": "round-robin"}
    assert await told(client, "scheduling.rebalanced") == [("general", changed)]


@pytest.mark.parametrize("way", ["one", "many", "bulk"])
async def test_dead_letters(client: Client, way: str) -> None:
    ids = [await client.push(retry={"max_attempts": 1}) for _ in range(2)]
    for one in await client.fetch(count=2):
        await client.nack(one["id"])
    if way == "one":
        for one in ids:
            await client.ask("POST", f"/ojs/v1/dead-letter/{one}/retry")
    elif way == "many":
        await client.ask("POST", "/ojs/v1/dead-letter/retry", {"queue": "email"})
    else:
        await client.ask("POST", f"{JOBS}/bulk/retry", {"job_ids": ids})
    found = await told(client, "dead_letter.retried", 2)
    assert sorted(one for one, _ in found) == sorted(ids)


async def test_webhooks_do_not_tell_of_themselves(
    client: Client, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DELAYS_SECONDS", (0.0, 0.0))
    client.backend.extensions.webhooks.allows_private = True
    base = "/ojs/v1/webhooks/subscriptions"
    endpoint.statuses = [503, 200, 503, 503]
    made = (await client.ask("POST", base, {"url": endpoint.url, "events": ["queue.*", "webhook.*"]}, 201))["id"]
    assert (await told(client, "webhook.subscription.created"))[0] == (made, {"subscription_id": made})
    await told(client, "webhook.delivered")
    await client.ask("POST", f"{QUEUES}/email/pause")
    subject, dead = (await told(client, "webhook.dead"))[0]
    assert (subject, dead["event_type"], dead["attempts"], dead["status_code"]) == (made, "queue.paused", 2, 503)
    assert len(await told(client, "webhook.failed", 2)) == 2
    await client.ask("DELETE", f"{base}/{made}")
    await told(client, "webhook.subscription.deleted")
    kinds = [endpoint.received.get_nowait()[0]["x-ojs-event-type"] for _ in range(endpoint.received.qsize())]
    assert set(kinds) <= {"webhook.subscription.created", "queue.paused"}
