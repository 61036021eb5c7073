"""Jobs, channels and connections belong to one event loop: used from another, they say so, and go on working."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.ojs.eye import until
from waybill.client import WrongEventLoop, connect
from waybill.ojs import Jobs, Retry, Worker


def elsewhere(work: Coroutine[Any, Any, object]) -> str:
    """Run something in a loop of its own and return what it says of that."""
    with pytest.raises(WrongEventLoop) as caught:
        asyncio.run(work)
    return str(caught.value)


@pytest.mark.parametrize("is_connected", [True, False])
async def test_a_push_in_a_loop_of_a_handlers_thread_spoils_nothing(
    waybill_uri: str, queue_name: str, caplog: pytest.LogCaptureFixture, is_connected: bool
) -> None:
    jobs = Jobs(waybill_uri)

    @jobs.handler("loops.done", queue=queue_name)
    async def done() -> None: ...

    @jobs.handler("loops.bad", queue=queue_name, retry=Retry(max_attempts=1))
    def bad() -> None:
        asyncio.run(done.push())

    loop = asyncio.get_running_loop()

    @jobs.handler("loops.good", queue=queue_name)
    def good() -> None:
        asyncio.run_coroutine_threadsafe(done.push(), loop).result(10)

    async with Jobs(waybill_uri) as others, Worker(jobs, concurrency=2) as worker:
        if is_connected:
            await done.push()
        await others.push("loops.bad", queue=queue_name)
        await until(lambda: worker.counts["discarded"] == 1)
        await others.push("loops.good", queue=queue_name)
        await done.push()
        await until(lambda: worker.counts["completed"] == 3 + is_connected)
    await jobs.close()
    assert "run_coroutine_threadsafe" in caplog.text


async def test_every_use_from_another_loop_is_refused_at_once(waybill_uri: str, queue_name: str) -> None:
    async with Jobs(waybill_uri) as jobs, connect(waybill_uri) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue(queue_name, exclusive=True)
        consumer = await channel.consume(queue_name)

        async def next_one() -> object:
            return await anext(consumer)

        def misuse() -> list[str]:
            works: list[Coroutine[Any, Any, object]] = [
                jobs.push("loops.done", queue=queue_name),
                jobs.info("x", queue_name),
                jobs.pause(queue_name),
                jobs.close(),
                channel.publish(b"", routing_key=queue_name),
                channel.get(queue_name),
                channel.qos(1),
                channel.drain(),
                channel.close(),
                consumer.cancel(),
                next_one(),
                connection.channel(),
                connection.close(),
            ]
            said = [elsewhere(work) for work in works]
            with pytest.raises(WrongEventLoop):
                channel.publish_nowait(b"", routing_key=queue_name)
            return said

        said = await asyncio.to_thread(misuse)
        assert all("belongs to another event loop" in text for text in said)
        await jobs.push("loops.done", queue=queue_name)
        await channel.publish(b"mine", routing_key=queue_name, mandatory=True)
        assert (await next_one()).body == b"mine"  # type: ignore[attr-defined]


def test_a_program_may_push_in_one_loop_after_the_other(waybill_uri: str, queue_name: str) -> None:
    jobs = Jobs(waybill_uri)
    for _ in range(3):
        # Without a close, which would be better: the connection ends with its loop.
        asyncio.run(jobs.push("loops.done", queue=queue_name))

    async def push_and_close() -> None:
        await jobs.push("loops.done", queue=queue_name)
        await jobs.close()

    asyncio.run(push_and_close())


async def test_a_worker_may_be_stopped_from_any_thread(waybill_uri: str, queue_name: str) -> None:
    worker = Worker(Jobs(waybill_uri), queues=[queue_name])
    running = asyncio.get_running_loop().create_task(worker.run())
    await until(lambda: worker.is_consuming)
    thread = threading.Thread(target=worker.stop)
    thread.start()
    await asyncio.wait_for(running, 20)
    thread.join()
