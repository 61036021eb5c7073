"""The pipeline's driver under kill -9: a process that follows a stream into tables, and what the tables must hold then.

python -m tests.pipeline.kills URI STREAM DIRECTORY      the driver: prints a line for each step, until it is killed
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from tests.pipeline.histories import Event, history
from tests.pipeline.reference_fold import fold
from tests.pipeline.streams import Stream
from tests.program_environment import program_environment
from waybill.pipeline import tables
from waybill.pipeline.offsets import OffsetRange
from waybill.pipeline.run import REFRESHED, Settings, run_continuously, run_once
from waybill.pipeline.session import local_session
from waybill.pipeline.tables import Table, Tables

ROOT: Final = Path(__file__).resolve().parents[2]
# Small batches and no pause between them, so that most moments are in the middle of one.
OFFSETS_PER_TRIGGER: Final = 40
LONGEST_AFTER_A_STEP_S: Final = 1.0
STEPS_MAX: Final = 8
_TABLES: Final = (tables.EVENTS, tables.QUARANTINE, *REFRESHED)


class LostOrDoubledError(AssertionError):
    """The tables differ from what was published."""


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


class Driver:
    """The driver in a session of its own, so that its Java and all its workers can be killed with it."""

    def __init__(self, uri: str, stream: str, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.pipeline.kills", uri, stream, str(directory)]
        environment = program_environment()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )

    def await_steps(self, count: int) -> list[str]:
        """The next `count` steps. Raises AssertionError if the driver ended by itself."""
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline() for _ in range(count)]
        assert all(lines), "the driver ended by itself"
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
    directory: Path,
    *,
    kills: int,
    jobs: int,
    chance: random.Random,
    on_kill: Callable[[int], object] = bool,
) -> Published:
    """Publish the events of `jobs` jobs, start the driver, kill it at a random moment; do so `kills` times."""
    published = Published()
    for number in range(1, kills + 1):
        published.more(stream, chance.randrange(1 << 30), jobs)
        driver = Driver(stream.uri, stream.name, directory)
        try:
            driver.await_steps(chance.randint(1, STEPS_MAX))
            # A random moment is the point; nothing is waited for.
            threading.Event().wait(chance.random() * LONGEST_AFTER_A_STEP_S)
        finally:
            driver.kill(alone=chance.random() < 0.5)
        on_kill(number)
    return published


def check(spark: SparkSession, stream: Stream, directory: Path, published: Published) -> int:
    """Bring the tables up to date and compare them with the stream; the number of events in bronze.

    Raises LostOrDoubledError.
    """
    run_once(spark, _settings(stream.uri, stream.name, directory), lambda step: None)
    end = stream.log().end(stream.name)
    expected = {message.offset for message in stream.log().read(OffsetRange(stream.name, 0, end))}
    places = [(row["offset"], row["position"]) for row in _rows(directory, tables.EVENTS)]
    refused = [row["offset"] for row in _rows(directory, tables.QUARANTINE)]
    seen = {offset for offset, _ in places} | set(refused)
    if seen != expected:
        raise LostOrDoubledError(f"offsets missing: {sorted(expected - seen)}; too many: {sorted(seen - expected)}")
    if len(places) != len(set(places)) or len(places) != len(published.events):
        raise LostOrDoubledError(
            f"{len(places)} rows in bronze of {len(set(places))} places and {len(published.events)} events"
        )
    if len(refused) != len(set(refused)) or len(refused) != published.malformed:
        raise LostOrDoubledError(f"{len(refused)} rows in quarantine of {published.malformed} malformed messages")
    states = {row["job_id"]: row["state"] for row in _rows(directory, tables.JOBS)}
    if states != {job_id: job.state for job_id, job in fold(published.events).items()}:
        raise LostOrDoubledError("silver differs from a plain fold of what was published")
    return len(places)


def check_lost_commit(spark: SparkSession, stream: Stream, directory: Path) -> None:
    """Delete the last entry of the commit log and run again: no table may change. Raises LostOrDoubledError."""
    before = contents(directory)
    commits = sorted((directory / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run_once(spark, _settings(stream.uri, stream.name, directory), lambda step: None)
    after = contents(directory)
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        raise LostOrDoubledError(f"changed without its last commit: {', '.join(changed)}")


def contents(directory: Path) -> dict[str, list[str]]:
    """All rows of each table as text, in an order of their own."""
    return {table.name: sorted(repr(sorted(row.items())) for row in _rows(directory, table)) for table in _TABLES}


def _rows(directory: Path, table: Table) -> list[dict[str, Any]]:
    """The rows that are in a table's files: queries of Spark for all of them take longer than the run before."""
    place = Tables(directory).path(table)
    return dataset(place, format="parquet", partitioning="hive").to_table().to_pylist() if place.is_dir() else []


def _settings(uri: str, stream: str, directory: Path) -> Settings:
    return Settings(uri, directory, stream=stream, max_offsets_per_trigger=OFFSETS_PER_TRIGGER, trigger_seconds=0.0)


def drive(uri: str, stream: str, directory: Path) -> None:
    """Follow the stream until killed."""
    spark = local_session("waybill-kills", log_file=directory.with_suffix(".log"), short=True)
    run_continuously(spark, _settings(uri, stream, directory), lambda step: print(step, flush=True))


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
