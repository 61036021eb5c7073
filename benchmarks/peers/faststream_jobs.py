"""FastStream on RabbitMQ, on uvloop. Only the prefetch count limits its concurrency."""

import asyncio

import uvloop
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from benchmarks.peers.meter import CHUNK, CONCURRENCY, NOOP, PREFETCH, SLEEP_SECONDS, Arguments, Meter

arguments = Arguments()
meter = Meter(arguments.count)
broker = RabbitBroker(arguments.uri, logger=None)
queue = RabbitQueue("bench-faststream", durable=True)
channel = Channel(prefetch_count=PREFETCH if arguments.kind == NOOP else CONCURRENCY)


async def run_noop(number: int) -> None:
    if meter.job_done():
        meter.report_and_exit()


async def run_sleep(number: int) -> None:
    await asyncio.sleep(SLEEP_SECONDS)
    if meter.job_done():
        meter.report_and_exit()


async def push() -> None:
    await broker.connect()
    await broker.declare_queue(queue)
    meter.start()
    for start in range(0, arguments.count, CHUNK):
        numbers = range(start, min(start + CHUNK, arguments.count))
        await asyncio.gather(*(broker.publish(number, queue=queue, persist=True) for number in numbers))
    meter.report()
    await broker.stop()


async def work() -> None:
    function = run_noop if arguments.kind == NOOP else run_sleep
    broker.subscriber(queue, channel=channel, ack_policy=AckPolicy.NACK_ON_ERROR)(function)
    await FastStream(broker, logger=None).run()


if __name__ == "__main__":
    uvloop.run(push() if arguments.verb == "push" else work())
