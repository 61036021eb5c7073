"""The worker of the run, as a program: `python -m tests.soak.cluster.programs URI DIRECTORY QUEUE EVENT_PARTITIONS`.

The handlers of `tests.soak.jobs`, the steps of chains, and a tick of the clock. What steps and ticks have done is a row
in the file of the process.
"""

import logging
import sqlite3
import sys
from datetime import timedelta

from tests.soak.jobs.programs import CONCURRENCY, RETRY, make_jobs, open_effects
from waybill.ojs import Jobs, Topology, Worker, current_job
from waybill.transport.loop import run

TICK = timedelta(seconds=5)
CRON = "soak-tick"
STEPS = 3
SCHEMA = "create table done (what text, subject text, job text, unique (what, subject, job))"


def make_cluster_jobs(
    uri: str, queue: str, effects: sqlite3.Connection | None = None, *, event_partitions: int = 1
) -> Jobs:
    """The handlers; without a place for their effects, to push only."""
    topology = Topology(queue_type="quorum", replicas=3, leader_locator="balanced", event_partitions=event_partitions)
    jobs = make_jobs(uri, queue, effects, topology)

    def note(what: str, subject: object) -> None:
        if effects is not None:
            effects.execute("insert or ignore into done values (?, ?, ?)", (what, str(subject), current_job().id))

    @jobs.handler("soak.step", queue=queue, retry=RETRY)
    async def step(chain: int, number: int) -> None:
        note("step", f"{chain}.{number}")

    @jobs.cron(every=TICK, missed="all", overlap="allow", name=CRON)
    @jobs.handler("soak.tick", queue=queue, retry=RETRY)
    async def tick() -> None:
        note("tick", current_job().meta["cron_triggered_at"])

    return jobs


def main() -> None:
    uri, directory, queue, event_partitions = sys.argv[1:5]
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    effects = open_effects(directory)
    effects.execute(SCHEMA)
    jobs = make_cluster_jobs(uri, queue, effects, event_partitions=int(event_partitions))
    run(Worker(jobs, queues=[queue], concurrency=CONCURRENCY, prefetch=2 * CONCURRENCY).run())


if __name__ == "__main__":
    main()
