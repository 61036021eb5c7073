"""The workers that this server knows: those that fetch here, and those over AMQP by their events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import format_timestamp, format_unix_time, parse_timestamp

STALE_SECONDS: Final = 60.0
FORGOTTEN_SECONDS: Final = 3600.0
MOST: Final = 10_000
QUIET: Final = "quiet"
_SHOWN: Final = ("hostname", "pid", "version", "metadata", "labels")
"""The fields of heartbeats that are shown."""


class KnownWorker(msgspec.Struct, omit_defaults=True):
    """A worker. `reported` is the data of its heartbeats."""

    id: str
    queues: list[str]
    protocol: str
    started_at: str
    last_heartbeat_at: str
    concurrency: int | None = None
    active_jobs: int = 0
    is_quiet: bool = False
    reported: dict[str, object] = msgspec.field(default_factory=dict)

    def takes_from(self, prefix: str) -> bool:
        """Whether it takes jobs of queues whose names begin with a prefix; True if that is empty."""
        return not prefix or any(queue.startswith(prefix) for queue in self.queues)


class _Seen(NamedTuple):
    """What is known of a worker. Times are in seconds of a clock that nobody sets."""

    began: float
    seen: float
    queues: list[str]
    reported: dict[str, object]
    """Its last heartbeat."""
    reported_at: float

    def is_quiet(self, now: float) -> bool:
        """Whether it takes no jobs, as it says; a worker that is silent has perhaps begun anew."""
        return self.reported.get("state") == QUIET and now - self.reported_at < STALE_SECONDS


class HttpWorkers:
    """The workers that fetch from this server."""

    def __init__(self) -> None:
        self.is_directed: Callable[[str], bool] = lambda _worker_id: False
        """Whether an operator has told a worker to take no jobs."""
        self.on_quiet: Callable[[], None] = lambda: None
        """Called when a worker says that it takes no jobs."""
        self._seen: dict[str, _Seen] = {}
        self._pools: dict[str, str] = {}

    def record(self, worker_id: str, queues: list[str] | None, reported: dict[str, object] | None = None) -> None:
        """Record a fetch or a heartbeat, which has `reported`: its queues count until the first fetch."""
        if not worker_id:
            return
        now = time.monotonic()
        before = self._seen.get(worker_id)
        if before is None:
            if len(self._seen) >= MOST:
                self._forget(now)
            before = _Seen(now, now, [], {}, now)
        if reported is None:
            self._seen[worker_id] = before._replace(seen=now, queues=queues or before.queues)
        else:
            self._seen[worker_id] = found = _Seen(before.began, now, before.queues or queues or [], reported, now)
            if found.is_quiet(now):
                self.on_quiet()

    def handlers_of(self, worker_id: str) -> object:
        """Return the latest handlers of a worker, None if unknown."""
        found = self._seen.get(worker_id)
        return None if found is None else found.reported.get("handlers")

    def is_quiet(self, worker_id: str) -> bool:
        """Return whether a worker takes no jobs: as it says (ojs-graceful-shutdown section 5.1), or an operator."""
        if self.is_directed(worker_id):
            return True
        found = self._seen.get(worker_id)
        return found is not None and found.is_quiet(time.monotonic())

    def join(self, worker_id: str, pool: str) -> None:
        """Add a worker to a pool, and remove it from others (ojs-fair-scheduling section 6.2)."""
        if worker_id in self._seen:
            self._pools[worker_id] = pool

    def pool_of(self, worker_id: str) -> str:
        """Return the pool that a worker has joined, "" if none."""
        return self._pools.get(worker_id, "")

    def members(self, pool: str) -> set[str]:
        """Return the ids of the workers of a pool."""
        return {worker_id for worker_id, name in self._pools.items() if name == pool}

    def drop(self, worker_id: str) -> None:
        """Forget a worker."""
        self._seen.pop(worker_id, None)
        self._pools.pop(worker_id, None)

    def all(self) -> list[KnownWorker]:
        """Return the workers seen within the last hour."""
        now = time.monotonic()
        self._forget(now)
        offset = time.time() - now
        found = []
        for worker_id, one in self._seen.items():
            reported = one.reported
            concurrency = reported.get("concurrency")
            found.append(
                KnownWorker(
                    worker_id,
                    one.queues,
                    "http",
                    _told(reported.get("started_at")) or format_unix_time(one.began + offset),
                    format_unix_time(one.seen + offset),
                    concurrency if isinstance(concurrency, int) else None,
                    is_quiet=one.is_quiet(now),
                    reported={name: reported[name] for name in _SHOWN if name in reported},
                )
            )
        return found

    def _forget(self, now: float) -> None:
        old = [name for name, entry in self._seen.items() if entry.seen < now - FORGOTTEN_SECONDS]
        for name in [*old, *list(self._seen)[: max(0, len(self._seen) - len(old) - MOST + 1)]]:
            self.drop(name)


class AmqpWorkers:
    """The workers over AMQP, from their events."""

    MARK: Final = b'"worker.'
    """A part of every message about a worker."""

    def __init__(self) -> None:
        # The least recently seen worker is first.
        self._known: BoundedDict[str, KnownWorker] = BoundedDict(MOST)

    def take(self, events: Iterable[ReceivedEvent]) -> None:
        """Apply events, in the order of the stream."""
        for event in events:
            if event.type == "worker.stopped":
                self._known.pop(event.subject, None)
            elif event.type.startswith("worker."):
                self._record(event)

    def all(self) -> dict[str, KnownWorker]:
        """Return the workers seen within the last hour, by id."""
        oldest = format_timestamp(datetime.now(UTC) - timedelta(seconds=FORGOTTEN_SECONDS))
        for name in [one.id for one in self._known.values() if one.last_heartbeat_at < oldest]:
            del self._known[name]
        return dict(self._known)

    def _record(self, event: ReceivedEvent) -> None:
        data = event.data
        worker = self._known.pop(event.subject, None) or KnownWorker(event.subject, [], "amqp", event.time, event.time)
        worker.last_heartbeat_at = event.time
        queues, active, concurrency = data.get("queues"), data.get("active_jobs"), data.get("concurrency")
        if isinstance(queues, list):
            # A quiet worker reports no queues: keep the earlier ones.
            worker.is_quiet = not queues
            worker.queues = [str(one) for one in queues] or worker.queues
        if isinstance(active, int):
            worker.active_jobs = active
        if isinstance(concurrency, int):
            worker.concurrency = concurrency
        worker.is_quiet = worker.is_quiet or event.type == "worker.quiet"
        self._known[event.subject] = worker


def _told(time: object) -> str:
    """Return a time from a heartbeat, "" if it is none."""
    try:
        return format_timestamp(parse_timestamp(time, "started_at")) if isinstance(time, str) else ""
    except InvalidJob:
        return ""


def is_stale(worker: KnownWorker) -> bool:
    """Return whether a worker has been silent for too long."""
    return worker.last_heartbeat_at < format_timestamp(datetime.now(UTC) - timedelta(seconds=STALE_SECONDS))
