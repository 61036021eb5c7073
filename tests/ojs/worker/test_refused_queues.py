"""A worker whose broker refuses one of its queues says so, consumes the others, and tries again."""

import logging
from collections.abc import AsyncIterator

import pytest

from tests.ojs.eye import until
from waybill.broker import Broker
from waybill.client import AccessRefused, connect
from waybill.ojs import Jobs, Topology, TopologyConflict, Worker
from waybill.ojs.worker import queue_declarations, worker


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(queue_declarations, "AGAIN_SECONDS", 0.05)


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


def handle(jobs: Jobs, *queues: str) -> list[str]:
    """Add a handler `refused.{number}` for each queue; the list says which ran."""
    ran: list[str] = []
    for number, queue in enumerate(queues):

        @jobs.handler(f"refused.{'abc'[number]}", queue=queue)
        async def run(queue: str = queue) -> None:
            ran.append(queue)

    return ran


def errors(caplog: pytest.LogCaptureFixture, queue: str) -> list[str]:
    found = [one for one in caplog.records if one.levelno >= logging.WARNING and one.name == "waybill.ojs.worker"]
    return [text for one in found if queue in (text := one.getMessage())]


async def test_a_queue_with_other_arguments_is_named_once_and_consumed_when_it_can_be(
    jobs: Jobs, broker_uri: str, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = f"{queue_name}-good", f"{queue_name}-bad"
    ran = handle(jobs, good, bad)
    async with connect(broker_uri) as other:
        channel = await other.channel()
        await channel.declare_queue(Topology().job_queue(bad), durable=True, arguments={"x-max-length": 5})
        async with Worker(jobs) as found:
            await jobs.push("refused.a", [])
            await until(lambda: ran == [good])
            assert not found.is_consuming
            assert "exists with other properties" in found.refused_queues[bad]
            reason = found.refused_queues[bad]
            await until(lambda: found.refused_queues[bad] is not reason)
            (line,) = errors(caplog, bad)
            assert "tries again" in line
            assert "waybill topology migrate" in line
            await channel.delete_queue(Topology().job_queue(bad))
            await until(lambda: found.is_consuming)
            assert not found.refused_queues
            await jobs.push("refused.b", [])
            await until(lambda: ran == [good, bad])


async def test_a_worker_of_which_all_queues_are_refused_does_not_start(
    jobs: Jobs, broker_uri: str, queue_name: str
) -> None:
    queues = [f"{queue_name}-{number}" for number in range(2)]
    handle(jobs, *queues)
    async with connect(broker_uri) as other:
        channel = await other.channel()
        for queue in queues:
            await channel.declare_queue(Topology().job_queue(queue), durable=True, arguments={"x-max-length": 5})
        with pytest.raises(TopologyConflict, match="other properties"):
            await Worker(jobs).start()


async def test_a_queue_for_which_rights_are_missing_is_consumed_when_they_are_given(
    queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = "mine", "theirs"
    async with Broker(port=0) as broker:
        administration = broker.administration
        administration.put_user("bob", "secret")
        administration.set_permission("bob", "/", "^(amq|ojs.exchange|ojs.events|.*mine)", ".*", ".*")
        async with Jobs(broker.uri("/", "bob", "secret")) as jobs:
            ran = handle(jobs, mine, theirs)
            async with Worker(jobs) as found:
                await until(lambda: found.consumed_queues == [mine])
                (line,) = errors(caplog, theirs)
                assert "ACCESS_REFUSED" in line
                assert "permission" in line
                administration.set_permission("bob", "/", ".*", ".*", ".*")
                await until(lambda: found.is_consuming)
                await jobs.push("refused.b", [])
                await until(lambda: ran == [theirs])
            administration.set_permission("bob", "/", "^$", ".*", ".*")
            with pytest.raises(AccessRefused):
                await Worker(jobs).start()
