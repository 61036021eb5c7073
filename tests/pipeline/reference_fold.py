"""What silver must say, computed by a plain loop over the events of each job: slow, and simple enough to believe."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tests.pipeline.histories import Event


@dataclass
class Attempt:
    outcome: str = "running"
    starts: int = 0
    retried: bool = False
    discarded: bool = False
    error_type: str | None = None
    queue_wait_ms: int | None = None
    run_ms: int | None = None


@dataclass
class Job:
    state: str = "available"
    attempts: dict[int, Attempt] = field(default_factory=lambda: defaultdict(Attempt))


def fold(events: Iterable[Event]) -> dict[str, Job]:
    """The jobs by id. Events count once by id, in the order of their times."""
    unique = {str(one["id"]): one for one in events}
    jobs: dict[str, Job] = defaultdict(Job)
    available: dict[tuple[str, int], datetime] = {}
    for one in sorted(unique.values(), key=lambda each: (str(each["time"]), str(each["id"]))):
        _apply(jobs[str(one["subject"])], one, available)
    return dict(jobs)


def _apply(job: Job, one: Event, available: dict[tuple[str, int], datetime]) -> None:
    data = one["data"]
    assert isinstance(data, dict)
    subject, kind, at = str(one["subject"]), str(one["type"]), _time(one["time"])
    if kind == "job.enqueued":
        available[subject, 1] = at
        return
    number = data.get("attempt") or data["total_attempts"]
    attempt = job.attempts[number]
    if kind == "job.started":
        attempt.starts += 1
        if attempt.starts == 1:
            attempt.queue_wait_ms = _milliseconds(at, available[subject, number])
        # A delivery of an attempt that has failed already is late, and makes nobody busy.
        if attempt.outcome == "running" and job.state in {"available", "retryable"}:
            job.state = "active"
    elif kind == "job.completed":
        attempt.outcome, attempt.run_ms, job.state = "completed", data["duration_ms"], "completed"
    elif kind == "job.failed":
        attempt.outcome, attempt.run_ms, attempt.error_type = "failed", data["duration_ms"], data["error"]["type"]
        job.state = "retryable"
    elif kind == "job.retrying":
        attempt.retried = True
        available[subject, number + 1] = _time(data["next_retry_at"])
    elif kind == "job.discarded":
        attempt.discarded, job.state = True, "discarded"


def _time(text: object) -> datetime:
    return datetime.fromisoformat(str(text))


def _milliseconds(end: datetime, start: datetime) -> int:
    return round((end - start).total_seconds() * 1000)
