"""The workers' own record of what their handlers did: evidence that does not go through the broker.

Each worker process writes a SQLite file of its own, one row for each run of the handler.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.demo.analysis import Result
from waybill.ojs import JobContext
from waybill.ojs.middleware import Call

_SCHEMA: Final = """
CREATE TABLE runs (job_id TEXT NOT NULL, attempt INTEGER NOT NULL, path TEXT NOT NULL,
                   error TEXT, result TEXT, finished_at REAL NOT NULL);
CREATE TABLE deliveries (redelivered INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Run:
    """One run of the handler: `error` names the type of what it raised, `result` is what it returned."""

    job_id: str
    attempt: int
    path: str
    error: str | None
    result: Result | None


class Notebook:
    """The record of one worker, open for writing."""

    def __init__(self, path: Path) -> None:
        """Create the file at `path`, which must not exist."""
        # The demo kills the broker, not the machine: each row may wait in the page cache.
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;" + _SCHEMA)

    async def record(self, job: JobContext, call: Call) -> object:
        """Note how a job ends: a middleware for the worker."""
        try:
            result = await call(job)
        except Exception as error:
            self._add(job, getattr(error, "type", None) or type(error).__name__, None)
            raise
        self._add(job, None, json.dumps(result))
        return result

    def close(self, redelivered: int) -> None:
        """Note how many deliveries came with the flag `redelivered`, and close the file."""
        self._database.execute("INSERT INTO deliveries VALUES (?)", (redelivered,))
        self._database.close()

    def _add(self, job: JobContext, error: str | None, result: str | None) -> None:
        row = (job.id, job.attempt, str(job.envelope.args[0]), error, result, time.time())
        self._database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)


def read_runs(path: Path) -> Iterator[Run]:
    """Return the runs of one worker in the order in which they ended."""
    with closing(sqlite3.connect(path)) as database:
        for job_id, attempt, name, error, result in database.execute(
            "SELECT job_id, attempt, path, error, result FROM runs ORDER BY rowid"
        ):
            yield Run(job_id, attempt, name, error, None if result is None else json.loads(result))


def read_redelivered(path: Path) -> int:
    """Return how many redelivered jobs came to one worker."""
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT coalesce(sum(redelivered), 0) FROM deliveries").fetchone()[0])
