"""The metrics of streaming queries for Prometheus. Needs the package prometheus-client.

    metrics = QueryMetrics()
    spark.streams.addListener(metrics.listener)
    registry.register(metrics)

They count Spark's reports of all queries of the session, and the steps of the pipeline that are passed to `note`. A
scrape may run in any thread.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from threading import Lock
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from waybill.pipeline.lag import lag
from waybill.pipeline.progress_reports import BatchWritten, Step, TableWritten

BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
QUERIES_MAX: Final = 200
"""Unnamed queries have random names. Beyond this number, they are counted together, as `other`."""
_QUERY: Final = ("query",)


class _Query:
    """The figures of one query."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.failures = 0
        self.is_active = True
        self.last_progress_s = 0.0
        self.lag: dict[str, int] = {}
        self.durations: Counter[float] = Counter()
        self.duration_sum_s = 0.0

    def add(self, progress: StreamingQueryProgress) -> None:
        seconds = progress.batchDuration / 1000
        self.rows += progress.numInputRows
        self.batches += 1
        self.durations[next((bound for bound in BUCKETS_S if seconds <= bound), float("inf"))] += 1
        self.duration_sum_s += seconds
        self.lag = lag(progress)

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative buckets of the durations."""
        count = 0
        found: list[tuple[str, float]] = []
        for bound in (*BUCKETS_S, float("inf")):
            count += self.durations[bound]
            found.append(("+Inf" if bound == float("inf") else str(bound), count))
        return found


class QueryMetrics(Collector):
    """Counts the events of `listener` and the steps passed to `note`."""

    def __init__(self) -> None:
        self.listener = _Listener(self)
        """To be added to a session: `spark.streams.addListener`."""
        self._lock = Lock()
        self._queries: dict[str, _Query] = {}
        self._names: dict[str, str] = {}
        self._events: Counter[str] = Counter()
        self._table_seconds: defaultdict[str, float] = defaultdict(float)
        self._table_writes: Counter[str] = Counter()

    def note(self, step: Step) -> None:
        """Count a step of the pipeline: see `progress_reports`."""
        with self._lock:
            if isinstance(step, BatchWritten):
                self._events["usable"] += step.events
                self._events["malformed"] += step.malformed
            elif isinstance(step, TableWritten):
                self._table_writes[step.name] += 1
                self._table_seconds[step.name] += step.seconds

    def started(self, query_id: str, name: str | None) -> None:
        """A query has started or restarted."""
        with self._lock:
            self._query(query_id, name).is_active = True

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """A batch has completed."""
        with self._lock:
            query = self._query(str(progress.id), progress.name)
            query.add(progress)
            query.last_progress_s = time.time()

    def waited(self, query_id: str) -> None:
        """A trigger has found no new data, which is progress, too."""
        with self._lock:
            self._query(query_id, None).last_progress_s = time.time()

    def ended(self, query_id: str, failure: str | None) -> None:
        """A query was stopped, or has failed."""
        with self._lock:
            query = self._query(query_id, None)
            query.is_active = False
            query.failures += failure is not None

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        with self._lock:
            return iter([*self._of_queries(), *self._of_steps()])

    def _query(self, query_id: str, name: str | None) -> _Query:
        if query_id not in self._names:
            is_known = name in self._queries
            self._names[query_id] = (name or query_id) if is_known or len(self._queries) < QUERIES_MAX else "other"
        return self._queries.setdefault(self._names[query_id], _Query())

    def _of_queries(self) -> Iterator[Metric]:
        rows = CounterMetricFamily("ojs_pipeline_rows", "Rows read by a query.", labels=_QUERY)
        batches = CounterMetricFamily("ojs_pipeline_batches", "Batches completed by a query.", labels=_QUERY)
        failures = CounterMetricFamily("ojs_pipeline_failures", "Failures of a query.", labels=_QUERY)
        active = GaugeMetricFamily("ojs_pipeline_active", "Whether a query is running.", labels=_QUERY)
        last = GaugeMetricFamily(
            "ojs_pipeline_last_progress_timestamp_seconds",
            "Time of a query's last batch or check for new data.",
            labels=_QUERY,
        )
        duration = HistogramMetricFamily("ojs_pipeline_batch_duration_seconds", "Duration of a batch.", labels=_QUERY)
        behind = GaugeMetricFamily(
            "ojs_pipeline_lag_messages",
            "Messages after the end of the last batch, when it was planned.",
            labels=("query", "stream"),
        )
        for name, query in self._queries.items():
            rows.add_metric((name,), query.rows)
            batches.add_metric((name,), query.batches)
            failures.add_metric((name,), query.failures)
            active.add_metric((name,), int(query.is_active))
            if query.last_progress_s:
                last.add_metric((name,), query.last_progress_s)
            duration.add_metric((name,), query.buckets(), query.duration_sum_s)
            for stream, count in query.lag.items():
                behind.add_metric((name, stream), count)
        return iter((rows, batches, failures, active, last, duration, behind))

    def _of_steps(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "ojs_pipeline_events", "Events written to bronze (usable) or quarantine (malformed).", labels=("kind",)
        )
        for kind, count in self._events.items():
            events.add_metric((kind,), count)
        yield events
        writes = CounterMetricFamily("ojs_pipeline_table_refreshes", "Refreshes of a table.", labels=("table",))
        seconds = CounterMetricFamily("ojs_pipeline_table_seconds", "Duration of these refreshes.", labels=("table",))
        for table, count in self._table_writes.items():
            writes.add_metric((table,), count)
            seconds.add_metric((table,), self._table_seconds[table])
        yield writes
        yield seconds


class _Listener(StreamingQueryListener):
    """Passes on Spark's events. Its methods run on a thread of Spark and must not raise."""

    def __init__(self, metrics: QueryMetrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        self._metrics.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self._metrics.progressed(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        self._metrics.waited(str(event.id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self._metrics.ended(str(event.id), event.exception)
