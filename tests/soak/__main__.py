"""Kill a real broker again and again under publishers, consumers, transactions and a stream, and check its promises.

    python -m tests.soak --rounds 100 [--seed N]

Nothing confirmed may be lost, nothing settled may come back, transactions are whole, streams keep their offsets. After
a failure the directory with the broker's data stays.
"""

import asyncio
import logging
import shutil
import tempfile
from pathlib import Path
from random import SystemRandom

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.soak.ledger import BrokenPromiseError, Figures
from tests.soak.rounds import soak


@click.command(help=__doc__)
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Of the moments and sizes; a random one without it.")
@click.option("--seconds", default=2.0, show_default=True, help="The longest traffic of a round.")
def main(*, rounds: int, seed: int | None, seconds: float) -> None:
    console = Console()
    # That connections are lost is what this is about.
    logging.getLogger("waybill.client").setLevel(logging.CRITICAL)
    chosen = SystemRandom().randrange(1 << 32) if seed is None else seed
    console.print(f"soak: {rounds} rounds of kill -9, seed {chosen}")
    directory = Path(tempfile.mkdtemp(prefix="waybill-soak-"))
    columns = (
        TextColumn("rounds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[confirmed]:,} confirmed"),
    )
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=rounds, confirmed=0)

            def after_round(figures: Figures) -> None:
                progress.update(task, advance=1, confirmed=figures.confirmed)

            figures = asyncio.run(soak(directory, chosen, rounds, seconds, after_round))
    except (BrokenPromiseError, TimeoutError) as error:
        console.print(f"[red]{error or 'no reply in time'}[/red]")
        console.print(
            f"seed {chosen}; data as it was after the kill: {directory / 'killed'}; log: {directory}/broker.log"
        )
        raise SystemExit(1) from error
    shutil.rmtree(directory)
    console.print(str(figures))


if __name__ == "__main__":
    main()
