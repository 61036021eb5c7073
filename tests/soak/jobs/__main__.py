"""Kill workers, the coordinator and the broker at random while jobs are pushed and done, and see that none is lost.

    python -m tests.soak.jobs --jobs 200000 [--broker rabbitmq|waybill] [--seed N]

Every job has to end completed or discarded, once, in the coordinator's store; every handler's side effects have to be
there; those of attempts that ran twice are counted. After a failure the directory with all files stays.
"""

import asyncio
import logging
import random
from contextlib import closing
from random import SystemRandom

import click
from rich.console import Console

from tests.soak.jobs.house import House
from tests.soak.jobs.run import JobLostError, Run
from tests.soak.kept_files import kept_files

BROKERS = ("rabbitmq", "waybill")


@click.command(help=__doc__)
@click.option("--jobs", default=200_000, show_default=True, type=click.IntRange(min=1000))
@click.option("--broker", "brokers", multiple=True, type=click.Choice(BROKERS), help="Only this one.")
@click.option("--workers", default=4, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Of what is killed, and when; a random one without it.")
@click.option("--pause", default=(2.0, 8.0), show_default=True, type=(float, float), help="Seconds between kills.")
@click.option("--patience", default=180.0, show_default=True, help="Seconds without any progress that are a failure.")
def main(
    *, jobs: int, brokers: tuple[str, ...], workers: int, seed: int | None, pause: tuple[float, float], patience: float
) -> None:
    console = Console()
    # That connections are lost is what this is about.
    logging.getLogger("waybill").setLevel(logging.CRITICAL)
    chosen = SystemRandom().randrange(1 << 32) if seed is None else seed
    for name in brokers or BROKERS:
        console.print(f"{name}: {jobs:,} jobs, {workers} workers, seed {chosen}")
        chance = random.Random(chosen)
        with kept_files("jobs", console, JobLostError) as directory:
            house = House(name, directory, workers, chance)
            with closing(house), console.status("starting") as status:
                run = Run(house, directory, jobs, chance)
                figures = asyncio.run(run.go(pause, patience, status.update))
        console.print(f"{name}: {figures}; phases: {run.phases}")


if __name__ == "__main__":
    main()
