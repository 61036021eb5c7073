"""The whole pipeline on Delta tables, with the jars of Delta and the version of Spark that they are made for.

    python -m tests.pipeline.delta

Events go through stream, bronze, silver and gold into the report. Batches that run again change nothing, before and
after the events were compacted. Exits with 1 and says what is wrong if anything differs from a plain Python fold.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.histories import history
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.reference_fold import fold
from tests.pipeline.streams import Stream
from waybill.pipeline import tables
from waybill.pipeline.compaction import compact_delta
from waybill.pipeline.delta_tables import DeltaTables
from waybill.pipeline.report.figures import collect
from waybill.pipeline.run import Settings, ingest, run_once
from waybill.pipeline.session import local_session
from waybill.pipeline.table_formats import DELTA, session_options
from waybill.pipeline.tables import TablesError

EVENTS = history(17, 40)
OFFSETS_PER_TRIGGER = 30


def check(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found} instead of {expected}")


def contents(spark: SparkSession, store: DeltaTables) -> dict[str, list[str]]:
    return {table.name: sorted(map(str, store.read(spark, table).collect())) for table in tables.ALL}


def forget_last_commit(directory: Path) -> None:
    """As after a crash between the write of a batch and the note that it is done."""
    commits = sorted((directory / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)


def check_pipeline(spark: SparkSession, stream: Stream, directory: Path) -> None:
    settings = Settings(
        stream.uri,
        directory.as_uri(),
        stream=stream.name,
        table_format=DELTA,
        max_offsets_per_trigger=OFFSETS_PER_TRIGGER,
    )
    store = DeltaTables(spark, directory.as_uri())
    half = len(EVENTS) // 2
    stream.publish_events(EVENTS[:half], batch=3)
    stream.publish(b"no event")
    ingest(spark, settings, print)
    stream.publish_events(EVENTS[half:], batch=4)
    run_once(spark, settings, print)
    places = [(row[0], row[1]) for row in store.read(spark, tables.EVENTS).select("offset", "position").collect()]
    check("events", (len(places), len(set(places))), (len(EVENTS), len(EVENTS)))
    expected = {job_id: job.state for job_id, job in fold(EVENTS).items()}
    check("jobs", {row["job_id"]: row["state"] for row in store.read(spark, tables.JOBS).collect()}, expected)
    before = contents(spark, store)
    forget_last_commit(directory)
    ingest(spark, settings, print)
    check("a batch that ran again", contents(spark, store), before)
    compacted = compact_delta(spark, store)
    if not compacted.files_after < compacted.files_before:
        raise AssertionError(f"compaction made {compacted.files_after} files of {compacted.files_before}")
    check("after compaction", contents(spark, store), before)
    forget_last_commit(directory)
    ingest(spark, settings, print)
    check("a batch that ran again after compaction", contents(spark, store), before)
    totals = collect(spark, store).totals
    check("the report", (totals.events, totals.malformed, totals.jobs), (len(EVENTS), 1, len(expected)))


def check_retention(spark: SparkSession, directory: Path) -> None:
    store = DeltaTables(spark, directory.as_uri())
    days = sorted({row["date"] for row in store.read(spark, tables.EVENTS).select("date").collect()})
    check("days dropped", compact_delta(spark, store, keep_days=0, today=days[-1]).days_dropped, len(days) - 1)
    check("days left", {row["date"] for row in store.read(spark, tables.EVENTS).collect()}, {days[-1]})
    shutil.rmtree(directory / "checkpoint")
    try:
        store.prepare()
    except TablesError:
        return
    raise AssertionError("events without their checkpoint were not refused")


def main() -> int:
    with tempfile.TemporaryDirectory() as name, OwnBroker(Path(name) / "broker") as broker:
        log_file = Path(name) / "spark.log"
        spark = local_session("waybill-delta", log_file=log_file, short=True, more=session_options(DELTA))
        try:
            with Stream(broker.uri, "delta") as stream:
                check_pipeline(spark, stream, Path(name) / "tables")
            check_retention(spark, Path(name) / "tables")
        except AssertionError as wrong:
            print(f"wrong: {wrong}", file=sys.stderr)
            return 1
        finally:
            spark.stop()
    print(f"Spark {spark.version}: {len(EVENTS):,} events went into Delta tables, each once, and came out as a report")
    return 0


if __name__ == "__main__":
    sys.exit(main())
