"""A quorum queue of a cluster refuses jobs while it has no leader: they are pushed again, up to `push_timeout`.

A policy that lets queues be full stands for the change of leader: both refuse with basic.nack, which gives no reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from waybill.broker import Broker
from waybill.client import Inspector, connect
from waybill.ojs import Jobs, NewJob, PushFailed, Topology
from waybill.ojs.push import publisher

QUEUE = "leaderless"
CLUSTER = Topology(queue_type="quorum", replicas=3)
NAME = CLUSTER.job_queue(QUEUE)


@pytest.fixture
async def refusing() -> AsyncIterator[Broker]:
    async with Broker(port=0) as broker:
        async with Jobs(broker.uri(), topology=CLUSTER, create_queues=True) as jobs:
            await jobs.push("email.send", [0], queue=QUEUE)
        limit = {"max-length": 1, "overflow": "reject-publish"}
        broker.administration.set_policy("/", "refuse", f"^{NAME}$", limit, apply_to="queues")
        yield broker


async def push(jobs: Jobs) -> None:
    await jobs.push("email.send", [1], queue=QUEUE)


async def push_many(jobs: Jobs) -> None:
    await jobs.push_many([NewJob("email.send", [number], {"queue": QUEUE}) for number in range(3)])


@pytest.mark.parametrize(("pushing", "count"), [(push, 2), (push_many, 4)])
async def test_a_push_goes_on_until_there_is_a_leader(
    refusing: Broker, monkeypatch: pytest.MonkeyPatch, pushing: Callable[[Jobs], Awaitable[None]], count: int
) -> None:
    refusals = 0
    real = publisher.is_back

    async def noticed(*arguments: Any) -> bool:
        nonlocal refusals
        refusals += 1
        if refusals == 2:
            refusing.administration.clear_policy("/", "refuse")
        return await real(*arguments)

    monkeypatch.setattr(publisher, "is_back", noticed)
    async with Jobs(refusing.uri(), topology=CLUSTER) as jobs, connect(refusing.uri()) as connection:
        await pushing(jobs)
        assert refusals >= 2
        found = await Inspector(connection).queue(NAME)
        assert found is not None
        assert found.message_count == count


async def test_a_push_gives_up_after_its_time(refusing: Broker) -> None:
    async with Jobs(refusing.uri(), topology=CLUSTER, push_timeout=0.6) as jobs:
        with pytest.raises(PushFailed) as caught:
            await push(jobs)
    assert caught.value.code == "QUEUE_FULL"
