"""A broker that refuses events is asked less and less often, and the log says so once a minute."""

import asyncio
import logging
from itertools import pairwise

import pytest

from tests.ojs.eye import until
from waybill.broker import Broker
from waybill.client import AccessRefused, ConnectionLost, connect
from waybill.ojs import Jobs, Topology
from waybill.ojs.observe import event_retries
from waybill.ojs.observe.event_retries import LOGGED_SECONDS, MOST_SECONDS, EventRetries

REFUSED = AccessRefused(403, "no")


def test_pauses_grow_while_the_broker_refuses_and_the_log_is_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    retries = EventRetries(lambda: now)
    times = []
    while now < 10 * LOGGED_SECONDS:
        times.append(now)
        retries.note(REFUSED)
        now += retries.pause_seconds
        retries.begin()
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert set(pauses[4:]) == {MOST_SECONDS}
    assert len(caplog.records) <= 10
    retries.end()
    assert caplog.messages[-1] == "events are published again"
    retries.note(REFUSED)
    assert "cannot be published" in caplog.messages[-1]
    assert retries.pause_seconds == 1


def test_a_lost_connection_is_looked_at_each_second() -> None:
    retries = EventRetries(lambda: 0.0)
    for _ in range(9):
        retries.note(ConnectionLost("lost"))
        retries.begin()
    assert retries.pause_seconds == 1


async def test_events_come_when_they_are_allowed_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(event_retries, "FIRST_SECONDS", 0.01)
    tries: list[float] = []
    begin = EventRetries.begin

    def noted(retries: EventRetries) -> None:
        begin(retries)
        tries.append(retries.pause_seconds)

    monkeypatch.setattr(EventRetries, "begin", noted)
    async with Broker(port=0) as broker:
        administration = broker.administration
        administration.put_user("bob", "secret")
        administration.set_permission("bob", "/", ".*", ".*", ".*")
        async with Jobs(broker.uri("/", "bob", "secret")) as jobs:
            await jobs.push("a.b", queue="retried")
            administration.set_permission("bob", "/", ".*", r"^ojs\.(queue|exchange\.direct|exchange\.jobs)", ".*")
            pushing = asyncio.create_task(jobs.push("a.b", queue="retried"))
            await until(lambda: len(tries) >= 4)
            administration.set_permission("bob", "/", ".*", ".*", ".*")
            await pushing
            await until(lambda: "events are published again" in caplog.messages)
    assert sum("cannot be published" in text for text in caplog.messages) == 1


async def test_an_exchange_that_was_deleted_is_declared_again(broker_uri: str, queue_name: str) -> None:
    topology = Topology(prefix=f"{queue_name}.")
    async with Jobs(broker_uri, topology=topology) as jobs, connect(broker_uri) as connection:
        await jobs.push("a.b", queue="again")
        channel = await connection.channel(prefetch_count=10)
        await channel.delete_exchange(topology.events)
        await jobs.push("a.b", queue="again")
        found = await channel.consume(topology.event_stream, arguments={"x-stream-offset": "first"})
        for _ in range(2):
            delivery = await anext(found)
            delivery.ack()
