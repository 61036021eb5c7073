"""Kill workers, the backend and the broker at random under jobs that go over HTTP, and see that none is lost.

    python -m tests.soak.http --jobs 200000 [--seed N]

Every job has to end completed or discarded, once, in the backend's store, and nothing may be left in the queue; every
handler's side effects have to be there; those of attempts that ran twice are counted. After a failure the directory
with all files stays.
"""

import asyncio
import logging
import random
from contextlib import closing
from random import SystemRandom

import click
from rich.console import Console

from tests.soak.http.house import HttpHouse
from tests.soak.jobs.run import JobLostError, Run
from tests.soak.kept_files import kept_files


@click.command(help=__doc__)
@click.option("--jobs", default=200_000, show_default=True, type=click.IntRange(min=1000))
@click.option("--workers", default=4, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Of what is killed, and when; a random one without it.")
@click.option("--pause", default=(2.0, 8.0), show_default=True, type=(float, float), help="Seconds between kills.")
@click.option("--patience", default=180.0, show_default=True, help="Seconds without any progress that are a failure.")
def main(*, jobs: int, workers: int, seed: int | None, pause: tuple[float, float], patience: float) -> None:
    console = Console()
    # That connections are lost is what this is about.
    logging.getLogger("waybill").setLevel(logging.CRITICAL)
    chosen = SystemRandom().randrange(1 << 32) if seed is None else seed
    console.print(f"{jobs:,} jobs, {workers} workers, seed {chosen}")
    chance = random.Random(chosen)
    with kept_files("http", console, JobLostError) as directory:
        house = HttpHouse("waybill", directory, workers, chance)
        with closing(house), console.status("starting") as status:
            figures = asyncio.run(Run(house, directory, jobs, chance).go(pause, patience, status.update))
    console.print(str(figures))


if __name__ == "__main__":
    main()
