"""Handlers get objects wherever they run, and never a job whose arguments do not fit; on both brokers."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pydantic
import pytest

from tests.ojs import typed_program
from tests.ojs.eye import Eye, until
from tests.ojs.typed_program import Picture
from waybill.ojs import InvalidJob, JobInfo, Jobs, Retry, Worker


class Order(pydantic.BaseModel):
    number: int
    due: date


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def ended(jobs: Jobs, job_id: str, queue: str) -> JobInfo:
    while (job := await jobs.info(job_id, queue)) is None or job.ended_at is None:
        await asyncio.sleep(0.02)
    return job


async def test_objects_arrive_in_the_loop_in_threads_and_in_processes(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("typed.loop", queue=queue_name)
    async def in_loop(order: Order, *, tags: set[str]) -> Order:
        assert isinstance(order, Order)
        return Order(number=order.number + len(tags), due=order.due + timedelta(days=1))

    @jobs.handler("typed.thread", queue=queue_name)
    def in_thread(*days: date) -> list[date]:
        return [max(days)]

    in_process = jobs.handler("typed.process", queue=queue_name, process=True)(typed_program.shrink)
    day = date(2026, 1, 2)
    async with Worker(jobs, coordinator=True):
        first = await in_loop.push(Order(number=1, due=day), tags={"a", "b"})
        second = await in_thread.push(day, date(2027, 1, 1))
        third = await in_process.push(Picture(Path("/srv/a"), timedelta(hours=1)), width=7)
        results = [(await ended(jobs, job.id, queue_name)).result for job in (first, second, third)]
    assert results == [
        {"number": 3, "due": "2026-01-03"},
        ["2027-01-01"],
        [{"path": "/srv/a/7", "age": "PT3600S"}],
    ]


async def test_a_job_that_does_not_fit_is_a_dead_letter_after_one_attempt_without_a_run(
    jobs: Jobs, queue_name: str, eye: Eye
) -> None:
    ran: list[object] = []

    @jobs.handler("typed.loop", queue=queue_name, retry=Retry(max_attempts=5))
    async def in_loop(to: str, when: date | None = None) -> None:
        ran.append(to)

    @jobs.handler("typed.thread", queue=queue_name)
    def in_thread(order: Order) -> None:
        ran.append(order)

    in_process = jobs.handler("typed.process", queue=queue_name, process=True)(typed_program.shrink)
    await jobs._open()
    odd: list[tuple[str, list[Any], str]] = [
        ("typed.loop", [5], "to: expected `str`, got `int`"),
        ("typed.loop", ["a", "never"], "when: invalid RFC3339"),
        ("typed.loop", [], "to: is missing"),
        ("typed.thread", [{"number": 1}], "order: due: Field required"),
        (in_process.type, [{"path": "/srv/a", "age": 1}, {"width": "wide"}], "width: expected `int`, got `str`"),
    ]
    async with Worker(jobs, on_discard="acknowledge", coordinator=True):
        for index, (kind, args, _) in enumerate(odd):
            body = json.dumps({"specversion": "1.0", "id": f"stranger-{index}", "type": kind, "args": args}).encode()
            await eye.call(functools.partial(eye.channel.basic_publish, "ojs.exchange.direct", queue_name, body))
        await in_loop.push("right", date(2026, 1, 2))
        await until(lambda: bool(ran))
        dead = f"ojs.queue.dlx.{queue_name}"
        letters = [await eye.wait_for(dead) for _ in odd]
        told = {letter.json()["id"]: await ended(jobs, letter.json()["id"], queue_name) for letter in letters}
    assert ran == ["right"]
    for index, (_, _, reason) in enumerate(odd):
        job = told[f"stranger-{index}"]
        assert job.error is not None
        assert (job.state, job.attempt, job.error["code"]) == ("discarded", 1, "INVALID_ARGS")
        assert str(job.error["message"]).lower().startswith(reason.lower()), job.error


async def test_a_push_by_name_is_checked_too(jobs: Jobs, queue_name: str, eye: Eye) -> None:
    @jobs.handler("typed.by.name", queue=queue_name)
    async def by_name(to: str, when: date = date(2026, 1, 2)) -> None: ...

    for args in ([5], ["a", 5], [], ["a", "2026-01-02", 3]):
        with pytest.raises(InvalidJob):
            await jobs.push("typed.by.name", args)
        with pytest.raises(InvalidJob):
            await jobs.push_job(
                {"specversion": "1.0", "id": by_name.job("a").id, "type": "typed.by.name", "args": args}
            )
    pushed = await jobs.push("typed.by.name", ["a", date(2026, 1, 3)])
    assert pushed.envelope.args == ["a", "2026-01-03"]
    assert (await eye.wait_for(f"ojs.queue.{queue_name}")).json()["args"] == ["a", "2026-01-03"]
