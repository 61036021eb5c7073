"""Workflows over a broker, ours and RabbitMQ, with a worker and a coordinator, in memory and over PostgreSQL."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from unittest.mock import AsyncMock

import pytest

from waybill.ojs import (
    Coordinator,
    FailJob,
    InvalidJob,
    Jobs,
    NewJob,
    Saga,
    Unique,
    Worker,
    Workflow,
    WorkflowHandle,
    WorkflowNotCompleted,
    batch,
    chain,
    chord,
    current_job,
    group,
    parent_outcomes,
    parent_result,
    parent_results,
)
from waybill.ojs.dead_letters import DeadLetters
from waybill.ojs.workflow.actor import WorkflowActor
from waybill.ojs.workflow.handle import list_workflows


@dataclass
class Order:
    number: int
    total: float


class Shop:
    """An application whose jobs say what they did."""

    def __init__(self, uri: str, queue: str) -> None:
        self.jobs = jobs = Jobs(uri)
        self.queue = queue
        self.done: list[str] = []
        self.fails: set[str] = set()
        self.hears_of: Callable[[str], bool] = bool
        """Whether the worker has heard that a workflow was cancelled."""
        self.gate = asyncio.Event()
        self.gate.set()

        @jobs.handler("shop.order", queue=queue)
        async def order(number: int) -> Order:
            self.note("order")
            return Order(number, 9.5)

        @jobs.handler("shop.charge", queue=queue)
        async def charge() -> str:
            self.note("charge")
            return f"charged {parent_result(order).total}"

        @jobs.handler("shop.number", queue=queue)
        async def number(value: int) -> int:
            await self.gate.wait()
            self.note(f"number {value}")
            return value

        @jobs.handler("shop.total", queue=queue)
        async def total() -> int:
            self.note("total")
            return sum(parent_results(number))

        @jobs.handler("shop.report", queue=queue)
        async def report(name: str) -> list[str]:
            self.note(name)
            return [str(one) for one in parent_outcomes(number)]

        @jobs.handler("shop.fan", queue=queue)
        async def fan(count: int) -> None:
            self.note("fan")
            await group(number.job(one) for one in range(count)).spawn(jobs)

        @jobs.handler("shop.names", queue=queue)
        async def names() -> list[str]:
            return sorted(current_job().parent_results)

        self.order, self.charge, self.number, self.total = order, charge, number, total
        self.report, self.fan, self.names = report, fan, names

    def note(self, what: str) -> None:
        self.done.append(what)
        if what in self.fails:
            raise FailJob(f"{what} fails")


@contextlib.asynccontextmanager
async def running(uri: str, queue: str, database: str) -> AsyncIterator[Shop]:
    shop = Shop(uri, queue)
    async with (
        shop.jobs,
        Coordinator(shop.jobs, queues=[queue], database=database),
        Worker(shop.jobs, queues=[queue], concurrency=20) as worker,
    ):
        runner = worker._runner
        assert runner is not None
        shop.hears_of = runner.cancellations.covers
        yield shop


@pytest.fixture
async def shop(broker_uri: str, queue_name: str, state: str) -> AsyncIterator[Shop]:
    async with running(broker_uri, queue_name, state) as shop:
        yield shop


async def test_a_chain_passes_results_on(shop: Shop) -> None:
    handle = await chain(shop.order.job(7), shop.charge.job()).named("sale").push(shop.jobs)
    assert await handle.result(timeout=30) == "charged 9.5"
    assert shop.done == ["order", "charge"]
    info = await handle.info()
    assert (info.state, info.name, info.metadata.completed_count) == ("completed", "sale", 2)
    assert [(step.type, step.state) for step in info.steps] == [
        ("shop.order", "completed"),
        ("shop.charge", "completed"),
    ]
    job = await shop.jobs.info(info.steps[0].job_id or "")
    assert job is not None
    assert job.state == "completed"


async def test_a_chord_gets_all_results_and_a_group_returns_them(shop: Shop) -> None:
    small = await chord([shop.number.job(one) for one in range(5)], shop.total.job()).push(shop.jobs)
    large = await chord((shop.number.job(one) for one in range(300)), shop.total.job()).push(shop.jobs)
    alone = await group(shop.number.job(one) for one in range(150)).push(shop.jobs)
    typed = await group(shop.order.job(1), shop.order.job(2)).push(shop.jobs)
    assert await small.result(timeout=30) == 10
    assert await large.result(timeout=30) == sum(range(300))
    assert await alone.result(timeout=30) == list(range(150))
    assert await typed.result(timeout=30) == [Order(1, 9.5), Order(2, 9.5)]
    counts = (await large.info()).metadata
    assert (counts.job_count, counts.completed_count, counts.failed_count) == (301, 301, 0)


async def test_a_batch_calls_back_with_the_outcomes(shop: Shop) -> None:
    shop.fails.add("number 1")
    handle = await batch(
        [shop.number.job(0), shop.number.job(1)],
        on_complete=shop.report.job("complete"),
        on_success=shop.report.job("success"),
        on_failure=shop.report.job("failure"),
    ).push(shop.jobs)
    info = await handle.wait(timeout=30)
    assert info.state == "completed"
    assert sorted(shop.done) == ["complete", "failure", "number 0", "number 1"]
    assert [step.state for step in info.steps] == ["completed", "failed", "completed", "cancelled", "completed"]
    assert [error.code for error in info.errors] == ["HANDLER_ERROR"]


async def test_a_graph_gives_each_step_what_it_depends_on(shop: Shop) -> None:
    graph = Workflow("graph")
    first = graph.step("first", shop.number.job(1))
    second = graph.step("second", group(shop.number.job(2), shop.number.job(3)))
    graph.step("names", shop.names.job(), depends_on=[first, second])
    handle = await graph.push(shop.jobs)
    assert await handle.result(timeout=30) == {"first": 1, "second": [2, 3], "names": ["first", "second"]}


async def test_a_saga_is_undone_in_reverse_order(shop: Shop) -> None:
    shop.fails.add("order")
    saga = Saga("saga")
    for number in (1, 2):
        saga.step(f"step {number}", shop.number.job(number), undo=shop.number.job(10 * number))
    saga.step("names", shop.names.job())
    saga.step("order", shop.order.job(7), undo=shop.number.job(0))
    handle = await saga.push(shop.jobs)
    info = await handle.wait(timeout=30)
    assert (info.state, info.failed_step_index) == ("compensated", 3)
    assert [name for name in shop.done if name.startswith("number")] == [
        f"number {number}" for number in (1, 2, 20, 10)
    ]
    assert [(step.callback, step.state) for step in info.steps if step.callback] == [
        ("compensate:step 1", "completed"),
        ("compensate:step 2", "completed"),
        ("compensate:order", "cancelled"),
    ]
    with pytest.raises(InvalidJob):
        saga.step("order", shop.order.job(7))


async def test_a_saga_without_a_failure_is_its_last_step(shop: Shop) -> None:
    saga = Saga("saga", failure_policy="skip")
    saga.step("first", shop.order.job(7), undo=shop.number.job(0))
    saga.step("last", shop.charge.job())
    assert isinstance(await (await saga.push(shop.jobs)).result(timeout=30), str)
    assert shop.done == ["order", "charge"]


async def test_what_a_step_spawns_is_a_part_of_it(shop: Shop) -> None:
    handle = await chain(shop.fan.job(3), shop.order.job(1)).push(shop.jobs)
    await handle.wait(timeout=30)
    assert shop.done[0] == "fan"
    assert sorted(shop.done[1:4]) == ["number 0", "number 1", "number 2"]
    assert shop.done[4:] == ["order"]


async def test_a_failure_ends_a_chain_and_a_retry_goes_on_from_there(shop: Shop) -> None:
    shop.fails.add("charge")
    handle = await chain(shop.order.job(7), shop.charge.job(), shop.number.job(3)).push(shop.jobs)
    with pytest.raises(WorkflowNotCompleted, match="charge fails"):
        await handle.result(timeout=30)
    info = await handle.info()
    assert (info.failed_step_index, [step.state for step in info.steps]) == (1, ["completed", "failed", "cancelled"])
    shop.fails.clear()
    await handle.retry()
    assert await handle.result(timeout=30) == 3
    assert shop.done == ["order", "charge", "charge", "number 3"]


async def test_failed_jobs_of_a_streamed_group_are_retried_from_their_dead_letters(shop: Shop) -> None:
    shop.fails |= {"number 3", "number 77"}
    handle = await chord((shop.number.job(one) for one in range(120)), shop.total.job()).push(shop.jobs)
    with pytest.raises(WorkflowNotCompleted, match=r"number \d+ fails"):
        await handle.result(timeout=30)
    shop.fails.clear()
    await handle.retry()
    assert await handle.result(timeout=30) == sum(range(120))
    assert len(shop.done) == 123


async def test_cancel_starts_nothing_more(shop: Shop) -> None:
    shop.gate.clear()
    handle = await chain(group(shop.number.job(one) for one in range(200)), shop.order.job(1)).push(shop.jobs)
    while (await handle.state()) == "pending":
        await asyncio.sleep(0.01)
    info = await handle.cancel()
    assert info.state == "cancelled"
    with pytest.raises(WorkflowNotCompleted, match="cancelled"):
        await handle.cancel()
    # The broker has the message to the worker; only once the worker has read it does it start nothing more.
    while not shop.hears_of(handle.id):
        await asyncio.sleep(0.01)
    shop.gate.set()
    after = await shop.number.push(1000)
    while f"number {1000}" not in shop.done:
        await asyncio.sleep(0.01)
    assert after.id
    assert len(shop.done) < 150
    assert "order" not in shop.done


async def test_the_broker_has_the_message_to_workers_before_a_cancellation_is_answered(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkflowActor, "_stop", AsyncMock())
    shop.gate.clear()
    handle = await group(shop.number.job(one) for one in range(3)).push(shop.jobs)
    await handle.cancel()
    async with asyncio.timeout(30):
        while not shop.hears_of(handle.id):
            await asyncio.sleep(0.01)


async def test_a_workflow_that_takes_too_long_fails(shop: Shop) -> None:
    shop.gate.clear()
    handle = await chain(shop.number.job(1), shop.order.job(1)).push(shop.jobs, expires=timedelta(seconds=0.5))
    with pytest.raises(WorkflowNotCompleted, match="WORKFLOW_EXPIRED"):
        await handle.result(timeout=30)
    shop.gate.set()


async def test_steps_may_wait_before_they_start(shop: Shop) -> None:
    delayed = shop.number.options(delay=timedelta(seconds=1)).job(2)
    handle = await chain(shop.number.job(1), delayed).push(shop.jobs)
    assert await handle.result(timeout=30) == 2


async def test_workflows_are_listed_and_found_by_id(shop: Shop) -> None:
    handle = await chain(shop.number.job(1)).named("listed").push(shop.jobs)
    await handle.wait(timeout=30)
    newest = await list_workflows(shop.jobs, state="completed", limit=5)
    assert newest[0].id == handle.id
    assert await WorkflowHandle[int](shop.jobs, handle.id).state() == "completed"
    with pytest.raises(LookupError):
        await WorkflowHandle[int](shop.jobs, "01a2b3c4-d5e6-7abc-8def-012300000000").state()


async def test_what_cannot_be_is_refused_before_anything_is_sent(shop: Shop) -> None:
    with pytest.raises(InvalidJob, match="let the step before it spawn it"):
        await chain(shop.order.job(1), group(_stream(shop, 3))).push(shop.jobs)
    with pytest.raises(InvalidJob, match="unique_key"):
        await chain(shop.number.options(unique_key="x").job(1)).push(shop.jobs)
    with pytest.raises(InvalidJob, match="has no jobs"):
        await group([]).push(shop.jobs)
    unique = shop.number.options(unique=Unique())
    with pytest.raises(InvalidJob, match="streamed"):
        await group([unique.job(one) for one in range(200)]).push(shop.jobs)


@pytest.mark.parametrize("count", [3, 150])
async def test_retried_dead_letters_resume_the_workflow_and_the_one_that_has_spawned_it(shop: Shop, count: int) -> None:
    shop.fails = {"number 1", "number 2"}
    handle = await chain(shop.fan.job(count), shop.order.job(1)).push(shop.jobs)
    with pytest.raises(WorkflowNotCompleted):
        await handle.result(timeout=30)
    shop.fails.clear()
    async with DeadLetters(shop.jobs, shop.queue) as dead:
        async with asyncio.timeout(30):
            while len(found := await dead.peek()) < 2:
                await asyncio.sleep(0.05)
        assert await dead.retry([one.id for one in found]) == 2
    async with asyncio.timeout(30):
        while await handle.state() != "completed":
            await asyncio.sleep(0.05)
    assert sorted(shop.done) == sorted(
        ["fan", "order", "number 1", "number 2", *(f"number {one}" for one in range(count))]
    )


async def test_unique_steps_are_done_once(shop: Shop) -> None:
    shop.gate.clear()
    once = shop.number.options(unique=Unique(keys=("type", "args"), on_conflict="ignore"))
    first = await chain(once.job(7), shop.number.job(1)).push(shop.jobs)
    second = await group([once.job(7), shop.number.job(2)]).push(shop.jobs)
    shop.gate.set()
    assert await second.result(timeout=30) == [7, 2]
    assert await first.result(timeout=30) == 1
    assert shop.done.count("number 7") == 1


async def _stream(shop: Shop, count: int) -> AsyncIterator[NewJob[int]]:
    for one in range(count):
        yield shop.number.job(one)


async def test_jobs_of_an_async_iterator_are_streamed(shop: Shop) -> None:
    handle = await chord(_stream(shop, 50), shop.total.job()).push(shop.jobs)
    assert await handle.result(timeout=30) == sum(range(50))
