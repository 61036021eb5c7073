"""The account at the end: what was pushed, what was done and what was given up, each from a source of its own.

pushed         the ids that the producer got back from the broker's confirms
completed      the workers' notebooks: a handler returned a result for the job
dead letters   the messages in the dead letter queue
events         the stream of events, which progress and pipeline read
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.demo.jobs import QUEUE, RETRY_DELAYS_MS
from examples.demo.notebook import Run, read_redelivered, read_runs
from examples.demo.progress import Progress
from waybill.client import Connection, NotFound, QueueDeclared
from waybill.ojs import Topology, read_envelope


@dataclass(frozen=True)
class Evidence:
    """What the sources say."""

    pushed: list[str]
    runs: list[Run]
    dead: Counter[str]
    left: int
    redelivered: int

    @property
    def done(self) -> dict[str, Run]:
        """The first good run of each job that has one."""
        found: dict[str, Run] = {}
        for run in self.runs:
            if run.error is None:
                found.setdefault(run.job_id, run)
        return found

    @property
    def lost(self) -> set[str]:
        """The jobs that were pushed, and neither done nor put into the dead letter queue."""
        return set(self.pushed) - self.done.keys() - self.dead.keys()

    @property
    def done_twice(self) -> int:
        """How many jobs were done to the end more than once."""
        good = Counter(run.job_id for run in self.runs if run.error is None)
        return sum(count > 1 for count in good.values())


async def collect(connection: Connection, pushed: list[str], notebooks: Sequence[Path]) -> Evidence:
    """Ask every source but the events. The workers must have ended."""
    # Reading the workers' files may take a moment, in which heartbeats must go on.
    runs = await asyncio.to_thread(lambda: [run for path in notebooks for run in read_runs(path)])
    redelivered = sum(read_redelivered(path) for path in notebooks)
    return Evidence(pushed, runs, await _dead_letters(connection), await unfinished_count(connection), redelivered)


async def unfinished_count(connection: Connection) -> int:
    """Return how many messages lie in the job queue and in its retry queues."""
    topology = Topology()
    names = [topology.job_queue(QUEUE), *(topology.retry_queue(QUEUE, delay) for delay in RETRY_DELAYS_MS)]
    asked = [await _ask(connection, name) for name in names]
    return sum(queue.message_count for queue in asked if queue is not None)


async def consumer_count(connection: Connection) -> int:
    """Return how many workers consume the job queue."""
    queue = await _ask(connection, Topology().job_queue(QUEUE))
    return 0 if queue is None else queue.consumer_count


async def _ask(connection: Connection, name: str) -> QueueDeclared | None:
    """Ask for the state of a queue; None if there is none yet: queues are made when they are first needed."""
    channel = await connection.channel()
    try:
        return await channel.declare_queue(name, passive=True)
    except NotFound:
        return None
    finally:
        await channel.close()


async def _dead_letters(connection: Connection) -> Counter[str]:
    """Return how often each job lies in the dead letter queue. All stay there."""
    channel = await connection.channel()
    found: Counter[str] = Counter()
    while (delivery := await channel.get(Topology().dead_letter_queue(QUEUE))) is not None:
        found[read_envelope(delivery.body).id] += 1
    # What was fetched and not acknowledged goes back to its place.
    await channel.close()
    return found


def disagreements(evidence: Evidence, progress: Progress) -> list[str]:
    """Say in which points the sources contradict each other; no point means that every job is accounted for."""
    pushed, done, dead = set(evidence.pushed), evidence.done, set(evidence.dead)
    differing = [job_id for job_id, run in done.items() if progress.completed.get(job_id) != run.result]
    points = {
        "jobs were lost": len(evidence.lost),
        "jobs were both done and given up": len(done.keys() & dead),
        "jobs came to an end that nobody has pushed": len((done.keys() | dead) - pushed),
        "messages are still waiting": evidence.left,
        "jobs were pushed of which no event tells": len(pushed ^ progress.pushed),
        "jobs have another result in their events than in the workers' notebooks": len(differing),
        "jobs are done according to one source only": len(done.keys() ^ progress.completed.keys()),
        "dead letters are known to one source only": len(dead ^ (progress.discarded - progress.completed.keys())),
    }
    return [f"{count:,} {what}" for what, count in points.items() if count]


def report_differences(totals_file: Path, evidence: Evidence) -> list[str]:
    """Compare the totals of the pipeline's report with the workers' own counts."""
    totals = json.loads(totals_file.read_text(encoding="utf-8"))
    expected = {
        "pushed": len(evidence.pushed),
        "completed": len(evidence.done),
        "discarded": len(evidence.dead),
        "open": 0,
        "malformed": 0,
    }
    return [
        f"the report says {totals[name]:,} {name}, the workers and queues {count:,}"
        for name, count in expected.items()
        if totals[name] != count
    ]
