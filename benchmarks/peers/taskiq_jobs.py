"""Taskiq with taskiq-aio-pika, on uvloop, with a classic queue like the others."""

import asyncio

import uvloop
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Queue, QueueType

from benchmarks.peers.meter import CHUNK, CONCURRENCY, NOOP, PREFETCH, SLEEP_SECONDS, Arguments, Meter

arguments = Arguments()
meter = Meter(arguments.count)
broker = AioPikaBroker(arguments.uri, qos=PREFETCH).with_queue(Queue(name="bench-taskiq", type=QueueType.CLASSIC))


async def run_noop(number: int) -> None:
    if meter.job_done():
        meter.report_and_exit()


async def run_sleep(number: int) -> None:
    await asyncio.sleep(SLEEP_SECONDS)
    if meter.job_done():
        meter.report_and_exit()


noop = broker.register_task(run_noop, task_name="noop")
sleep = broker.register_task(run_sleep, task_name="sleep")


async def push() -> None:
    task = noop if arguments.kind == NOOP else sleep
    await broker.startup()
    meter.start()
    for start in range(0, arguments.count, CHUNK):
        numbers = range(start, min(start + CHUNK, arguments.count))
        await asyncio.gather(*(task.kiq(number) for number in numbers))
    meter.report()
    await broker.shutdown()


async def work() -> None:
    broker.is_worker_process = True
    await broker.startup()
    await run_receiver_task(
        broker, max_async_tasks=CONCURRENCY, max_prefetch=PREFETCH, ack_time=AcknowledgeType.WHEN_EXECUTED
    )


if __name__ == "__main__":
    uvloop.run(push() if arguments.verb == "push" else work())
