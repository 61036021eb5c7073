"""Kill `waybill move` while it moves jobs between Waybill's broker and RabbitMQ, there and back, and count messages.

    python -m tests.soak.move --kills 5 --jobs 20000
    unshare --net python -m tests.soak.move --cluster
    python -m tests.soak.move --pauses --kills 20
    python -m tests.soak.move --event-partitions 4

Each way, a producer pushes jobs to the source meanwhile, and a consumer takes them at the target: every message has to
come once, in the order in which it was pushed, and its event once. Some jobs are scheduled; those come once, not early.
The queues at RabbitMQ are classic ones, then, in another virtual host, quorum queues, which keep no order over a kill.
Then two brokers of ours are killed in turn while jobs move between them. With --cluster, which needs root, the other
broker is a cluster of three nodes of RabbitMQ instead, in network namespaces, with three replicas of all queues. With
--pauses, the command and both brokers are stopped for seconds instead (SIGSTOP), and its connections end meanwhile.
With --event-partitions, events are in that many streams on both sides, and each stays in the partition of its job.
After a failure the directory with all files stays.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from random import SystemRandom

import click
from rich.console import Console

from tests.rabbitmq import RabbitMQ
from tests.soak.kept_files import kept_files
from tests.soak.move.brokers import soak_brokers
from tests.soak.move.cluster import soak_cluster
from tests.soak.move.one_way import Place, Plan, WrongError
from tests.soak.move.pauses import soak_pauses
from tests.soak.move.there_and_back import there_and_back
from waybill.broker import Broker
from waybill.ojs.topology.topology import QueueType


async def soak(directory: Path, kills: int, jobs: int, chance: random.Random, log: Path, partitions: int) -> None:
    """Move to one node and back, with queues of both types, then between two brokers of ours."""
    queue_types: dict[str, QueueType] = {"/ojs": "classic", "/": "quorum"}
    with RabbitMQ() as rabbitmq:
        for virtual_host, queue_type in queue_types.items():
            async with Broker(port=0, data_dir=directory / queue_type) as broker:
                here = Place(broker.uri(), event_partitions=partitions)
                there = Place(rabbitmq.uri(virtual_host), queue_type, event_partitions=partitions)
                await there_and_back("RabbitMQ", here, there, Plan(jobs, kills, chance, log))
    await soak_brokers(directory, kills, jobs, chance, log)
    click.echo(f"between brokers of ours: {jobs} jobs once and in order, {kills} kills of the brokers")


@click.command(help=__doc__)
@click.option("--kills", default=5, show_default=True, type=click.IntRange(min=0))
@click.option("--jobs", default=20_000, show_default=True, type=click.IntRange(min=100))
@click.option("--seed", type=int, help="Of when is killed; a random one without it.")
@click.option("--cluster", is_flag=True, help="To three nodes and back, in network namespaces (root).")
@click.option("--pauses", is_flag=True, help="Stop the command and the brokers for seconds, instead of kills.")
@click.option("--event-partitions", "partitions", default=1, show_default=True, type=click.IntRange(1, 64))
def main(*, kills: int, jobs: int, seed: int | None, cluster: bool, pauses: bool, partitions: int) -> None:
    chosen = SystemRandom().randrange(1 << 32) if seed is None else seed
    with kept_files("move", Console(), WrongError) as directory:
        log = directory / "move.log"
        click.echo(f"{kills} {'pauses' if pauses else 'kills'} each way, {jobs} jobs, seed {chosen}, log {log}")
        work = soak_cluster if cluster else soak_pauses if pauses else soak
        asyncio.run(work(directory, kills, jobs, random.Random(chosen), log, partitions))


if __name__ == "__main__":
    main()
