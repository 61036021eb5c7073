"""The metrics of a worker for Prometheus (binding section 12.1). Needs the package prometheus-client.

    registry = CollectorRegistry()
    registry.register(WorkerMetrics(worker))

A scrape reads the worker's own counters. It may run in another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from waybill.ojs.client import Jobs
from waybill.ojs.coordinator.coordinator import Coordinator
from waybill.ojs.observe.counters import Counters, Histogram
from waybill.ojs.worker.worker import Worker

_BY_QUEUE = ("queue",)

_log = logging.getLogger("waybill.ojs.coordinator")


class CoordinatorMetrics(Collector):
    """The number of jobs, as a coordinator knows it, and how far it is behind their events.

    While the database cannot be read, there is no number of jobs.

    Scrape it in a thread, as `prometheus_client.start_http_server` does.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        """`coordinator` may start later."""
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        depth = GaugeMetricFamily("ojs_queue_depth", "Jobs by queue and state.", labels=("queue", "state"))
        try:
            counts = self._coordinator.counts()
        except Exception as error:  # noqa: BLE001 - an outage of the database is when the lag matters
            _log.warning("the number of jobs is not known: %s", type(error).__name__)
            counts = {}
        for (queue, state), count in counts.items():
            depth.add_metric((queue, state), count)
        yield depth
        yield from self._of_the_events()
        backlog = GaugeMetricFamily("ojs_queue_backlog", "Jobs ready in the broker's queue.", labels=_BY_QUEUE)
        consumers = GaugeMetricFamily("ojs_queue_consumers", "Workers that consume the queue.", labels=_BY_QUEUE)
        for queue, found in dict(self._coordinator.queue_counts).items():
            backlog.add_metric((queue,), found.ready)
            consumers.add_metric((queue,), found.consumers)
        yield backlog
        yield consumers
        skipped = CounterMetricFamily(
            "ojs_coordinator_skipped", "Events and requests skipped as invalid.", labels=("kind",)
        )
        skipped.add_metric(("event",), self._coordinator.skipped_events)
        for reason, count in dict(self._coordinator.skipped_requests).items():
            skipped.add_metric((reason,), count)
        yield skipped

    def _of_the_events(self) -> Iterator[Metric]:
        behind = GaugeMetricFamily(
            "ojs_coordinator_lag_seconds", "Age of the oldest event not in the job state.", labels=("partition",)
        )
        folds = GaugeMetricFamily(
            "ojs_coordinator_partition_owned", "Whether this coordinator folds the partition.", labels=("partition",)
        )
        for one in self._coordinator.lags():
            if one.seconds is not None:
                behind.add_metric((one.stream,), one.seconds)
            folds.add_metric((one.stream,), int(one.is_folded_here))
        yield behind
        yield folds


class ProducerMetrics(Collector):
    """The pushes of a program: `registry.register(ProducerMetrics(jobs))`. They cost a push next to nothing."""

    def __init__(self, jobs: Jobs) -> None:
        """`jobs` may connect later. A new connection counts from 0."""
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        broker = self._jobs.broker
        counters = Counters() if broker is None else broker.events.counters
        connection = None if broker is None else broker.connection
        yield _counter("ojs_producer_jobs_pushed", "Jobs confirmed by the broker.", counters.pushed)
        refused = CounterMetricFamily(
            "ojs_producer_jobs_refused", "Jobs that could not be pushed.", labels=("queue", "code")
        )
        for labels, count in dict(counters.refused).items():
            refused.add_metric(labels, count)
        yield refused
        latency = HistogramMetricFamily(
            "ojs_producer_push_latency_seconds", "Time from the publish of a push to its confirm."
        )
        latency.add_metric((), *_buckets(counters.push_latency))
        yield latency
        is_open = connection is not None and connection.is_open
        yield GaugeMetricFamily("ojs_producer_connected", "Whether the connection is open.", value=int(is_open))
        blocked = connection is not None and connection.blocked is not None
        yield GaugeMetricFamily("ojs_producer_blocked", "Whether pushes wait for the broker.", value=int(blocked))


class WorkerMetrics(Collector):
    """The eleven metrics of the binding, and those of jobs.

    The binding defines only the range of the consumer utilization. Here it is the share of the worker's concurrency
    that runs jobs of the queue.
    """

    def __init__(self, worker: Worker) -> None:
        """`worker` may start later."""
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        yield from self._of_the_connection()
        yield from self._of_the_messages()
        yield from self._of_the_jobs()

    def _of_the_connection(self) -> Iterator[Metric]:
        connection = self._worker.connection
        is_open = connection is not None and connection.is_open
        yield GaugeMetricFamily("ojs_amqp_connections_active", "Open connections.", value=int(is_open))
        channels = 0 if connection is None else connection.open_channel_count
        yield GaugeMetricFamily("ojs_amqp_channels_active", "Open channels.", value=channels)
        reconnections = 0 if connection is None else connection.reconnections
        yield CounterMetricFamily("ojs_amqp_reconnections", "Number of reconnects.", value=reconnections)
        cancellations = 0 if connection is None else connection.consumer_cancellations
        yield CounterMetricFamily(
            "ojs_amqp_consumer_cancellations", "Consumers cancelled by the broker.", value=cancellations
        )

    def _of_the_messages(self) -> Iterator[Metric]:
        counters = self._worker.counters
        yield _counter("ojs_amqp_messages_published", "Messages confirmed by the broker.", counters.published)
        yield _counter("ojs_amqp_messages_consumed", "Messages delivered to this worker.", counters.consumed)
        yield _counter("ojs_amqp_messages_acked", "Messages acknowledged.", counters.acked)
        yield _counter("ojs_amqp_messages_nacked", "Messages rejected.", counters.nacked)
        skipped = CounterMetricFamily(
            "ojs_messages_skipped", "Messages that were invalid or could not be settled.", labels=("kind",)
        )
        for kind, count in dict(counters.skipped).items():
            skipped.add_metric((kind,), count)
        yield skipped
        yield CounterMetricFamily(
            "ojs_amqp_messages_returned", "Messages returned as unroutable.", value=counters.returned
        )
        unacked = GaugeMetricFamily("ojs_amqp_messages_unacked", "Messages held.", labels=("consumer",))
        utilization = GaugeMetricFamily("ojs_amqp_consumer_utilization", "Share of the concurrency.", labels=_BY_QUEUE)
        running = self._worker.running_by_queue()
        for queue in self._worker.queues:
            unacked.add_metric((queue,), counters.unacked[queue])
            utilization.add_metric((queue,), running[queue] / self._worker.concurrency)
        yield unacked
        yield utilization
        latency = HistogramMetricFamily("ojs_amqp_publish_confirm_latency_seconds", "Time from publish to confirm.")
        latency.add_metric((), *_buckets(counters.confirm_latency))
        yield latency

    def _of_the_jobs(self) -> Iterator[Metric]:
        ends = CounterMetricFamily(
            "ojs_jobs_attempts_ended", "Attempts and jobs that ended in this worker, by outcome.", labels=("outcome",)
        )
        for outcome, count in self._worker.counts.items():
            ends.add_metric((outcome,), count)
        yield ends
        running, concurrency = self._worker.running_count, self._worker.concurrency
        yield GaugeMetricFamily("ojs_jobs_running", "Running jobs.", value=running)
        yield GaugeMetricFamily(
            "ojs_worker_concurrency", "Maximum number of jobs that run at the same time.", value=concurrency
        )
        busy = running / concurrency
        yield GaugeMetricFamily("ojs_worker_busy_share", "Share of the concurrency in use.", value=busy)
        durations = HistogramMetricFamily("ojs_job_duration_seconds", "Duration of attempts.", labels=("type",))
        for job_type, distribution in dict(self._worker.counters.durations).items():
            durations.add_metric((job_type,), *_buckets(distribution))
        yield durations


def _counter(name: str, text: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=_BY_QUEUE)
    for queue, count in dict(counts).items():
        family.add_metric((queue,), count)
    return family


def _buckets(distribution: Histogram) -> tuple[list[tuple[str, float]], float]:
    buckets = []
    total = 0
    for bound, count in zip((*map(str, distribution.bounds), "+Inf"), list(distribution.counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets, distribution.sum
