"""Run the simulator: `python -m tests.simulation.simulate [--seeds N] [--seed S] [--plant NAME] [--jobs N]`.

A seed decides everything about a run, so a failure is replayed by its seed alone (and the same sources). Seeds that
once failed are kept in seeds.txt and run with the tests for ever.
"""

import multiprocessing
import secrets
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.simulation.front import Plants
from tests.simulation.planting import planted
from tests.simulation.world import Outcome, Troubles, World

KEPT_SEEDS: Final = Path(__file__).parent / "seeds.txt"
PLANT_NAMES: Final = tuple(Plants.__dataclass_fields__)
FAILURES_SHOWN: Final = 10

# Runs with a planted bug have the troubles that bring it to light.
PLANT_TROUBLES: Final = {
    "confirm_before_sync": Troubles(power_losses=2),
    "no_checksum": Troubles(kills=2, power_losses=1, bit_flips=6),
    "no_directory_sync": Troubles(power_losses=2),
    "roll_without_sync": Troubles(power_losses=3),
    "no_sync_after_recovery": Troubles(kills=2, power_losses=2),
}


def kept_seeds() -> list[int]:
    """The seeds in seeds.txt: one a line, what follows it says what it found."""
    lines = (line.partition("#")[0].strip() for line in KEPT_SEEDS.read_text().splitlines())
    return [int(line) for line in lines if line]


def replay_command(seed: int, plant: str | None = None) -> str:
    planting = f" --plant {plant}" if plant else ""
    return f"PYTHONPATH=src python -m tests.simulation.simulate --seed {seed}{planting}"


def run_seed(seed: int, plant: str | None = None) -> Outcome:
    """One run. Raises what went wrong, with the command that replays it as a note."""
    try:
        with planted(plant) as plants:
            return World(seed, plants, PLANT_TROUBLES.get(plant or "")).run()
    except Exception as error:
        error.add_note(f"replay: {replay_command(seed, plant)}")
        raise


def try_seed(seed: int) -> tuple[int, Outcome | None, str]:
    """The same for a worker process: outcome or the text of what went wrong."""
    try:
        return seed, run_seed(seed), ""
    except Exception:  # noqa: BLE001 - whatever it is, it is what we look for
        return seed, None, traceback.format_exc()


def results(seeds: range, jobs: int) -> Iterator[tuple[int, Outcome | None, str]]:
    """The results of many seeds, as they come."""
    if jobs == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(try_seed, seeds, chunksize=4)


def run_many(first: int, count: int, jobs: int, console: Console) -> int:
    """Run seeds in a row. Returns how many failed."""
    failures = 0
    totals = Outcome(0, World(first).troubles)
    columns = (TextColumn("simulate"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=count)
        for seed, outcome, error in results(range(first, first + count), jobs):
            progress.advance(task)
            if outcome is None:
                failures += 1
                if failures <= FAILURES_SHOWN:
                    console.print(
                        f"[red]seed {seed} failed[/red]\n{error}\nreplay: {replay_command(seed)}\n", markup=True
                    )
                continue
            totals.published += outcome.published
            totals.confirmed += outcome.confirmed
            totals.delivered += outcome.delivered
            totals.redelivered += outcome.redelivered
    console.print(
        f"{count} runs from seed {first}: {totals.published} published, {totals.confirmed} confirmed, "
        f"{totals.delivered} delivered ({totals.redelivered} again), {failures} failed"
    )
    return failures


@click.command(help=__doc__)
@click.option("--seeds", default=300, show_default=True, type=click.IntRange(min=1), help="How many runs.")
@click.option("--first", type=int, help="The first seed; random if not given.")
@click.option("--seed", type=int, help="One run only, with its figures.")
@click.option("--plant", type=click.Choice(PLANT_NAMES), help="With --seed: plant this bug.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
def main(*, seeds: int, first: int | None, seed: int | None, plant: str | None, jobs: int) -> None:
    console = Console()
    if seed is not None:
        console.print(run_seed(seed, plant))
        return
    start = secrets.randbelow(1 << 31) if first is None else first
    sys.exit(1 if run_many(start, seeds, jobs, console) else 0)


if __name__ == "__main__":
    main()
