from datetime import UTC, datetime, timedelta

import msgspec

from waybill.ojs.observe.overview import FailureCount, Overview
from waybill.ojs.spec.events import ReceivedEvent

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


class Story:
    """Events one after the other."""

    def __init__(self) -> None:
        self.overview = Overview()
        self._count = 0

    def tell(self, kind: str, subject: str, at_s: float, **data: object) -> ReceivedEvent:
        self._count += 1
        time = (START + timedelta(seconds=at_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = ReceivedEvent(f"evt_{self._count}", kind, "/test", time, subject, data)
        self.overview.apply([event])
        return event


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_rates_are_those_of_the_last_ten_whole_seconds() -> None:
    story = Story()
    for number in range(50):
        story.tell("job.enqueued", f"j{number}", number / 5, job_type="a.b", queue="email")
    (queue,) = story.overview.queues(at(10))
    assert (queue.queue, queue.rates["enqueued"], queue.counts["enqueued"]) == ("email", 5.0, 50)
    assert story.overview.queues(at(15))[0].rates["enqueued"] == 2.5
    assert story.overview.queues(at(60))[0].rates["enqueued"] == 0.0


def test_a_job_runs_from_its_start_to_its_end() -> None:
    story = Story()
    started = {"job_type": "a.b", "queue": "email", "worker_id": "w", "attempt": 2}
    story.tell("job.started", "one", 0, **started)
    story.tell("job.started", "two", 1, **started)
    story.tell("job.progress", "two", 2, progress_percent=50)
    assert [(job.id, job.attempt, job.progress_percent) for job in story.overview.running()] == [
        ("one", 2, None),
        ("two", 2, 50.0),
    ]
    story.tell("job.completed", "one", 3, job_type="a.b", queue="email", attempt=2)
    error = {"code": "ERROR", "type": "ValueError", "message": "no"}
    for _ in range(2):
        story.tell("job.failed", "two", 4, job_type="a.b", queue="email", attempt=2, error=error)
    assert story.overview.running() == []
    assert story.overview.failures() == [FailureCount("a.b", "ValueError: no", 2)]


def test_an_event_counts_once() -> None:
    story = Story()
    event = story.tell("job.enqueued", "j", 0, job_type="a.b", queue="email")
    story.overview.apply([event, msgspec.structs.replace(event)])
    assert story.overview.queues(at(1))[0].counts == {"enqueued": 1}


def test_workers_come_fall_silent_and_go() -> None:
    story = Story()
    story.tell("worker.started", "w1", 0, worker_id="w1", queues=["email"], concurrency=5)
    story.tell("worker.started", "w2", 0, worker_id="w2", queues=["email"], concurrency=5)
    story.tell("worker.heartbeat", "w1", 50, worker_id="w1", active_jobs=3, queues=["email"], memory_mb=40.5)
    states = {worker.id: worker.state for worker in story.overview.workers(at(70))}
    assert states == {"w1": "running", "w2": "silent"}
    story.tell("job.started", "j", 71, job_type="a.b", queue="email", worker_id="w1", attempt=1)
    story.tell("worker.quiet", "w1", 72, worker_id="w1", active_jobs=1)
    story.tell("worker.heartbeat", "w2", 73, worker_id="w2", active_jobs=0, queues=["email"])
    states = {worker.id: worker.state for worker in story.overview.workers(at(74))}
    assert states == {"w1": "quiet", "w2": "running"}
    story.tell("worker.stopped", "w1", 75, worker_id="w1", reason="signal", jobs_completed=1, uptime_ms=1)
    assert [worker.id for worker in story.overview.workers(at(76))] == ["w2"]
    assert story.overview.running() == []


def test_pauses_are_shown() -> None:
    story = Story()
    story.tell("queue.paused", "email", 0, queue="email")
    assert story.overview.queues(at(1))[0].paused
    story.tell("queue.resumed", "email", 1, queue="email")
    assert story.overview.queues(at(2)) == []
