"""Jobs that are published together, where something goes wrong on the way: each request gets its own answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from typing import Any

import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend import push_group
from waybill.backend.push_flight import PushFlight
from waybill.client import Channel, ConnectionLost, MessageNacked
from waybill.client.publishing import Confirmation
from waybill.ojs import Topology
from waybill.ojs.coordinator.job_view import JobView

Messages = Iterable[tuple[Confirmation, bytes, str, Any]]


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each flight has that was published."""
    found: list[int] = []
    publish = Channel.publish_run

    def counted(channel: Channel, exchange: str, messages: Messages) -> bool:
        given = list(messages)
        found.append(len(given))
        return publish(channel, exchange, given)

    monkeypatch.setattr(Channel, "publish_run", counted)
    return found


async def _together(client: Client, count: int, queue: str = "email") -> list[Any]:
    """Push jobs in one turn; the status and the body of each answer."""
    body = {"type": "a.b", "args": [], "options": {"queue": queue}}
    answers = [client.send("POST", "/ojs/v1/jobs", body) for _ in range(count)]
    return [(one.status, one.body) for one in await asyncio.gather(*answers)]


async def test_a_deleted_queue_is_declared_again(client: Client, flights: list[int]) -> None:
    await client.push()
    channel = await client.backend.broker.connection.channel()
    await channel.delete_queue(client.backend.broker.declarer.topology.job_queue("email"))
    assert {status for status, _ in await _together(client, 3)} == {201}
    assert flights[-1] == 3
    assert len(await client.fetch(count=10)) == 3
    assert len(client.backend.leases) == 3


async def test_what_has_arrived_is_released(client: Client) -> None:
    """The collector comes rarely: a hundred jobs of 1 MB, with their answers, took 300 MB."""
    await client.push()
    gc.collect()
    gc.disable()
    try:
        await _together(client, 5)
        await _together(client, 5)
        # The last one may not be over.
        assert sum(isinstance(one, PushFlight) for one in gc.get_objects()) <= 1
    finally:
        gc.enable()


async def test_what_a_full_queue_refuses_is_answered_and_the_rest_is_enqueued(uri: str, flights: list[int]) -> None:
    async with client_of(uri, Topology(max_length=3)) as client:
        await client.push()
        answers = await _together(client, 4)
        assert sorted(status for status, _ in answers) == [201, 201, 429, 429]
        assert client.backend.broker.events.counters.refused["email", "QUEUE_FULL"] == 2
        assert flights[-1] == 4
        batch = {"jobs": [{"type": "a.b", "args": [], "options": {"queue": "email"}}] * 2}
        await client.ask("POST", "/ojs/v1/jobs/batch", batch, 429)
        jobs = await client.fetch(count=10)
        assert len(jobs) == 3
        counts = await client.backend.counts()
        assert sum(counts.values()) == 3


async def test_what_is_lost_with_a_connection_is_published_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push()
    publish = Channel.publish_run

    def lose_every_other(channel: Channel, exchange: str, messages: Messages) -> bool:
        given = list(messages)
        assert publish(channel, exchange, given[::2])
        for confirmation, *_ in given[1::2]:
            confirmation.set_exception(ConnectionLost("gone"))
        return True

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "publish_run", lose_every_other)
        answers = await _together(client, 5)
    assert {status for status, _ in answers} == {201}
    assert len(await client.fetch(count=10)) == 6


async def test_temporary_refusals_are_published_again_and_errors_are_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push()
    publisher = await client.backend.jobs.publisher()
    errors: list[Exception] = [MessageNacked("later"), ArithmeticError("wrong")]
    publish = Channel.publish_run

    def refuse(channel: Channel, exchange: str, messages: Messages) -> bool:
        given = list(messages)
        assert publish(channel, exchange, given[2:])
        for (confirmation, *_), error in zip(given, errors, strict=False):
            confirmation.set_exception(error)
        return True

    monkeypatch.setattr(publisher, "_nacks_pass", True)
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "publish_run", refuse)
        statuses = [status for status, _ in await _together(client, 3)]
    assert statuses == [201, 500, 201]
    assert len(await client.fetch(count=10)) == 3


async def test_without_a_connection_jobs_take_the_usual_way(client: Client, flights: list[int]) -> None:
    await client.push()
    before = len(flights)
    client.backend.broker.declarer.forget_queue("email")
    assert (await _together(client, 1))[0][0] == 201
    assert len(flights) == before


@pytest.mark.plain_source
async def test_large_groups_take_the_usual_way(
    client: Client, flights: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push()
    monkeypatch.setattr(push_group, "MAX_FLIGHT_BYTES", 10)
    before = len(flights)
    assert {status for status, _ in await _together(client, 3)} == {201}
    assert len(flights) == before


async def test_a_broker_that_accepts_nothing_is_not_waited_for_too_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push()
    publisher = await client.backend.jobs.publisher()
    limits = publisher.blocked_timeout
    kept: list[Confirmation] = []

    def keep(_channel: Channel, _exchange: str, messages: Messages) -> bool:
        kept.extend(confirmation for confirmation, *_ in messages)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "publish_run", keep)
        pushing = asyncio.ensure_future(_together(client, 2))
        while not kept:
            await asyncio.sleep(0)
    kept[0].set_result(None)
    monkeypatch.setattr(limits, "_is_limited", lambda: True)
    monkeypatch.setattr(limits, "_seconds", 0.01)
    limits._changed()
    answers = await pushing
    assert [status for status, _ in answers] == [201, 503]
    assert not limits._limits
    # Its confirm arrives late.
    kept[1].set_result(None)
    assert sum((await client.backend.counts()).values()) == 2


@pytest.mark.plain_source
async def test_events_that_are_not_confirmed_are_not_waited_for_too_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push()
    publisher = await client.backend.jobs.publisher()
    limits, events = publisher.blocked_timeout, client.backend.broker.events
    recorded = asyncio.Event()
    after: list[object] = []

    def keep(action: object) -> None:
        after.append(action)
        recorded.set()

    with monkeypatch.context() as patch:
        patch.setattr(events, "after", keep)
        pushing = asyncio.ensure_future(_together(client, 1))
        await recorded.wait()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "_is_limited", lambda: True)
        patch.setattr(limits, "_seconds", 0.0)
        limits._changed()
        assert [status for status, _ in await pushing] == [201]
    assert not limits._limits


async def test_a_view_that_is_behind_is_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.push()
    known = asyncio.Event()
    waits: list[object] = []

    async def wait(_view: JobView, job_ids: object, _seconds: float) -> bool:
        waits.append(job_ids)
        await known.wait()
        return False

    monkeypatch.setattr(JobView, "knows_now", lambda *_: False)
    monkeypatch.setattr(JobView, "knows", wait)
    pushing = asyncio.ensure_future(_together(client, 2))
    while not waits:
        await asyncio.sleep(0)
    assert not pushing.done()
    known.set()
    assert {status for status, _ in await pushing} == {201}
