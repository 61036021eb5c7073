"""The worker: consumes queues, runs jobs and shuts down gracefully (ojs-worker-protocol, ojs-graceful-shutdown).

running --SIGTSTP--> quiet --SIGCONT--> running
running or quiet --SIGTERM, SIGINT--> drain --jobs done, or grace period over--> stopped
drain --second SIGTERM, SIGINT--> stopped at once
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from waybill.client import Connection, ConnectionClosed
from waybill.client.own_loop import running_loop
from waybill.client.ranges import check_number, check_whole
from waybill.ojs.client import Jobs
from waybill.ojs.connection.bindings import worker_of
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.control.pauses import PausedQueues
from waybill.ojs.hooks import STOP_SECONDS, HookCalls
from waybill.ojs.middleware.chain import Middleware
from waybill.ojs.observe.counters import Counters
from waybill.ojs.resources import Resources
from waybill.ojs.spec.envelope import DEFAULT_TIMEOUT_SECONDS
from waybill.ojs.spec.events import WorkerHeartbeat, WorkerQuiet, WorkerStarted, WorkerStopped, event_source
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.worker.calls import Calls
from waybill.ojs.worker.consumers import Consumers
from waybill.ojs.worker.directives import obey
from waybill.ojs.worker.peak_memory import peak_memory_mb
from waybill.ojs.worker.prefetch import weights_of
from waybill.ojs.worker.queue_declarations import QueueDeclarations
from waybill.ojs.worker.runner import Runner
from waybill.ojs.worker.settlement import OnDiscard, Settlement

if TYPE_CHECKING:
    from waybill.ojs.coordinator.coordinator import Coordinator
    from waybill.ojs.coordinator.policy import ControlPolicy

HEARTBEAT_SECONDS: Final = 15.0
MAX_CONCURRENCY: Final = 65_535
MAX_PREFETCH: Final = 65_535
"""The maximum of AMQP."""
MAX_PROCESSES: Final = 1024
MAX_GRACE_SECONDS: Final = 31_536_000
"""A year."""
DRAIN_REPORT_SECONDS: Final = 5.0
LAST_EVENTS_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 300.0
"""How long after its time limit a job may take to be acknowledged: first its next attempt must be confirmed."""

_log = logging.getLogger("waybill.ojs.worker")


class Worker:
    """Runs the jobs of one or more queues.

        await Worker(jobs, queues=["email"], concurrency=10).run()

    `run` returns after a signal or `stop`. `async with Worker(...)` runs it in the background, without signals.
    Delivery is at least once: a handler may see a job again after a crash or a lost connection.

    `queues` defaults to those of the handlers. A mapping sets weights: a queue with weight 3 gets three times the
    prefetch of a queue with weight 1, and unused shares go to the other queues; quorum queues have fixed shares.
    `concurrency` is the number of jobs that run at the same time, `prefetch` the number of jobs held unacknowledged
    (default: `concurrency`): a larger one lets short jobs overlap with the confirms of their events. `grace_period` is
    how many seconds a shutdown waits for running jobs. `on_discard="acknowledge"` drops exhausted jobs unless their
    policy requires the dead letter queue. `coordinator` runs one in this worker for its queues, with `policy`.
    `processes` is the number of processes for handlers that need one (default: one per CPU).
    """

    def __new__(cls, jobs: Jobs, **_settings: object) -> Self:
        """Create a worker of the kind that the URI of the jobs requires."""
        return super().__new__((worker_of(jobs.uri) or cls) if cls is Worker else cls)

    _settle_seconds = LAST_EVENTS_SECONDS

    def __init__(  # noqa: PLR0913 - settings, all by keyword
        self,
        jobs: Jobs,
        *,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        grace_period: float = 30.0,
        middleware: Sequence[Middleware] = (),
        on_discard: OnDiscard = "dead_letter",
        coordinator: bool = False,
        processes: int | None = None,
        policy: ControlPolicy | None = None,
    ) -> None:
        """Call `run` to begin. Raises InvalidJob for an invalid queue name, ValueError for other arguments."""
        check_whole("concurrency", concurrency, 1, MAX_CONCURRENCY)
        check_whole("prefetch", prefetch, 1, MAX_PREFETCH)
        check_whole("processes", processes, 1, MAX_PROCESSES)
        check_number("grace_period", grace_period, 0, MAX_GRACE_SECONDS)
        self.id = new_id()
        self.has_stuck_handlers = False
        """After the end: whether the code of a handler still runs, past its time limit or the grace period."""
        self._weights = weights_of(queues or [handler.queue for handler in jobs.handlers.values()] or ["default"])
        self.queues = list(self._weights)
        self._jobs = jobs
        self._concurrency = concurrency
        self._prefetch = prefetch or concurrency
        self._grace_seconds = grace_period
        self._middleware = middleware
        self._on_discard = on_discard
        self._process_count = min(concurrency, processes or os.cpu_count() or 1)
        self._coordinator = _coordinator_of(jobs, self.queues, policy) if coordinator else None
        self._resources = Resources()
        self._hooks = HookCalls(jobs.hooks)
        self._broker: BrokerConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: Runner | None = None
        self._settlement: Settlement | None = None
        self._consumers: Consumers | None = None
        self._adjusting = asyncio.Lock()
        self._declarations = QueueDeclarations(jobs.guard, self.id)
        self._paused: PausedQueues | None = None
        self._stop_requested = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._counters = Counters()
        self._quiet = False
        self._reason = "shutdown"
        self._started = 0.0
        self._beating: list[asyncio.Task[None]] = []
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def is_consuming(self) -> bool:
        """Whether new jobs reach this worker: neither quiet nor stopping, no queue refused, its consumers are known."""
        broker, consumers = self._broker, self._consumers
        if broker is None or consumers is None or self.refused_queues:
            return False
        return broker.connection.is_open and consumers.is_consuming

    @property
    def starvation(self) -> str | None:
        """Return why the worker receives or finishes no jobs although it should; None if it is fine or quiet."""
        broker, consumers, runner = self._broker, self._consumers, self._runner
        if broker is None or consumers is None or runner is None:
            return "it is not running"
        if not broker.connection.is_open:
            return "the connection is gone"
        if runner.room <= 0:
            return "all slots are taken by handlers that do not end"
        return consumers.starvation

    @property
    def consumed_queues(self) -> list[str]:
        """The currently consumed queues: none that is paused; none at all if it is quiet or has no free slot."""
        return [] if self._consumers is None else self._consumers.queues

    @property
    def running_count(self) -> int:
        """The number of running jobs."""
        return 0 if self._runner is None else len(self._runner.active)

    @property
    def concurrency(self) -> int:
        """The maximum number of running jobs."""
        return self._concurrency

    @property
    def connection(self) -> Connection | None:
        """The connection, None before the start and after the end."""
        return None if self._broker is None else self._broker.connection

    @property
    def counters(self) -> Counters:
        """What was sent and received so far."""
        return self._counters

    def running_by_queue(self) -> Counter[str]:
        """The number of running jobs by queue."""
        return Counter() if self._runner is None else Counter(one.queue for one in list(self._runner.active))

    @property
    def held_count(self) -> int:
        """The number of jobs that this worker holds: running and prefetched ones."""
        return 0 if self._runner is None else self._runner.held_count

    @property
    def redelivered_count(self) -> int:
        """The number of redeliveries: the broker has, or may have, delivered them before."""
        return 0 if self._runner is None else self._runner.redelivered_count

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of attempts and jobs that ended here: completed, failed, retried, discarded, cancelled."""
        settled = self._settlement
        if settled is None:
            return {"completed": 0, "failed": 0, "retried": 0, "discarded": 0, "cancelled": 0}
        return {
            "completed": settled.completed_count,
            "failed": settled.failed_count,
            "retried": settled.retried_count,
            "discarded": settled.discarded_count,
            "cancelled": settled.cancelled_count,
        }

    async def run(self) -> None:
        """Run until a signal or `stop` ends it. Raises errors of connecting and declaring."""
        with self._signals():
            await self.start()
            try:
                await self._stop_requested.wait()
            finally:
                await self._shut_down()

    def stop(self, reason: str = "shutdown") -> None:
        """Start a shutdown; a second call ends the grace period. Safe from any thread."""
        if self._loop is not None and running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(self.stop, reason)
            return
        if self._stop_requested.is_set():
            self._stop_now.set()
        self._reason = reason
        self._stop_requested.set()

    def quiet(self) -> None:
        """Accept no new jobs, and finish the current ones."""
        self._change(self._go_quiet())

    def resume(self) -> None:
        """Accept new jobs again after `quiet`."""
        self._change(self._go_on())

    async def start(self) -> None:
        """Connect, declare and consume. A queue that the broker refuses is logged, and declared later if possible."""
        self._jobs.bind()
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        broker = await BrokerConnection.open(
            self._jobs.uri, self._jobs.topology, event_source("workers", self.id), self._jobs.reconnect
        )
        self._broker = broker
        self._counters = broker.events.counters
        try:
            await self._open_resources()
            self._settlement = Settlement(broker, self._on_discard, hooks=self._hooks)
            self._runner = Runner(
                broker,
                self._settlement,
                self._jobs.handlers,
                self.id,
                self._concurrency,
                self._make_calls(),
                self._hooks,
            )
            broker.connection.on_loss(self._runner.connection_lost)
            await self._declarations.declare(broker, self.queues)
            # Before the first job, which may be a cancelled one.
            self._paused = PausedQueues(broker, self.queues, lambda: self._change(self._adjust()))
            self._runner.cancellations.on_pause = self._paused.look_soon
            self._runner.cancellations.on_directive = partial(obey, self)
            broker.connection.on_reconnect(self._paused.look_soon)
            await asyncio.gather(self._runner.cancellations.start(), self._paused.look())
            self._consumers = await self._open_consumers(broker, self._runner)
            await self._hooks.worker(self._jobs.hooks.on_worker_start, self)
            await self._adjust()
            if self._coordinator is not None:
                await self._coordinator.start()
        except BaseException:
            await self._resources.close()
            await broker.close()
            raise
        if self._jobs.cron_jobs:
            self._change(self._register_cron_jobs(broker))
        self._jobs.middleware.freeze()
        broker.events.record(
            self.id, WorkerStarted(worker_id=self.id, queues=self.usable_queues, concurrency=self._concurrency)
        )
        loop = asyncio.get_running_loop()
        self._beating = [loop.create_task(self._beat()), loop.create_task(self._runner.leases.keep())]
        _log.info(
            "worker %s consumes %s with concurrency %d", self.id, ", ".join(self.usable_queues), self._concurrency
        )

    async def __aenter__(self) -> Self:
        """Run in the background."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down gracefully."""
        self.stop()
        await self._shut_down()

    # --- consuming ---

    async def _open_resources(self) -> None:
        """Create the resources of its queues' handlers."""
        for handler in self._jobs.handlers.values():
            if handler.queue in self.queues and not handler.runs_in_process:
                await self._resources.open(handler.function)

    def _make_calls(self) -> Calls:
        handlers = self._jobs.handlers
        processes = None
        if any(handler.runs_in_process for handler in handlers.values()):
            from waybill.ojs.worker.process_pool import ProcessPool  # noqa: PLC0415 - most workers need none, and start sooner

            processes = ProcessPool(self._process_count, self._jobs.uri, self._jobs.topology)
        middleware = (*self._jobs.middleware, *self._middleware)
        return Calls(handlers, middleware, self._resources, self._concurrency, processes)

    async def _open_consumers(self, broker: BrokerConnection, runner: Runner) -> Consumers:
        """Prepare to consume.

        Queues whose handlers all run in processes get no more jobs than there are processes. The broker is asked to
        allow unacknowledged jobs for as long as the longest handler of a queue may take.
        """
        caps: dict[str, int] = {}
        timeouts_ms: dict[str, int] = {}
        for queue in self.queues:
            handlers = [handler for handler in self._jobs.handlers.values() if handler.queue == queue]
            if handlers and all(handler.runs_in_process for handler in handlers):
                caps[queue] = self._process_count
            limits = [handler.defaults.get("timeout", DEFAULT_TIMEOUT_SECONDS) for handler in handlers]
            longest = max(DEFAULT_TIMEOUT_SECONDS, *limits) if limits else DEFAULT_TIMEOUT_SECONDS
            timeouts_ms[queue] = int((longest + SETTLE_SECONDS) * 1000)
        weights = {queue: self._weights[queue] for queue in self.queues}
        consumers = Consumers(broker, runner, weights, self._prefetch, caps, timeouts_ms)
        await consumers.start()
        return consumers

    @property
    def refused_queues(self) -> dict[str, str]:
        """Its queues that the broker refuses to declare, with the reasons."""
        return self._declarations.refused

    @property
    def usable_queues(self) -> list[str]:
        """Its other queues."""
        return [queue for queue in self.queues if queue not in self.refused_queues]

    @property
    def paused_queues(self) -> frozenset[str]:
        """The paused ones among its queues (see `Jobs.pause`)."""
        return frozenset() if self._paused is None else self._paused.queues

    async def _adjust(self) -> None:
        """Start and stop consumers as needed: no paused queue, and none when quiet."""
        runner, consumers = self._runner, self._consumers
        if self._broker is None or runner is None or consumers is None:
            return
        async with self._adjusting:
            wanted = [] if self._quiet else [queue for queue in self.usable_queues if queue not in self.paused_queues]
            left = [queue for queue in consumers.queues if queue not in wanted]
            await consumers.consume(wanted)
            for queue in left if not self._quiet else ():
                runner.hand_back(queue)
                _log.info("worker %s stops consuming queue %s, which is paused", self.id, queue)

    async def _go_quiet(self) -> None:
        if self._quiet or self._broker is None or self._runner is None:
            return
        self._quiet = True
        await self._adjust()
        active = len(self._runner.active)
        self._broker.events.record(self.id, WorkerQuiet(worker_id=self.id, active_jobs=active))
        _log.info("worker %s is quiet, %d jobs are running", self.id, active)

    async def _go_on(self) -> None:
        if self._quiet and not self._stop_requested.is_set():
            self._quiet = False
            await self._adjust()
            self._record_heartbeat()
            _log.info("worker %s consumes again", self.id)

    async def _register_cron_jobs(self, broker: BrokerConnection) -> None:
        from waybill.ojs.cron.crons import register_all  # noqa: PLC0415 - most workers need it not, and start sooner

        await register_all(Control(broker), list(self._jobs.cron_jobs.values()))

    def _change(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _beat(self) -> None:
        broker, runner = self._broker, self._runner
        while broker is not None and runner is not None:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await broker.connection.wait_ready()
            except ConnectionClosed:
                # The reconnect policy has given up: no more jobs will arrive.
                self.stop("error")
                return
            self._record_heartbeat()
            if await self._declarations.declare_again(broker):
                self._change(self._adjust())
            if self._paused is not None and not runner.cancellations.hears:
                # Pauses are not announced here, so poll them.
                self._paused.look_soon()

    def _record_heartbeat(self) -> None:
        if self._broker is not None and self._runner is not None:
            queues = [] if self._quiet else self.usable_queues
            active, memory = len(self._runner.active), peak_memory_mb()
            beat = WorkerHeartbeat(worker_id=self.id, active_jobs=active, queues=queues, memory_mb=memory)
            self._broker.events.record(self.id, beat)

    # --- shutting down ---

    async def _shut_down(self) -> None:
        broker, runner, settlement = self._broker, self._runner, self._settlement
        if not self._started or runner is None or settlement is None:
            return
        try:
            await self._go_quiet()
            runner.stop()
            await self._drain(runner)
            runner.interrupt()
            await runner.wait_idle(LAST_EVENTS_SECONDS)
            if broker is not None:
                uptime_ms = int((asyncio.get_running_loop().time() - self._started) * 1000)
                done, reason = settlement.completed_count, self._reason
                data = WorkerStopped(worker_id=self.id, reason=reason, jobs_completed=done, uptime_ms=uptime_ms)
                broker.events.record(self.id, data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._hooks.worker(self._jobs.hooks.on_worker_stop, self)
            await self._hooks.drain()
            if not await settlement.drain(self._settle_seconds):
                _log.warning("worker %s stops with unconfirmed work, which is redelivered", self.id)
        finally:
            for task in (*self._beating, *self._changes):
                task.cancel()
            if self._consumers is not None:
                await self._consumers.close()
            if self._coordinator is not None:
                await self._coordinator.close()
            self.has_stuck_handlers = not runner.close()
            self._jobs.middleware.thaw()
            try:
                await self._resources.close()
            finally:
                self._started = 0.0
                await self._disconnect()
                self._jobs.unbind()

    async def _disconnect(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.close()

    async def _drain(self, runner: Runner) -> None:
        """Wait until running jobs are done, the grace period has passed, or `stop` is called again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_seconds
        while runner.active and not self._stop_now.is_set() and loop.time() < deadline:
            _log.info("worker %s waits for %d jobs", self.id, len(runner.active))
            idle = loop.create_task(runner.wait_idle(min(DRAIN_REPORT_SECONDS, max(0.0, deadline - loop.time()))))
            hurry = loop.create_task(self._stop_now.wait())
            await asyncio.wait({idle, hurry}, return_when=asyncio.FIRST_COMPLETED)
            for task in (idle, hurry):
                task.cancel()
            await asyncio.gather(idle, hurry, return_exceptions=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals while the worker runs, on the main thread of a POSIX system."""
        loop = asyncio.get_running_loop()
        actions = {
            signal.SIGTERM: lambda: self.stop("signal"),
            signal.SIGINT: lambda: self.stop("signal"),
            signal.SIGTSTP: self.quiet,
            signal.SIGCONT: self.resume,
        }
        handled = []
        for number, action in actions.items():
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, action)
                handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)


def _coordinator_of(jobs: Jobs, queues: list[str], policy: ControlPolicy | None) -> Coordinator:
    from waybill.ojs.coordinator.coordinator import Coordinator  # noqa: PLC0415 - most workers need none, and start sooner

    return Coordinator(jobs, queues=queues, policy=policy)
