"""The pipeline's driver under kill -9: a process that follows a stream into tables, and what the tables must hold then.

python -m tests.pipeline.kills URI STREAM PLACE      the driver: prints a line for each step, until it is killed
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from datasketches import PyLongsSerDe, kll_items_sketch
from deltalake import DeltaTable
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from tests.pipeline.histories import Event, history
from tests.pipeline.reference_fold import fold
from tests.pipeline.streams import Stream
from tests.program_environment import program_environment
from waybill.pipeline import incremental, tables
from waybill.pipeline.iceberg_log import NAMESPACE, open_catalog
from waybill.pipeline.offsets import OffsetRange
from waybill.pipeline.progress_reports import Progress, Step
from waybill.pipeline.run import REFRESHED, PipelineError, Settings, run_continuously, run_once
from waybill.pipeline.session import local_session
from waybill.pipeline.storage import Storage, delta_options
from waybill.pipeline.table_formats import DELTA, PARQUET, session_options
from waybill.pipeline.tables import Table, Tables

ROOT: Final = Path(__file__).resolve().parents[2]
# Small batches and no pause between them, so that most moments are in the middle of one.
OFFSETS_PER_TRIGGER: Final = 40
LONGEST_AFTER_A_STEP_S: Final = 1.0
STEPS_MAX: Final = 8
STARTS_MAX: Final = 5
# What Spark says after ten seconds without a Python worker, as on a machine with much other work.
_SLOW_MACHINE: Final = "Python worker failed to connect back"
_LOG_TAIL: Final = 5000
COMMITS: Final = "checkpoint/commits"
_TABLES: Final = (tables.EVENTS, tables.QUARANTINE, *REFRESHED)


class LostOrDoubledError(AssertionError):
    """The tables differ from what was published."""


class EndedError(AssertionError):
    """A driver ended before it was killed."""


@dataclass
class Published:
    """What is in the stream."""

    events: list[Event] = field(default_factory=list)
    malformed: int = 0

    def more(self, stream: Stream, seed: int, jobs: int) -> None:
        """Publish the events of `jobs` more jobs, in messages of one and of several, and something that is no event."""
        fresh = history(seed, jobs)
        half = len(fresh) // 2
        stream.publish_events(fresh[:half])
        stream.publish(b"no event")
        stream.publish_events(fresh[half:], batch=5)
        self.events += fresh
        self.malformed += 1


@dataclass(frozen=True)
class Place:
    """Where the tables are, in which format, and which options of Spark write them there.

    `state`: a directory for the state of refreshes. Each refresh then processes new events only, however few there are.
    """

    data: str
    log_file: str
    table_format: str = PARQUET
    catalog: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    state: str | None = None

    def session(self, name: str) -> SparkSession:
        options = {**session_options(self.data, self.table_format), **self.spark}
        return local_session(name, log_file=Path(self.log_file), short=True, more=options)

    def settings(self, uri: str, stream: str) -> Settings:
        return Settings(
            uri,
            self.data,
            stream=stream,
            table_format=self.table_format,
            catalog=self.catalog,
            state=Path(self.state) if self.state else None,
            max_offsets_per_trigger=OFFSETS_PER_TRIGGER,
            trigger_seconds=0.0,
        )

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """The rows of a table, read without Spark, whose queries for all of them take longer than the run before."""
        storage = Storage.of(self.data)
        if self.table_format == PARQUET:
            path = Tables(Path(self.data)).path(table)
            found = dataset(path, format="parquet", partitioning="hive").to_table() if path.is_dir() else None
        elif self.table_format == DELTA:
            uri, options = f"{storage.uri}/{table.name}", delta_options(os.environ) if storage.is_remote else None
            is_there = DeltaTable.is_deltatable(uri, options)
            found = DeltaTable(uri, storage_options=options).to_pyarrow_table() if is_there else None
        else:
            name = f"{NAMESPACE}.{table.name.replace('/', '_')}"
            catalog = open_catalog(storage, self.catalog)
            found = catalog.load_table(name).scan().to_arrow() if catalog.table_exists(name) else None
        return [] if found is None else list(found.to_pylist())

    def forget_last_commit(self) -> None:
        """As after a crash between the write of a batch and the note that it is done."""
        storage = Storage.of(self.data)
        names = [name for name, _ in storage.files(COMMITS) if name.isdigit()]
        last = max(names, key=int)
        for name in (last, f".{last}.crc"):
            if storage.has(f"{COMMITS}/{name}"):
                storage.filesystem.delete_file(storage.path(f"{COMMITS}/{name}"))


class Driver:
    """The driver in a process group of its own, so that its Java and all its workers can be killed with it."""

    def __init__(self, uri: str, stream: str, place: Place) -> None:
        command = [sys.executable, "-m", "tests.pipeline.kills", uri, stream, json.dumps(asdict(place))]
        environment = program_environment()
        self._log = Path(place.log_file)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, process_group=0)

    def await_steps(self, count: int) -> list[str]:
        """The next `count` steps. Raises EndedError if the driver ended by itself."""
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline() for _ in range(count)]
        if not all(lines):
            status = self._process.wait(30)
            end = self._log.read_text(errors="replace")[-_LOG_TAIL:] if self._log.exists() else ""
            raise EndedError(f"the driver ended by itself, with status {status}, after {lines}: {end}")
        return lines

    def kill(self, *, alone: bool) -> None:
        """SIGKILL for the driver's Python process, or for its Java, too."""
        if alone:
            self._process.kill()
        else:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def kill_often(
    stream: Stream,
    place: Place,
    *,
    kills: int,
    jobs: int,
    chance: random.Random,
    steps: int = STEPS_MAX,
    on_kill: Callable[[int], object] = bool,
) -> Published:
    """Publish the events of `jobs` jobs, start the driver, kill it at a random moment; do so `kills` times.

    A driver that ends because the machine is too slow for Spark is started again, as whoever operates one would; the
    kill is still to come.
    """
    published = Published()
    for number in range(1, kills + 1):
        published.more(stream, chance.randrange(1 << 30), jobs)
        count, pause, alone = chance.randint(1, steps), chance.random(), chance.random() < 0.5
        for left in range(STARTS_MAX - 1, -1, -1):
            driver = Driver(stream.uri, stream.name, place)
            try:
                driver.await_steps(count)
                # A random moment is the point; nothing is waited for.
                threading.Event().wait(pause * LONGEST_AFTER_A_STEP_S)
            except EndedError as problem:
                if not left or _SLOW_MACHINE not in str(problem):
                    raise
                continue
            finally:
                driver.kill(alone=alone)
            break
        on_kill(number)
    return published


def run_to_the_end(spark: SparkSession, stream: Stream, place: Place, progress: Progress) -> None:
    """Bring the tables up to date; again if the machine was too slow for Spark, as whoever operates it would."""
    for left in range(STARTS_MAX - 1, -1, -1):
        try:
            run_once(spark, place.settings(stream.uri, stream.name), progress)
        except PipelineError as problem:
            if not left or _SLOW_MACHINE not in str(problem):
                raise
        else:
            return


def silent(step: Step) -> None:
    """Tell nothing of a step."""


def check(spark: SparkSession, stream: Stream, place: Place, published: Published, progress: Progress = silent) -> int:
    """Bring the tables up to date and compare them with the stream; the number of events in bronze.

    Raises LostOrDoubledError.
    """
    run_to_the_end(spark, stream, place, progress)
    end = stream.log().end(stream.name)
    expected = {message.offset for message in stream.log().read(OffsetRange(stream.name, 0, end))}
    places = [(row["offset"], row["position"]) for row in place.rows(tables.EVENTS)]
    refused = [row["offset"] for row in place.rows(tables.QUARANTINE)]
    seen = {offset for offset, _ in places} | set(refused)
    if seen != expected:
        raise LostOrDoubledError(f"offsets missing: {sorted(expected - seen)}; too many: {sorted(seen - expected)}")
    if len(places) != len(set(places)) or len(places) != len(published.events):
        raise LostOrDoubledError(
            f"{len(places)} rows in bronze of {len(set(places))} places and {len(published.events)} events"
        )
    if len(refused) != len(set(refused)) or len(refused) != published.malformed:
        raise LostOrDoubledError(f"{len(refused)} rows in quarantine of {published.malformed} malformed messages")
    states = {row["job_id"]: row["state"] for row in place.rows(tables.JOBS)}
    if states != {job_id: job.state for job_id, job in fold(published.events).items()}:
        raise LostOrDoubledError("silver differs from a plain fold of what was published")
    return len(places)


def check_lost_commit(spark: SparkSession, stream: Stream, place: Place, progress: Progress = silent) -> None:
    """Delete the last entry of the commit log and run again: no table may change. Raises LostOrDoubledError."""
    before = contents(place)
    place.forget_last_commit()
    run_to_the_end(spark, stream, place, progress)
    after = contents(place)
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        raise LostOrDoubledError(f"changed without its last commit: {', '.join(changed)}")


def contents(place: Place) -> dict[str, list[str]]:
    """All rows of each table as text, in an order of their own."""
    return {table.name: sorted(map(_told, place.rows(table))) for table in _TABLES}


def _told(row: Mapping[str, Any]) -> str:
    """A row as text, its sketches as the values in them.

    A sketch holds values in the order in which they came, which differs each time that tasks run side by side.
    """
    return repr(sorted((name, _values(one) if name.endswith("_sketch") else one) for name, one in row.items()))


def _values(sketch: bytes) -> list[tuple[int, int]]:
    """The values with their weights: all that went in, as long as there are fewer than the size of the sketch."""
    return sorted(kll_items_sketch.deserialize(sketch, PyLongsSerDe()))


def drive(uri: str, stream: str, place: Place) -> None:
    """Follow the stream until killed."""
    spark = place.session("waybill-kills")
    small = 0 if place.state else incremental.SMALL_ROWS
    with patch.object(incremental, "SMALL_ROWS", small):
        run_continuously(spark, place.settings(uri, stream), lambda step: print(step, flush=True))


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], Place(**json.loads(sys.argv[3])))
