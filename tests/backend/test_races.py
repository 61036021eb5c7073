"""A job that is changed from several sides at once: what a request is answered is what has become of the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import FAST, Client, client_of
from waybill.backend import bulk
from waybill.backend.backend import Backend
from waybill.broker import Broker
from waybill.ojs import Jobs
from waybill.ojs.coordinator import job_requests
from waybill.ojs.coordinator.staged import Staged
from waybill.ojs.spec.events import JobCancellation

JOBS = "/ojs/v1/jobs"
ADMIN = "/ojs/v1/admin/jobs"
HANDLER_FAILED = {"error": {"code": "handler_error", "message": "no"}}


@pytest.fixture(params=["memory", "sqlite"])
async def racing(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    database = ":memory:" if request.param == "memory" else f"{tmp_path}/jobs.sqlite"
    async with Broker(port=0) as broker, Backend(Jobs(broker.uri(), results=False), database=database) as backend:
        yield Client(backend)


async def answers(*sends: Any) -> list[tuple[int, Any]]:
    found = await asyncio.gather(*sends)
    return [(one.status, msgspec.json.decode(one.body)) for one in found]


@pytest.mark.parametrize("end", [HANDLER_FAILED, {"requeue": True}, {"requeue": True, "delay_ms": 60_000}])
async def test_a_job_that_is_given_back_while_it_is_cancelled_is_cancelled(racing: Client, end: Any) -> None:
    job_id = await racing.push(retry={"max_attempts": 3, "initial_interval": "PT1M", "jitter": False})
    assert len(await racing.fetch()) == 1
    (ended, _), (status, found) = await answers(
        racing.send("POST", "/ojs/v1/workers/nack", {"job_id": job_id, **end}),
        racing.send("DELETE", f"{JOBS}/{job_id}"),
    )
    assert (status, found["state"], ended in {200, 409}) == (200, "cancelled", True)
    assert (await racing.job(job_id))["state"] == "cancelled"


async def test_a_job_whose_lease_expires_while_it_is_cancelled_is_cancelled(racing: Client) -> None:
    job_id = await racing.push(retry=FAST)
    await racing.fetch()
    lease = racing.backend.leases.get(job_id)
    assert lease is not None
    racing.backend.leases.expire(lease)
    found = await racing.ask("DELETE", f"{JOBS}/{job_id}")
    assert (found["state"], (await racing.job(job_id))["state"]) == ("cancelled", "cancelled")


async def test_bulk_cancels_what_is_given_back_meanwhile(racing: Client) -> None:
    job_id = await racing.push(retry={"max_attempts": 3, "initial_interval": "PT1M", "jitter": False})
    await racing.fetch()
    _, (status, found) = await answers(
        racing.send("POST", "/ojs/v1/workers/nack", {"job_id": job_id, **HANDLER_FAILED}),
        racing.send("POST", f"{JOBS}/bulk/cancel", {"job_ids": [job_id]}),
    )
    assert (status, found["items"][0]["status"]) == (200, "cancelled")
    assert (await racing.job(job_id))["state"] == "cancelled"


async def test_a_job_that_a_worker_does_not_stop_is_not_said_to_be_cancelled(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_requests, "LEAVE_SECONDS", 0.01)
    job_id = await client.push()
    # As a worker over AMQP does.
    events = client.backend.broker.events
    async with client.backend.folded([("job.started", job_id)]):
        events.record_started(job_id, events.timestamp(), "email.send", "email", 1, "elsewhere")
    for method, path in (("DELETE", f"{JOBS}/{job_id}"), ("POST", f"/ojs/v1/admin/jobs/{job_id}/cancel")):
        assert (await client.ask(method, path))["state"] == "active"
    found = await client.ask("POST", f"{JOBS}/bulk/cancel", {"job_ids": [job_id]}, 422)
    assert (found["cancelled"], found["items"][0]["status"]) == (0, "failed")
    assert "told to stop" in found["items"][0]["reason"]


@pytest.mark.parametrize("unique", [None, {"keys": ["args"], "period": "PT1H"}])
@pytest.mark.parametrize("end", ["ack", "nack"])
async def test_an_end_that_comes_after_a_cancellation_is_refused(racing: Client, unique: Any, end: str) -> None:
    """Both ways of an acknowledgement: with a unique key, it is not the quick one."""
    job_id = await racing.push(**({} if unique is None else {"unique": unique}))
    await racing.fetch()
    # As another server does, whose message to the workers is still on its way.
    racing.backend.broker.events.record(job_id, JobCancellation(job_type="email.send", queue="email"))
    found = await getattr(racing, end)(job_id, 409)
    assert (found["error"]["code"], found["error"]["details"]["current_state"]) == ("conflict", "cancelled")
    assert (await racing.job(job_id))["state"] == "cancelled"


async def test_a_job_is_activated_or_cancelled(racing: Client) -> None:
    activated = 0
    for number in range(20):
        made = {"type": "a.b", "args": [number], "options": {"queue": "email", "pending": True}}
        job_id = (await racing.ask("POST", JOBS, made, 201))["id"]
        requests = [("POST", f"{JOBS}/{job_id}/activate"), ("DELETE", f"{JOBS}/{job_id}")]
        if number % 2:
            requests.reverse()
        found = dict(
            zip([one for one, _ in requests], await answers(*(racing.send(*one) for one in requests)), strict=True)
        )
        assert (found["DELETE"][0], found["DELETE"][1]["state"]) == (200, "cancelled")
        status, told = found["POST"]
        activated += status == 200
        assert status == 200 or told["error"]["details"]["current_state"] in {"cancelled", "pending"}, told
        assert (await racing.job(job_id))["state"] == "cancelled"
    assert await racing.fetch(count=100) == []


@pytest.mark.parametrize("path", [f"{JOBS}/bulk/cancel", "/ojs/v1/admin/jobs"])
async def test_a_pending_job_that_is_cancelled_is_forgotten(client: Client, path: str) -> None:
    made = {"type": "a.b", "args": [], "options": {"queue": "email", "pending": True}}
    job_id = (await client.ask("POST", JOBS, made, 201))["id"]
    if path.endswith("bulk/cancel"):
        await client.ask("POST", path, {"job_ids": [job_id]})
    else:
        await client.ask("POST", f"{path}/{job_id}/cancel")
    assert await client.backend.view.listed("staged/", Staged, 10) == []


async def test_a_job_is_retried_once_at_a_time(racing: Client) -> None:
    job_id = await racing.push(retry={"max_attempts": 1})
    await racing.fetch()
    await racing.nack(job_id)
    retry = f"/ojs/v1/admin/jobs/{job_id}/retry"
    found = await answers(racing.send("POST", retry), racing.send("POST", retry))
    assert sorted(status for status, _ in found) == [200, 409]
    assert len(await racing.fetch(count=5)) == 1


@pytest.mark.parametrize("one", [f"{ADMIN}/{{}}/retry", "/ojs/v1/dead-letter/{}/retry"])
@pytest.mark.parametrize("other", [f"{ADMIN}/{{}}/retry", "/ojs/v1/dead-letter/{}/retry"])
async def test_a_dead_letter_that_two_servers_retry_at_once_runs_once(uri: str, one: str, other: str) -> None:
    """One holds the dead letter, so the other does not find it: it must not push the job again from its envelope."""
    async with client_of(uri) as first, client_of(uri) as second:
        for number in range(10):
            job_id = await first.push(queue=f"q{number}", retry={"max_attempts": 1})
            await first.fetch(f"q{number}")
            await first.nack(job_id)
            while (await second.job(job_id))["state"] != "discarded":
                pass
            found = await answers(first.send("POST", one.format(job_id)), second.send("POST", other.format(job_id)))
            assert 200 in {status for status, _ in found}, found
            copies = [*await first.fetch(f"q{number}", count=5), *await second.fetch(f"q{number}", count=5)]
            assert len(copies) == 1


async def test_a_job_without_a_dead_letter_that_two_servers_retry_at_once_runs_once(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "ARRIVAL_LOOKS", 1)
    async with client_of(uri) as first, client_of(uri) as second:
        for number in range(10):
            job_id = await first.push(queue=f"q{number}", retry={"max_attempts": 1})
            await first.fetch(f"q{number}")
            await first.nack(job_id)
            await first.ask("DELETE", f"/ojs/v1/dead-letter/{job_id}")
            while (await second.job(job_id))["state"] != "discarded":
                pass
            path = f"{ADMIN}/{job_id}/retry"
            found = await answers(first.send("POST", path), second.send("POST", path))
            assert 200 in {status for status, _ in found}, found
            copies = [*await first.fetch(f"q{number}", count=5), *await second.fetch(f"q{number}", count=5)]
            assert len(copies) == 1


@pytest.mark.plain_source
async def test_a_dead_letter_that_is_on_its_way_is_retried_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker moves it after the event of its end."""
    job_id = await client.push(retry={"max_attempts": 1})
    await client.fetch()
    settlement, moves = client.backend.settlement, []
    move = settlement._dead_letter
    monkeypatch.setattr(settlement, "_dead_letter", lambda *given: moves.append(given))
    await client.nack(job_id)
    retried = asyncio.create_task(client.ask("POST", f"{ADMIN}/{job_id}/retry"))
    await asyncio.sleep(0.1)
    [given] = moves
    move(*given)
    assert (await retried)["state"] == "available"
    assert len(await client.fetch(count=5)) == 1
    assert (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"] == []


async def test_a_scheduled_job_that_is_cancelled_while_its_priority_is_changed_is_cancelled(
    racing: Client,
) -> None:
    """The message with the other priority comes later: it does not begin the job anew."""
    for number in range(5):
        made = {"type": "a.b", "args": [number], "options": {"queue": "email", "scheduled_at": "+PT20S"}}
        job_id = (await racing.ask("POST", JOBS, made, 201))["id"]
        priority = asyncio.create_task(racing.send("PATCH", f"{JOBS}/{job_id}", {"priority": 7}))
        for _ in range(number * 10):
            await asyncio.sleep(0)
        assert (await racing.ask("DELETE", f"{JOBS}/{job_id}"))["state"] == "cancelled"
        assert (await priority).status in {200, 409}
        assert (await racing.job(job_id))["state"] == "cancelled"


@pytest.mark.plain_source
async def test_a_job_without_a_dead_letter_is_retried_whatever_clock_it_ended_by(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "ARRIVAL_LOOKS", 1)
    job_id = await client.push(retry={"max_attempts": 1}, unique={"keys": ["args"]}, timeout_ms=7000)
    await client.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(client.backend.broker.events, "timestamp", lambda: "2999-01-01T00:00:00.000Z")
        await client.nack(job_id)
    for run in (1, 2):
        await client.ask("DELETE", f"/ojs/v1/dead-letter/{job_id}")
        assert (await client.ask("POST", f"{ADMIN}/{job_id}/retry"))["state"] == "available"
        [job] = await client.fetch(count=5)
        assert (job["id"], job["attempt"], job["timeout_ms"]) == (job_id, 1, 7000)
        assert (await client.nack(job_id))["state"] == "discarded", run
