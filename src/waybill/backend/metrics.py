"""Prometheus metrics with the names of ojs-observability, ojs-multi-tenancy and ojs-backpressure.

Gauges come from the job view and cover all servers. Counters and histograms come from the event stream, which also
covers all servers and workers. They start with the first scrape of this server, so unused metrics cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Final

from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.coordinator.job_counts import OTHER
from waybill.ojs.coordinator.partition_lag import PartitionLag
from waybill.ojs.errors import InvalidJob
from waybill.ojs.observe.counters import Histogram
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import parse_timestamp

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_QUEUES: Final = 10_000
"""An event may name any queue: those beyond the limit, as other labels, are counted as OTHER."""
MOST_TYPES: Final = 1000
MOST_COUNTERS: Final = 50_000
MOST_HISTOGRAMS: Final = 5000
"""The combinations of labels of a family; a histogram has twenty lines."""
MOST_TENANTS: Final = 1000
MOST_WAITING: Final = 100_000
"""The maximum number of jobs whose enqueue time is remembered until they start."""
DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
QUEUE_TIMES: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
COUNTED: Final = {
    "job.enqueued": ("ojs_job_enqueued", "Jobs enqueued."),
    "job.completed": ("ojs_job_completed", "Jobs completed."),
    "job.discarded": ("ojs_job_failed", "Jobs discarded after their last attempt."),
    "job.retrying": ("ojs_job_retried", "Failed attempts that will be retried."),
    "job.cancelled": ("ojs_job_cancelled", "Jobs cancelled."),
    "job.expired": ("ojs_job_expired", "Jobs that expired before they started."),
}

Labels = tuple[tuple[str, str], ...]


class ServerMetrics:
    """Counters and histograms of events."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[Labels, Histogram] = {}
        self._queue_times: dict[Labels, Histogram] = {}
        self._queues: set[str] = set()
        self._types: set[str] = set()
        self._enqueued: BoundedDict[str, str] = BoundedDict(MOST_WAITING)

    def take(self, events: Iterable[ReceivedEvent]) -> None:
        """Count events."""
        for event in events:
            if event.type in COUNTED or event.type == "job.started":
                self._take(event)

    def _take(self, event: ReceivedEvent) -> None:
        data = event.data
        queue = _known(str(data.get("queue", "")), self._queues, MOST_QUEUES)
        kind = _known(str(data.get("job_type", "")), self._types, MOST_TYPES)
        if event.type == "job.started":
            enqueued_at = self._enqueued.pop(event.subject, None)
            if enqueued_at is not None:
                self._measure(
                    self._queue_times, QUEUE_TIMES, _labels(queue=queue, type=kind), _elapsed(enqueued_at, event.time)
                )
            return
        key = event.type, queue, kind
        if key not in self._counts and len(self._counts) >= MOST_COUNTERS:
            key = event.type, OTHER, OTHER
        self._counts[key] += 1
        if event.type == "job.enqueued":
            self._enqueued[event.subject] = event.time
        duration = data.get("duration_ms")
        if isinstance(duration, int | float) and duration >= 0:
            state = event.type.removeprefix("job.")
            labels = _labels(queue=queue, type=kind, state=state)
            self._measure(self._durations, DURATIONS, labels, duration / 1000)

    @staticmethod
    def _measure(
        found: dict[Labels, Histogram], bounds: tuple[float, ...], labels: Labels, value: float | None
    ) -> None:
        if value is None:
            return
        if labels not in found and len(found) >= MOST_HISTOGRAMS:
            labels = tuple((name, OTHER) for name, _ in labels)
        found.setdefault(labels, Histogram(bounds)).add(value)

    def lines(self) -> Iterator[str]:
        """Return counters and histograms as text."""
        for event_type, (name, text) in COUNTED.items():
            values = {
                _labels(queue=queue, type=kind): count
                for (found, queue, kind), count in self._counts.items()
                if found == event_type
            }
            yield from family(f"{name}_total", "counter", text, values)
        yield from _histograms("ojs_job_duration_seconds", "Duration of attempts.", self._durations)
        yield from _histograms(
            "ojs_job_queue_time_seconds", "Time that jobs waited before they started.", self._queue_times
        )


def gauges(
    counts: Mapping[tuple[str, str], int], tenants: Mapping[str, object], bounds: Mapping[str, int], workers: int
) -> Iterator[str]:
    """Return gauges as text."""
    counts = _folded(counts)
    depths = {_labels(queue=queue, state=state): count for (queue, state), count in counts.items()}
    yield from family("ojs_queue_depth", "gauge", "Jobs by queue and state.", depths)
    busy = {_labels(queue=queue): count for (queue, state), count in counts.items() if state == "active"}
    yield from family("ojs_workers_busy", "gauge", "Running jobs.", busy)
    yield from family("ojs_workers_active", "gauge", "Workers known to this server.", {(): workers})
    known = frozenset(nsmallest(MOST_TENANTS, tenants))
    of_tenants: Counter[Labels] = Counter()
    active: Counter[Labels] = Counter()
    for (queue, state), count in counts.items():
        tenant = queue.partition(".")[0]
        if "." in queue and tenant in tenants:
            labels = _labels(tenant_id=tenant if tenant in known else OTHER, queue=queue)
            if state == "active":
                active[labels] += count
            elif state in {"available", "scheduled", "retryable", "pending"}:
                of_tenants[labels] += count
    yield from family("ojs_tenant_queue_depth", "gauge", "Waiting jobs of a tenant.", of_tenants)
    yield from family("ojs_tenant_jobs_active", "gauge", "Running jobs of a tenant.", active)
    waiting: Counter[str] = Counter()
    for (queue, state), count in counts.items():
        if state in _OPEN and queue in bounds:
            waiting[queue] += count
    pressures = {_labels(queue=queue): round(waiting[queue] / bound, 6) for queue, bound in bounds.items()}
    yield from family("ojs_backpressure_pressure", "gauge", "Used share of a queue's bound.", pressures)


def partitions(lags: Iterable[PartitionLag]) -> Iterator[str]:
    """Return how far the job view is behind each partition of the event stream, as text."""
    found = [(_labels(partition=one.stream), one) for one in lags]
    seconds = {labels: round(one.seconds, 3) for labels, one in found if one.seconds is not None}
    yield from family("ojs_coordinator_lag_seconds", "gauge", "Age of the oldest event not in the job state.", seconds)
    owned = {labels: int(one.is_folded_here) for labels, one in found}
    yield from family(
        "ojs_coordinator_partition_owned", "gauge", "Whether this coordinator folds the partition.", owned
    )


def scheduling(
    totals: Mapping[tuple[str, str], int], ratios: Mapping[str, float], utilization: Mapping[str, float]
) -> Iterator[str]:
    """Return the metrics of dispatched jobs as text (ojs-fair-scheduling section 11.2)."""
    dispatched = {_labels(queue=queue, pool=pool): count for (queue, pool), count in totals.items()}
    yield from family("ojs_scheduling_dispatch_total", "counter", "Jobs fetched.", dispatched)
    shares = {_labels(queue=queue): share for queue, share in ratios.items()}
    yield from family(
        "ojs_scheduling_dispatch_ratio", "gauge", "A queue's share of the jobs fetched in the last minute.", shares
    )
    used = {_labels(pool=pool): share for pool, share in utilization.items()}
    yield from family(
        "ojs_scheduling_pool_utilization", "gauge", "Running jobs of a pool, divided by its concurrency.", used
    )


def family(name: str, kind: str, text: str, values: Mapping[Labels, float]) -> Iterator[str]:
    """Return the lines of a metric."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in sorted(values.items()):
        yield f"{name}{_written(labels)} {value:g}" if isinstance(value, float) else f"{name}{_written(labels)} {value}"


def _histograms(name: str, text: str, found: Mapping[Labels, Histogram]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    for labels, one in sorted(found.items(), key=lambda item: item[0]):
        total = 0
        for bound, count in zip((*(f"{value:g}" for value in one.bounds), "+Inf"), one.counts, strict=True):
            total += count
            yield f"{name}_bucket{_written((*labels, ('le', bound)))} {total}"
        yield f"{name}_sum{_written(labels)} {one.sum:.6f}"
        yield f"{name}_count{_written(labels)} {total}"


def _folded(counts: Mapping[tuple[str, str], int]) -> Mapping[tuple[str, str], int]:
    """Return counts by queue and state for MOST_QUEUES queues, those with the most jobs, and OTHER."""
    totals: Counter[str] = Counter()
    for (queue, _), count in counts.items():
        totals[queue] += count
    if len(totals) <= MOST_QUEUES:
        return counts
    known = {queue for queue, _ in totals.most_common(MOST_QUEUES)}
    found: Counter[tuple[str, str]] = Counter()
    for (queue, state), count in counts.items():
        found[queue if queue in known else OTHER, state] += count
    return found


def _known(value: str, known: set[str], most: int) -> str:
    """Return a label, of the first `most` different ones, or OTHER."""
    if value not in known:
        if len(known) >= most:
            return OTHER
        known.add(value)
    return value


def _labels(**labels: str) -> Labels:
    return tuple(labels.items())


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for _, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for (name, _), value in zip(labels, quoted, strict=True)) + "}"


def _elapsed(first: str, second: str) -> float | None:
    try:
        return max(0.0, (parse_timestamp(second, "time") - parse_timestamp(first, "time")).total_seconds())
    except InvalidJob:
        return None


_OPEN: Final = frozenset({"available", "scheduled", "retryable", "pending"})
