"""A lease is an unacknowledged delivery: it ends by its worker's word, by silence, or with its backend."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.backend.conftest import FAST, Client, client_of
from tests.ojs.proxy import Proxy
from waybill.backend import backend, leases
from waybill.backend.job_size import size_of
from waybill.backend.leases import LEASED_MEMORY
from waybill.backend.source import Source
from waybill.client import Delivery, connect
from waybill.ojs import Jobs, Worker
from waybill.ojs.coordinator import markers
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.middleware.permit_pool import Permit, PermitPool
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.headers import is_repeated
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.worker.delivered_job import read_delivered


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MIN_VISIBILITY_SECONDS", 0.05)


async def test_a_silent_worker_loses_its_job_to_the_next_attempt(client: Client) -> None:
    job_id = await client.push()
    await client.fetch(visibility_timeout_ms=50)
    [fetched] = await client.fetch(worker="w2", wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 2)
    assert [(one["type"], one["attempt"]) for one in fetched["errors"]] == [("visibility_timeout", 1)]
    await client.ack(job_id, 409, worker_id="w1")
    assert (await client.ack(job_id, worker_id="w2"))["attempt"] == 2


@pytest.mark.plain_source
async def test_a_job_that_nobody_brings_back_ends_as_a_dead_letter(client: Client) -> None:
    job_id = await client.push(retry=FAST | {"max_attempts": 2})
    for attempt in (1, 2):
        [fetched] = await client.fetch(visibility_timeout_ms=50, wait_ms=10_000)
        assert fetched["attempt"] == attempt
    assert await client.fetch(wait_ms=200) == []
    assert (await client.job(job_id))["state"] == "discarded"
    assert [one["id"] for one in (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"]] == [job_id]


async def test_heartbeats_hold_a_job(client: Client) -> None:
    job_id = await client.push()
    await client.fetch(visibility_timeout_ms=1000)
    beat = {"worker_id": "w1", "active_jobs": [job_id, "unknown"]}
    lease = client.backend.leases.get(job_id)
    assert lease is not None
    before = lease.visible_until
    found = await client.ask("POST", "/ojs/v1/workers/heartbeat", beat)
    assert (found["state"], found["jobs_extended"]) == ("running", [job_id])
    assert lease.visible_until > before
    other = await client.ask("POST", "/ojs/v1/workers/heartbeat", {**beat, "worker_id": "w2"})
    assert other["jobs_extended"] == []
    counted = {"worker_id": "w1", "active_jobs": 1, "active_job_ids": [job_id], "visibility_timeout_ms": 60_000}
    await client.ask("POST", "/ojs/v1/workers/heartbeat", counted)
    assert lease.visible_until > before + 50


async def test_a_job_that_takes_too_long_has_failed(client: Client) -> None:
    job_id = await client.push(timeout_ms=50, retry=FAST)
    await client.fetch()
    [fetched] = await client.fetch(wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 2)
    [error] = (await client.job(job_id))["errors"]
    assert (error["code"], error["attempt"]) == ("HANDLER_TIMEOUT", 1)


async def test_a_requeued_job_is_the_same_attempt_for_another(client: Client) -> None:
    job_id = await client.push()
    await client.fetch()
    assert (await client.nack(job_id, requeue=True))["state"] == "available"
    assert (await client.job(job_id))["state"] == "available"
    [fetched] = await client.fetch(worker="w2", wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 1)
    await client.ack(job_id, 409, worker_id="w1")


async def test_two_backends_share_the_work(client: Client, uri: str) -> None:
    async with client_of(uri) as other:
        ids = [await client.push() for _ in range(20)]
        found = await asyncio.gather(*(one.fetch(count=3) for one in [client, other] * 6))
        fetched = [job["id"] for jobs in found for job in jobs]
        assert sorted(fetched) == sorted(ids)
        for jobs, owner in zip(found, [client, other] * 6, strict=True):
            for job in jobs:
                await owner.ack(job["id"])
        async with asyncio.timeout(10):
            # The other server has to hear of them.
            while {(await other.job(one))["state"] for one in ids} != {"completed"}:
                await asyncio.sleep(0.02)


async def test_a_backend_that_is_gone_gives_back_what_it_had(client: Client, uri: str) -> None:
    doomed = Client(gone := client_of_backend(uri))
    await gone.start()
    held, untouched = await client.push(), await client.push("other")
    await doomed.fetch()
    taken = await gone.fetcher._source("other", creates=False)
    assert taken is not None
    # One that was taken from its queue, and never begun.
    assert len(await taken.take(1)) == 1
    # The way of a process that is killed: nothing is said any more.
    gone.leases._leases.clear()
    gone._settlement = None
    await gone.broker.connection.close()
    jobs = {job["id"]: job["attempt"] for _ in range(2) for job in await client.fetch("email", "other", wait_ms=10_000)}
    assert jobs == {held: 2, untouched: 1}
    await gone.close()


def client_of_backend(uri: str):  # type: ignore[no-untyped-def]  # noqa: ANN201 - see the test above
    from waybill.backend.backend import Backend

    return Backend(Jobs(uri, results=False, push_timeout=5))


async def test_a_long_poll_is_woken_by_a_push_of_anybody(client: Client, uri: str) -> None:
    polls = [asyncio.ensure_future(client.fetch("email", "report", wait_ms=20_000)) for _ in range(3)]
    await asyncio.sleep(0)
    async with Jobs(uri, create_queues=True) as jobs:
        ids = {(await jobs.push("email.send", ["b"], queue="email")).id for _ in range(2)}
        ids.add(await client.push("report"))
        found = await asyncio.gather(*polls)
    assert {job["id"] for jobs_ in found for job in jobs_} == ids
    assert all(len(jobs_) == 1 for jobs_ in found)


async def test_a_long_poll_whose_client_has_gone_holds_nothing(client: Client) -> None:
    poll = asyncio.ensure_future(client.fetch(wait_ms=20_000))
    while not client.backend.fetcher._waiting:
        await asyncio.sleep(0)
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    job_id = await client.push()
    [fetched] = await client.fetch(wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 1)


async def test_a_worker_over_amqp_runs_what_is_pushed_over_http(client: Client, uri: str) -> None:
    jobs = Jobs(uri)
    done = asyncio.Event()

    @jobs.handler("email.send", queue="email")
    async def send(to: str) -> str:
        done.set()
        return to

    async with Worker(jobs):
        job_id = await client.push()
        await done.wait()
        await client.backend.view.settled(job_id, lambda job: job is not None and job.state == "completed", 10)
    job = await client.job(job_id)
    assert (job["state"], job["result"], job["args"]) == ("completed", "a@example.com", ["a@example.com"])


async def test_a_backend_that_ends_lets_polls_go_and_jobs_be_fetched(client: Client, uri: str) -> None:
    async with client_of(uri) as other:
        job_id = await other.push()
        await other.fetch()
        poll = asyncio.ensure_future(other.fetch(wait_ms=20_000))
        while not other.backend.fetcher._waiting:
            await asyncio.sleep(0)
    assert await poll == []
    [fetched] = await client.fetch(wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 2)


async def test_a_start_that_is_known_before_the_fetch_ends_does_not_hold_it_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await client.push()
    take = Source.take

    async def take_slowly(source: Source, count: int) -> list[Delivery]:
        if client.backend.leases.get(job_id) is not None:
            await client.backend.view.settled(job_id, lambda job: job is not None and job.state == "active", 10)
        return await take(source, count)

    monkeypatch.setattr(Source, "take", take_slowly)
    monkeypatch.setattr(backend, "FOLD_SECONDS", 1e6)
    async with asyncio.timeout(10):
        [fetched] = await client.fetch(count=5)
    assert fetched["id"] == job_id


async def test_a_change_that_the_broker_does_not_take_is_no_success(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "FOLD_SECONDS", 1.0)
    job_id = await client.push(retry=FAST)
    await client.fetch()
    # The broker has taken the job back, and gives it to somebody: this worker has no say any more.
    await client.backend.fetcher._sources["email"]._channel.close()
    error = (await client.nack(job_id, 504))["error"]
    assert (error["code"], error["retryable"]) == ("backend_timeout", True)
    assert (await client.job(job_id))["state"] == "active"


async def test_large_jobs_are_not_leased_beyond_a_limit_of_memory(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    job = {"type": "email.send", "args": ["x" * 1_000_000], "options": {"queue": "large"}}
    ids = [(await client.ask("POST", "/ojs/v1/jobs", job, 201))["job"]["id"] for _ in range(45)]

    async def fetch_all() -> list[str]:
        found = await asyncio.gather(*(client.fetch("large", count=1000) for _ in range(10)))
        return [job["id"] for jobs in found for job in jobs]

    leased = await fetch_all()
    most = LEASED_MEMORY // 2_000_000
    assert most < len(leased) < 45
    assert client.backend.leases.size < LEASED_MEMORY + 20_000_000
    assert await fetch_all() == []
    assert caplog.text.count("get no more until some have ended") == 1
    waits = next(one for one in ids if one not in leased)
    reasons = (await client.ask("GET", f"/ojs/v1/admin/jobs/{waits}/why"))["reasons"]
    assert "leased_memory" in [one["code"] for one in reasons]
    waiting = asyncio.ensure_future(client.fetch("large", count=1000, wait_ms=10_000))
    for job_id in leased:
        await client.ask("POST", "/ojs/v1/workers/ack", {"job_id": job_id, "worker_id": "w1"})
    rest = [job["id"] for job in await waiting]
    rest += await fetch_all()
    assert len({*leased, *rest}) == len(leased) + len(rest) == 45


@pytest.mark.plain_source
async def test_large_jobs_are_read_in_turns_of_the_loop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of 28 MB that were refused, each into its dead letter, kept everybody else waiting for 270 ms."""
    await client.push("turns")
    for _ in range(4):
        job: dict[str, object] = {"specversion": "1.0", "id": new_id(), "type": "email.send", "queue": "turns"}
        job["args"] = ["x" * 1_200_000]
        await client.backend.jobs.push_job(job)
    loop, turn, is_over = asyncio.get_running_loop(), 0, False
    turns: list[int] = []

    def tick() -> None:
        nonlocal turn
        turn += 1
        if not is_over:
            loop.call_soon(tick)

    def read_now(delivery: Delivery) -> Envelope:
        if len(delivery.body) > 1_000_000:
            turns.append(turn)
        return read_delivered(delivery)

    monkeypatch.setattr("waybill.backend.fetcher.read_delivered", read_now)
    tick()
    assert len(await client.fetch("turns", count=9)) == 5
    is_over = True
    assert len(set(turns)) == 4


async def test_jobs_whose_arguments_take_much_memory_are_leased_few_at_a_time(client: Client) -> None:
    """Their number was that of their octets: ten jobs of 1 MB of short texts took 150 MB, in one fetch."""
    job = {"type": "email.send", "args": ["a"] * 200_000, "options": {"queue": "short"}}
    for _ in range(8):
        await client.ask("POST", "/ojs/v1/jobs", job, 201)
    leases = client.backend.leases
    found = await asyncio.gather(*(client.fetch("short", count=1000) for _ in range(10)))
    assert 0 < sum(map(len, found)) < 8
    largest = max(lease.size for lease in leases._leases.values())
    assert leases.size <= LEASED_MEMORY + largest
    for job_id in list(leases._leases):
        await client.ask("POST", "/ojs/v1/workers/ack", {"job_id": job_id, "worker_id": "w1"})
    assert sum(map(len, found)) + len(await client.fetch("short", count=1000, wait_ms=10_000)) == 8


def test_many_small_values_count_for_what_they_take() -> None:
    assert size_of(b"x" * 1000) == 2000
    assert size_of(b"[]," * 10_000) > 600_000
    assert size_of(b'{"a":1},' * 10_000) > 2_500_000
    assert size_of(b"{" + b'"a1":"",' * 10_000 + b"}") > 1_200_000
    # One wide character makes a text of Python four times as large.
    assert size_of(b"x" * 10_000 + b"\xf0\x9f\x9a\x82") > 50_000
    assert size_of(b"x" * 10_000 + b"\\ud83d\\ude82") > 50_000


@pytest.mark.plain_source
@pytest.mark.parametrize("limit", [{}, {"rate_limit": {"key": "mail", "concurrency": 1}}])
async def test_a_delivery_that_is_lost_while_it_is_checked_gives_no_second_lease(
    uri: str, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    checks: list[asyncio.Event] = []
    checked = markers.catch_up

    async def check_slowly(view: JobView, events: EventWriter) -> None:
        checks.append(asyncio.Event())
        await checks[-1].wait()
        await checked(view, events)

    monkeypatch.setattr("waybill.backend.fetcher.catch_up", check_slowly)
    async with Proxy(uri) as proxy, client_of(proxy.uri) as client:
        job_id = await client.push(**limit)
        async with connect(uri) as connection:
            # Who looks at a message and goes away leaves it marked as redelivered.
            await (await connection.channel()).get("ojs.queue.email")
        first = asyncio.ensure_future(client.fetch(wait_ms=10_000))
        async with asyncio.timeout(10):
            while len(checks) < 1:
                await asyncio.sleep(0.01)
            is_back = asyncio.Event()
            client.backend.broker.connection.on_reconnect(is_back.set)
            proxy.cut()
            await is_back.wait()
            second = asyncio.ensure_future(client.fetch(worker="w2", wait_ms=10_000))
            while len(checks) < 2:
                await asyncio.sleep(0.01)
        for check in checks:
            check.set()
        [fetched] = await second
        assert (fetched["id"], fetched["attempt"]) == (job_id, 1)
        more = await client.push()
        assert [job["id"] for job in await first] == [more]
        assert client.backend.limits.active["mail"] == len(limit)
        await client.ack(job_id, worker_id="w2")
        assert client.backend.limits.active["mail"] == 0


async def test_of_two_copies_of_a_job_one_is_leased(client: Client) -> None:
    job: dict[str, object] = {"specversion": "1.0", "id": new_id(), "type": "email.send", "args": [], "queue": "email"}

    async def push_again() -> None:
        await client.backend.jobs.push_job(job, may_be_there=True)

    await push_again()
    await push_again()
    [fetched] = await client.fetch()
    assert await client.fetch() == []
    await client.ack(fetched["id"])
    await push_again()
    assert await client.fetch() == []
    left = await client.backend.fetcher._inspector.queue("ojs.queue.email")
    assert left is not None
    assert left.message_count == 0


async def test_a_dead_letter_that_somebody_moves_back_runs(client: Client) -> None:
    job: dict[str, object] = {"specversion": "1.0", "id": new_id(), "type": "email.send", "args": [], "queue": "email"}
    await client.backend.jobs.push_job(job | {"retry": {"max_attempts": 1}}, may_be_there=True)
    [fetched] = await client.fetch()
    assert (await client.nack(fetched["id"]))["state"] == "discarded"
    await client.backend.jobs.push_job(job, may_be_there=True)
    assert [one["id"] for one in await client.fetch()] == [fetched["id"]]


async def test_a_push_that_may_be_a_second_one_is_marked(client: Client, uri: str) -> None:
    job = {"type": "email.send", "args": [], "options": {"queue": "email"}}
    await client.send("POST", "/ojs/v1/jobs", job)
    await client.send("POST", "/ojs/v1/jobs", {"id": new_id(), **job}, **{"x-waybill-repeated": "true"})
    async with connect(uri) as connection:
        found = await (await connection.channel()).get_many("ojs.queue.email", 2)
    assert [is_repeated(one.encoded_properties) for one in found] == [False, True]


@pytest.mark.plain_source
async def test_a_fetch_that_ends_early_gives_back_all_that_it_took(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"queue": "email", "rate_limit": {"key": "mail", "concurrency": 10}}
    job = {"type": "email.send", "args": [], "version": "2.0", "options": options}
    ids = {(await client.ask("POST", "/ojs/v1/jobs", job, 201))["id"] for _ in range(4)}
    # They are held for a worker that can do them.
    assert await client.fetch(count=4, handlers=[{"type": "email.send", "versions": "1.0"}]) == []
    is_at_third = asyncio.Event()
    take_now = PermitPool.take_now
    count = 0

    async def take_twice(pool: PermitPool) -> Permit | None:
        nonlocal count
        count += 1
        if count == 3:
            is_at_third.set()
            await asyncio.Event().wait()
        return await take_now(pool)

    monkeypatch.setattr(PermitPool, "take_now", take_twice)
    fetch = asyncio.ensure_future(client.fetch(count=4, wait_ms=10_000))
    await is_at_third.wait()
    fetch.cancel()
    await asyncio.gather(fetch, return_exceptions=True)
    found: set[str] = set()
    async with asyncio.timeout(10):
        while found != ids:
            found |= {job["id"] for job in await client.fetch(count=4, wait_ms=1000)}
    assert client.backend.limits.active["mail"] == 4
