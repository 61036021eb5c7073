"""Server features besides jobs, stored as records: responses under idempotency keys, and settings of operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.chosen_ids import ChosenIds
from waybill.backend.history import SAMPLE_SECONDS, History
from waybill.backend.history_purge import HistoryPurge
from waybill.backend.history_records import HistoryRecords
from waybill.backend.idempotency import Idempotency
from waybill.backend.known_queues import KnownQueues
from waybill.backend.leases import Leases
from waybill.backend.limits import Limits
from waybill.backend.presence import Presence
from waybill.backend.progress import ProgressWriter
from waybill.backend.push_checks import PushChecks
from waybill.backend.queue_configs import QueueConfigs, QueueMove
from waybill.backend.scheduling.scheduler import Scheduler
from waybill.backend.schemas import Schemas
from waybill.backend.settings import Settings
from waybill.backend.shared_jobs import SharedJobs
from waybill.backend.tenants import Tenants
from waybill.backend.type_defaults import TypeDefaults
from waybill.backend.version_routes import VersionRoutes
from waybill.backend.webhooks import Webhooks
from waybill.backend.workers import HttpWorkers
from waybill.client import ClientError
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.coordinator import Coordinator
from waybill.ojs.coordinator.job_counts import FollowedCounts, JobCounts
from waybill.ojs.coordinator.records import SWEPT_HOURS

SWEEP_SECONDS: Final = 600.0
MAINTENANCE: Final = "on"
PIPELINE_REPORT: Final = "last"
TIMED: Final = 50
"""The number of jobs of a queue of which the history knows how long they waited."""
"""The name of a setting that exists once."""

_log = logging.getLogger("waybill.backend")


class Directive(msgspec.Struct):
    """The directive in responses to a worker's heartbeats: quiet or terminate."""

    directive: str


class Maintenance(msgspec.Struct):
    """Maintenance: its start, its reason, its estimated end, and what was paused for it."""

    enabled_at: str
    reason: str
    estimated_end: str
    queues: list[str]
    crons: list[str]


class Dismissed(msgspec.Struct):
    """A dismissed group of failures, with its size at that time."""

    until: str


class PipelineReport(msgspec.Struct):
    """The output of `waybill pipeline report --json`, and when it was uploaded."""

    sent_at: str
    report: msgspec.Raw


class Extensions:
    """The features of one server."""

    def __init__(
        self,
        broker: BrokerConnection,
        coordinator: Coordinator,
        leases: Leases,
        backend_id: str,
        settings: Settings,
        limits: Limits,
        *,
        allows_private: bool = False,
    ) -> None:
        """`coordinator` is started. `allows_private` allows webhooks to private addresses."""
        view = coordinator.view
        self._counts = FollowedCounts(view.look)
        self._read = view.read
        self.records = settings.records
        self.presence = Presence(broker)
        self.idempotency = Idempotency(broker, self.records, view, self.presence)
        self.chosen_ids = ChosenIds(self.records, view, self.presence)
        self.settings = settings
        self.directives = self.settings.table("directive", Directive)
        self.maintenance = self.settings.table("maintenance", Maintenance)
        self.dismissed = self.settings.table("dismissed-failure", Dismissed)
        self.reports = self.settings.table("pipeline-report", PipelineReport)
        self.schemas = Schemas(self.settings)
        self.type_defaults = TypeDefaults(self.settings)
        self.version_routes = VersionRoutes(self.settings)
        self.history_purges = self.settings.table("history-purge", HistoryPurge)
        tenants = Tenants(self.settings, limits, SharedJobs(view))
        self.queue_configs = QueueConfigs(self.settings)
        self.known_queues = KnownQueues(self.records)
        self.queue_moves = self.settings.table("queue-move", QueueMove)
        self.push_checks = PushChecks(
            self.settings, self.schemas, self._counts, tenants, self.type_defaults, self.queue_configs, self.queue_moves
        )
        self.webhooks = Webhooks(self.settings, broker, allows_private=allows_private)
        self.progress = ProgressWriter(broker.events, view, leases, backend_id)
        self.workers = HttpWorkers()
        self.workers.is_directed = lambda worker_id: self.directives.get(worker_id) is not None
        clock = asyncio.get_running_loop().time
        self.scheduler = Scheduler(self.settings, leases, self.workers, tenants, self.job_counts, clock)
        self.history = History()
        self.history_records = HistoryRecords(self.history, self.records)
        view.on_feature.append(self.settings.on_folded)
        self.seen_count: Callable[[], int] = lambda: 0
        """The number of events seen: jobs are counted again when it has grown."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin. Raises ClientError."""
        await self.presence.start()
        await self.settings.start()
        await self.webhooks.start()
        await self.history_records.read()
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(self._sweep()), loop.create_task(self._sample())]

    async def close(self) -> None:
        """End."""
        await self.webhooks.close()
        await self.push_checks.tenants.shared.close()
        await self.settings.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._count(is_last=True)
        self.history_records.write(is_last=True)

    async def job_counts(self) -> JobCounts:
        """Return the number of jobs by queue and state, and add them to the history."""
        counts = await self._counts.now()
        self.history.add(counts)
        return counts

    async def time_jobs(self) -> None:
        """Add to the history how long the last jobs waited."""
        queues = self.history.untimed()
        if queues:
            found = await self._read(lambda store: {queue: store.times(queue, TIMED).wait_ms for queue in queues})
            self.history.time({queue: (wait[0], wait[2]) for queue, wait in found.items() if wait is not None})

    async def _sweep(self) -> None:
        since = datetime.now(UTC) - timedelta(hours=SWEPT_HOURS)
        while True:
            now = datetime.now(UTC)
            try:
                await self.records.sweep(since, now)
                since = now - timedelta(hours=1)
            except (ClientError, TimeoutError) as error:
                _log.warning("expired records could not be removed, trying again later: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _sample(self) -> None:
        seen = -1
        while True:
            # Without new events, there is nothing to count.
            if seen != (seen := self.seen_count()):
                await self._count()
            self.history_records.write()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _count(self, *, is_last: bool = False) -> None:
        try:
            self.history.add(await self._counts.now(), is_last=is_last)
            await self.time_jobs()
        except Exception:  # noqa: BLE001 - a database may raise anything
            _log.warning("the jobs could not be counted, trying again", exc_info=True)
