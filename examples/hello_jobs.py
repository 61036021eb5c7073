"""A broker, a job and a worker in one process.

python -m examples.hello_jobs
"""

import asyncio

from waybill import Broker, Jobs, Worker


async def main() -> None:
    async with Broker(port=0) as broker, Jobs(broker.uri("/ojs")) as jobs:
        done = asyncio.Event()

        @jobs.handler("greeting.say")
        async def say(name: str) -> None:
            print(f"hello, {name}")
            done.set()

        async with Worker(jobs):
            await say.push("world")
            await done.wait()


asyncio.run(main())
