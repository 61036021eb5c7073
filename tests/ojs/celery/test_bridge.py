"""Messages of the real Celery become jobs, on both brokers; what cannot is a dead letter with a reason."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord

from tests.ojs.eye import Eye, until
from waybill.ojs import Jobs, Retry, Worker, current_job
from waybill.ojs.celery.bridge import CeleryBridge


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


@pytest.fixture
def app(broker_uri: str, queue_name: str) -> Iterator[Any]:
    app = Celery("shop", broker=broker_uri)
    app.conf.update(task_default_queue=f"celery-{queue_name}", broker_connection_retry_on_startup=False)

    @app.task(name="Shop.tasks.send", shared=False)  # type: ignore[untyped-decorator]
    def send(to: str, *, when: str | None = None, copies: int = 1) -> None: ...

    @app.task(name="shop.tasks.unknown", shared=False)  # type: ignore[untyped-decorator]
    def unknown() -> None: ...

    yield app
    app.close()


async def test_tasks_run_as_jobs_with_their_times_limits_and_retries(
    app: Any, jobs: Jobs, queue_name: str, eye: Eye
) -> None:
    seen: list[tuple[object, ...]] = []
    expiring: list[str] = []

    @jobs.handler("shop.tasks.send", queue=queue_name, retry=Retry(max_attempts=5))
    async def send(to: str, *, when: date | None = None, copies: int = 1) -> None:
        job = current_job().envelope
        expiring.extend([to] if job.expires_at is not None else [])
        seen.append((to, when, copies, job.policy.max_attempts, job.timeout_seconds, job.meta["celery_task_id"]))

    task = app.tasks["Shop.tasks.send"]
    soon = datetime.now(UTC) + timedelta(seconds=1)
    sent = await asyncio.to_thread(
        lambda: [
            task.delay("a"),
            task.apply_async(("b",), {"when": "2026-01-02", "copies": 3}, time_limit=9, retries=2),
            task.apply_async(("c",), eta=soon),
            task.apply_async(("d",), countdown=3600),
            task.apply_async(("e",), expires=3600),
        ]
    )
    async with CeleryBridge(jobs, f"celery-{queue_name}") as bridge, Worker(jobs):
        await until(lambda: len(seen) == 4 and bridge.counts["pushed"] == 5)
        assert bridge.counts == {"pushed": 5}
    assert {one[0]: one[1:] for one in seen} == {
        "a": (None, 1, 5, 1800, sent[0].id),
        "b": (date(2026, 1, 2), 3, 3, 9, sent[1].id),
        "c": (None, 1, 5, 1800, sent[2].id),
        "e": (None, 1, 5, 1800, sent[4].id),
    }
    assert expiring == ["e"]
    assert await eye.count(f"celery-{queue_name}") == 0


async def test_what_cannot_be_done_is_a_dead_letter_with_its_reason(
    app: Any, jobs: Jobs, queue_name: str, eye: Eye
) -> None:
    @jobs.handler("shop.tasks.send", queue=queue_name)
    async def send(to: str) -> None: ...

    task = app.tasks["Shop.tasks.send"]
    dead = f"dead-{queue_name}"

    def produce() -> None:
        app.tasks["shop.tasks.unknown"].delay()
        task.delay(5)
        task.apply_async(("a",), {"copies": 3})
        chain(task.si("a"), task.si("b")).apply_async()
        task.apply_async(("a",), link=task.si("b"))
        task.apply_async(("a",), serializer="yaml" if "yaml" in app.conf.accept_content else "json", compression="zlib")
        eye.channel.basic_publish("", f"celery-{queue_name}", b"no message of Celery")

    await asyncio.to_thread(produce)
    assert chord is not None
    async with CeleryBridge(jobs, f"celery-{queue_name}", dead_letters=dead) as bridge:
        letters = [(await eye.wait_for(f"ojs.queue.dlx.{dead}")).json() for _ in range(7)]
        await until(lambda: bridge.counts["refused"] == 7)
    reasons = sorted(letter["errors"][0]["message"] for letter in letters)
    for text in (
        "no handler has the job type shop.tasks.unknown",
        "to: expected `str`, got `int`",
        "unexpected keyword argument 'copies'",
        "its chain would be lost",
        "its callbacks would be lost",
        "it is compressed",
        "headers `task` and `id` are missing",
    ):
        assert any(text in reason for reason in reasons), (text, reasons)
    assert {letter["type"] for letter in letters} == {"shop.tasks.send", "shop.tasks.unknown", "celery.unknown"}
    assert await eye.count(f"celery-{queue_name}") == 0
