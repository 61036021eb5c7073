"""Pushes to real servers: routed, pinned, failed over, and never twice where that can be helped."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.federation.conftest import Clock, Hostile, Region, layer_of
from waybill.federation.failovers import EVENT
from waybill.ojs.spec.identifiers import is_uuid7, new_id

Regions = tuple[Region, Region]


async def job_in(region: Region, job_id: str) -> object:
    """Ask a region itself; None if it has no such job."""
    async with layer_of(region.entry) as alone:
        response = await alone.send("GET", f"/ojs/v1/jobs/{job_id}")
        return None if response.status == 404 else response


async def test_a_job_goes_to_the_local_region_and_carries_what_the_federation_knows(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry, local_region="eu") as asking:
        job = (await asking.push(meta={"shop": "x"}))["job"]
        meta = job["meta"]
        assert is_uuid7(meta["ojs.federation.federation_id"])
        assert (meta["shop"], meta["ojs.federation.source_region"]) == ("x", "eu")
        assert meta["ojs.federation.routed_at"].endswith("Z")
        given = new_id()
        kept = await asking.push(options={"meta": {"ojs.federation.federation_id": given}})
        assert kept["job"]["meta"]["ojs.federation.federation_id"] == given
        assert await job_in(eu, job["id"]) is not None
        assert await job_in(us, job["id"]) is None
        assert (await asking.ask("GET", f"/ojs/v1/jobs/{job['id']}"))["job"]["state"] == "available"


async def test_a_region_that_is_killed_is_left_out_until_it_is_back(
    regions: Regions, caplog: pytest.LogCaptureFixture
) -> None:
    us, eu = regions
    clock = Clock()
    breaker = {"failure_threshold": 1, "cooldown_seconds": 30}
    async with layer_of(us.entry, eu.entry, clock=clock, local_region="us", circuit_breaker=breaker) as asking:
        assert await asking.region_of() == "us"
        await us.kill()
        with caplog.at_level(logging.WARNING, "waybill.federation"):
            assert await asking.region_of() == "eu"
            assert await asking.region_of() == "eu"
        lines = [one for one in caplog.records if getattr(one, "event", "") == EVENT]
        assert [(one.__dict__["from_region"], one.__dict__["to_region"]) for one in lines] == [("us", "eu")] * len(
            lines
        )
        assert "cannot be reached" in lines[0].getMessage()
        stats = await asking.ask("GET", "/ojs/federation/stats")
        assert stats["failovers"] == [{"from_region": "us", "to_region": "eu", "jobs": 2}]
        metrics = (await asking.send("GET", "/metrics")).body.decode().split("\n")
        assert 'ojs_federation_circuit_breaker{region="us"} 2' in metrics
        assert 'ojs_federation_failovers_total{from_region="us",to_region="eu"} 2' in metrics
        assert any(line.startswith('ojs_federation_region_latency_seconds{region="eu"} 0.') for line in metrics)
        await us.start()
        await asking.layer.regions.check()
        assert await asking.region_of() == "eu"
        clock.now += 30
        assert await asking.region_of() == "us"


async def test_a_pinned_job_fails_rather_than_go_elsewhere(regions: Regions) -> None:
    us, eu = regions
    pin = {"ojs.federation.region": "eu", "ojs.federation.region_affinity": "geo-pin"}
    async with layer_of(us.entry, eu.entry, local_region="us") as asking:
        assert await asking.region_of(meta=pin) == "eu"
        assert await asking.region_of(meta={"ojs.federation.region": "eu"}) == "eu"
        await eu.kill()
        error = (await asking.push(503, meta=pin))["error"]
        assert (error["code"], error["details"]["region"], error["retryable"]) == ("backend_unavailable", "eu", True)
        assert await asking.fetch() == []
        both = [{"type": "email.send", "args": [], "meta": meta} for meta in (pin, {})]
        batch = await asking.ask("POST", "/ojs/v1/jobs/batch", {"jobs": both}, 201)
        assert (batch["count"], [one["index"] for one in batch["errors"]]) == (1, [0])
        assert batch["errors"][0]["error"]["code"] == "backend_unavailable"


@pytest.mark.parametrize(
    ("meta", "field"),
    [
        ({"ojs.federation.region": "mars"}, "ojs.federation.region"),
        ({"ojs.federation.region": 7}, "ojs.federation.region"),
        ({"ojs.federation.region_affinity": "geo-pin"}, "ojs.federation.region"),
        ({"ojs.federation.region": "us", "ojs.federation.region_affinity": "overflow"}, "ojs.federation.region"),
        ({"ojs.federation.region_affinity": ["affinity"]}, "ojs.federation.region_affinity"),
        ({"ojs.federation.federation_id": "7"}, "ojs.federation.federation_id"),
    ],
)
async def test_attributes_that_make_no_sense_are_refused(meta: dict[str, object], field: str) -> None:
    async with layer_of({"id": "us", "url": "http://127.0.0.1:1"}) as asking:
        error = (await asking.push(400, meta=meta))["error"]
        assert (error["code"], error["details"]["field"]) == ("invalid_request", f"meta.{field}")


async def test_a_batch_is_divided_and_told_in_its_order(regions: Regions) -> None:
    us, eu = regions
    entries = [{**us.entry, "queues": ["email"]}, {**eu.entry, "queues": ["video"]}]
    async with layer_of(*entries) as asking:
        jobs = [
            {"id": new_id(), "type": "one.two", "args": [number], "options": {"queue": queue}}
            for number, queue in enumerate(["email", "video", "email", "video"])
        ]
        found = await asking.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}, 201)
        assert [one["id"] for one in found["jobs"]] == [one["id"] for one in jobs]
        stats = await asking.ask("GET", "/ojs/federation/stats")
        assert {name: list(one["regions"]) for name, one in stats["queues"].items()} == {
            "email": ["us"],
            "video": ["eu"],
        }
        assert stats["totals"]["available"] == 4
        error = (await asking.push(422, queue="music"))["error"]
        assert (error["code"], error["details"]["queue"]) == ("unsupported", "music")
        error = (await asking.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [jobs[0], jobs[0]]}, 400))["error"]
        assert error["details"]["field"] == "jobs"


async def test_an_answer_that_is_lost_is_asked_for(regions: Regions) -> None:
    """The region has taken the job: nobody else gets it."""
    us, eu = regions
    job_id = new_id()

    async def take_without_an_answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        if body:
            writer.close()
            return
        answer = b'{"id":"%b","state":"available"}' % job_id.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))

    async with (
        Hostile(take_without_an_answer) as lossy,
        layer_of(lossy.entry("us"), eu.entry, local_region="us") as asking,
    ):
        assert await asking.region_of(id=job_id) == "us"
        assert lossy.requests == ["POST /ojs/v1/jobs", f"GET /ojs/v1/jobs/{job_id}"]
        assert await job_in(eu, job_id) is None
    assert us.port


async def _cut(_body: bytes, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_a_job_in_doubt_goes_elsewhere_or_back_to_its_client(regions: Regions) -> None:
    _, eu = regions
    async with Hostile(_cut) as lossy:
        async with layer_of(lossy.entry("us"), eu.entry, local_region="us") as asking:
            assert await asking.region_of() == "eu"
            assert len(asking.layer.doubts) == 1
            pinned = (await asking.push(504, meta={"ojs.federation.region": "us"}))["error"]
            assert (pinned["code"], pinned["details"]["region"]) == ("backend_timeout", "us")
        careful = {"after_lost_answer": False}
        async with layer_of(lossy.entry("us"), eu.entry, local_region="us", failover=careful) as asking:
            job_id = new_id()
            error = (await asking.push(504, id=job_id))["error"]
            assert (error["details"], error["retryable"]) == ({"job_id": job_id, "region": "us"}, True)
            assert await job_in(eu, job_id) is None


async def test_a_doubtful_job_is_cancelled_where_nobody_needs_it_when_the_region_is_back(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry) as asking:
        job_id = (await asking.push(id=new_id(), meta={"ojs.federation.region": "us"}))["job"]["id"]
        running = (await asking.push(queue="r", meta={"ojs.federation.region": "us"}))["job"]["id"]
        assert [one["id"] for one in await asking.fetch("r")] == [running]
        doubts = asking.layer.doubts
        for one in (job_id, running):
            doubts.add(one, "us")
            doubts.taken(one, "eu")
        waiting = new_id()
        doubts.add(waiting, "us")
        region = asking.layer.regions.get("us")
        assert region is not None
        await doubts.settle(region)
        assert doubts.regions_of(waiting) == ["us"]
        assert len(doubts) == 1
        states = [(await asking.ask("GET", f"/ojs/v1/jobs/{one}"))["job"]["state"] for one in (job_id, running)]
        assert states == ["cancelled", "active"]


async def test_a_region_that_took_a_job_without_an_answer_gives_it_up_when_it_is_back(regions: Regions) -> None:
    us, eu = regions
    job_id = new_id()
    async with layer_of(us.entry) as alone:
        await alone.push(id=job_id)
    await us.kill()
    clock = Clock()
    breaker = {"failure_threshold": 1, "cooldown_seconds": 30}
    async with layer_of(us.entry, eu.entry, clock=clock, local_region="us", circuit_breaker=breaker) as asking:
        async with Hostile(_cut, us.port):
            await asking.layer.regions.check()
            clock.now += 30
            assert await asking.region_of(id=job_id) == "eu"
        assert asking.layer.doubts.regions_of(job_id) == ["us"]
        await us.start()
        clock.now += 30
        await asking.layer.regions.check()
        while len(asking.layer.doubts):
            await asyncio.sleep(0)
        assert (await asking.ask("GET", f"/ojs/v1/jobs/{job_id}"))["job"]["state"] == "available"
        async with layer_of(us.entry) as alone:
            assert (await alone.ask("GET", f"/ojs/v1/jobs/{job_id}"))["job"]["state"] == "cancelled"


async def test_regions_are_checked_at_their_intervals(regions: Regions) -> None:
    us, eu = regions
    async with layer_of({**us.entry, "health_interval_seconds": 0.05}, eu.entry) as asking:
        region = asking.layer.regions.get("us")
        assert region is not None
        await us.kill()
        while region.status == "healthy":
            await asyncio.sleep(0.01)
        assert (await asking.ask("GET", "/v1/federation/health"))["status"] == "degraded"
        await us.start()
        while region.status != "healthy":
            await asyncio.sleep(0.01)
        assert (await asking.ask("GET", "/ojs/v1/federation/health"))["healthy_regions"] == 2


async def test_a_push_that_is_sent_again_goes_where_the_job_is(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry, default_strategy="round-robin") as asking:
        job_id = new_id()
        assert await asking.region_of(id=job_id) == "us"
        error = (await asking.push(409, id=job_id))["error"]
        assert (error["code"], error["details"]["existing_job_id"]) == ("duplicate", job_id)
        await us.kill()
        assert (await asking.push(504, id=job_id))["error"]["details"]["region"] == "us"
        assert await job_in(eu, job_id) is None


async def test_a_push_with_an_idempotency_key_is_answered_twice_and_made_once(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry, default_strategy="round-robin", local_region="us") as asking:
        body = {"type": "email.send", "args": [], "meta": {"shop": 1}}
        first, again = [await asking.send("POST", "/ojs/v1/jobs", body, idempotency_key="order-17") for _ in "ab"]
        assert (first.status, again.status, first.body) == (201, 201, again.body)
        other = await asking.send("POST", "/ojs/v1/jobs", {**body, "args": [1]}, idempotency_key="order-17")
        assert (other.status, b"another request" in other.body) == (409, True)
        assert len((await asking.ask("GET", "/ojs/v1/jobs"))["jobs"]) == 1


async def test_the_id_among_the_options_is_the_id(regions: Regions) -> None:
    us, _ = regions
    async with layer_of(us.entry) as asking:
        job_id = new_id()
        assert (await asking.push(id=new_id(), options={"id": job_id}))["job"]["id"] == job_id
        for wrong in ({"id": 7}, {"id": ""}, {"meta": [1]}, {"options": {"metadata": "x"}}, {"id": "x" * 1000}):
            assert (await asking.push(400, **wrong))["error"]["code"] == "invalid_request"


async def test_a_tenant_of_a_header_is_told_to_the_region(regions: Regions) -> None:
    us, _ = regions
    async with layer_of(us.entry) as asking:
        body = {"type": "email.send", "args": []}
        found = await asking.send("POST", "/ojs/v1/jobs/batch", {"jobs": [body]}, x_ojs_tenant="acme")
        assert b'"tenant_id":"acme"' in found.body


async def test_failover_is_bounded_excluded_and_preferred(regions: Regions) -> None:
    _, eu = regions
    dead = [{"id": name, "url": "http://127.0.0.1:1"} for name in ("a", "b")]

    async def pushed(**failover: object) -> int:
        async with layer_of(*dead, eu.entry, local_region="a", failover=failover) as asking:
            # As if they had been healthy a moment ago.
            for region in asking.layer.regions:
                region.problem = None
            response: int = (await asking.send("POST", "/ojs/v1/jobs", {"type": "email.send", "args": []})).status
            return response

    assert await pushed(max_redirects=2) == 201
    assert await pushed(max_redirects=1, prefer_regions=["eu"]) == 201
    assert await pushed(max_redirects=1, prefer_regions=["b"]) == 503
    assert await pushed(exclude_regions=["eu"]) == 503
    assert await pushed(enabled=False) == 503


async def test_a_unique_job_of_a_batch_that_is_there_already_goes_nowhere_else(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry, local_region="us") as asking:
        unique = {"keys": ["type"], "on_conflict": "ignore"}
        first = (await asking.push(options={"unique": unique}))["job"]["id"]
        again = {"type": "email.send", "args": [1], "options": {"unique": unique}}
        other = {"type": "email.other", "args": []}
        found = await asking.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [again, other]}, 201)
        assert (found["jobs"][0]["id"], found["count"]) == (first, 2)
        assert (await asking.ask("GET", "/ojs/federation/stats"))["regions"]["eu"]["queues"] == {}


async def test_what_a_region_refuses_is_passed_on(regions: Regions) -> None:
    async def full(_body: bytes, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"code":"QUEUE_FULL","message":"full"}}'
        head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)

    _, eu = regions
    async with Hostile(full) as other, layer_of(other.entry("us"), eu.entry, local_region="us") as asking:
        response = await asking.send("POST", "/ojs/v1/jobs", {"type": "email.send", "args": []})
        assert (response.status, dict(response.headers)["Retry-After"]) == (429, "7")
        error = (await asking.push(400, type="Bad Type", meta={"ojs.federation.region": "eu"}))["error"]
        assert error["code"] == "invalid_request"
