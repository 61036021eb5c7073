"""How far the jobs are, as their events tell: the demo reads the same stream that the pipeline reads later."""

import asyncio
import time
from collections import deque
from typing import Final, cast

from waybill.client import Connection, Delivery
from waybill.ojs import Topology
from waybill.ojs.spec.events import ReceivedEvent, decode_events

RATE_SECONDS: Final = 3.0
PREFETCH: Final = 500


class Progress:
    """What the events have told so far, by job id. An event that comes twice counts once."""

    def __init__(self, total: int) -> None:
        """`total` is the number of jobs that there will be."""
        self.total = total
        self.began = time.monotonic()
        self.pushed: set[str] = set()
        self.completed: dict[str, object] = {}
        self.discarded: set[str] = set()
        self.waiting: dict[str, int] = {}
        """Jobs between two attempts, with the number of the one that failed."""
        self.lost: set[str] = set()
        self.last_change = self.began
        self.changed = asyncio.Event()
        self._seen: set[str] = set()
        self._begun: dict[str, int] = {}
        self._ends: deque[float] = deque()
        self._ended_count = 0

    @property
    def ended_count(self) -> int:
        """How many jobs have come to an end."""
        return self._ended_count

    @property
    def rate(self) -> float:
        """Jobs that ended in a second, over the last RATE_SECONDS."""
        now = time.monotonic()
        while self._ends and self._ends[0] < now - RATE_SECONDS:
            self._ends.popleft()
        return len(self._ends) / max(0.2, min(RATE_SECONDS, now - self.began))

    def see(self, event: ReceivedEvent) -> None:
        """Take note of an event."""
        if event.id in self._seen or not event.type.startswith("job."):
            return
        self._seen.add(event.id)
        job_id = event.subject
        match event.type:
            case "job.enqueued":
                self.pushed.add(job_id)
            case "job.started":
                self._began(job_id, event.data.get("attempt"))
            case "job.completed":
                self._end(job_id)
                self.completed[job_id] = event.data.get("result")
                self._began(job_id, event.data.get("attempt"))
            case "job.failed":
                self._failed(job_id, event.data.get("error"))
            case "job.retrying":
                self._retrying(job_id, event.data.get("attempt"))
            case "job.discarded":
                self._end(job_id)
                self.discarded.add(job_id)
                self._began(job_id, event.data.get("total_attempts"))
            case _:
                pass
        self.last_change = time.monotonic()
        self.changed.set()

    async def wait_for_change(self, timeout_seconds: float) -> None:
        """Return after the next event, or after the timeout."""
        self.changed.clear()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.changed.wait()
        except TimeoutError:
            return

    def _end(self, job_id: str) -> None:
        if job_id not in self.completed and job_id not in self.discarded:
            self._ended_count += 1
            self._ends.append(time.monotonic())

    def _began(self, job_id: str, attempt: object) -> None:
        """Attempt `attempt` has begun. Two workers' events may arrive in any order: the number decides."""
        if isinstance(attempt, int):
            self._begun[job_id] = max(attempt, self._begun.get(job_id, 0))
            if self.waiting.get(job_id, attempt) < attempt or job_id in self.discarded:
                self.waiting.pop(job_id, None)

    def _retrying(self, job_id: str, attempt: object) -> None:
        """Attempt `attempt` has failed, and another one follows."""
        if isinstance(attempt, int) and self._begun.get(job_id, 0) <= attempt and job_id not in self.discarded:
            self.waiting[job_id] = attempt

    def _failed(self, job_id: str, error: object) -> None:
        if isinstance(error, dict) and ("type", "WorkerLost") in cast("dict[str, object]", error).items():
            self.lost.add(job_id)


async def follow(connection: Connection, progress: Progress) -> None:
    """Feed `progress` from the stream of events, from its beginning, until the connection is closed.

    After a reconnect the stream is read from its beginning again: events have ids, so nothing counts twice.
    """
    channel = await connection.channel(prefetch_count=PREFETCH)

    def see(delivery: Delivery) -> None:
        for event in decode_events(delivery.body):
            progress.see(event)
        delivery.ack()

    await channel.consume(Topology().event_stream, see, arguments={"x-stream-offset": "first"})
