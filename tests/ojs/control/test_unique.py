"""Unique jobs, by the list of ojs-unique-jobs section 14, on both brokers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.client.breaking import until
from tests.conformance.requirement import requirement
from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye
from waybill.ojs import Coordinator, DuplicateJob, Envelope, InvalidJob, Jobs, PushFailed, Retry, Unique, Worker
from waybill.ojs.middleware import Encryption
from waybill.ojs.spec.unique import DEFAULT_STATES, unique_key
from waybill.ojs.topology.topology import Topology


@pytest.fixture
async def jobs(broker_uri: str, queue_name: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri, create_queues=True) as jobs, Coordinator(jobs, queues=[queue_name]):
        yield jobs


BY_TYPE = Unique()


async def push(jobs: Jobs, queue: str, *args: object, unique: Unique = BY_TYPE, **options: Any) -> Envelope:
    return (await jobs.push(f"unique.{queue}", args, queue=queue, unique=unique, **options)).envelope


async def test_the_second_is_refused_until_the_first_has_ended(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    first = await push(jobs, queue_name)
    with pytest.raises(DuplicateJob, match="DUPLICATE") as caught:
        await push(jobs, queue_name)
    assert (caught.value.existing_id, caught.value.existing_state) == (first.id, "available")
    assert await eye.count(f"ojs.queue.{queue_name}") == 1
    jobs.handler(f"unique.{queue_name}", queue=queue_name)(nothing)
    async with Worker(jobs):
        await state_of(jobs, first.id, queue_name, "completed")
    assert (await push(jobs, queue_name)).state == "available"
    # One that is completed counts if the policy says so.
    with pytest.raises(DuplicateJob):
        await push(jobs, queue_name, unique=Unique(states=(*DEFAULT_STATES, "completed")))


async def test_of_many_at_once_from_several_clients_exactly_one_is_enqueued(
    broker_uri: str, jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    async with Jobs(broker_uri) as others, Coordinator(others, queues=[queue_name]):
        pushes = [push((jobs, others)[n % 2], queue_name, unique=Unique(on_conflict="reject")) for n in range(40)]
        outcomes = await asyncio.gather(*pushes, return_exceptions=True)
    winners = [one for one in outcomes if isinstance(one, Envelope)]
    assert len(winners) == 1
    assert {one.existing_id for one in outcomes if isinstance(one, DuplicateJob)} == {winners[0].id}
    assert sum(isinstance(one, DuplicateJob) for one in outcomes) == 39
    assert await eye.count(f"ojs.queue.{queue_name}") == 1


async def test_chosen_arguments_and_queues_make_the_difference(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    by_user = Unique(keys=("type", "args"), args_keys=("user_id",))
    await push(jobs, queue_name, {"user_id": 42, "template": "a"}, unique=by_user)
    with pytest.raises(DuplicateJob):
        await push(jobs, queue_name, {"user_id": 42, "template": "b"}, unique=by_user)
    await push(jobs, queue_name, {"user_id": 43, "template": "a"}, unique=by_user)
    other = f"{queue_name}.other"
    async with Coordinator(jobs, queues=[other]):
        by_queue = Unique(keys=("type", "queue"))
        for queue in (queue_name, other):
            await jobs.push("unique.scoped", queue=queue, unique=by_queue)
        await jobs.push("unique.global", queue=queue_name, unique=Unique())
        with pytest.raises(DuplicateJob):
            await jobs.push("unique.global", queue=other, unique=Unique())


async def test_a_period_ends_it(jobs: Jobs, queue_name: str) -> None:
    unique = Unique(period=timedelta(seconds=0.5))
    await push(jobs, queue_name, unique=unique)
    with pytest.raises(DuplicateJob):
        await push(jobs, queue_name, unique=unique)
    pushed = None
    while pushed is None:
        try:
            pushed = await push(jobs, queue_name, unique=unique)
        except DuplicateJob:
            await asyncio.sleep(0.02)


async def test_ignored_duplicates_name_the_job_that_is_there(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    first = await push(jobs, queue_name, 1, unique=Unique(on_conflict="ignore"))
    second = await push(jobs, queue_name, 2, unique=Unique(on_conflict="ignore"))
    assert (first.is_duplicate, second.is_duplicate) == (False, True)
    assert (second.id, second.state) == (first.id, "available")
    assert await eye.count(f"ojs.queue.{queue_name}") == 1


async def test_a_job_replaces_one_that_waits_and_not_one_that_runs(jobs: Jobs, queue_name: str) -> None:
    unique = Unique(on_conflict="replace")
    runs: list[int] = []
    release = asyncio.Event()

    @jobs.handler(f"unique.{queue_name}", queue=queue_name)
    async def run(number: int) -> None:
        runs.append(number)
        await release.wait()

    first = await push(jobs, queue_name, 1, unique=unique)
    second = await push(jobs, queue_name, 2, unique=unique)
    assert (await state_of(jobs, first.id, queue_name, "cancelled")).ended_at is not None
    async with Worker(jobs):
        await state_of(jobs, second.id, queue_name, "active")
        with pytest.raises(DuplicateJob, match="active"):
            await push(jobs, queue_name, 3, unique=unique)
        release.set()
        await state_of(jobs, second.id, queue_name, "completed")
    assert runs == [2]


async def test_a_replacement_may_keep_the_time_of_the_first(jobs: Jobs, queue_name: str) -> None:
    unique = Unique(on_conflict="replace_except_schedule")
    first = await push(jobs, queue_name, 1, unique=unique, delay=timedelta(hours=1))
    second = await push(jobs, queue_name, 2, unique=unique, delay=timedelta(hours=2))
    assert second.scheduled_at == first.scheduled_at
    found = await state_of(jobs, second.id, queue_name, "scheduled")
    assert found.scheduled_at == first.scheduled_at


async def test_a_job_between_two_attempts_is_there(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler(f"unique.{queue_name}", queue=queue_name, retry=Retry(initial_interval=timedelta(seconds=30)))
    async def fail() -> None:
        raise ConnectionError

    first = await push(jobs, queue_name)
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["retried"] == 1)
        await state_of(jobs, first.id, queue_name, "retryable")
        with pytest.raises(DuplicateJob, match="retryable"):
            await push(jobs, queue_name)


async def test_the_next_coordinator_knows(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri, create_queues=True) as jobs:
        for outcome in ("enqueued", "duplicate"):
            async with Coordinator(jobs, queues=[queue_name]):
                if outcome == "enqueued":
                    await push(jobs, queue_name)
                else:
                    with pytest.raises(DuplicateJob):
                        await push(jobs, queue_name)


async def test_a_job_that_the_broker_refuses_gives_its_place_up(broker_uri: str, queue_name: str) -> None:
    async with (
        Jobs(broker_uri, topology=Topology(max_length=1, prefix="unique.")) as jobs,
        Coordinator(jobs, queues=[queue_name]),
    ):
        filler = await jobs.push("unique.filler", queue=queue_name)
        with pytest.raises(PushFailed, match="QUEUE_FULL"):
            await push(jobs, queue_name)
        with pytest.raises(PushFailed, match="QUEUE_FULL"):
            await push(jobs, queue_name)
        assert filler.envelope.state == "available"


async def test_encrypted_arguments_are_compared_in_clear(jobs: Jobs, queue_name: str) -> None:
    jobs.use(Encryption({"k": b"k" * 32}, "k"))
    await push(jobs, queue_name, "same", unique=Unique(keys=("args",)))
    with pytest.raises(DuplicateJob):
        await push(jobs, queue_name, "same", unique=Unique(keys=("args",)))


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"keys": ["argz"]}, "unique.keys[0]"),
        ({"keys": ["meta"]}, "unique.meta_keys"),
        ({"keys": ["type", "type"]}, "unique.keys"),
        ({"keys": ["args"], "args_keys": ["nobody"]}, "unique.args_keys"),
        ({"states": ["running"]}, "unique.states[0]"),
        ({"on_conflict": "panic"}, "unique.on_conflict"),
        ({"period": "an hour"}, "unique.period"),
    ],
)
async def test_bad_policies_name_their_field(policy: dict[str, object], field: str) -> None:
    job = {"specversion": "1.0", "id": "018f0000-0000-7000-8000-000000000000", "type": "a.b", "args": [1]}
    with pytest.raises(InvalidJob) as caught:
        await Jobs("amqp://127.0.0.1:1").push_job({**job, "unique": policy})
    assert caught.value.field == field


def test_fingerprints_do_not_depend_on_order_spelling_or_form() -> None:
    policy = Unique(keys=("args", "meta"), meta_keys=("tenant",))

    def key(*args: object, **meta: object) -> str:
        return unique_key(Envelope(id="x", type="a.b", args=list(args), meta=meta), policy)

    assert key({"a": 1, "b": [1.0, 2.5]}) == key({"b": [1, 2.5], "a": 1})
    assert key("caf\u00e9") == key("cafe\u0301")
    assert key(1, tenant="x", other=1) == key(1, tenant="x", other=2)
    assert len({key(), key(1), key("1"), key(None), key(True), key({}), key(tenant="x"), key(1e-7)}) == 8


@pytest.mark.ours
@requirement("OJS-060")
async def test_our_queues_drop_what_has_an_idempotency_key_that_is_there(waybill_uri: str, queue_name: str) -> None:
    eye = Eye(waybill_uri)
    async with Jobs(waybill_uri, topology=Topology(deduplicate=True, prefix="once.")) as jobs:
        for number in range(3):
            await jobs.push("unique.key", [number], queue=queue_name, unique_key="order-17")
        await jobs.push("unique.key", ["other"], queue=queue_name, unique_key="order-18")
        taken = [(await eye.wait_for(f"once.ojs.queue.{queue_name}")).json()["args"] for _ in range(2)]
        assert taken == [[0], ["other"]]
        await jobs.push("unique.key", ["again"], queue=queue_name, unique_key="order-17")
        assert (await eye.wait_for(f"once.ojs.queue.{queue_name}")).json()["args"] == ["again"]
    eye.close()


async def nothing() -> None: ...
