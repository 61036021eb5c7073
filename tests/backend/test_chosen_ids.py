"""Ids and names that two servers of one broker get at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.backend.conftest import Client
from waybill.backend.backend import Backend
from waybill.backend.chosen_ids import KIND, ChosenIds, Reservation
from waybill.ojs import Jobs, NewJob
from waybill.ojs.handler import Options
from waybill.ojs.push.job_maker import JobMaker
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.timestamps import format_timestamp

JOBS = "/ojs/v1/jobs"


@pytest.fixture(params=["memory", "sqlite"])
async def clients(uri: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Client, Client]]:
    database = ":memory:" if request.param == "memory" else str(tmp_path / "state.sqlite")
    async with (
        Backend(Jobs(uri, results=False), database=database) as first,
        Backend(Jobs(uri, results=False), database=database) as second,
    ):
        yield Client(first), Client(second)


def job(job_id: str, queue: str, **options: object) -> dict[str, object]:
    return {"type": "a.b", "args": [], "id": job_id, "options": {"queue": queue, **options}}


async def one(client: Client, job_id: str, queue: str) -> str:
    return str((await client.send("POST", JOBS, job(job_id, queue))).status)


async def staged(client: Client, job_id: str, queue: str) -> str:
    return str((await client.send("POST", JOBS, job(job_id, queue, pending=True))).status)


async def batch(client: Client, job_id: str, queue: str) -> str:
    jobs = [job(job_id, queue), job(new_id(), "others")]
    return str((await client.send("POST", f"{JOBS}/batch", {"jobs": jobs})).status)


async def bulk(client: Client, job_id: str, queue: str) -> str:
    found = await client.ask("POST", f"{JOBS}/bulk", {"jobs": [job(job_id, queue)]}, 201)
    return {"created": "201", "duplicate": "409"}[found["items"][0]["status"]]


@pytest.mark.parametrize("push", [one, staged, batch, bulk])
async def test_an_id_is_used_once(
    clients: tuple[Client, Client], push: Callable[[Client, str, str], Awaitable[str]]
) -> None:
    for number in range(8):
        job_id, queue = new_id(), f"q{number}"
        answers = await asyncio.gather(*(push(client, job_id, queue) for client in (*clients, clients[0])))
        assert sorted(answers) == ["201", "409", "409"]
        if push is not staged:
            fetched = [found for client in clients for found in await client.fetch(queue, count=5)]
            assert [found["id"] for found in fetched] == [job_id]


async def test_an_id_is_free_after_a_refusal(clients: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = new_id()

    async def refuse(_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(clients[0].backend.jobs, "push_job", refuse)
        assert (await clients[0].send("POST", JOBS, job(job_id, "q"))).status >= 500
    assert await one(clients[1], job_id, "q") == "201"


async def test_the_reservation_of_a_server_that_died_counts_no_more(client: Client) -> None:
    job_id = new_id()
    await client.backend.extensions.records.put(KIND + job_id, Reservation("amq.gen-gone"))
    assert await one(client, job_id, "q") == "201"


async def test_a_cron_job_is_created_once(clients: tuple[Client, Client]) -> None:
    for number in range(8):
        body = {"name": f"n{number}", "expression": "@daily", "type": "a.b", "args": []}
        sent = (client.send("POST", "/ojs/v1/cron", body) for client in clients)
        assert sorted(response.status for response in await asyncio.gather(*sent)) == [200, 201]


async def test_ids_that_a_server_has_made_are_not_reserved(client: Client) -> None:
    messages: list[bytes] = []
    client.backend.view.on_message.append(messages.append)
    body = {"type": "a.b", "args": []}
    assert (await client.send("POST", JOBS, body, **{"idempotency-key": "k"})).status == 201
    assert (await client.send("POST", JOBS, body)).status == 201
    assert messages
    assert not any(KIND.encode() in one for one in messages)


async def test_ids_that_a_client_has_just_made_cost_no_reservation(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[str] = []

    async def reserve(_self: ChosenIds, job_id: str, _held: list[str]) -> None:
        reserved.append(job_id)

    monkeypatch.setattr(ChosenIds, "_reserve", reserve)
    ids = {told: new_id() for told in ("false", "true", "")}
    for told, job_id in ids.items():
        headers = {"x-waybill-repeated": told} if told else {}
        await client.send("POST", JOBS, job(job_id, "q"), **headers)
        await client.send("POST", f"{JOBS}/batch", {"jobs": [job(job_id, "q")]}, **headers)
    assert reserved == [ids["true"], ids[""]]


def test_a_job_knows_whether_its_id_is_new() -> None:
    options: Options = {}
    now = datetime.now(UTC)
    maker = JobMaker({})
    given = [NewJob("a.b", [], options, id=one) for one in (None, new_id()) for _ in range(3)]
    found = [maker.make(one, now, format_timestamp(now)) for one in given]
    assert [one.has_new_id for one in found] == [True] * 3 + [False] * 3
    assert found[2].template is found[5].template is not None
    envelope = found[0].envelope
    assert not maker.make(envelope, now, format_timestamp(now)).has_new_id
