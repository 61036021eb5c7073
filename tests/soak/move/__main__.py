"""Kill `waybill move` while it moves jobs between Waybill's broker and RabbitMQ, there and back, and count messages.

    python -m tests.soak.move --kills 5 --jobs 20000

Each way, a producer pushes jobs to the source meanwhile, and a consumer takes them at the target: every message has to
come once, in the order in which it was pushed, and its event once. Some jobs are scheduled; those come once, not early.
The queues at RabbitMQ are classic ones, then, in another virtual host, quorum queues, which keep no order over a kill.
Then two brokers of ours are killed in turn while jobs move between them.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from random import SystemRandom

import click

from tests.rabbitmq import RabbitMQ
from tests.soak.move.brokers import soak_brokers
from tests.soak.move.one_way import Place, WrongError, one_way
from waybill.broker import Broker
from waybill.ojs.topology.topology import QueueType


async def soak(here: Place, there: Place, kills: int, jobs: int, chance: random.Random, log: Path) -> None:
    await one_way(here, there, range(jobs), kills, chance, log)
    click.echo(f"into {there.queue_type} queues of RabbitMQ: {jobs} jobs once and in order, {kills} kills")
    await one_way(there, here, range(jobs, 2 * jobs), kills, chance, log)
    order = " and in order" if there.queue_type == "classic" else ""
    click.echo(f"back from {there.queue_type} queues: {jobs} jobs once{order}, {kills} kills")


@click.command(help=__doc__)
@click.option("--kills", default=5, show_default=True, type=click.IntRange(min=0))
@click.option("--jobs", default=20_000, show_default=True, type=click.IntRange(min=100))
@click.option("--seed", type=int, help="Of when is killed; a random one without it.")
def main(*, kills: int, jobs: int, seed: int | None) -> None:
    chosen = SystemRandom().randrange(1 << 32) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="waybill-soak-move-"))
    click.echo(f"{kills} kills each way, {jobs} jobs, seed {chosen}, log {directory / 'move.log'}")

    async def run(rabbitmq: RabbitMQ) -> None:
        chance, log = random.Random(chosen), directory / "move.log"
        queue_types: dict[str, QueueType] = {"/ojs": "classic", "/": "quorum"}
        for virtual_host, queue_type in queue_types.items():
            async with Broker(port=0, data_dir=directory / queue_type) as broker:
                there = Place(rabbitmq.uri(virtual_host), queue_type)
                await soak(Place(broker.uri()), there, kills, jobs, chance, log)
        await soak_brokers(directory, kills, jobs, chance, log)
        click.echo(f"between brokers of ours: {jobs} jobs once and in order, {kills} kills of the brokers")

    with RabbitMQ() as rabbitmq:
        try:
            asyncio.run(run(rabbitmq))
        except WrongError as error:
            click.echo(f"{error}; log: {directory / 'move.log'}", err=True)
            raise SystemExit(1) from error


if __name__ == "__main__":
    main()
