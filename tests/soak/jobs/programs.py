"""The worker that is killed, as a program: `python -m tests.soak.jobs.programs URI DIRECTORY QUEUE`.

A handler's side effect is a row in SQLite, keyed by job and attempt, in a file of the process's own. It is committed
before the handler goes on, so that a kill cannot take it back, and only then the handler fails if it has to.
"""

import logging
import os
import sqlite3
import sys
import time
from datetime import timedelta
from pathlib import Path

from waybill.client import ReconnectPolicy
from waybill.ojs import Jobs, Retry, Topology, Worker, current_job
from waybill.transport.loop import run

SCHEMA = (
    "create table effect (job text, attempt integer, number integer, at real, runs integer, primary key (job, attempt))"
)
INSERT = "insert into effect values (?, ?, ?, ?, 1) on conflict do update set runs = runs + 1"
FAILING_EVERY = 20
RETRY = Retry(max_attempts=6, initial_interval=timedelta(seconds=1), backoff_strategy="none", jitter=False)
RECONNECT = ReconnectPolicy(first_delay_s=0.1, max_delay_s=1.0)
CONCURRENCY = 20


def always_fails(number: int) -> bool:
    """Half of the failing handlers fail in every attempt, the others only in their first."""
    return number % (2 * FAILING_EVERY) == 0


# Quorum queues where the broker has them: classic ones of RabbitMQ lose what they were dead-lettering when killed.
QUORUM = Topology(queue_type="quorum")


def make_jobs(uri: str, queue: str, effects: sqlite3.Connection | None = None, topology: Topology = QUORUM) -> Jobs:
    """The handlers; without a place for their effects, to push only."""
    jobs = Jobs(uri, topology=topology, reconnect=RECONNECT, push_timeout=300)

    @jobs.handler("soak.effect", queue=queue, retry=RETRY)
    async def effect(number: int) -> None:
        job = current_job()
        if effects is not None:
            effects.execute(INSERT, (job.id, job.attempt, number, time.time()))
        if always_fails(number) or (number % FAILING_EVERY == 0 and job.attempt == 1):
            raise RuntimeError("as it was told to")

    return jobs


def open_effects(directory: str) -> sqlite3.Connection:
    """The file of this process."""
    effects = sqlite3.connect(Path(directory) / f"effects-{os.getpid()}.sqlite", isolation_level=None)
    # A process is killed here, not the machine: what was handed to the operating system stays.
    effects.execute("pragma synchronous = off")
    effects.execute("pragma journal_mode = wal")
    effects.execute(SCHEMA)
    return effects


def main() -> None:
    uri, directory, queue = sys.argv[1:4]
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    effects = open_effects(directory)
    worker = Worker(make_jobs(uri, queue, effects), queues=[queue], concurrency=CONCURRENCY, prefetch=2 * CONCURRENCY)
    run(worker.run())


if __name__ == "__main__":
    main()
