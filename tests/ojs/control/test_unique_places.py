"""Unique jobs without a coordinator: the broker holds their places, where it is Waybill's."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.client.breaking import until
from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye
from tests.ojs.proxy import Proxy
from waybill.client import ReconnectPolicy, connect
from waybill.ojs import Coordinator, DeadLetterJob, DuplicateJob, Envelope, Jobs, PushFailed, Retry, Unique, Worker
from waybill.ojs.control.unique_places import UniquePlaces
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.unique import unique_key
from waybill.ojs.topology.topology import Topology

BY_TYPE = Unique()


async def push(jobs: Jobs, queue: str, *args: object, unique: Unique = BY_TYPE, **options: Any) -> Envelope:
    return (await jobs.push(f"unique.{queue}", args, queue=queue, unique=unique, **options)).envelope


@pytest.fixture
async def jobs(waybill_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(waybill_uri, create_queues=True) as jobs:
        yield jobs


@pytest.fixture
def ours(waybill_uri: str) -> Iterator[Eye]:
    eye = Eye(waybill_uri)
    yield eye
    eye.close()


def key_of(queue: str) -> str:
    """The fingerprint of the jobs that `push` makes."""
    return unique_key(Envelope(id="x", type=f"unique.{queue}", queue=queue), BY_TYPE)


async def has_place(eye: Eye, queue: str) -> bool:
    """Whether the broker keeps a place for such a job."""
    return await eye.exists(f"ojs.unique.{key_of(queue)}")


@pytest.mark.ours
async def test_the_second_is_refused_until_the_first_has_ended(jobs: Jobs, ours: Eye, queue_name: str) -> None:
    first = await push(jobs, queue_name)
    with pytest.raises(DuplicateJob, match="DUPLICATE") as caught:
        await push(jobs, queue_name)
    assert caught.value.existing_id == first.id
    assert await ours.count(f"ojs.queue.{queue_name}") == 1
    release = asyncio.Event()

    @jobs.handler(f"unique.{queue_name}", queue=queue_name)
    async def run() -> None:
        await release.wait()

    async with Worker(jobs) as worker:
        await until(lambda: worker.running_count == 1)
        with pytest.raises(DuplicateJob):
            await push(jobs, queue_name)
        release.set()
        await until(lambda: worker.counts["completed"] == 1 and worker.held_count == 0)
    assert not await has_place(ours, queue_name)
    assert (await push(jobs, queue_name)).state == "available"


@pytest.mark.ours
async def test_of_many_at_once_from_several_clients_exactly_one_is_enqueued(
    waybill_uri: str, jobs: Jobs, ours: Eye, queue_name: str
) -> None:
    async with Jobs(waybill_uri, create_queues=True) as others:
        pushes = [push((jobs, others)[n % 2], queue_name) for n in range(20)]
        outcomes = await asyncio.gather(*pushes, return_exceptions=True)
    winners = [one for one in outcomes if isinstance(one, Envelope)]
    assert len(winners) == 1
    assert {one.existing_id for one in outcomes if isinstance(one, DuplicateJob)} == {winners[0].id}
    assert sum(isinstance(one, DuplicateJob) for one in outcomes) == 19
    assert await ours.count(f"ojs.queue.{queue_name}") == 1


@pytest.mark.ours
async def test_ignored_duplicates_name_the_job_that_is_there(jobs: Jobs, ours: Eye, queue_name: str) -> None:
    first = await push(jobs, queue_name, 1, unique=Unique(on_conflict="ignore"))
    second = await push(jobs, queue_name, 2, unique=Unique(on_conflict="ignore"))
    assert (first.is_duplicate, second.is_duplicate) == (False, True)
    assert second.id == first.id
    assert await ours.count(f"ojs.queue.{queue_name}") == 1


@pytest.mark.ours
async def test_a_batch_has_unique_jobs_among_others(jobs: Jobs, ours: Eye, queue_name: str) -> None:
    unique = {"keys": ["type", "args"], "on_conflict": "ignore"}
    made: list[dict[str, object]] = [
        {
            "id": new_id(),
            "type": "batch.one",
            "queue": queue_name,
            "args": [number % 2],
            "specversion": "1.0",
            "unique": unique,
        }
        for number in range(4)
    ]
    made.append({"id": new_id(), "type": "batch.other", "queue": queue_name, "args": [], "specversion": "1.0"})
    pushed = await jobs.push_many(made)
    assert [one.is_duplicate for one in pushed] == [False, False, True, True, False]
    assert await ours.count(f"ojs.queue.{queue_name}") == 3


@pytest.mark.ours
async def test_a_job_between_two_attempts_is_there_and_a_dead_letter_is_not(
    jobs: Jobs, ours: Eye, queue_name: str
) -> None:
    errors: list[Exception] = [ConnectionError(), DeadLetterJob("no more")]

    @jobs.handler(f"unique.{queue_name}", queue=queue_name, retry=Retry(initial_interval=timedelta(seconds=0.1)))
    async def fail() -> None:
        raise errors.pop(0)

    await push(jobs, queue_name)
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["retried"] == 1)
        with pytest.raises(DuplicateJob):
            await push(jobs, queue_name)
        await until(lambda: worker.counts["discarded"] == 1 and worker.held_count == 0)
    assert await ours.count(f"ojs.queue.dlx.{queue_name}") == 1
    assert not await has_place(ours, queue_name)


@pytest.mark.ours
async def test_a_scheduled_job_has_its_place_and_a_period_ends_it(jobs: Jobs, queue_name: str) -> None:
    unique = Unique(period=timedelta(milliseconds=300))
    await push(jobs, queue_name, unique=unique, delay=timedelta(hours=1))
    with pytest.raises(DuplicateJob):
        await push(jobs, queue_name, unique=unique)
    pushed = None
    while pushed is None:
        try:
            pushed = await push(jobs, queue_name, unique=unique)
        except DuplicateJob:
            await asyncio.sleep(0.02)


@pytest.mark.ours
@pytest.mark.parametrize(
    ("unique", "topology", "text"),
    [
        (Unique(on_conflict="replace"), Topology(), "on_conflict 'replace'"),
        (Unique(on_conflict="replace_except_schedule"), Topology(), "on_conflict 'replace_except_schedule'"),
        (Unique(states=("available",)), Topology(), "unique.states"),
        (Unique(), Topology(prefix="ttl.", message_ttl_ms=60_000), "expire"),
    ],
)
async def test_what_only_a_coordinator_can_decide_is_refused_at_once(
    waybill_uri: str, queue_name: str, unique: Unique, topology: Topology, text: str
) -> None:
    async with Jobs(waybill_uri, topology=topology, create_queues=True) as jobs:
        with pytest.raises(
            PushFailed, match=f"no coordinator runs .*{text}.*`waybill coordinator {queue_name}`"
        ) as caught:
            await push(jobs, queue_name, unique=unique)
    assert caught.value.code == "BACKEND_UNAVAILABLE"


async def test_rabbitmq_needs_a_coordinator_and_a_push_says_so_at_once(rabbitmq: Any, queue_name: str) -> None:
    # A push that waited would wait for longer than a test may take.
    async with Jobs(rabbitmq.uri("/ojs"), push_timeout=1000, create_queues=True) as jobs:
        with pytest.raises(PushFailed, match=f"unique jobs need on RabbitMQ: run `waybill coordinator {queue_name}`"):
            await push(jobs, queue_name)


@pytest.mark.ours
async def test_a_job_that_the_broker_refuses_gives_its_place_up(waybill_uri: str, queue_name: str) -> None:
    async with Jobs(waybill_uri, topology=Topology(max_length=1, prefix="place."), create_queues=True) as jobs:
        await jobs.push("unique.filler", queue=queue_name)
        for _ in range(2):
            with pytest.raises(PushFailed, match="QUEUE_FULL"):
                await push(jobs, queue_name)


@pytest.mark.ours
async def test_coordinators_and_places_know_of_each_other(waybill_uri: str, jobs: Jobs, queue_names: Any) -> None:
    before, while_it_runs = queue_names(), queue_names()
    first = await push(jobs, before)
    async with Coordinator(jobs, queues=[before, while_it_runs]):
        with pytest.raises(DuplicateJob) as caught:
            await push(jobs, before)
        assert (caught.value.existing_id, caught.value.existing_state) == (first.id, "available")
        replaced = await push(jobs, while_it_runs, unique=Unique(on_conflict="replace"))
        second = await push(jobs, while_it_runs, unique=Unique(on_conflict="replace"))
        await state_of(jobs, replaced.id, while_it_runs, "cancelled")
    with pytest.raises(DuplicateJob) as caught:
        await push(jobs, while_it_runs)
    assert caught.value.existing_id == second.id


@pytest.mark.ours
async def test_a_job_that_had_ended_before_its_worker_was_killed_does_not_run_again(
    waybill_uri: str, jobs: Jobs, ours: Eye, queue_name: str
) -> None:
    runs: list[str] = []

    @jobs.handler(f"unique.{queue_name}", queue=queue_name)
    async def run() -> None:
        runs.append("run")

    job = await push(jobs, queue_name)
    # What a worker has done that is killed between the last two of its steps.
    async with connect(waybill_uri) as connection:
        channel = await connection.channel()
        assert await channel.get(f"ojs.queue.{queue_name}") is not None
        broker = await jobs.broker_connection()
        await UniquePlaces(broker.connection, broker.declarer.topology).release(key_of(queue_name), job.id)
        second = await push(jobs, queue_name)
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] == 1 and worker.held_count == 0)
        assert await ours.count(f"ojs.queue.{queue_name}") == 0
    assert runs == ["run"]
    assert second.id != job.id


@pytest.mark.ours
async def test_a_job_that_ended_while_its_worker_was_cut_off_has_ended_for_all(
    waybill_uri: str, queue_name: str
) -> None:
    handling, release = asyncio.Event(), asyncio.Event()

    async def run() -> str:
        handling.set()
        await release.wait()
        return "done"

    async with Proxy(waybill_uri) as proxy, Jobs(waybill_uri, create_queues=True) as other:
        cut_off = Jobs(proxy.uri, reconnect=ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.1))
        for one in (cut_off, other):
            one.handler(f"unique.{queue_name}", queue=queue_name)(run)
        async with Coordinator(other, queues=[queue_name]), Worker(cut_off):
            envelope = await push(other, queue_name, retry=Retry(initial_interval=timedelta(seconds=2), jitter=False))
            await handling.wait()
            proxy.refusing = True
            proxy.cut()
            async with Worker(other) as worker:
                # The redelivery tells this worker that the first is lost.
                await until(lambda: worker.counts["failed"] == 1)
                release.set()
                proxy.refusing = False
                job = await state_of(other, envelope.id, queue_name, "completed")
                assert (job.attempt, job.result) == (1, "done")
