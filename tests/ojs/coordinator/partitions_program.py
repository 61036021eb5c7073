"""A coordinator to be killed: `python -m tests.ojs.coordinator.partitions_program URI DATABASE PREFIX QUEUE`."""

import asyncio
import logging
import sys
from datetime import timedelta

from waybill.client import ReconnectPolicy
from waybill.ojs import Coordinator, Jobs, Topology, Worker, current_job, parent_results

FAST = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.3)
PARTITIONS = 2


class Application:
    """Jobs of each kind, which note what they did."""

    def __init__(self, uri: str, prefix: str, queue: str) -> None:
        topology = Topology(prefix=prefix, event_partitions=PARTITIONS)
        self.jobs = jobs = Jobs(uri, topology=topology, reconnect=FAST, create_queues=True)
        self.queue = queue
        self.ran: list[tuple[str, str]] = []
        """The name of each handler, with the id of its job, as often as it ran."""

        @jobs.handler("parts.plain", queue=queue)
        async def plain(number: int) -> int:
            self.note("plain")
            return number

        @jobs.handler("parts.single", queue=queue)
        async def single(key: int) -> None:
            self.note(f"single {key}")

        @jobs.handler("parts.sum", queue=queue)
        async def total() -> int:
            self.note("sum")
            return sum(parent_results(plain))

        @jobs.cron(every=timedelta(seconds=1))
        @jobs.handler("parts.tick", queue=queue)
        async def tick() -> None:
            self.note("tick")

        self.plain, self.single, self.total = plain, single, total

    def note(self, name: str) -> None:
        self.ran.append((name, current_job().id))

    def worker(self) -> Worker:
        return Worker(self.jobs, queues=[self.queue], concurrency=20)

    def coordinator(self, database: str) -> Coordinator:
        return Coordinator(self.jobs, queues=[self.queue], database=database)


async def main(uri: str, database: str, prefix: str, queue: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    application = Application(uri, prefix, queue)
    async with application.jobs, application.coordinator(database):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
