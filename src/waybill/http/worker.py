"""The worker over HTTP: what `Worker` is where the `Jobs` have the URL of a server."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from waybill.http.control import HttpControl
from waybill.http.events import HttpBroker
from waybill.http.exchange import open_exchange
from waybill.http.fetching import Fetching
from waybill.http.settlement import HttpSettlement
from waybill.ojs.client import Jobs
from waybill.ojs.worker.attempt_heartbeats import AttemptHeartbeats
from waybill.ojs.worker.runner import Runner
from waybill.ojs.worker.worker import Worker

SETTLE_SECONDS: Final = 10.0
"""How long a worker that ends tells the server what came of its jobs."""

_log = logging.getLogger("waybill.ojs.worker")


class HttpWorker(Worker):
    """Fetches with long polls, and keeps its leases with heartbeats.

    It has no coordinator, as the server is one. `on_discard` is for the server to decide.
    """

    _settle_seconds = SETTLE_SECONDS

    def __init__(self, jobs: Jobs, **settings: Any) -> None:  # noqa: ANN401 - as `Worker` has them
        """See `Worker`."""
        if settings.pop("coordinator", False):
            _log.info("the server coordinates the jobs: the option `coordinator` has no effect")
        super().__init__(jobs, **settings)
        self._exchange = open_exchange(jobs.uri)
        self._control = HttpControl(self._exchange)
        self._fetching: Fetching | None = None
        self._fetch_task: asyncio.Task[None] | None = None
        self._is_leaving = False

    @property
    def lifecycle(self) -> str:
        """What heartbeats tell of this worker: running, quiet or terminate."""
        if self._is_leaving:
            return "terminate"
        return "quiet" if self._quiet else "running"

    @property
    def is_consuming(self) -> bool:
        """Whether new jobs reach this worker: it is neither quiet nor stopping, and the server answers."""
        fetching = self._fetching
        return self._fetch_task is not None and fetching is not None and fetching.is_connected

    @property
    def starvation(self) -> str | None:
        """Return why the worker receives or finishes no jobs although it should; None if it is fine or quiet."""
        if self._fetching is None or self._runner is None:
            return "it is not running"
        if not self._fetching.is_connected:
            return "the server does not answer"
        return "all slots are taken by handlers that do not end" if self._runner.room <= 0 else None

    @property
    def consumed_queues(self) -> list[str]:
        """The queues that it fetches from; none if it is quiet."""
        return [] if self._fetch_task is None else list(self.queues)

    async def start(self) -> None:
        """Find the server, and start to fetch. Raises NoAnswer, RequestRefused."""
        self._jobs.bind()
        self._is_leaving = False
        loop = self._loop = asyncio.get_running_loop()
        self._started = loop.time()
        broker = HttpBroker(self._control)
        self._counters = broker.events.counters
        try:
            fetching = await self._prepare(broker)
            await fetching.beat(self)
            await self._hooks.worker(self._jobs.hooks.on_worker_start, self)
        except BaseException:
            await self._resources.close()
            await self._exchange.close()
            raise
        if self._jobs.cron_jobs:
            self._change(self._register_cron_jobs())
        self._jobs.middleware.freeze()
        self._fetching = fetching
        self._beating = [loop.create_task(fetching.beat_for_ever(self))]
        if not self._quiet:
            self._fetch_task = loop.create_task(fetching.fetch_for_ever())
        _log.info("worker %s fetches %s with concurrency %d", self.id, ", ".join(self.queues), self._concurrency)

    async def _prepare(self, broker: HttpBroker) -> Fetching:
        await self._open_resources()

        changed = asyncio.Event()
        settlement = HttpSettlement(self._control, broker, self.id, self._hooks, changed.set)
        self._settlement = settlement
        runner = Runner(
            broker, settlement, self._jobs.handlers, self.id, self._concurrency, self._make_calls(), self._hooks
        )
        runner.leases = _ServerLeases(broker, self.id, runner.active)
        self._runner = runner

        def room() -> int:
            if self._stop_requested.is_set():
                return 0
            # While the server is slow to accept outcomes, hold as many jobs again, but no more.
            most = min(self._prefetch, runner.room) if runner.lost else self._prefetch
            free = most - runner.held_count
            return min(free, 2 * self._prefetch - len(settlement.held))

        return Fetching(self._control, runner, settlement, self.id, self._weights, room, changed)

    # --- consuming ---

    async def _go_quiet(self) -> None:
        if self._quiet or self._runner is None:
            return
        self._quiet = True
        await self._fetch_no_more()
        if self._fetching is not None:
            await self._fetching.tell(self)
        _log.info("worker %s is quiet, %d jobs are running", self.id, len(self._runner.active))

    async def _go_on(self) -> None:
        if self._quiet and self._fetching is not None and not self._stop_requested.is_set():
            self._quiet = False
            fetching = self._fetching
            await fetching.tell(self)
            if not self._quiet and self._fetch_task is None and self._fetching is fetching:
                self._fetch_task = asyncio.get_running_loop().create_task(fetching.fetch_for_ever())
                _log.info("worker %s fetches again", self.id)

    async def _register_cron_jobs(self, _broker: object = None) -> None:
        from waybill.ojs.cron.crons import register_all  # noqa: PLC0415 - most workers need it not, and start sooner

        await register_all(self._control, list(self._jobs.cron_jobs.values()))

    async def _fetch_no_more(self) -> None:
        task, self._fetch_task = self._fetch_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- shutting down ---

    async def _disconnect(self) -> None:
        await self._fetch_no_more()
        fetching, self._fetching = self._fetching, None
        self._is_leaving = True
        if fetching is not None:
            await fetching.tell(self)
        await self._exchange.close()


class _ServerLeases(AttemptHeartbeats):
    """The server tracks attempts and refuses late outcomes."""

    def is_late(self, execution: object) -> bool:
        """Return False: leases are renewed in another way."""
        return False
