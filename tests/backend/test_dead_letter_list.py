"""The list of dead letters asks for a bounded number of queues that only events name."""

from __future__ import annotations

import asyncio

import pytest

from tests.backend.conftest import Client
from waybill.client import Inspector
from waybill.ojs.spec.events import JobEnqueued
from waybill.ojs.spec.identifiers import new_id


async def test_queues_that_only_events_name(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.dead_letter_list.MAX_MISSING", 10)
    asked: list[str] = []
    look = Inspector.queue

    async def queue(inspector: Inspector, name: str) -> object:
        asked.append(name)
        return await look(inspector, name)

    monkeypatch.setattr(Inspector, "queue", queue)

    async def dead() -> list[str]:
        asked.clear()
        return [one["id"] for one in (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"]]

    def forge(name: str) -> None:
        client.backend.broker.events.record(new_id(), JobEnqueued(job_type="a", queue=name))

    for number in range(60):
        forge(f"forged-{number:02}")
    job_id = await client.push("zebra", retry={"max_attempts": 1})
    await client.fetch("zebra")
    await client.nack(job_id, worker_id="w1")
    for _ in range(4):
        assert await dead() == [job_id]
        assert len(asked) <= 22
    assert await dead() == [job_id]
    assert len(asked) == 1
    counts = await client.backend.job_counts()
    version = counts.version_of("forged-07")
    forge("forged-07")
    while counts.version_of("forged-07") == version:
        await asyncio.sleep(0)
        await client.backend.job_counts()
    assert await dead() == [job_id]
    assert len(asked) == 2
