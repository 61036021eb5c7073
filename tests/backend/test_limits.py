"""Limits of jobs where they are fetched (ojs-rate-limiting)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from tests.backend.conftest import Client, client_of

JOBS = "/ojs/v1/jobs"


async def push(client: Client, limit: object, count: int = 1, queue: str = "email") -> list[str]:
    ids = []
    for number in range(count):
        body = {"type": "email.send", "args": [number], "options": {"queue": queue, "rate_limit": limit}}
        ids.append((await client.ask("POST", JOBS, body, 201))["id"])
    return ids


async def fetched(client: Client, wait_ms: int = 0) -> list[str]:
    return [one["id"] for one in await client.fetch(count=10, wait_ms=wait_ms)]


async def events(client: Client, kind: str, count: int) -> list[Any]:
    while True:
        found: list[Any] = (await client.ask("GET", f"/ojs/v1/events?types={kind}"))["events"]
        if len(found) >= count:
            return found
        await client.ask("GET", "/ojs/v1/queues")


async def test_so_many_at_a_time(client: Client) -> None:
    ids = await push(client, {"key": "stripe", "concurrency": 2}, 4)
    assert await fetched(client) == ids[:2]
    assert await fetched(client) == []
    assert {(await client.job(job_id))["state"] for job_id in ids[2:]} == {"available"}
    await client.ack(ids[0])
    assert await fetched(client) == ids[2:3]
    await client.nack(ids[1], error={"code": "x", "message": "no", "retryable": False})
    assert await fetched(client) == ids[3:]
    (exceeded, *_) = await events(client, "rate_limit.exceeded", 2)
    assert (exceeded["data"]["key"], exceeded["data"]["strategy"]) == ("stripe", "concurrency")
    assert len(await events(client, "rate_limit.released", 2)) == 2


async def test_others_pass_by(client: Client) -> None:
    limited = await push(client, {"key": "stripe", "concurrency": 1}, 3)
    free = [await client.push() for _ in range(2)]
    other = await push(client, {"key": "paypal", "concurrency": 1})
    assert await fetched(client) == [limited[0], *free, *other]
    for job_id in limited:
        await client.ack(job_id)
        assert await fetched(client) in ([limited[1]], [limited[2]], [])


async def test_so_many_starts_in_a_period(client: Client) -> None:
    ids = await push(client, {"key": "mail", "rate": {"limit": 2, "period": "PT1S"}}, 3)
    assert await fetched(client) == ids[:2]
    for job_id in ids[:2]:
        await client.ack(job_id)
    assert await fetched(client) == []
    assert await fetched(client, wait_ms=5000) == ids[2:]


async def test_what_is_to_be_dropped_is(client: Client) -> None:
    ids = await push(client, {"key": "push", "concurrency": 1, "on_limit": "drop"}, 2)
    assert await fetched(client) == ids[:1]
    # A fetch answers with what it gives: it does not wait until the rest is known.
    async with asyncio.timeout(10):
        while (await client.job(ids[1]))["state"] != "discarded":
            await asyncio.sleep(0.01)
    [dropped] = await events(client, "rate_limit.dropped", 1)
    assert dropped["data"] == {"key": "push", "job_id": ids[1], "job_type": "email.send"}


async def test_what_is_to_be_put_off_is(client: Client) -> None:
    ids = await push(client, {"key": "push", "concurrency": 1, "on_limit": "reschedule"}, 2)
    assert await fetched(client) == ids[:1]
    await client.ack(ids[0])
    assert await fetched(client, wait_ms=5000) == ids[1:]
    assert (await client.job(ids[1]))["state"] == "active"


async def test_what_is_put_off_is_shown_so(client: Client) -> None:
    """ojs-rate-limiting section 6.2: it is moved to the state `scheduled`. A retry stays `retryable`."""
    limit = {"key": "push", "rate": {"limit": 1, "period": "PT1H"}, "on_limit": "reschedule"}
    retry = {"max_attempts": 2, "initial_interval": "PT0.01S", "jitter": False}
    first = await client.push(rate_limit=limit, retry=retry)
    (second,) = await push(client, limit)
    assert await fetched(client) == [first]
    while (later := await client.job(second))["state"] != "scheduled":
        await asyncio.sleep(0.02)
    assert later["scheduled_at"] > client.backend.now()
    await client.nack(first)
    while (await client.job(first)).get("next_attempt_at", "") < later["scheduled_at"]:
        assert await fetched(client) == []
        await asyncio.sleep(0.02)


async def test_a_cancelled_job_that_waits_never_starts(client: Client) -> None:
    ids = await push(client, {"key": "stripe", "concurrency": 1}, 2)
    assert await fetched(client) == ids[:1]
    await client.ask("DELETE", f"{JOBS}/{ids[1]}")
    await client.ack(ids[0])
    assert await fetched(client) == []
    assert (await client.job(ids[1]))["state"] == "cancelled"


# --- what is set beside the jobs ---

LIMITS = "/ojs/v1/rate-limits"


async def test_a_limit_is_known_by_the_push_of_its_first_job(client: Client) -> None:
    """ojs-rate-limiting section 10.1."""
    await push(client, {"key": "stripe", "concurrency": 2}, 1)
    found = await client.ask("GET", f"{LIMITS}/stripe")
    assert found["concurrency"] == {"limit": 2, "active": 0, "available": 2}
    job = {"type": "a.b", "args": [], "options": {"queue": "email", "rate_limit": {"key": "mail", "concurrency": 1}}}
    await client.ask("POST", f"{JOBS}/batch", {"jobs": [job]}, 201)
    assert [one["key"] for one in (await client.ask("GET", LIMITS))["items"]] == ["mail", "stripe"]


async def test_limits_are_shown(client: Client) -> None:
    await client.ask("GET", f"{LIMITS}/stripe", status=404)
    await push(client, {"key": "stripe", "concurrency": 2, "rate": {"limit": 10, "period": "PT1M"}}, 3)
    await fetched(client)
    found = await client.ask("GET", f"{LIMITS}/stripe")
    assert found["concurrency"] == {"limit": 2, "active": 2, "available": 0}
    assert (found["rate"]["limit"], found["rate"]["period"], found["rate"]["current_count"]) == (10, "PT1M", 2)
    assert found["rate"]["window_resets_at"] > client.backend.now()
    assert found["waiting_count"] == 1
    assert [one["key"] for one in (await client.ask("GET", LIMITS))["items"]] == ["stripe"]


async def test_a_throttle_tells_when_the_next_job_may_start(client: Client) -> None:
    throttle = {"limit": 2, "period": "PT1H"}
    await push(client, {"key": "slow", "throttle": throttle}, 2)
    before = client.backend.now()
    assert len(await fetched(client)) == 1
    found = (await client.ask("GET", f"{LIMITS}/slow"))["throttle"]
    assert (found["limit"], found["period"], found["current_count"]) == (2, "PT1H", 1)
    wait = datetime.fromisoformat(found["next_allowed_at"]) - datetime.fromisoformat(before)
    assert timedelta(minutes=30) <= wait < timedelta(minutes=31)


async def test_a_limit_is_overridden(client: Client) -> None:
    await push(client, {"key": "stripe", "concurrency": 5}, 2)
    await client.ask("PUT", f"{LIMITS}/stripe", {"concurrency": 0})
    assert await fetched(client) == []
    assert (await client.ask("GET", f"{LIMITS}/stripe"))["concurrency"] == {"limit": 0, "active": 0, "available": 0}
    await client.ask("PUT", f"{LIMITS}/stripe/override", {"concurrency": 1})
    assert len(await fetched(client)) == 1
    await client.ask("DELETE", f"{LIMITS}/stripe")
    assert len(await fetched(client)) == 1
    await client.ask("DELETE", f"{LIMITS}/stripe", status=404)
    await client.ask("PUT", f"{LIMITS}/stripe", {"concurrency": 0, "expires_at": "2020-01-01T00:00:00Z"})
    assert "override" not in await client.ask("GET", f"{LIMITS}/stripe")
    bodies: list[object] = [
        {},
        {"concurrency": -1},
        {"concurrency": "x"},
        {"concurrency": 1, "expires_at": "x"},
        {"rate": {}},
    ]
    for body in bodies:
        await client.ask("PUT", f"{LIMITS}/stripe", body, 400)


async def test_a_job_that_was_told_to_wait_holds_its_key_back(client: Client) -> None:
    ids = await push(client, {"key": "stripe", "concurrency": 2}, 3)
    assert await fetched(client) == ids[:2]
    error = {"code": "RateLimitExceeded", "message": "429", "rate_limit_until": "2099-01-01T00:00:00Z"}
    await client.nack(ids[0], error=error)
    await client.nack(ids[1], error={**error, "rate_limit_until": "nonsense"})
    assert await fetched(client) == []
    assert (await client.ask("GET", f"{LIMITS}/stripe"))["override"]["expires_at"] == "2099-01-01T00:00:00.000Z"
    [adjusted] = await events(client, "rate_limit.dynamic_adjusted", 1)
    assert adjusted["data"] == {"key": "stripe", "until": "2099-01-01T00:00:00.000Z", "reason": "429"}


async def test_a_queue_has_a_limit(client: Client) -> None:
    path = "/ojs/v1/admin/queues/email/rate-limit"
    await client.ask("GET", path, status=404)
    assert (await client.ask("PUT", path, {"concurrency": 1}))["concurrency"] == 1
    first, second = await client.push(), await client.push()
    assert await fetched(client) == [first]
    await client.ask("DELETE", path)
    assert await fetched(client) == [second]
    await client.ask("PUT", path, {}, 400)


async def test_what_is_set_counts_on_every_server_and_after_a_restart(uri: str) -> None:
    path = "/ojs/v1/admin/queues/email/rate-limit"
    async with client_of(uri) as one, client_of(uri) as two:
        await push(one, {"key": "stripe", "concurrency": 5})
        await one.ask("PUT", f"{LIMITS}/stripe", {"concurrency": 0})
        await one.ask("PUT", path, {"concurrency": 1})
        while two.backend.limits.queues.get("email") is None:
            await two.ask("GET", "/ojs/v1/queues")
        assert (await two.ask("GET", path))["concurrency"] == 1
        assert (await two.ask("GET", f"{LIMITS}/stripe"))["override"]["concurrency"] == 0
        assert await fetched(two) == []
    async with client_of(uri) as again:
        assert (await again.ask("GET", path))["concurrency"] == 1
        assert await fetched(again) == []
        await again.ask("DELETE", f"{LIMITS}/stripe")
        assert len(await fetched(again)) == 1
