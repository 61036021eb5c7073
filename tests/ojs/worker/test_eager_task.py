"""Coroutines that are started at once, in the name of a task that they may never need."""

import asyncio
import gc
from contextvars import ContextVar
from typing import Any

import pytest

from waybill.ojs.worker.eager_task import Ended, Starter

number: ContextVar[int] = ContextVar("number", default=0)
other: ContextVar[str] = ContextVar("other", default="")


async def outside_of_tasks(action: Any) -> Any:
    """The result of what runs in a plain callback of the loop, as deliveries do."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(lambda: future.set_result(action()))
    return await future


@pytest.fixture
async def starter() -> Starter[int]:
    return Starter(asyncio.get_running_loop(), number)


async def test_one_that_never_waits_has_ended(starter: Starter[int]) -> None:
    async def double() -> int:
        return number.get() * 2

    ended = await outside_of_tasks(lambda: [starter.start(double(), value) for value in (1, 2, 3)])
    assert [one.result for one in ended] == [2, 4, 6]
    assert all(isinstance(one, Ended) and one.error is None for one in ended)
    assert number.get() == 0


async def test_an_error_is_kept(starter: Starter[int]) -> None:
    async def fail() -> None:
        raise LookupError("no")

    ended = await outside_of_tasks(lambda: starter.start(fail(), 1))
    assert isinstance(ended.error, LookupError)


async def test_one_that_waits_is_a_task_with_its_value(starter: Starter[int]) -> None:
    async def wait(seconds: float) -> tuple[int, int]:
        before = number.get()
        await asyncio.sleep(seconds)
        return before, number.get()

    tasks = await outside_of_tasks(lambda: [starter.start(wait(0.001 * (3 - value)), value) for value in (0, 1, 2)])
    assert [await task for task in tasks] == [(0, 0), (1, 1), (2, 2)]


async def test_the_task_is_the_same_before_and_after_a_wait(starter: Starter[int]) -> None:
    async def look() -> set[Any]:
        seen = {asyncio.current_task()}
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        return seen | {asyncio.current_task()}

    task = await outside_of_tasks(lambda: starter.start(look(), 1))
    assert await task == {task}


async def test_a_timeout_ends_a_wait(starter: Starter[int]) -> None:
    async def slow() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        except TimeoutError:
            await asyncio.sleep(0)
            return "too late"
        return "in time"

    assert await (await outside_of_tasks(lambda: starter.start(slow(), 1))) == "too late"


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_cancellation_reaches_the_coroutine(starter: Starter[int], turns: int) -> None:
    heard: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    def start() -> Any:
        task: Any = starter.start(wait(), 1)
        if not turns:
            task.cancel()
        return task

    task = await outside_of_tasks(start)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]


async def test_what_one_sets_in_its_context_the_next_does_not_see(starter: Starter[int]) -> None:
    other.set("before")

    async def change() -> str:
        seen = other.get()
        other.set("changed")
        return seen

    async def change_later() -> str:
        await asyncio.sleep(0)
        return await change()

    def start() -> list[Any]:
        return [starter.start(work, 1) for work in (change(), change(), change_later(), change_later(), change())]

    found = await outside_of_tasks(start)
    results = [one.result if isinstance(one, Ended) else await one for one in found]
    assert results == ["before"] * 5
    assert other.get() == "before"


async def test_nothing_is_left_behind(starter: Starter[int]) -> None:
    async def nothing() -> None: ...

    await outside_of_tasks(lambda: [starter.start(nothing(), value) for value in range(1000)])
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert asyncio.all_tasks() == {asyncio.current_task()}
