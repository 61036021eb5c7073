"""Kill the driver again and again while it writes Delta and Iceberg tables to MinIO, on a standalone Spark cluster.

    python -m tests.pipeline.lake --kills 20 [--seed N] [--format delta] [--state]

The cluster is a master and two workers, each a process. Every third kill is of a worker, too. At last the tables are
read without Spark, and compared with the stream as `tests.pipeline.soak` does, and then they are compacted. With
`--state`, refreshes process new events only.
"""

import os
import tempfile
from pathlib import Path
from random import SystemRandom

import click
from rich.console import Console

from tests.pipeline.kills import LostOrDoubledError, Place, contents
from tests.pipeline.minio import Minio
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.shared_classes import shared_classes
from tests.pipeline.soak import kill_and_check
from tests.pipeline.standalone import Standalone
from waybill.pipeline.compaction import compact_lake
from waybill.pipeline.incremental import is_folded
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.table_formats import DELTA, ICEBERG, open_store

BUCKET = "lake"
CATALOG = "soak"
# On a cluster each start and each step takes longer than in one process.
JOBS_PER_KILL = 12
STEPS = 5


def soak(table_format: str, kills: int, seed: int, console: Console, java_option: str, *, with_state: bool) -> None:
    """Raises LostOrDoubledError."""
    with (
        tempfile.TemporaryDirectory(prefix="waybill-lake-") as name,
        OwnBroker(Path(name) / "broker") as broker,
        Minio(Path(name) / "minio", BUCKET) as store,
        Standalone(Path(name), java_option=java_option) as cluster,
    ):
        # The catalog of Iceberg tables: any database will do.
        setting = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"
        os.environ.update(store.environment)
        os.environ |= {f"{setting}TYPE": "sql", f"{setting}URI": f"sqlite:///{name}/catalog.db"}
        catalog = CATALOG if table_format == ICEBERG else None
        state = f"{name}/state" if with_state else None
        place = Place(f"s3a://{BUCKET}/events", f"{name}/driver.log", table_format, catalog, cluster.options, state)

        def killed(number: int) -> None:
            console.print(f"{table_format}: kill {number}", style="dim")
            if number % 3 == 0:
                cluster.replace_worker(number)

        what = f"{table_format} on MinIO, two workers{', with a state' if with_state else ''}"
        kill_and_check(what, broker.uri, place, kills, seed, console, jobs=JOBS_PER_KILL, steps=STEPS, on_kill=killed)
        check_compaction(place, console)


def check_compaction(place: Place, console: Console) -> None:
    """Raises LostOrDoubledError if a compaction changes a table."""
    before = contents(place)
    spark = place.session("waybill-compact")
    try:
        state = Path(place.state) if place.state else None
        tables = open_store(spark, place.data, place.table_format, catalog=place.catalog, state=state)
        if not isinstance(tables, LakeTables) or is_folded(tables) != bool(state):
            raise TypeError(place.table_format)
        with tables.locked():
            done = compact_lake(spark, tables)
    finally:
        spark.stop()
    if contents(place) != before:
        raise LostOrDoubledError("a compaction changed the tables")
    console.print(
        f"{place.table_format}: {done.files_before} files of events are {done.files_after} after a compaction"
    )


@click.command(help=__doc__)
@click.option("--kills", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Of the moments and events; a random one without it.")
@click.option("--format", "formats", multiple=True, type=click.Choice((DELTA, ICEBERG)), help="Only this one.")
@click.option("--state", "with_state", is_flag=True, help="With a state, so that refreshes process new events only.")
def main(*, kills: int, seed: int | None, formats: tuple[str, ...], with_state: bool) -> None:
    console = Console()
    chosen = SystemRandom().randrange(1 << 30) if seed is None else seed
    with shared_classes() as java_option:
        for table_format in formats or (DELTA, ICEBERG):
            try:
                soak(table_format, kills, chosen, console, java_option, with_state=with_state)
            except LostOrDoubledError as wrong:
                console.print(f"[red]{table_format}: {wrong}[/red] (seed {chosen})")
                raise SystemExit(1) from wrong


if __name__ == "__main__":
    main()
