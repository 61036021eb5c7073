"""Current activity, folded from the event stream: rates by queue, running jobs, workers and errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.spec.events import ReceivedEvent

RATE_SECONDS: Final = 10
WORKER_SILENT_SECONDS: Final = 60.0
"""Four heartbeats: after that, a silent worker counts as gone."""
MAX_FAILURES: Final = 1000
MESSAGE_LENGTH: Final = 120
COUNTED: Final = {
    "job.enqueued": "enqueued",
    "job.started": "started",
    "job.completed": "completed",
    "job.failed": "failed",
    "job.retrying": "retried",
    "job.discarded": "discarded",
    "job.cancelled": "cancelled",
}
ENDS: Final = frozenset({"job.completed", "job.failed", "job.retrying", "job.discarded", "job.cancelled"})


class RunningAttempt(msgspec.Struct, frozen=True):
    """A job that a worker runs. `started_at` is RFC 3339."""

    id: str
    type: str
    queue: str
    worker_id: str
    attempt: int
    started_at: str
    progress_percent: float | None = None


class WorkerState(msgspec.Struct):
    """A worker according to its last events. `state`: running, quiet, silent for a while, or stopped."""

    id: str
    queues: list[str]
    state: str
    active_jobs: int
    last_seen: str
    concurrency: int | None = None
    memory_mb: float | None = None


class FailureCount(msgspec.Struct, frozen=True):
    """Attempts that failed for the same reason."""

    type: str
    error: str
    count: int


class QueueState(msgspec.Struct):
    """An OJS queue: jobs per second over the last seconds, and the number of events of each kind."""

    queue: str
    rates: dict[str, float]
    counts: dict[str, int]
    paused: bool = False


class Overview:
    """Fold events with `apply`, then query. Times are those of the events; `now` is given, in UTC."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._running: dict[str, RunningAttempt] = {}
        self._workers: dict[str, WorkerState] = {}
        self._failures: Counter[tuple[str, str]] = Counter()
        self._paused: set[str] = set()
        self._seen: BoundedDict[str, None] = BoundedDict(100_000)

    def apply(self, events: Iterable[ReceivedEvent]) -> None:
        """Fold events, in the order of the stream. Repeated events, by id, are dropped."""
        for event in events:
            if event.id in self._seen:
                continue
            self._seen[event.id] = None
            kind = event.type.partition(".")[0]
            if kind == "job":
                self._job(event)
            elif kind == "worker":
                self._worker(event)
            elif event.type == "queue.paused":
                self._paused.add(event.subject)
            elif event.type == "queue.resumed":
                self._paused.discard(event.subject)

    def queues(self, now: datetime) -> list[QueueState]:
        """Return all queues in the events, by name."""
        return [
            QueueState(queue, self._rates(queue, now), dict(self._counts.get(queue, {})), queue in self._paused)
            for queue in sorted(set(self._counts) | self._paused)
        ]

    def running(self) -> list[RunningAttempt]:
        """Return the running jobs, in order of their start."""
        return sorted(self._running.values(), key=lambda job: job.started_at)

    def workers(self, now: datetime) -> list[WorkerState]:
        """Return the active workers, and those that fell silent recently."""
        silent = _text(now - timedelta(seconds=WORKER_SILENT_SECONDS))
        for worker in self._workers.values():
            if worker.state != "stopped" and worker.last_seen < silent:
                worker.state = "silent"
        return [worker for worker in self._workers.values() if worker.state != "stopped"]

    def failures(self, limit: int = 10) -> list[FailureCount]:
        """Return the reasons why attempts failed, the most frequent first."""
        return [FailureCount(kind, error, count) for (kind, error), count in self._failures.most_common(limit)]

    def _rates(self, queue: str, now: datetime) -> dict[str, float]:
        """Return events per second by kind; the current second is not over and does not count."""
        window = [_text(now - timedelta(seconds=back)) for back in range(1, RATE_SECONDS + 1)]
        oldest = window[-1]
        seconds = self._seconds.get(queue, Counter())
        for key in [key for key in seconds if key[:19] < oldest]:
            del seconds[key]
        return {
            name: sum(seconds[f"{second} {name}"] for second in window if f"{second} {name}" in seconds) / RATE_SECONDS
            for name in COUNTED.values()
        }

    def _job(self, event: ReceivedEvent) -> None:
        data = event.data
        queue = str(data.get("queue", ""))
        name = COUNTED.get(event.type)
        if name is not None:
            self._counts[queue][name] += 1
            self._seconds[queue][f"{event.time[:19]} {name}"] += 1
        if event.type == "job.started":
            self._running[event.subject] = RunningAttempt(
                event.subject,
                str(data.get("job_type", "")),
                queue,
                str(data.get("worker_id", "")),
                _number(data.get("attempt")),
                event.time,
            )
        elif event.type == "job.progress" and event.subject in self._running:
            percent = data.get("progress_percent")
            job = self._running[event.subject]
            self._running[event.subject] = msgspec.structs.replace(
                job, progress_percent=float(min(max(percent, 0), 100)) if isinstance(percent, int | float) else None
            )
        elif event.type in ENDS:
            self._running.pop(event.subject, None)
        if event.type == "job.failed":
            self._fail(str(data.get("job_type", "")), data.get("error"))

    def _fail(self, job_type: str, error: object) -> None:
        error = error if isinstance(error, dict) else {}
        text = f"{error.get('type') or error.get('code') or ''}: {error.get('message', '')}"[:MESSAGE_LENGTH]
        self._failures[job_type, text] += 1
        if len(self._failures) > MAX_FAILURES:
            self._failures = Counter(dict(self._failures.most_common(MAX_FAILURES // 2)))

    def _worker(self, event: ReceivedEvent) -> None:
        data = event.data
        worker = self._workers.get(event.subject)
        if worker is None:
            worker = self._workers[event.subject] = WorkerState(event.subject, [], "running", 0, event.time)
        worker.last_seen = max(worker.last_seen, event.time)
        queues, concurrency, memory = data.get("queues"), data.get("concurrency"), data.get("memory_mb")
        if isinstance(queues, list):
            worker.queues = [str(queue) for queue in queues]
        if isinstance(concurrency, int):
            worker.concurrency = concurrency
        if isinstance(memory, int | float):
            worker.memory_mb = float(min(max(memory, 0), 2**53))
        if "active_jobs" in data:
            worker.active_jobs = _number(data["active_jobs"])
        if event.type == "worker.stopped":
            worker.state = "stopped"
            self._running = {key: job for key, job in self._running.items() if job.worker_id != event.subject}
        elif event.type == "worker.quiet":
            worker.state = "quiet"
        elif event.type == "worker.started" or worker.state == "silent":
            worker.state = "running"


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
