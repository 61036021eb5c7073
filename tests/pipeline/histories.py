"""Random but reproducible lives of jobs, as the events that a client and its workers would publish."""

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from waybill.pipeline.events import EventColumns
from waybill.pipeline.message import NO_METADATA, MessageBlock

type_of_queue = {"files": "file.parse", "mail": "mail.send", "media": "image.resize"}
START = datetime(2026, 3, 1, 23, 59, 30, tzinfo=UTC)
Event = dict[str, object]


def event(type_: str, at: datetime, job: str, number: int, **data: object) -> Event:
    data.setdefault("queue", "files")
    data.setdefault("job_type", type_of_queue.get(str(data["queue"]), "file.parse"))
    return {
        "specversion": "1.0",
        "id": f"evt_{job}_{number:04d}",
        "type": type_,
        "source": "ojs://waybill/workers/w1",
        "time": stamp(at),
        "subject": job,
        "data": data,
    }


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_history(seed: int, job: str, at: datetime) -> list[Event]:
    """One job from its push to wherever it got, with some events told twice under ids of their own (a redelivery)."""
    chance = random.Random(f"{seed}/{job}")
    queue = chance.choice(sorted(type_of_queue))
    events: list[Event] = []

    def tell(type_: str, moment: datetime, **data: object) -> None:
        events.append(event(type_, moment, job, len(events), queue=queue, **data))

    tell("job.enqueued", at, priority=chance.randint(-3, 3))
    available = at
    for attempt in range(1, 4):
        if chance.random() < 0.05:
            break
        started = available + timedelta(milliseconds=chance.randint(1, 4000))
        tell("job.started", started, worker_id=f"w{chance.randint(1, 2)}", attempt=attempt)
        if chance.random() < 0.1:
            tell("job.started", started + timedelta(seconds=5), worker_id="w3", attempt=attempt)
        run_ms = chance.randint(1, 3000)
        ended = started + timedelta(milliseconds=run_ms)
        if chance.random() < 0.6:
            tell("job.completed", ended, duration_ms=run_ms, attempt=attempt)
            break
        error = {
            "code": "handler_error",
            "type": chance.choice(["SyntaxError", "OSError"]),
            "message": "no",
            "retryable": True,
        }
        tell("job.failed", ended, attempt=attempt, error=error, duration_ms=run_ms)
        if attempt == 3 or chance.random() < 0.3:
            tell("job.discarded", ended, total_attempts=attempt, last_error=error)
            break
        available = ended + timedelta(seconds=2**attempt)
        tell("job.retrying", ended, attempt=attempt, max_attempts=3, next_retry_at=stamp(available), error=error)
    return events


def history(seed: int, jobs: int) -> list[Event]:
    """Many jobs, their events in the order of time."""
    chance = random.Random(seed)
    at = START
    events = []
    for index in range(jobs):
        at += timedelta(milliseconds=chance.randint(1, 700))
        events += job_history(seed, f"job-{seed}-{index:03d}", at)
    return sorted(events, key=lambda one: str(one["time"]))


def rows(messages: Iterable[list[Event]]) -> list[tuple[object, ...]]:
    """The rows of the event source for messages that hold one or many events."""
    return rows_of([json.dumps(events if len(events) != 1 else events[0]).encode() for events in messages])


def rows_of(bodies: list[bytes], first_offset: int = 0) -> list[tuple[object, ...]]:
    """The rows of the event source for messages of these bodies."""
    columns = EventColumns("ojs.events")
    offsets = range(first_offset, first_offset + len(bodies))
    columns.add(MessageBlock("ojs.events", offsets, bodies, [NO_METADATA] * len(bodies)))
    return [tuple(row.values()) for row in columns.record_batch().to_pylist()]
