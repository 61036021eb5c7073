"""`Jobs` and `Worker` with the URL of a federation: the same handlers, moved by their URL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.federation.conftest import Region, layer_of
from waybill.client import InvalidURI
from waybill.federation.exchange import path_of
from waybill.ojs import InvalidJob, Jobs, PushFailed, Worker

Regions = tuple[Region, Region]


def url_of(directory: Path, regions: Regions, **settings: object) -> str:
    path = directory / "regions.json"
    entries = [one.entry for one in regions]
    path.write_text(json.dumps({"federation_id": "x", "regions": entries, **settings}), encoding="utf-8")
    return f"federation:{path}"


async def test_handlers_push_and_run_over_regions(regions: Regions, tmp_path: Path) -> None:
    url = url_of(tmp_path, regions, default_strategy="round-robin")
    async with Jobs(url) as jobs:

        @jobs.handler("double", queue="numbers")
        async def double(number: int) -> int:
            return 2 * number

        async with Worker(jobs):
            pushed = [await double.push(number) for number in range(4)]
            assert [await job.result(20) for job in pushed] == [0, 2, 4, 6]
            many = await jobs.push_many([double.job(number) for number in range(6)])
            assert len({one.id for one in many}) == 6
            assert await jobs.job(many[0].id).result(20) == 0
        for region in regions:
            async with layer_of(region.entry) as alone:
                done = (await alone.ask("GET", "/ojs/v1/jobs?queue=numbers&limit=100"))["jobs"]
                assert len(done) == 5, region.name
        assert len(await jobs.newest("numbers")) == 10
        assert [await jobs.pause("numbers"), await jobs.is_paused("numbers")] == [True, True]
        assert await jobs.resume("numbers")


async def test_a_pinned_job_fails_when_its_region_is_away(regions: Regions, tmp_path: Path) -> None:
    url = url_of(tmp_path, regions, circuit_breaker={"failure_threshold": 1}, local_region="us")
    await regions[1].kill()
    async with Jobs(url, push_timeout=0.1) as jobs:
        assert (await jobs.push("email.send")).envelope.state == "available"
        with pytest.raises(PushFailed, match="must run in the region 'eu'") as raised:
            await jobs.push("email.send", meta={"ojs.federation.region": "eu"})
        assert raised.value.code == "BACKEND_UNAVAILABLE"
        with pytest.raises(InvalidJob, match="not shared between regions"):
            await jobs.crons.list()


async def test_threads_have_it_too(regions: Regions, tmp_path: Path) -> None:
    jobs = Jobs(url_of(tmp_path, regions))
    job = await asyncio.to_thread(lambda: jobs.sync.push("email.send"))
    assert job.envelope.state == "available"
    await asyncio.to_thread(jobs.sync.close)


async def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "regions.json").write_text('{"federation_id": "x", "regions": []}', encoding="utf-8")
    async with Jobs(f"federation:{tmp_path}/regions.json") as jobs:
        with pytest.raises(InvalidURI, match="regions: "):
            await jobs.push("email.send")


def test_a_url_names_a_file() -> None:
    assert path_of("federation:regions.toml") == Path("regions.toml")
    assert path_of("federation:///etc/my%20regions.toml") == Path("/etc/my regions.toml")
    for url in ("federation:", "federation://host/file", "federation:a?b=c", "http://x"):
        with pytest.raises(InvalidURI):
            path_of(url)
