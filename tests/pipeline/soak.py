"""Kill the pipeline's driver again and again, on our broker and on RabbitMQ, and compare the tables with the streams.

    python -m tests.pipeline.soak --kills 20 [--seed N]

No offset may be missing in bronze and none be there twice, silver is what a plain fold gives, and deleting the last
entry of Spark's commit log changes no table.
"""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

import click
from rich.console import Console
from rich.progress import Progress

from tests.pipeline.kills import STEPS_MAX, LostOrDoubledError, Place, check, check_lost_commit, kill_often
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.shared_classes import options_with, shared_classes
from tests.pipeline.streams import Stream
from tests.rabbitmq import RabbitMQ
from waybill.pipeline.progress_reports import Step

JOBS_PER_KILL = 60
BROKERS = ("waybill", "rabbitmq")


@contextmanager
def running(broker: str, directory: Path) -> Iterator[str]:
    """The URI of a broker of this kind."""
    if broker == "waybill":
        with OwnBroker(directory / "broker") as own:
            yield own.uri
    else:
        with RabbitMQ() as other:
            yield other.uri("/ojs")


def soak(broker: str, kills: int, seed: int, console: Console, java_option: str) -> None:
    """Raises LostOrDoubledError."""
    with tempfile.TemporaryDirectory(prefix="waybill-soak-") as name, running(broker, Path(name)) as uri:
        place = Place(f"{name}/tables", f"{name}/driver.log", spark=options_with(java_option))
        kill_and_check(broker, uri, place, kills, seed, console)


def kill_and_check(
    what: str,
    uri: str,
    place: Place,
    kills: int,
    seed: int,
    console: Console,
    *,
    jobs: int = JOBS_PER_KILL,
    steps: int = STEPS_MAX,
    on_kill: Callable[[int], object] = bool,
) -> None:
    """Kill drivers that write tables there, and compare the tables with the stream. Raises LostOrDoubledError."""

    def killed(number: int) -> None:
        progress.advance(task)
        on_kill(number)

    with Stream(uri, "soak") as stream:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"kills on {what}", total=kills)
            chance = random.Random(seed)
            published = kill_often(stream, place, kills=kills, jobs=jobs, chance=chance, steps=steps, on_kill=killed)
        spark = place.session("waybill-soak")

        def told(step: Step) -> None:
            console.print(f"{what}, check: {step}", style="dim")

        try:
            events = check(spark, stream, place, published, told)
            check_lost_commit(spark, stream, place, told)
        finally:
            spark.stop()
    console.print(
        f"{what}: {kills} kills, {events:,} events each once in bronze, {published.malformed} malformed in "
        f"quarantine, {len({event['subject'] for event in published.events}):,} jobs as a plain fold has them; "
        "no table changed without its last commit"
    )


@click.command(help=__doc__)
@click.option("--kills", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Of the moments and events; a random one without it.")
@click.option("--broker", "brokers", multiple=True, type=click.Choice(BROKERS), help="Only this one.")
def main(*, kills: int, seed: int | None, brokers: tuple[str, ...]) -> None:
    console = Console()
    chosen = SystemRandom().randrange(1 << 30) if seed is None else seed
    with shared_classes() as java_option:
        for broker in brokers or BROKERS:
            try:
                soak(broker, kills, chosen, console, java_option)
            except LostOrDoubledError as wrong:
                console.print(f"[red]{broker}: {wrong}[/red] (seed {chosen})")
                raise SystemExit(1) from wrong


if __name__ == "__main__":
    main()
