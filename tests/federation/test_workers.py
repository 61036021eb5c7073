"""Fetches, ends and heartbeats over several regions: each job's worker and region find each other."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.federation.conftest import Asking, Hostile, Region, layer_of

Regions = tuple[Region, Region]


async def push_to(asking: Asking, region: str, queue: str = "default") -> str:
    found = await asking.push(queue=queue, meta={"ojs.federation.region": region})
    job_id: str = found["job"]["id"]
    return job_id


async def test_a_fetch_takes_from_all_regions_and_ends_go_back(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry) as asking:
        one, other = await push_to(asking, "us"), await push_to(asking, "eu")
        third = await push_to(asking, "eu")
        jobs = await asking.fetch(count=3, wait_ms=1000)
        assert sorted(job["id"] for job in jobs) == sorted([one, other, third])
        beat = {"worker_id": "w1", "active_jobs": [one, other, third]}
        found = await asking.ask("POST", "/ojs/v1/workers/heartbeat", beat)
        assert (sorted(found["jobs_extended"]), found["directive"]) == (sorted([one, other, third]), "running")
        acked = await asking.ask("POST", "/ojs/v1/workers/ack", {"job_id": one, "worker_id": "w1", "result": 7})
        assert acked["state"] == "completed"
        assert (await asking.ask("GET", f"/ojs/v1/jobs/{one}"))["job"]["result"] == 7
        failed = {"worker_id": "w1", "error": {"code": "handler_error", "message": "no", "retryable": False}}
        nacked = await asking.ask("POST", "/ojs/v1/workers/nack", {"job_id": other, **failed})
        assert nacked["state"] == "discarded"
        # A proxy that has just started knows nothing, and asks.
        async with layer_of(us.entry, eu.entry) as new:
            done = await new.ask("POST", "/ojs/v1/workers/ack", {"job_id": third, "worker_id": "w1"})
            assert done["state"] == "completed"
            missing = {"job_id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}
            assert (await new.ask("POST", "/ojs/v1/workers/ack", missing, 404))["error"]["code"] == "not_found"


async def test_dead_letters_of_all_regions_are_in_one_list(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry) as asking:
        dead = [await push_to(asking, region) for region in ("us", "eu", "eu")]
        for job in await asking.fetch(count=3):
            error = {"code": "handler_error", "message": "no", "retryable": False}
            await asking.ask("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "worker_id": "w1", "error": error})
        listed = await asking.ask("GET", "/ojs/v1/dead-letter?limit=10")
        assert sorted(job["id"] for job in listed["jobs"]) == sorted(dead)
        assert sorted(job["region"] for job in listed["jobs"]) == ["eu", "eu", "us"]
        assert (await asking.ask("GET", "/ojs/v1/dead-letter?limit=2"))["pagination"]["has_more"] is True
        await asking.ask("GET", "/ojs/v1/dead-letter?cursor=abc", status=422)
        for wrong in ({"count": 0}, {"wait_ms": -1}, {"queues": "a"}, {"queues": [1]}):
            await asking.ask("POST", "/ojs/v1/workers/fetch", {"worker_id": "w1", **wrong}, 400)
        # Without what it has learned.
        async with layer_of(us.entry, eu.entry) as new:
            retried = await new.ask("POST", f"/ojs/v1/dead-letter/{dead[1]}/retry")
            assert retried["job"]["id"] == dead[1]
            await new.ask("DELETE", f"/ojs/v1/dead-letter/{dead[0]}")
        assert [job["id"] for job in (await asking.ask("GET", "/ojs/v1/dead-letter"))["jobs"]] == [dead[2]]


async def test_jobs_are_cancelled_listed_and_queues_paused_everywhere(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry) as asking:
        ids = [await push_to(asking, region) for region in ("us", "eu")]
        listed = await asking.ask("GET", "/ojs/v1/jobs?queue=default")
        assert {job["id"]: job["region"] for job in listed["jobs"]} == dict(zip(ids, ("us", "eu"), strict=True))
        async with layer_of(us.entry, eu.entry) as new:
            assert (await new.ask("DELETE", f"/ojs/v1/jobs/{ids[1]}"))["job"]["state"] == "cancelled"
        await asking.ask("POST", "/ojs/v1/queues/default/pause")
        stats = await asking.ask("GET", "/ojs/v1/queues/default/stats")
        assert (stats["paused"], stats["stats"]["cancelled"], sorted(stats["regions"])) == (True, 1, ["eu", "us"])
        assert await asking.fetch() == []
        await asking.ask("POST", "/ojs/v1/queues/default/resume")
        assert [job["id"] for job in await asking.fetch()] == [ids[0]]
        await asking.ask("GET", "/ojs/v1/queues/nobody/stats", status=404)
        await eu.kill()
        error = (await asking.ask("POST", "/ojs/v1/queues/default/pause", status=503))["error"]
        assert (list(error["details"]["regions"]), error["details"]["done"]) == (["eu"], ["us"])
        # It could be there: who says that it is nowhere would be wrong.
        unknown = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
        error = (await asking.ask("GET", f"/ojs/v1/jobs/{unknown}", status=503))["error"]
        assert list(error["details"]["regions"]) == ["eu"]


async def test_a_worker_that_waits_gets_the_first_job_of_any_region(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry) as asking, layer_of(us.entry, eu.entry) as pushing:
        waiting = asyncio.create_task(asking.fetch(wait_ms=20_000))
        await until_polled(asking)
        job_id = await push_to(pushing, "eu")
        assert [job["id"] for job in await waiting] == [job_id]


async def test_what_comes_for_a_worker_that_has_gone_is_put_back(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry) as asking, layer_of(us.entry, eu.entry) as pushing:
        waiting = asyncio.create_task(asking.fetch(wait_ms=20_000))
        await until_polled(asking)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        job_id = await push_to(pushing, "us")
        assert [job["id"] for job in await pushing.fetch(wait_ms=20_000, worker="w2")] == [job_id]
        # An answer that its client does not hear any more.
        again = await push_to(pushing, "eu")
        body = {"queues": ["default"], "worker_id": "w1"}
        response = await asking.send("POST", "/ojs/v1/workers/fetch", body)
        assert response.unheard is not None
        response.unheard()
        assert [job["id"] for job in await pushing.fetch(wait_ms=20_000, worker="w2")] == [again]


async def test_only_regions_that_serve_the_queues_are_asked(regions: Regions) -> None:
    us, _ = regions

    async def nothing(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"jobs":[]}')

    async with Hostile(nothing) as other:
        entries = [us.entry, {**other.entry("video"), "queues": ["video"]}]
        async with layer_of(*entries) as asking:
            assert await asking.fetch("default") == []
            assert other.requests == []
            assert await asking.fetch("default", "video") == []
            assert other.requests == ["POST /ojs/v1/workers/fetch"]
            region = asking.layer.regions.get("video")
            assert region is not None
            region.problem = "it is down"
            assert await asking.fetch("default", "video") == []
            assert len(other.requests) == 1


async def test_a_region_that_cannot_hear_of_its_jobs_fails_the_heartbeat(regions: Regions) -> None:
    us, eu = regions
    async with layer_of(us.entry, eu.entry) as asking:
        job_id = await push_to(asking, "eu")
        assert [job["id"] for job in await asking.fetch()] == [job_id]
        await eu.kill()
        beat = {"worker_id": "w1", "active_jobs": [job_id]}
        error = (await asking.ask("POST", "/ojs/v1/workers/heartbeat", beat, 503))["error"]
        assert (error["details"]["job_ids"], error["retryable"]) == ([job_id], True)
        # Others go on.
        beat = {"worker_id": "w1", "active_jobs": []}
        assert (await asking.ask("POST", "/ojs/v1/workers/heartbeat", beat))["directive"] == "running"


async def until_polled(asking: Asking) -> None:
    """Return when the polls of a fetch wait in all regions."""
    while asking.layer.fetches.polling_count < len(asking.layer.regions):
        await asyncio.sleep(0)
