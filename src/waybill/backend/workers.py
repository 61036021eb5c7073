"""The workers that this server hears of: those that fetch here, and those over AMQP by their events."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import format_timestamp, format_unix_time

STALE_SECONDS: Final = 60.0
FORGOTTEN_SECONDS: Final = 3600.0
MOST: Final = 10_000


class Worker(msgspec.Struct, omit_defaults=True):
    """A worker. `told` is what it says of itself in heartbeats."""

    id: str
    queues: list[str]
    protocol: str
    started_at: str
    last_heartbeat_at: str
    concurrency: int | None = None
    active_jobs: int = 0
    is_quiet: bool = False
    told: dict[str, object] = msgspec.field(default_factory=dict)


class HttpWorkers:
    """Those that fetch from this server. A note costs a dictionary entry: there is one for each fetch."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float, list[str], dict[str, object]]] = {}

    def note(self, worker_id: str, queues: list[str] | None, told: dict[str, object] | None = None) -> None:
        """Take note that a worker has asked for jobs, or has sent a heartbeat."""
        if not worker_id:
            return
        now = time.time()
        before = self._seen.get(worker_id)
        if before is None:
            if len(self._seen) >= MOST:
                self._forget(now)
            before = (now, now, [], {})
        self._seen[worker_id] = (before[0], now, queues or before[2], before[3] if told is None else told)

    def handlers_of(self, worker_id: str) -> object:
        """Return what a worker has said last that it can do, None if it has not."""
        found = self._seen.get(worker_id)
        return None if found is None else found[3].get("handlers")

    def drop(self, worker_id: str) -> None:
        """Forget a worker."""
        self._seen.pop(worker_id, None)

    def all(self) -> list[Worker]:
        """Return those heard of within the last hour."""
        self._forget(time.time())
        found = []
        for worker_id, (started, seen, queues, told) in self._seen.items():
            concurrency = told.get("concurrency")
            found.append(
                Worker(
                    worker_id,
                    queues,
                    "http",
                    format_unix_time(started),
                    format_unix_time(seen),
                    concurrency if isinstance(concurrency, int) else None,
                    told={name: told[name] for name in ("hostname", "version", "metadata", "labels") if name in told},
                )
            )
        return found

    def _forget(self, now: float) -> None:
        old = [name for name, entry in self._seen.items() if entry[1] < now - FORGOTTEN_SECONDS]
        for name in [*old, *list(self._seen)[: max(0, len(self._seen) - len(old) - MOST + 1)]]:
            self._seen.pop(name, None)


def workers_of(events: list[ReceivedEvent]) -> dict[str, Worker]:
    """Return the workers that events tell of, in the order of the stream."""
    found: dict[str, Worker] = {}
    for event in events:
        if not event.type.startswith("worker."):
            continue
        data = event.data
        if event.type == "worker.stopped":
            found.pop(event.subject, None)
            continue
        queues, active, concurrency = data.get("queues"), data.get("active_jobs"), data.get("concurrency")
        worker = found.get(event.subject) or Worker(event.subject, [], "amqp", event.time, event.time)
        worker.last_heartbeat_at = event.time
        if isinstance(queues, list):
            worker.queues = [str(one) for one in queues]
        if isinstance(active, int):
            worker.active_jobs = active
        if isinstance(concurrency, int):
            worker.concurrency = concurrency
        worker.is_quiet = worker.is_quiet or event.type == "worker.quiet"
        found[event.subject] = worker
    return found


def is_stale(worker: Worker) -> bool:
    """Say whether nothing was heard of a worker for long."""
    return worker.last_heartbeat_at < format_timestamp(datetime.now(UTC) - timedelta(seconds=STALE_SECONDS))
