"""Silver and gold that are brought up to date batch by batch, beside what the plain transforms make of all events.

    python -m tests.pipeline.incremental --seeds 5 [--format delta]

Histories of jobs over days, late, twice, out of order, with odd events among them, come in batches. Refreshes die
at random moments. After each batch all tables and the report are compared, and then a rebuild with them. At last, old
days are dropped: their gold stays, and a rebuild still gives the same tables.
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import BinaryType

from tests.pipeline.few_rows import FOR_FEW_ROWS
from tests.pipeline.histories import START, Event, event, history, rows_of
from tests.pipeline.odd_events import encoded, listed
from waybill.pipeline import gold_tables, incremental, run, snapshot_commits, tables
from waybill.pipeline.compaction import compact, compact_lake
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.progress_reports import Compacted
from waybill.pipeline.report.figures import report_of
from waybill.pipeline.report.inputs import Inputs, RolledInputs, inputs_of
from waybill.pipeline.retention import all_events
from waybill.pipeline.schemas import EVENT
from waybill.pipeline.session import local_session
from waybill.pipeline.snapshots import Draft
from waybill.pipeline.table_formats import FORMATS, PARQUET, open_store
from waybill.pipeline.tables import Table, Tables, TableStore
from waybill.pipeline.transforms import gold, silver, workers
from waybill.pipeline.transforms.objectives import Objectives, attainment

Contents = dict[str, list[str]]


class KilledError(Exception):
    """The refresh ended here."""


def told(seed: int, jobs: int = 25, odd: int = 25, long: int = 8) -> list[tuple[object, ...]]:
    """The rows of the event source for lives over hours and days, told twice and late, and for odd events."""
    chance = random.Random(seed)
    events: list[Event] = history(seed, jobs)
    for number in range(long):
        events += long_life(chance, f"long-{number}", number)
    events += chance.sample(events, len(events) // 5)
    late = set(chance.sample(range(len(events)), len(events) // 4))
    ordered = [one for index, one in enumerate(events) if index not in late] + [events[index] for index in late]
    strange = [encoded("job.completed", "odd", n, attempt=str(n), duration_ms="31622400000") for n in (1, 2**31 - 1)]
    strange += chance.sample(listed(), odd)
    return rows_of([*(json.dumps(one).encode() for one in ordered), *strange])


def long_life(chance: random.Random, job: str, number: int) -> list[Event]:
    """A job that takes hours and days, and the start of a worker that has some places."""
    begin = START - timedelta(hours=chance.randint(0, 60))
    worker = f"w{number % 3}"
    events = [event("worker.started", begin, worker, 900 + number, worker_id=worker, concurrency=number + 1)]
    events.append(event("job.enqueued", begin, job, 1))
    for attempt in range(1, 4):
        at = begin + timedelta(hours=chance.randint(0, 30), seconds=chance.randint(0, 3599))
        events.append(event("job.started", at, job, attempt * 2, worker_id=worker, attempt=attempt))
        kind = "job.completed" if attempt == 3 else "job.failed"
        data = {"attempt": attempt, "duration_ms": 5, "error": {"type": "E", "message": "no"}}
        events.append(event(kind, at + timedelta(minutes=chance.randint(0, 200)), job, attempt * 2 + 1, **data))
    return events


def plain(rows: DataFrame, table: Table) -> list[str]:
    """All rows as text. Sketches, which are the same in other octets, are told by their percentiles."""
    columns = [column.name for column in table.schema.fields if not isinstance(column.dataType, BinaryType)]
    return sorted(map(repr, rows.select(*columns).collect()))


def at_once(spark: SparkSession, store: TableStore, wanted: Sequence[Table]) -> Contents:
    """Silver and gold, computed by the plain transforms of all events."""
    events = all_events(spark, store)
    slots = silver.slots(events).localCheckpoint()
    attempts, jobs = silver.attempts(slots), silver.jobs(slots)
    expected = {
        tables.ATTEMPTS: attempts,
        tables.JOBS: jobs,
        gold_tables.ACTIVITY: gold.activity(jobs, attempts),
        gold_tables.FAILURES: gold.failures(attempts),
        gold_tables.DEAD_LETTERS: gold.dead_letters(jobs),
        gold_tables.RETRIES: gold.retries(attempts),
        gold_tables.OBJECTIVES: attainment(jobs, Objectives()),
        gold_tables.WORKERS: workers.utilisation(attempts, events),
    }
    found = {table.name: plain(expected[table], table) for table in wanted}
    slots._jdf.logicalPlan().rdd().unpersist(True)
    return found


def stored(spark: SparkSession, store: TableStore) -> Contents:
    return {table.name: plain(store.read(spark, table), table) for table in run.REFRESHED}


def write(spark: SparkSession, store: TableStore, batch: int, rows: list[tuple[object, ...]]) -> None:
    run.write_bronze(spark.createDataFrame(rows, EVENT).coalesce(1), batch, store)
    if isinstance(store, Tables):
        commits = store.checkpoint / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(batch)).write_text("v1")


def check(spark: SparkSession, store: TableStore, wanted: Sequence[Table] = run.REFRESHED) -> None:
    """Raises AssertionError if a table is not what all events give."""
    found = {table.name: plain(store.read(spark, table), table) for table in wanted}
    for name, rows in at_once(spark, store, wanted).items():
        missing, much = sorted(set(rows) - set(found[name])), sorted(set(found[name]) - set(rows))
        if missing or much or len(rows) != len(found[name]):
            raise AssertionError(f"{name}: missing {missing[:3]}, too much {much[:3]}")


def check_report(spark: SparkSession, store: TableStore, now: datetime) -> None:
    """Raises AssertionError if the rollups come to another report than all minutes, attempts and jobs."""
    rolled = inputs_of(spark, store)
    assert isinstance(rolled, RolledInputs)
    found, expected = (report_of(inputs, now).as_json() for inputs in (rolled, Inputs(spark, store)))
    for name, value in expected.items():
        if found[name] != value:
            raise AssertionError(f"the report of {now}: {name} is {found[name]}, not {value}")


def check_rollups(spark: SparkSession, store: TableStore) -> None:
    """The same for some of the figures only, which takes a fraction of the time."""
    both = inputs_of(spark, store), Inputs(spark, store)
    assert isinstance(both[0], RolledInputs)
    latest = START - timedelta(hours=20, minutes=13)
    activity, hours, events, jobs = (
        [made(inputs) for inputs in both]
        for made in (
            lambda inputs: gold.rolled_up(inputs.activity, "queue").orderBy("queue").collect(),
            lambda inputs: gold.rolled_up(inputs.timeline(3600, latest), F.date_trunc("hour", "bucket")).collect(),
            lambda inputs: inputs.events(latest),
            lambda inputs: sorted(map(repr, inputs.jobs.groupBy("queue").agg(F.sum("jobs"), F.sum("open")).collect())),
        )
    )
    hours = [sorted(map(repr, rows)) for rows in hours]
    for found, expected in (activity, hours, events, jobs):
        assert found == expected


@contextmanager
def dying(chance: random.Random) -> Iterator[None]:
    """The refresh within dies when it changes a table for some time, or one of Delta or Iceberg."""
    with (
        dying_at(Draft, "replace", chance.randint(0, 12)),
        dying_at(snapshot_commits, "copy_to", chance.randint(0, 30)),
    ):
        yield


@contextmanager
def dying_at(place: object, name: str, times: int) -> Iterator[None]:
    """What is within dies in the call of this function after so many others."""
    left = [times]
    whole = getattr(place, name)

    def call(*given: object, **more: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError
        return whole(*given, **more)

    setattr(place, name, call)
    try:
        yield
    except KilledError:
        pass
    finally:
        setattr(place, name, whole)


def check_rebuild(spark: SparkSession, store: TableStore) -> None:
    """Raises AssertionError if a rebuild gives other tables than those that are there, or their rollups others."""
    before = stored(spark, store)
    incremental.rebuild(spark, store, Objectives(), lambda _: None, rows_per_step=100)
    for name, rows in stored(spark, store).items():
        if rows != before[name]:
            missing, much = sorted(set(before[name]) - set(rows)), sorted(set(rows) - set(before[name]))
            raise AssertionError(f"a rebuild differs: {name}: missing {missing[:3]}, too much {much[:3]}")
    check_report(spark, store, START + timedelta(days=365))


def gold_before(spark: SparkSession, store: TableStore, edge: date) -> Contents:
    earlier = F.col("bucket") < F.lit(datetime(edge.year, edge.month, edge.day, tzinfo=UTC))
    return {table.name: plain(store.read(spark, table).where(earlier), table) for table in gold_tables.GOLD}


def drop_days(
    spark: SparkSession, store: TableStore, batch: int, late: list[tuple[object, ...]], chance: random.Random
) -> None:
    """Drop the days up to the middle of the history; then events come of these days, and of jobs across the edge.

    Raises AssertionError if gold of the dropped days changes, or a rebuild gives other tables.
    """
    edge = START.date() + timedelta(days=1)
    frozen = gold_before(spark, store, edge)
    with (
        dying_at(Tables, "publish", chance.randint(0, len(gold_tables.GOLD) + 3)),
        dying_at(LakeTables, "replace", chance.randint(0, len(gold_tables.GOLD) + 4)),
    ):
        drop_before(spark, store, edge)
    incremental.rebuild(spark, store, Objectives(), lambda _: None, rows_per_step=100)
    if gold_before(spark, store, edge) != frozen:
        raise AssertionError("a rebuild after a killed compaction has other gold")
    if not drop_before(spark, store, edge).days_dropped:
        raise AssertionError("no days were dropped")
    for number, part in enumerate((late[::2], late[1::2])):
        write(spark, store, batch + number, part)
        incremental.update(spark, store, Objectives(), lambda _: None, rows_per_step=40)
        if gold_before(spark, store, edge) != frozen:
            raise AssertionError("gold of dropped days has changed")
        check_rebuild(spark, store)


def drop_before(spark: SparkSession, store: TableStore, edge: date) -> Compacted:
    if isinstance(store, Tables):
        return compact(spark, store, keep_days=0, today=edge)
    return compact_lake(spark, as_lake(store), keep_days=0, today=edge)


def as_lake(store: TableStore) -> LakeTables:
    assert isinstance(store, LakeTables)
    return store


def opened(spark: SparkSession, directory: Path, table_format: str) -> TableStore:
    """New tables with a checkpoint."""
    store = open_store(spark, directory, table_format)
    store.prepare()
    Path(store.checkpoint_location()).mkdir(parents=True)
    return store


def run_seed(spark: SparkSession, directory: Path, seed: int, batches: int, table_format: str) -> None:
    chance = random.Random(seed)
    store = opened(spark, directory, table_format)
    whole = told(seed)
    rows, late = whole[: -len(whole) // 8], whole[-len(whole) // 8 :]
    cuts = sorted(chance.sample(range(1, len(rows)), batches - 1))
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
        write(spark, store, number, rows[first:last])
        if chance.random() < 0.4:
            with dying(chance):
                incremental.update(spark, store, Objectives(), lambda _: None, rows_per_step=40)
        incremental.update(spark, store, Objectives(), lambda _: None, rows_per_step=40)
        check(spark, store)
        # The clock of the reader is before, in or after the history.
        check_report(spark, store, START + timedelta(hours=chance.randint(-70, 60), minutes=chance.randint(0, 59)))
    check_rebuild(spark, store)
    drop_days(spark, store, batches, late, chance)


@click.command(help=__doc__)
@click.option("--seeds", default=5, show_default=True)
@click.option("--first", default=1, show_default=True)
@click.option("--batches", default=4, show_default=True)
@click.option("--format", "table_format", type=click.Choice(FORMATS), default=PARQUET, show_default=True)
def main(*, seeds: int, first: int, batches: int, table_format: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        spark = local_session("waybill-incremental", log_file=Path(name) / "spark.log", short=True, more=FOR_FEW_ROWS)
        for seed in range(first, first + seeds):
            try:
                run_seed(spark, Path(name) / str(seed), seed, batches, table_format)
            except AssertionError as wrong:
                print(f"seed {seed}: {wrong}", file=sys.stderr)
                sys.exit(1)
            print(f"seed {seed}: {batches} batches, and all tables as all events give them", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
