"""What a refresh of 100,000 new events costs after histories of different lengths, and a report of each.

    python -m benchmarks.pipeline_growth --millions 1 --millions 10 --millions 100 [--table-format delta]

A million events of real workers, two hours of them, are folded. Longer histories are copies of these hours. Their gold
has times of its own, and the index an entry for each job of each copy. Silver and the events of jobs are the same files
in the places of other hours: neither a refresh nor a report reads them. Rollups of days are made of the copies' hours.
Bronze of the copies is left out, as nothing reads it.

Delta and Iceberg tables are in a directory. Their state is the same history; the first refresh, which is not measured,
hands it over to them.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from benchmarks.contenders import own_broker
from benchmarks.event_histories import Life, record
from benchmarks.pipeline import write_history
from benchmarks.process_tree import PeakMemory, cpu_seconds
from waybill.pipeline import incremental, tables
from waybill.pipeline.folding import IN_SNAPSHOTS, STORED_JOBS
from waybill.pipeline.job_index import JobIndex
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.rollups import DAYS, HOURS_OF_A_DAY, roll_days
from waybill.pipeline.session import local_session
from waybill.pipeline.snapshots import Draft, Snapshot, Snapshots
from waybill.pipeline.table_formats import FORMATS, PARQUET, open_store
from waybill.pipeline.tables import Table, Tables
from waybill.pipeline.transforms.objectives import Objectives

MILLION: Final = 1_000_000
HOURS: Final = 2
NEW_EVENTS: Final = 100_000
MEASURED: Final = 3
START: Final = datetime(2026, 3, 1, tzinfo=UTC)
_COPIES_OF_A_RUN: Final = 14
_COPIED: Final = [table for table in IN_SNAPSHOTS if table not in DAYS]


def multiply(spark: SparkSession, directory: Path, copies: int) -> None:
    """Let the snapshot have as many copies of its hours, one after the other."""
    snapshots = Snapshots(directory)
    base = snapshots.current()
    if base is None:
        raise RuntimeError("nothing is folded yet")
    draft = snapshots.draft(base, number=snapshots.next_number())
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for copy in range(1, copies):
        found.append(_copy(base, draft, copy))
        if len(found) == _COPIES_OF_A_RUN or copy == copies - 1:
            hashes, parts = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
            index = JobIndex(None)
            index.add(draft, f"copy-{copy:05}", hashes, parts, index.lookup(np.empty(0, np.int64)))
            found.clear()
    for table in _COPIED:
        place = draft.scratch / table.name
        for part in base.all_parts(table):
            # The last minutes of the hours lie in the first hour of the copy after them.
            if (place / f"number={part}").is_dir():
                for number, file in enumerate(base.files(table, [part])):
                    os.link(file, place / f"number={part}" / f"base-{number}.parquet")
        numbers = [int(path.name.partition("=")[2]) for path in place.glob("number=*")]
        draft.replace(table, numbers, place)
    first = min(base.all_parts(tables.JOBS)) // (2 * HOURS_OF_A_DAY)
    days = range(first, first + (copies * HOURS) // HOURS_OF_A_DAY + 2)
    roll_days(spark, draft, of_gold=days, of_silver=days)
    snapshots.publish(draft.finish(base.contents, IN_SNAPSHOTS), IN_SNAPSHOTS)


def _copy(base: Snapshot, draft: Draft, copy: int) -> tuple[np.ndarray, np.ndarray]:
    """Write one copy of all parts; the hashes of its jobs, and their parts."""
    shift = copy * HOURS
    jobs = [pq.read_table(file, columns=["part"], partitioning=None)["part"] for file in _all_files(base, STORED_JOBS)]
    parts = np.concatenate([column.to_numpy() for column in jobs]) + np.int32(2 * shift)
    for table in _COPIED:
        for part in base.all_parts(table):
            place = draft.scratch / table.name / f"number={part + 2 * shift}"
            place.mkdir(parents=True, exist_ok=True)
            for number, file in enumerate(base.files(table, [part])):
                target = place / f"{copy}-{number}.parquet"
                if table.name.startswith("gold/"):
                    pq.write_table(_shifted(pq.read_table(file, partitioning=None), shift), target, compression="zstd")
                else:
                    os.link(file, target)
    chance = np.random.default_rng(copy)
    return chance.integers(-(2**63), 2**63 - 1, len(parts)), parts


def _shifted(rows: pa.Table, hours: int) -> pa.Table:
    """The rows so many hours later."""
    for number, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            later = pc.add(rows.column(number), pa.scalar(timedelta(hours=hours), pa.duration("us")))
            rows = rows.set_column(number, column, later.cast(column.type))
    return rows


def open_tables(spark: SparkSession, place: Path, table_format: str) -> Tables | LakeTables:
    """The tables of a history in this format."""
    directory = place if table_format == PARQUET else place / table_format
    store = open_store(spark, directory, table_format)
    Path(store.checkpoint_location()).mkdir(parents=True, exist_ok=True)
    return store


def refreshes(
    spark: SparkSession, lives: list[Life], place: Path, millions: int, table_format: str
) -> list[tuple[float, float]]:
    """Seconds, and seconds of CPU, of refreshes of as many new events each, after one that warms the session."""
    store, took = open_tables(spark, place, table_format), []
    first = FORMATS.index(table_format) * 100
    for number in range(first, first + 1 + MEASURED):
        begin = START + timedelta(hours=HOURS * millions) + timedelta(seconds=number % 100 * 720)
        batch = 1_000_000 + number
        if isinstance(store, Tables):
            write_history(lives, NEW_EVENTS, place, begin=begin, first_batch=batch, seed=100 + number)
        else:
            given = place / f"given-{number}"
            write_history(lives, NEW_EVENTS, given, begin=begin, first_batch=batch, seed=100 + number)
            rows = Tables(given).read(spark, tables.EVENTS).withColumn("batch_id", F.lit(batch).cast("long"))
            store.write_batch(rows, tables.EVENTS, batch)
            shutil.rmtree(given)
            if store.state is not None and not store.state.exists():
                store.state.parent.mkdir(exist_ok=True)
                store.state.symlink_to(place)
        began, spent = time.perf_counter(), cpu_seconds()
        incremental.update(spark, store, Objectives(), lambda _: None)
        took.append((time.perf_counter() - began, cpu_seconds() - spent))
    return took[1:]


def report(place: Path, table_format: str) -> tuple[float, float, int]:
    """Seconds, seconds of CPU, and megabytes of the command."""
    directory = place if table_format == PARQUET else place / table_format
    command = [sys.executable, "-m", "waybill", "pipeline", "report", "--data", str(directory)]
    options = ["--table-format", table_format, "--html", str(place / "report.html")]
    began = time.perf_counter()
    with PeakMemory() as memory:
        subprocess.run([*command, *options], check=True, capture_output=True)
    return time.perf_counter() - began, memory.cpu_seconds, memory.bytes >> 20


def measure(spark: SparkSession, lives: list[Life], place: Path, count: int, table_format: str) -> str:
    """The figures of a history in one format, as a line."""
    snapshot = Snapshots(place).current()
    files = [] if snapshot is None else _all_files(snapshot, tables.JOBS)
    jobs = sum(pq.read_metadata(file).num_rows for file in files)
    took = refreshes(spark, lives, place, count, table_format)
    seconds, report_cpu, megabytes = report(place, table_format)
    wall, cpu = (statistics.median(values) for values in zip(*took, strict=True))
    each = ", ".join(f"{one[1]:.1f}" for one in took)
    return (
        f"{table_format}: {count:,} million events, {jobs:,} jobs: a refresh of {NEW_EVENTS:,} events took "
        f"{wall:.1f} s, {cpu:.1f} s of CPU ({each}); the report {seconds:.1f} s, "
        f"{report_cpu:.1f} s of CPU, {megabytes:,} MB"
    )


def _all_files(snapshot: Snapshot, table: Table) -> list[Path]:
    return snapshot.files(table, snapshot.all_parts(table))


@click.command(help=__doc__)
@click.option("--millions", multiple=True, type=click.IntRange(1), default=(1, 10, 100), show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Where to keep the histories for another run.")
@click.option(
    "--table-format", "formats", multiple=True, type=click.Choice(FORMATS), default=(PARQUET,), show_default=True
)
def main(*, millions: tuple[int, ...], directory: Path | None, formats: tuple[str, ...]) -> None:
    root = directory or Path(tempfile.mkdtemp(prefix="waybill-growth-"))
    root.mkdir(parents=True, exist_ok=True)
    with own_broker("--data-dir", str(root / "broker")) as uri:
        lives = record(uri)
    spark = local_session("waybill-growth", log_file=root / "spark.log")
    first = root / "first"
    if not first.is_dir():
        first.mkdir()
        write_history(lives, MILLION, first)
        began, spent = time.perf_counter(), cpu_seconds()
        incremental.rebuild(spark, Tables(first), Objectives(), lambda _: None)
        took_s, cpu_s = time.perf_counter() - began, cpu_seconds() - spent
        print(f"folding the first million events took {took_s:.1f} s, {cpu_s:.1f} s of CPU", flush=True)
    for count in millions:
        place = root / str(count)
        if not place.is_dir():
            shutil.copytree(first, place, symlinks=True, copy_function=os.link)
            multiply(spark, place, count)
        for table_format in formats:
            print(measure(spark, lives, place, count, table_format), flush=True)
    spark.stop()
    if directory is None:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
