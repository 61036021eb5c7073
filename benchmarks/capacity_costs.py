"""What a job costs, and how that is measured: with the benchmarks that there are for each part.

A worker, a client and a coordinator on RabbitMQ with a quorum queue (`benchmarks.jobs`), events folded into PostgreSQL
(`benchmarks.job_state`), and the disk below the temporary directory.
"""

import dataclasses
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psycopg

import waybill
from benchmarks.contenders import RabbitMQContender
from benchmarks.job_state import cpu_of, measure, messages_of
from benchmarks.jobs import NOOP, QUORUM, Bench, Competitor
from tests import postgresql

SYNC_SECONDS: Final = 2.0
SYNC_OCTETS: Final = 4096


@dataclass(frozen=True)
class Costs:
    """What a job costs: microseconds of CPU, unless the name says otherwise. Where the figures were measured: below."""

    push_us: float = 18.6
    """docs/benchmarks/jobs.md: client, quorum queue with a coordinator."""
    broker_take_us: float = 50.0
    """The same: RabbitMQ takes, stores and confirms a job with its events in a quorum queue."""
    broker_deliver_us: float = 17.0
    """The same: RabbitMQ delivers it and takes the ack."""
    worker_us: float = 18.2
    """The same: worker."""
    queue_jobs_per_s: float = 20_600.0
    """The same: pushes a second into one quorum queue, on two cores that client and coordinator used as well."""
    event_us: float = 35.0
    """docs/benchmarks/operating.md: a coordinator folds an event into PostgreSQL; the dearer of two runs."""
    database_us: float = 24.0
    """The same: PostgreSQL."""
    events: float = 3.0
    """Of a job: enqueued, started, completed. Failures, progress and workflows have more."""
    event_octets: float = 362.0
    """`--measure`: an event in the stream."""
    row_octets: float = 2326.0
    """`--measure`: a job in PostgreSQL, with its arguments and all indexes, of 20,000 jobs."""
    syncs_per_s: float = 177.0
    """`--measure`: one after the other, on a disk that others used as well."""


def measured(costs: Costs, jobs: int) -> Costs:
    """Return the costs with those replaced that can be measured, each with so many jobs."""
    return dataclasses.replace(costs, **_of_jobs(jobs), **_of_state(jobs), syncs_per_s=syncs_per_s())


def _of_jobs(jobs: int) -> dict[str, float]:
    bench = Bench(jobs, 0, Path(waybill.__file__).parent.parent, Path())
    competitor = Competitor(QUORUM, "waybill", ("quorum",), has_coordinator=True, kinds=(NOOP,))
    contender = RabbitMQContender()
    contender.prepare()
    contender.start()
    try:
        bench.measure(competitor, f"amqp://guest:guest@127.0.0.1:{contender.port}/%2Fojs", contender.pid)
    finally:
        contender.stop()
    if bench.failures:
        raise SystemExit("\n".join(bench.failures))
    push, work = f"push {NOOP}", f"work {NOOP}"
    return {
        "push_us": bench.cpu_us(QUORUM, push),
        "broker_take_us": bench.broker_us(QUORUM, push),
        "broker_deliver_us": bench.broker_us(QUORUM, work),
        "worker_us": bench.cpu_us(QUORUM, work),
        "queue_jobs_per_s": bench.rate(QUORUM, push),
    }


def _of_state(jobs: int) -> dict[str, float]:
    messages = list(messages_of(jobs, datetime.now(UTC) - timedelta(hours=1)))
    events = sum(body.count(b'"specversion"') for _, body, _ in messages)
    with ExitStack() as stack:
        directory = stack.enter_context(postgresql.directory_for_servers())
        server = postgresql.Server(directory).create().start(is_durable=True)
        stack.callback(server.stop)
        database = server.create_database("jobs")
        found = measure(database, messages, lambda: cpu_of(server))
        with psycopg.connect(database.replace("+psycopg", "")) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    octets = 0 if row is None else int(row[0])
    return {
        "event_us": found["coordinator"] / events * 1e6,
        "database_us": found["database"] / events * 1e6,
        "event_octets": sum(len(body) for _, body, _ in messages) / events,
        "row_octets": octets / jobs,
    }


def syncs_per_s() -> float:
    """How often a second a file can be written to and synced, one after the other."""
    with tempfile.TemporaryFile() as file:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < SYNC_SECONDS:
            os.pwrite(file.fileno(), bytes(SYNC_OCTETS), count * SYNC_OCTETS)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - began)
