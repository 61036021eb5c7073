"""Kill workers, the coordinator and the broker of the example shop while customers buy, and check the books.

    python -m tests.soak.shop --kills 50 [--broker rabbitmq|waybill] [--seed N]

Every chain, batch, unique job, price, reminder and tick of the clock has to end exactly as it should. After a failure
the directory with all files stays.
"""

import logging
import random
from contextlib import closing
from random import SystemRandom

import click
from rich.console import Console

from tests.soak.kept_files import kept_files
from tests.soak.shop.check import WrongEndError
from tests.soak.shop.house import ShopHouse
from tests.soak.shop.run import run_shop

BROKERS = ("rabbitmq", "waybill")


@click.command(help=__doc__)
@click.option("--kills", default=50, show_default=True, type=click.IntRange(min=0))
@click.option("--broker", "brokers", multiple=True, type=click.Choice(BROKERS), help="Only this one.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Of what is killed, and when; a random one without it.")
@click.option("--pause", default=(1.0, 4.0), show_default=True, type=(float, float), help="Seconds between kills.")
def main(*, kills: int, brokers: tuple[str, ...], workers: int, seed: int | None, pause: tuple[float, float]) -> None:
    console = Console()
    logging.getLogger("waybill").setLevel(logging.CRITICAL)
    chosen = SystemRandom().randrange(1 << 32) if seed is None else seed
    for name in brokers or BROKERS:
        console.print(f"{name}: {kills} kills, {workers} workers, seed {chosen}")
        chance = random.Random(chosen)
        with kept_files("shop", console, WrongEndError) as directory:
            house = ShopHouse(name, directory, workers, chance)
            with closing(house), console.status("starting") as status:
                figures = run_shop(house, directory, kills, pause, chance, status.update)
        console.print(f"{name}: {figures}")


if __name__ == "__main__":
    main()
