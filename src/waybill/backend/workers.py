"""The workers that this server knows: those that fetch here, and those over AMQP by their events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import format_timestamp, format_unix_time, parse_timestamp

STALE_SECONDS: Final = 60.0
FORGOTTEN_SECONDS: Final = 3600.0
MOST: Final = 10_000
MOST_BYTES: Final = 16 * 1024 * 1024
"""Of what workers tell of themselves. The oldest ones are forgotten first."""
MOST_QUEUES: Final = 100
"""Queues of a worker that are shown."""
MAX_NAME: Final = 255
QUIET: Final = "quiet"
_SHOWN: Final = ("hostname", "pid", "version", "metadata", "labels")
"""The fields of heartbeats that are shown."""
_KEPT: Final = (*_SHOWN, "concurrency", "started_at")


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
    reported: bytes
    """What is shown of its last heartbeat, and its handlers, as JSON: values of Python take many times as much."""
    handlers: bytes
    says_quiet: bool
    reported_at: float

    @property
    def size(self) -> int:
        """Its size in octets."""
        return len(self.reported) + len(self.handlers) + sum(map(len, self.queues))

    def is_quiet(self, now: float) -> bool:
        """Whether it takes no jobs, as it says; a worker that is silent has perhaps begun anew."""
        return self.says_quiet and now - self.reported_at < STALE_SECONDS


class HttpWorkers:
    """The workers that fetch from this server."""

    def __init__(self) -> None:
        self.is_directed: Callable[[str], bool] = lambda _worker_id: False
        """Whether an operator has told a worker to take no jobs."""
        self.on_quiet: Callable[[], None] = lambda: None
        """Called when a worker says that it takes no jobs."""
        self._seen: dict[str, _Seen] = {}
        self._size = 0
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
            before = _Seen(now, now, [], b"", b"", says_quiet=False, reported_at=now)
        named = _shown_queues(queues or [])
        if reported is None:
            self._set(worker_id, before._replace(seen=now, queues=named or before.queues))
            return
        shown = {name: reported[name] for name in _KEPT if name in reported}
        handlers = reported.get("handlers")
        found = _Seen(
            before.began,
            now,
            before.queues or named,
            msgspec.json.encode(shown),
            b"" if handlers is None else msgspec.json.encode(handlers),
            says_quiet=reported.get("state") == QUIET,
            reported_at=now,
        )
        self._set(worker_id, found)
        if found.is_quiet(now):
            self.on_quiet()

    def _set(self, worker_id: str, found: _Seen) -> None:
        before = self._seen.get(worker_id)
        self._size += found.size - (0 if before is None else before.size)
        self._seen[worker_id] = found
        while self._size > MOST_BYTES and len(self._seen) > 1:
            self.drop(next(iter(self._seen)))

    def handlers_of(self, worker_id: str) -> object:
        """Return the latest handlers of a worker, None if unknown."""
        found = self._seen.get(worker_id)
        return None if found is None or not found.handlers else msgspec.json.decode(found.handlers)

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
        found = self._seen.pop(worker_id, None)
        self._size -= 0 if found is None else found.size
        self._pools.pop(worker_id, None)

    def all(self) -> list[KnownWorker]:
        """Return the workers seen within the last hour."""
        now = time.monotonic()
        self._forget(now)
        offset = time.time() - now
        found = []
        for worker_id, one in self._seen.items():
            reported = msgspec.json.decode(one.reported or b"{}", type=dict[str, object])
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
        self._known: dict[str, KnownWorker] = {}
        self._size = 0

    def take(self, events: Iterable[ReceivedEvent]) -> None:
        """Apply events, in the order of the stream."""
        for event in events:
            if event.type == "worker.stopped":
                self._pop(event.subject)
            elif event.type.startswith("worker.") and len(event.subject) <= MAX_NAME:
                self._record(event)
                while self._size > MOST_BYTES and len(self._known) > 1:
                    self._pop(next(iter(self._known)))

    def all(self) -> dict[str, KnownWorker]:
        """Return the workers seen within the last hour, by id."""
        oldest = format_timestamp(datetime.now(UTC) - timedelta(seconds=FORGOTTEN_SECONDS))
        for name in [one.id for one in self._known.values() if one.last_heartbeat_at < oldest]:
            self._pop(name)
        return dict(self._known)

    def _pop(self, name: str) -> KnownWorker | None:
        found = self._known.pop(name, None)
        self._size -= 0 if found is None else _size_of(found)
        return found

    def _record(self, event: ReceivedEvent) -> None:
        data = event.data
        worker = self._pop(event.subject) or KnownWorker(event.subject, [], "amqp", event.time, event.time)
        worker.last_heartbeat_at = event.time
        queues, active, concurrency = data.get("queues"), data.get("active_jobs"), data.get("concurrency")
        if isinstance(queues, list):
            # A quiet worker reports no queues: keep the earlier ones.
            worker.is_quiet = not queues
            worker.queues = _shown_queues(queues) or worker.queues
        if isinstance(active, int):
            worker.active_jobs = active
        if isinstance(concurrency, int):
            worker.concurrency = concurrency
        worker.is_quiet = worker.is_quiet or event.type == "worker.quiet"
        if len(self._known) >= MOST:
            self._pop(next(iter(self._known)))
        self._size += _size_of(worker)
        self._known[event.subject] = worker


def _shown_queues(names: Iterable[object]) -> list[str]:
    return [one for one in islice(names, MOST_QUEUES) if isinstance(one, str) and len(one) <= MAX_NAME]


def _size_of(worker: KnownWorker) -> int:
    return len(worker.id) + sum(map(len, worker.queues))


def _told(time: object) -> str:
    """Return a time from a heartbeat, "" if it is none."""
    try:
        return format_timestamp(parse_timestamp(time, "started_at")) if isinstance(time, str) else ""
    except InvalidJob:
        return ""


def is_stale(worker: KnownWorker) -> bool:
    """Return whether a worker has been silent for too long."""
    return worker.last_heartbeat_at < format_timestamp(datetime.now(UTC) - timedelta(seconds=STALE_SECONDS))
