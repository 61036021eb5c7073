"""A stream that was made anew, shorter or longer, and is not the one that a database was made of."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from tests.ojs.coordinator.test_job_store import event
from waybill.broker import Broker
from waybill.client import ReconnectPolicy, connect
from waybill.ojs import Coordinator, Jobs, Topology
from waybill.ojs.coordinator.event_fold import fold_messages, fold_what_can_be
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.coordinator.stream_identity import REMEMBERED, StreamIdentity, StreamMark, StreamReplaced, digest_of

FAST = ReconnectPolicy(first_delay_s=0.02, max_delay_s=0.1)


def test_a_message_that_comes_again_is_known_and_another_in_its_place_is_not() -> None:
    identity = StreamIdentity(5, StreamMark(3, digest_of(b"three")))
    assert identity.note(3, b"three") == (3, digest_of(b"three"))
    assert identity.note(3, b"other") is None
    assert identity.note(2, b"two") is None
    for offset in range(7, 7 + 2 * REMEMBERED):
        assert identity.note(offset, b"%d" % offset) is not None
    assert identity.note(6 + 2 * REMEMBERED, b"%d" % (6 + 2 * REMEMBERED)) is not None
    assert identity.note(7, b"7") is None, "so long ago that nobody can have asked for it"


@pytest.mark.parametrize("fold", [fold_messages, fold_what_can_be])
def test_who_shares_a_database_with_one_that_rebuilds_it_folds_no_more_of_the_old(
    database: str, fold: Callable[..., object]
) -> None:
    with open_job_store(database) as one, open_job_store(database) as two:
        one.marks[0] = StreamMark(7, 42)
        one.apply([(7, [event("job.enqueued", "x", 1)]), (8, [])])
        assert two.begin() == (9, StreamMark(7, 42))
        two.begin_anew()
        assert two.begin() == (0, None)
        with pytest.raises(StreamReplaced):
            fold(one, [(9, b"[]", None)])
        two.apply([(0, [event("job.enqueued", "y", 1)])])
        one.begin_anew()
        assert one.begin()[0] == 1, "it was cleared once"
        one.apply([(1, [event("job.enqueued", "z", 1)])])
        assert [job.id for job in two.many(["x", "y", "z"])] == ["y", "z"]
        one.clear()
        with pytest.raises(StreamReplaced):
            two.apply([(2, [])])


async def delete_stream(jobs: Jobs) -> None:
    async with connect(jobs.uri) as connection:
        channel = await connection.channel()
        await channel.delete_queue(jobs.topology.event_stream)


async def test_the_state_is_made_anew_from_a_stream_that_is_not_the_one_before(
    broker_uri: str, queue_name: str, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_shorter = "sqlite" in database
    topology = Topology(prefix=f"{queue_name}.")

    async def push(count: int) -> list[str]:
        async with Jobs(broker_uri, topology=topology, create_queues=True) as jobs:
            return [(await jobs.push("a.b", [number], queue=queue_name)).id for number in range(count)]

    async def known(jobs: Jobs, ids: list[str]) -> list[bool]:
        return [await jobs.info(one, timeout=20) is not None for one in ids]

    async with Jobs(broker_uri, topology=topology) as jobs:
        (before, *_) = await push(5)
        async with Coordinator(jobs, queues=[queue_name], database=database):
            assert await known(jobs, [before]) == [True]
            for _ in range(3):
                # Each is folded by itself, so that the database's position is at the end of the stream.
                assert await known(jobs, await push(1)) == [True]
        assert "deleted and created again" not in caplog.text
        await delete_stream(jobs)
    new = await push(1 if is_shorter else 30)
    async with Jobs(broker_uri, topology=topology) as jobs:
        async with Coordinator(jobs, queues=[queue_name], database=database):
            assert await known(jobs, [new[0], new[-1], before]) == [True, True, False]
        assert caplog.text.count("the event stream was deleted and created again") == 1
        async with Coordinator(jobs, queues=[queue_name], database=database):
            assert await known(jobs, [new[0], *await push(1)]) == [True, True]
        assert caplog.text.count("the event stream was deleted and created again") == 1


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_coordinator_that_runs_goes_on_with_a_broker_that_has_lost_all(
    queue_name: str, kind: str, tmp_path: object
) -> None:
    database = ":memory:" if kind == "memory" else f"{tmp_path}/jobs.sqlite"
    async with Broker(port=0) as broker:
        uri = broker.uri()
        port = int(uri.rpartition(":")[2].partition("/")[0])
        jobs = Jobs(uri, reconnect=FAST, create_queues=True, push_timeout=20)
        coordinator = Coordinator(jobs, queues=[queue_name], database=database)
        await coordinator.start()
        old = await jobs.push("a.b", queue=queue_name)
        for _ in range(5):
            await jobs.push("a.b", queue=queue_name, delay=timedelta(hours=1))
        await until(lambda: _is_known(coordinator, old.id))
    async with Broker(port=port), jobs:
        new = await jobs.push("a.b", queue=queue_name)
        await until(lambda: _is_known(coordinator, new.id))
        assert not await _is_known(coordinator, old.id)
        await coordinator.close()


async def _is_known(coordinator: Coordinator, job_id: str) -> bool:
    return await coordinator.view.get(job_id) is not None
