"""Kill, part and restart the nodes of a RabbitMQ cluster while jobs are pushed and done, and see that each ends once.

    unshare --net python -m tests.soak.cluster --jobs 200000 [--seed N] [--database postgresql]

Three nodes in network namespaces of their own (which needs root), quorum queues and streams with three replicas,
workers, two coordinators with a store each, and a pusher: all know all three addresses. A node is killed with SIGKILL,
one is parted from the others while its clients still reach it, and all are restarted in turn; a coordinator and a
worker are killed. Each job has to end once, in both stores. Each step of a chain and each tick of the clock is done by
one job. After a failure the directory with all files stays.

With PostgreSQL, the coordinators share a database and the partitions of the events; it is killed as well.
"""

import asyncio
import logging
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from random import SystemRandom

import click
from rich.console import Console
from rich.status import Status

from tests import postgresql
from tests.rabbitmq import INSTALL_HINT, installed
from tests.soak.cluster.house import DATABASE, ClusterHouse
from tests.soak.cluster.nodes import run
from tests.soak.cluster.run import ClusterRun
from tests.soak.jobs.run import JobLostError
from tests.soak.kept_files import kept_files


@click.command(help=__doc__)
@click.option("--jobs", default=200_000, show_default=True, type=click.IntRange(min=1000))
@click.option("--workers", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--database", default="sqlite", show_default=True, type=click.Choice(["sqlite", "postgresql"]))
@click.option("--seed", type=int, help="Of what is killed, and when; a random one without it.")
@click.option("--pause", default=(5.0, 15.0), show_default=True, type=(float, float), help="Seconds between faults.")
@click.option("--patience", default=180.0, show_default=True, help="Seconds without any progress that are a failure.")
def main(
    *, jobs: int, workers: int, database: str, seed: int | None, pause: tuple[float, float], patience: float
) -> None:
    console = Console()
    if not installed():
        raise click.ClickException(INSTALL_HINT)
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise click.ClickException("network namespaces need root and the command `ip` (apt install iproute2)")
    # That connections are lost is what this is about.
    logging.getLogger("waybill").setLevel(logging.CRITICAL)
    chosen = SystemRandom().randrange(1 << 32) if seed is None else seed
    if database == "postgresql" and not postgresql.is_installed():
        raise click.ClickException(postgresql.HINT)
    told = f"{jobs:,} jobs, {workers} workers, two coordinators with {database}, seed {chosen}"
    console.print(f"three RabbitMQ nodes: {told}")
    chance = random.Random(chosen)
    run("ip", "link", "set", "lo", "up")
    with kept_files("cluster", console, JobLostError) as directory, ExitStack() as stack:
        server = stack.enter_context(shared_database()) if database == "postgresql" else None
        house = ClusterHouse(directory, workers, chance, server)
        with closing(house), console.status("starting") as status:
            soak = ClusterRun(house, directory, jobs, chance)
            asyncio.run(soak.go(pause, patience, lambda text: show(console, status, text)))
    console.print(str(soak))
    console.print(f"phases: {soak.phases}")


@contextmanager
def shared_database() -> Iterator[postgresql.Server]:
    """A server that syncs, with an empty database."""
    with postgresql.directory_for_servers() as directory:
        server = postgresql.Server(directory).create().start(is_durable=True)
        try:
            server.create_database(DATABASE)
            yield server
        finally:
            server.kill()


def show(console: Console, status: Status, text: str) -> None:
    """Keep what was done to the cluster, and replace what is only a count."""
    if text.startswith("killed"):
        console.print(text)
    status.update(text)


if __name__ == "__main__":
    main()
