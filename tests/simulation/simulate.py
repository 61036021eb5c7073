"""Run the simulator: `python -m tests.simulation.simulate [--seeds N] [--seed S] [--plant NAME] [--jobs N]`.

A seed decides everything about a run, so a failure is replayed by its seed alone (and the same sources). A seed that
fails is written to seeds.txt; those are run with the tests for ever.
"""

import multiprocessing
import secrets
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.simulation.planting import PLANT_NAMES, planted
from tests.simulation.world import Outcome, World

KEPT_SEEDS: Final = Path(__file__).parent / "seeds.txt"
FAILURES_SHOWN: Final = 10


@dataclass(frozen=True)
class Result:
    """What one seed brought: an outcome, or the error in a line and with all that leads to it."""

    seed: int
    outcome: Outcome | None
    error: str = ""
    details: str = ""


def kept_seeds() -> list[int]:
    """The seeds in seeds.txt: one a line, what follows it says what it found."""
    lines = (line.partition("#")[0].strip() for line in KEPT_SEEDS.read_text().splitlines())
    return [int(line) for line in lines if line]


def keep_seed(seed: int, error: str) -> None:
    if seed not in kept_seeds():
        with KEPT_SEEDS.open("a") as file:
            file.write(f"{seed}  # {error}\n")


def replay_command(seed: int, plant: str | None = None) -> str:
    if plant is None:
        return f"make simulate SEED={seed}"
    return f"PYTHONPATH=src python -m tests.simulation.simulate --seed {seed} --plant {plant}"


def run_seed(seed: int, plant: str | None = None) -> Outcome:
    """One run. Raises what went wrong, with the command that replays it as a note."""
    try:
        with planted(plant) as planting:
            return World(
                seed,
                planting.plants,
                planting.troubles,
                planting.theme,
                speaks_amqp10=planting.speaks_amqp10,
                speaks_amqp010=None if plant is None else planting.speaks_amqp010,
            ).run()
    except Exception as error:
        error.add_note(f"replay: {replay_command(seed, plant)}")
        raise


def try_seed(seed: int) -> Result:
    """The same for a worker process."""
    try:
        return Result(seed, run_seed(seed))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        return Result(seed, None, line, traceback.format_exc())


def results(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """The results of many seeds, as they come."""
    if jobs == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(try_seed, seeds, chunksize=4)


@dataclass
class Totals:
    """Of all runs that went well."""

    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    redelivered: int = 0

    def add(self, outcome: Outcome) -> None:
        self.published += outcome.published
        self.confirmed += outcome.confirmed
        self.delivered += outcome.delivered
        self.redelivered += outcome.redelivered

    def __str__(self) -> str:
        return (
            f"{self.published} messages published, {self.confirmed} confirmed, "
            f"{self.delivered} delivered ({self.redelivered} of them again)"
        )


def run_many(first: int, count: int, jobs: int, console: Console) -> int:
    """Run seeds in a row. Returns how many failed."""
    failures = 0
    totals = Totals()
    columns = (TextColumn("simulate"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=count)
        for result in results(range(first, first + count), jobs):
            progress.advance(task)
            if result.outcome is not None:
                totals.add(result.outcome)
                continue
            failures += 1
            keep_seed(result.seed, result.error)
            if failures <= FAILURES_SHOWN:
                console.print(f"seed {result.seed} failed", style="red")
                console.print(result.details, markup=False)
                console.print(f"kept in {KEPT_SEEDS.name}; replay: {replay_command(result.seed)}\n")
    console.print(f"{count} runs from seed {first}, {failures} failed: {totals}")
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
