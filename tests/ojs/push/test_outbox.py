"""The outbox: enqueued if and only if the transaction commits, whatever dies on the way."""

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sql
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.client.breaking import until
from tests.ojs.eye import Eye
from tests.program_environment import program_environment
from waybill.ojs import InvalidJob, Jobs
from waybill.ojs.middleware import Tracing
from waybill.ojs.push.outbox import Outbox, OutboxRelay
from waybill.ojs.topology.topology import Topology


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


def url_of(database: str) -> str:
    return database if "://" in database else f"sqlite:///{database}"


def async_url_of(database: str) -> str:
    return database if "://" in database else f"sqlite+aiosqlite:///{database}"


async def taken(eye: Eye, queue: str, count: int) -> list[int]:
    return [(await eye.wait_for(f"ojs.queue.{queue}")).json()["args"][0] for _ in range(count)]


async def test_what_commits_is_enqueued_in_order_and_what_does_not_is_not(
    jobs: Jobs, eye: Eye, queue_name: str, database: str
) -> None:
    outbox = Outbox(jobs)
    engine = sql.create_engine(url_of(database), poolclass=sql.pool.NullPool)
    outbox.metadata.create_all(engine)

    @jobs.handler("outbox.run", queue=queue_name)
    async def run(number: int) -> None: ...

    def write() -> None:
        with Session(engine) as session:
            with session.begin():
                for number in range(3):
                    outbox.add(session, run.job(number))
            outbox.add(session, run.job(99))
            session.rollback()
        with engine.begin() as connection:
            outbox.add(connection, run.job(3))

    await asyncio.to_thread(write)
    assert not await eye.exists(f"ojs.queue.{queue_name}")
    async with OutboxRelay(outbox, engine) as relay:
        await until(lambda: relay.published_count == 4)
    assert await taken(eye, queue_name, 4) == [0, 1, 2, 3]
    assert await eye.get(f"ojs.queue.{queue_name}") is None
    with engine.connect() as connection:
        assert connection.execute(sql.select(outbox.table)).all() == []


async def test_asynchronous_sessions_and_engines(jobs: Jobs, eye: Eye, queue_name: str, database: str) -> None:
    provider = TracerProvider()
    jobs.use(Tracing(provider))
    outbox = Outbox(jobs)
    engine = create_async_engine(async_url_of(database), poolclass=sql.pool.NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(outbox.metadata.create_all)
    async with AsyncSession(engine) as session, session.begin():
        with provider.get_tracer("web").start_as_current_span("POST /orders") as request:
            added = outbox.add(session, {**JOB, "id": job_id(1), "queue": queue_name, "args": [7], "unknown": "kept"})
    async with OutboxRelay(outbox, engine) as relay:
        await until(lambda: relay.published_count == 1)
    message = await eye.wait_for(f"ojs.queue.{queue_name}")
    assert (message.json()["id"], message.json()["args"], message.json()["unknown"]) == (added.id, [7], "kept")
    assert f"{request.get_span_context().trace_id:032x}" in message.headers["x-ojs-trace-id"]
    assert message.headers["x-ojs-idempotency-key"] == added.id
    await engine.dispose()


async def test_a_relay_that_is_killed_loses_nothing(
    broker_uri: str, jobs: Jobs, eye: Eye, queue_name: str, repository: Path, tmp_path: Path
) -> None:
    outbox = Outbox(jobs)
    url = f"sqlite:///{tmp_path / 'orders.sqlite'}"
    engine = sql.create_engine(url, poolclass=sql.pool.NullPool)
    outbox.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        for number in range(2000):
            outbox.add(session, {**JOB, "id": job_id(number), "queue": queue_name, "args": [number]})
    program = f"""
import asyncio, sqlalchemy
from waybill.ojs import Jobs
from waybill.ojs.push import outbox
outbox.BATCH = 100
outbox.LEASE_SECONDS = 1.0

async def main():
    async with Jobs({broker_uri!r}) as jobs:
        await outbox.OutboxRelay(outbox.Outbox(jobs), sqlalchemy.create_engine({url!r})).run()

asyncio.run(main())
"""
    environment = program_environment()
    seen: list[int] = []
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=environment)
        before = len(seen)
        while not await eye.exists(f"ojs.queue.{queue_name}"):
            await asyncio.sleep(0.01)
        while len(seen) < before + 150:
            seen += await taken(eye, queue_name, 1)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with OutboxRelay(outbox, engine):
        while len(set(seen)) < 2000:
            seen += await taken(eye, queue_name, 1)
    assert set(seen) == set(range(2000))
    # In order, except that a batch which a crash interrupted comes again.
    assert sum(later < earlier for earlier, later in itertools.pairwise(seen)) <= 3


async def test_one_relay_has_its_turn_and_the_next_takes_over(jobs: Jobs, queue_name: str, database: str) -> None:
    outbox = Outbox(jobs)
    engine = sql.create_engine(url_of(database), poolclass=sql.pool.NullPool)
    outbox.metadata.create_all(engine)
    first, second = OutboxRelay(outbox, engine), OutboxRelay(outbox, engine)

    def write() -> None:
        with Session(engine) as session, session.begin():
            outbox.add(session, {**JOB, "id": job_id(5), "queue": queue_name})

    async with first:
        while not await first._with_connection(first._take_turn):
            await asyncio.sleep(0.01)
        async with second:
            write()
            assert await second.publish_batch() == 0
            await until(lambda: first.published_count == 1)
            assert second.published_count == 0
            await first.__aexit__(None, None, None)
            write()
            await until(lambda: second.published_count == 1)


async def test_a_full_queue_leaves_jobs_there_and_one_that_is_spoilt_holds_up_no_other(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.push.outbox.ERROR_PAUSE_SECONDS", 0.05)
    async with Jobs(broker_uri, topology=Topology(max_length=1, prefix="outbox.")) as jobs:
        outbox = Outbox(jobs)
        engine = sql.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}", poolclass=sql.pool.NullPool)
        outbox.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            for number in range(3):
                outbox.add(session, {**JOB, "id": job_id(number), "queue": queue_name, "args": [number]})
            with pytest.raises(InvalidJob, match="queue"):
                outbox.add(session, {**JOB, "id": job_id(4), "queue": "Not A Queue"})
        with engine.begin() as connection:
            broken = json.dumps({**JOB, "id": job_id(1), "queue": "dlx.bad"})
            connection.execute(sql.update(outbox.table).where(outbox.table.c.id == 2).values(envelope=broken))
        async with OutboxRelay(outbox, engine) as relay:
            await until(lambda: relay.published_count == 1)
            assert (await eye.wait_for(f"outbox.ojs.queue.{queue_name}")).json()["args"] == [0]
            await until(lambda: relay.published_count == 2)
        assert (await eye.wait_for(f"outbox.ojs.queue.{queue_name}")).json()["args"] == [2]
        with engine.connect() as connection:
            left = connection.execute(sql.select(outbox.table.c.job_id, outbox.table.c.error)).all()
    assert [(job, "reserved prefix" in error) for job, error in left] == [(job_id(1), True)]


async def test_more_jobs_for_a_full_queue_than_are_read_at_once_hold_up_no_other(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.push.outbox.ERROR_PAUSE_SECONDS", 0.05)
    for module in ("outbox", "outbox_rows"):
        monkeypatch.setattr(f"waybill.ojs.push.{module}.BATCH", 3)
    free = f"{queue_name}.free"
    async with Jobs(broker_uri, topology=Topology(max_length=1, prefix="outbox.")) as jobs:
        outbox = Outbox(jobs)
        engine = sql.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}", poolclass=sql.pool.NullPool)
        outbox.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            for number in range(9):
                outbox.add(session, {**JOB, "id": job_id(number), "queue": queue_name, "args": [number]})
            outbox.add(session, {**JOB, "id": job_id(9), "queue": free, "args": [9]})
        await jobs.push("outbox.run", [0], queue=free)
        await eye.wait_for(f"outbox.ojs.queue.{free}")
        async with OutboxRelay(outbox, engine) as relay:
            assert (await eye.wait_for(f"outbox.ojs.queue.{free}")).json()["args"] == [9]
            arrived = [(await eye.wait_for(f"outbox.ojs.queue.{queue_name}")).json()["args"] for _ in range(9)]
            assert sorted(arrived) == [[number] for number in range(9)]
            await until(lambda: relay.published_count == 10)
        with engine.connect() as connection:
            assert connection.execute(sql.select(outbox.table.c.id)).all() == []


JOB: dict[str, object] = {"specversion": "1.0", "type": "outbox.run", "args": []}


def job_id(number: int) -> str:
    return f"018f0000-0000-7000-a000-{number:012d}"
