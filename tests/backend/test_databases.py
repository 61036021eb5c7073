"""A server whose state of jobs is in a database: what a fold brings is not queried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.backend.conftest import Client
from tests.backend.test_quick import ABOUT_RESULT
from waybill.backend.backend import Backend
from waybill.ojs import Jobs
from waybill.ojs.coordinator.sql_job_store import SqlJobStore


@pytest.fixture
async def client(uri: str, tmp_path: Path) -> AsyncIterator[Client]:
    async with Backend(Jobs(uri, results=False), database=f"{tmp_path}/jobs.sqlite") as backend:
        yield Client(backend)


def _queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Queries for jobs from now on."""
    found: list[str] = []
    for name in ("missing", "_find"):
        query = getattr(SqlJobStore, name)

        def noted(*arguments: object, name: str = name, query: object = query) -> object:
            found.append(name)
            return query(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(SqlJobStore, name, noted)
    return found


async def test_a_job_is_pushed_and_acknowledged_without_a_query(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push("email")
    queries = _queries(monkeypatch)
    ids = await asyncio.gather(*(client.push("email") for _ in range(20)))
    jobs = await client.fetch(count=30)
    assert [one["id"] for one in jobs[1:]] == ids
    told = await asyncio.gather(*(client.ack(one["id"], worker_id="w1", result={"n": [1]}) for one in jobs))
    assert not queries
    for one in told:
        job = await client.job(one["id"])
        assert one["job"] == {name: job[name] for name in job if name not in ABOUT_RESULT}
        assert (one["state"], job["state"], job["result"]) == ("completed", "completed", {"n": [1]})


async def test_what_another_server_has_folded_is_found_by_a_query(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push("email")
    view = client.backend.view
    job_id = await client.push("email")
    # The push has asked for it, and nobody tells twice.
    monkeypatch.setattr("waybill.ojs.coordinator.job_view.QUERY_SECONDS", 0.01)
    queries = _queries(monkeypatch)
    assert await view.knows([job_id], 5.0)
    assert queries == ["missing"]
    assert not await view.knows([job_id, "unknown"], 0.1)
