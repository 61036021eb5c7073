"""What handlers get from their worker: made once, shared, closed after the last job."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests.ojs.eye import until
from waybill.ojs import Jobs, Worker, resource

trail: list[str] = []


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


class Mail:
    def __init__(self, database: Database) -> None:
        self.database = database


@asynccontextmanager
async def database() -> AsyncIterator[Database]:
    trail.append("open database")
    await asyncio.sleep(0)
    yield Database("real")
    trail.append("close database")


@contextmanager
def mail(*, db: Database = resource(database)) -> Iterator[Mail]:
    trail.append("open mail")
    yield Mail(db)
    trail.append("close mail")


async def number() -> int:
    return 42


async def test_async_and_sync_handlers_share_what_the_worker_makes(waybill_uri: str, queue_name: str) -> None:
    trail.clear()
    async with Jobs(waybill_uri) as jobs:

        @jobs.handler("resource.async", queue=queue_name)
        async def in_the_loop(
            to: str,
            *,
            db: Database = resource(database),
            settings: dict[str, int] = resource(dict),
        ) -> None:
            trail.append(f"{to} {db.name} {settings}")

        @jobs.handler("resource.sync", queue=queue_name)
        def in_a_thread(
            to: str,
            *,
            box: Mail = resource(mail),
            answer: int = resource(number),
        ) -> None:
            trail.append(f"{to} {box.database.name} {answer}")

        async with Worker(jobs, concurrency=1) as worker:
            assert trail == ["open database", "open mail"]
            await in_the_loop.push("a")
            await in_the_loop.push("b")
            await in_a_thread.push("c")
            await until(lambda: worker.counts["completed"] == 3)
            with pytest.raises(TypeError, match="db cannot be passed"):
                await in_the_loop.push("a", db=Database("mine"))
            await in_the_loop("d", db=Database("fake"), settings={})
        assert trail[2:] == ["a real {}", "b real {}", "c real 42", "d fake {}", "close mail", "close database"]


async def test_the_resources_of_other_queues_are_made_when_they_are_needed(waybill_uri: str, queue_name: str) -> None:
    trail.clear()
    async with Jobs(waybill_uri, create_queues=True) as jobs:

        @jobs.handler("resource.elsewhere", queue="elsewhere")
        async def elsewhere(*, db: Database = resource(database)) -> str:
            return db.name

        async with Worker(jobs, queues=[queue_name]) as worker:
            assert trail == []
            await elsewhere.options(queue=queue_name).push()
            await elsewhere.options(queue=queue_name).push()
            await until(lambda: worker.counts["completed"] == 2)
        assert trail == ["open database", "close database"]


async def test_a_worker_whose_resource_cannot_be_made_does_not_start(waybill_uri: str, queue_name: str) -> None:
    trail.clear()

    @contextmanager
    def broken(*, db: Database = resource(database)) -> Iterator[None]:
        raise OSError("no such host")
        yield

    async with Jobs(waybill_uri) as jobs:

        @jobs.handler("resource.broken", queue=queue_name)
        async def handler(*, thing: None = resource(broken)) -> None: ...

        with pytest.raises(OSError, match="no such host"):
            await Worker(jobs).start()
        assert trail == ["open database", "close database"]
