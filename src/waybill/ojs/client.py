"""The jobs client: makes jobs from calls of handlers, and pushes them reliably."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, Unpack

from waybill.client import ReconnectPolicy
from waybill.client.own_loop import has_moved, running_loop
from waybill.client.ranges import check_number
from waybill.client.service import Closing
from waybill.ojs.codec.arguments import local_names
from waybill.ojs.codec.forms import CustomTypes
from waybill.ojs.connection.bindings import find_broker, link_of
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.errors import PushFailed
from waybill.ojs.handler import AnyHandler, AsyncHandler, Handler, MadeJob, NewJob, Options, PlainHandler, Registration
from waybill.ojs.hooks import Hooks
from waybill.ojs.job import Job
from waybill.ojs.middleware.chain import Chain, EnqueueMiddleware, JobMiddleware, Middleware, overrides
from waybill.ojs.push.broker_substitute import BrokerSubstitute
from waybill.ojs.push.first_connection import connect_for
from waybill.ojs.push.job_maker import JobMaker
from waybill.ojs.push.new_envelope import handler_options, options_of
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.push.publisher import BatchFailed, Publisher, describes_by_default, encode_all, without_failures
from waybill.ojs.results.inbox import Inbox
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope, check_id, check_queue
from waybill.ojs.spec.events import event_source
from waybill.ojs.spec.headers import PushEncoder
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.retry import Retry
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.topology.queue_guard import QueueGuard
from waybill.ojs.topology.topology import Topology

if TYPE_CHECKING:
    from waybill.ojs.cron.crons import CronRegistration, Crons, CronSettings
    from waybill.ojs.cron.definition import CronJob
    from waybill.ojs.push.bulk import BulkPush, JobKind
    from waybill.ojs.sync.jobs import SyncJobs

P = ParamSpec("P")
T = TypeVar("T")

MAX_PUSH_TIMEOUT_SECONDS: Final = 31_536_000
"""A year."""
LIST_TIMEOUT_SECONDS: Final = 10.0


class Jobs(Closing):
    """The jobs of an application: registers handlers and pushes jobs.

        jobs = Jobs("amqp://guest:guest@localhost:5672/%2Fojs")

        @jobs.handler("email.send", queue="email", retry=Retry(max_attempts=5))
        async def send_email(to: str, subject: str) -> None: ...

        async with jobs:
            await send_email.push("a@example.com", "Hello")

    The first push connects. Leaving the context, or `close`, waits for unconfirmed jobs and events. With the URL of a
    server, `http://localhost:8080`, all of this goes over HTTP.
    """

    awaits_events = True
    """Whether the push of a single job also waits for its event, which otherwise follows: see `SyncJobs`."""
    _broker: BrokerConnection | None
    _loop: asyncio.AbstractEventLoop | None  # The loop in which it is used, None if it is not used yet.
    _publishes: Publisher | None
    _control: Control | None
    _inbox: Inbox | None

    def __init__(  # noqa: PLR0913 - settings, all by keyword
        self,
        uri: str | Sequence[str] | None = None,
        *,
        topology: Topology | None = None,
        push_timeout: float = 60.0,
        reconnect: ReconnectPolicy | None = None,
        middleware: Sequence[JobMiddleware] = (),
        wait_while_blocked: bool = False,
        results: bool = True,
        create_queues: bool | None = None,
        result_ttl: float | None = None,
        result_size_limit: int | None = None,
        describe_jobs: bool | None = None,
    ) -> None:
        """Without a `uri`, the broker is that of WAYBILL_URL, WAYBILL_CONTEXT, the current context, or this machine.

        The nodes of a cluster are `amqp://a,b,c/vhost` or a list of URIs. A context sets the names and the type of
        queues, unless there is a `topology`. A push is retried for `push_timeout` seconds after lost connections, and
        waits that long for a broker that is low on memory or disk; with `wait_while_blocked`, without limit.
        `reconnect` sets the pauses before attempts to reconnect. `results`, `result_ttl` (seconds) and
        `result_size_limit` (octets) are defaults for handlers; without `results`, `Job.result` asks a coordinator.
        `create_queues`: declare queues without a handler here, see `QueueGuard`. `describe_jobs`: events contain the
        jobs, for the dashboard (WAYBILL_DESCRIBE_JOBS). Raises ValueError.
        """
        check_number("push_timeout", push_timeout, 0, MAX_PUSH_TIMEOUT_SECONDS)
        self.uri, found = find_broker(uri)
        self.topology = topology or found
        self.has_own_topology = topology is not None
        self.reconnect = reconnect
        self.handlers: dict[str, AnyHandler] = {}
        self.cron_jobs: dict[str, CronJob] = {}  # Cron jobs declared with `cron`, by name.
        self.hooks = Hooks()
        self._custom_types = CustomTypes()
        self.enqueue_middleware: Chain[EnqueueMiddleware] = Chain()
        """The middleware around the enqueuing of every job; frozen during pushes."""
        self.middleware: Chain[Middleware] = Chain()
        """The middleware around the execution of every job by workers of this object; frozen while one runs."""
        self.source = event_source("clients", new_id())
        self.create_queues = create_queues
        self.describes_jobs = describes_by_default() if describe_jobs is None else describe_jobs
        self._push_timeout_seconds = push_timeout
        self._waits_while_blocked = wait_while_blocked
        self._results = results
        self._result_options = options_of(result_ttl=result_ttl, result_size_limit=result_size_limit)
        self.broker_substitute: BrokerSubstitute | None = None  # A server over HTTP, or a test.
        self.begin_anew()
        self._sync: SyncJobs | None = None
        self._middleware: list[JobMiddleware] = []
        self.use(*middleware)

    def use(self, *middleware: JobMiddleware) -> None:
        """Add middleware to the chains that it implements, the first one outermost."""
        self._middleware += middleware
        for one in middleware:
            if overrides(one, "enqueue"):
                self.enqueue_middleware.add(one.enqueue)
            if overrides(one, "execute"):
                self.middleware.add(one.execute)

    def handler(  # noqa: PLR0913 - the options of its jobs, all by keyword
        self,
        job_type: str,
        *,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: float | None = None,
        visibility_timeout: float | None = None,
        priority: int = 0,
        process: bool = False,
        results: bool | None = None,
        result_ttl: float | None = None,
        result_size_limit: int | None = None,
    ) -> Registration:
        """Register the decorated function as the handler of a job type. A plain function runs in a thread.

        With `process`, a plain function at the top level of a module runs in a separate process, for work that is
        CPU-bound or may crash. The other options are defaults for its jobs. Raises InvalidJob for an invalid type or
        option, and ValueError if the type has a handler already.
        """
        if job_type in self.handlers:
            raise ValueError(f"a handler for {job_type} already exists")
        defaults = handler_options(
            job_type, self._result_options,
            queue=queue, retry=retry, timeout=timeout, visibility_timeout=visibility_timeout, priority=priority or None,
            results=results, result_ttl=result_ttl, result_size_limit=result_size_limit,
        )  # fmt: skip

        def register(function: Callable[P, Any]) -> Any:  # noqa: ANN401 - see `Registration`
            kind = AsyncHandler if iscoroutinefunction(function) else PlainHandler
            names = local_names(1) if "<locals>" in getattr(function, "__qualname__", "") else None
            handler: Handler[P, Any] = kind(
                self,
                job_type,
                function,
                defaults,
                runs_in_process=process,
                custom=self._custom_types,
                local_names=names,
            )
            self.handlers[job_type] = handler
            return handler

        return register

    def cron(
        self,
        cron: str | None = None,
        *,
        tz: str = "UTC",
        every: timedelta | None = None,
        **settings: Unpack[CronSettings],
    ) -> CronRegistration:
        """Declare a cron job for the decorated handler: see `CronSettings`. Raises InvalidJob for invalid settings."""
        return self.crons.declare(cron, tz, every, settings)

    @property
    def crons(self) -> Crons:
        """The cron jobs of this program and of the coordinators."""
        from waybill.ojs.cron.crons import Crons  # noqa: PLC0415 - rarely needed; imports take time

        return Crons(self)

    def codec(self, kind: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]) -> None:
        """Let handlers accept and return objects of an application's class.

            jobs.codec(Money, encode=str, decode=Money.parse)

        `encode` returns JSON; `decode` converts it to an object, or raises ValueError. Raises TypeError for
        dataclasses, which have JSON already.
        """
        self._custom_types.add(kind, encode, decode)

    async def push(self, job_type: str, args: Sequence[object] = (), **options: Unpack[Options]) -> Job[Any]:
        """Enqueue a job by the name of its type; the defaults of a handler of that type registered here apply.

        Returns a handle after the broker has confirmed the job and its job.enqueued event. If the connection is lost
        before, the job is published again, so it may arrive twice with one id, but is not lost. Raises InvalidJob
        before anything is sent, or PushFailed: NOT_FOUND, QUEUE_FULL, BACKEND_UNAVAILABLE. If a middleware drops the
        job, the `state` of its envelope is None.
        """
        handler = self.handlers.get(job_type)
        merged: Options = {**handler.defaults, **options} if handler is not None else options
        values = list(args) if handler is None else handler.arguments.encode_any(args)
        return await self.push_job(NewJob(job_type, values, merged))

    async def push_job(self, job: NewJob | Envelope | dict[str, object], *, may_be_there: bool = False) -> Job[Any]:
        """Enqueue a `NewJob`, an envelope, or one as a dict, which `may_be_there` from an earlier push; see `push`."""
        self._check_loop()
        now = datetime.now(UTC)
        made = self._make(job, now, format_timestamp(now))
        made.may_be_there = may_be_there
        handle: Job[Any] = Job(made.envelope.id, self, made.envelope, self._maker.decoder_of(made.envelope.type))
        refused: list[PushFailed] = []
        try:
            if self._broker is None and self.broker_substitute is None:
                await connect_for([made], self._open, self._push_timeout_seconds)
            if self.broker_substitute is None and made.options.get("results", self._results):
                inbox = await self.inbox()
                made.reply_to = inbox.reply_to or await inbox.open()
                if made.reply_to is not None:
                    inbox.expect(handle)
            if not self.enqueue_middleware and self.broker_substitute is None and made.unique_key is None:
                encode_all([made], describes=self.describes_jobs)
                if await (await self.publisher()).enqueue_alone(made, now, awaits_event=self.awaits_events):
                    return handle
            envelope = (await self._push_made([made], now))[0]
        except BatchFailed as error:
            refused += error.failures
        if refused:
            # Its context would refer to it: a cycle with the job, which waits for the garbage collector.
            raise refused.pop()
        if envelope.id != handle.id:
            # It existed before: another push gets its outcome.
            return Job(envelope.id, self, envelope, self._maker.decoder_of(envelope.type))
        handle.pushed_as(envelope)
        return handle

    def job(self, job_id: str) -> Job[Any]:
        """Return a handle for any job by its id. Makes no request."""
        check_id(job_id)
        return Job(job_id, self)

    def check(self, job: NewJob | Envelope | dict[str, object]) -> None:
        """Raise the InvalidJob that a push of this job would raise, without pushing it."""
        now = datetime.now(UTC)
        encode_all([self._make(job, now, format_timestamp(now))])

    def make(self, job: NewJob | Envelope | dict[str, object]) -> MadeJob:
        """Create a valid job without enqueuing it, for `push_many`. Raises InvalidJob, which names the field."""
        now = datetime.now(UTC)
        made = self._make(job, now, format_timestamp(now))
        for one in self._middleware:
            one.prepare(made.envelope)
        key = made.idempotency_key
        return MadeJob(made.envelope, made.options if key is None else {**made.options, "unique_key": key})

    async def push_many(self, jobs: Iterable[NewJob | MadeJob | Envelope | dict[str, object]]) -> list[Envelope]:
        """Enqueue many jobs without waiting for each confirm; returns their envelopes in order.

        All jobs are validated before the first one is sent. Raises InvalidJob before sending, or BatchFailed at the
        end. A batch is not a transaction: AMQP has no transactions with confirms.
        """
        self._check_loop()
        now = datetime.now(UTC)
        time = format_timestamp(now)
        return await self._push_made([self._make(job, now, time) for job in jobs], now)

    async def _push_made(self, made: list[Outgoing], now: datetime) -> list[Envelope]:
        if self._broker is None and self.broker_substitute is None:
            await connect_for(made, self._open, self._push_timeout_seconds)
        if not self.enqueue_middleware:
            return without_failures(await self._enqueue(made, now))
        from waybill.ojs.middleware.enqueue_batch import enqueue_through  # noqa: PLC0415 - rarely needed; imports take time

        return without_failures(await enqueue_through(self.enqueue_middleware, made, now, self._enqueue))

    def kind(self, job_type: str, options: Options) -> JobKind:
        """Make the common part of jobs with a type and options, for `bulk`. Raises InvalidJob with the field.

        Raises ValueError for options that jobs cannot share: all but queue, priority, retry policy and timeouts.
        """
        from waybill.ojs.push.bulk import make_kind  # noqa: PLC0415 - rarely needed; imports take time

        return make_kind(job_type, options, self._encoder)

    async def bulk(self) -> BulkPush:
        """Start a bulk push of tables of valid jobs, without a pause between them. Middleware is not called."""
        from waybill.ojs.push.bulk import BulkPush  # noqa: PLC0415 - rarely needed; imports take time

        publisher = await self.publisher()
        return BulkPush(publisher.broker, publisher.blocked_timeout, publisher.declare, publisher.publish_again)

    async def _enqueue(self, jobs: list[Outgoing], now: datetime) -> list[Envelope | PushFailed]:
        """Publish valid jobs and their events; returns each job, or the reason why it was not enqueued."""
        if self.broker_substitute is not None:
            return await self.broker_substitute.enqueue(jobs)
        if all(one.unique_key is None for one in jobs):
            return await self._publish(jobs, now)
        from waybill.ojs.push.unique_push import enqueue_unique  # noqa: PLC0415 - rarely needed; imports take time

        return await enqueue_unique(
            await self.control(), await self.publisher(), jobs, now, describes=self.describes_jobs
        )

    async def _publish(self, jobs: list[Outgoing], now: datetime) -> list[Envelope | PushFailed]:
        if not jobs:
            return []
        encode_all(jobs, describes=self.describes_jobs)
        return await (await self.publisher()).enqueue(jobs, now)

    async def cancel(self, job_id: str, queue: str | None = None) -> None:
        """Cancel a job: a waiting job never starts, the handler of a running job is cancelled (binding section 5.6).

        Returns after the broker has confirmed the request; a coordinator of `queue`, or any one, then processes it. A
        job that has ended is not changed. Raises ControlFailed.
        """
        await (await self.control()).cancel(job_id, queue)

    async def info(self, job_id: str, queue: str | None = None, *, timeout: float = 10.0) -> JobInfo | None:  # noqa: ASYNC109 - the timeout is a part of the request
        """Ask a coordinator for a job, a coordinator of `queue` if given; None if the job is unknown.

        Raises ControlFailed if no coordinator answers in time.
        """
        return await (await self.control()).info(job_id, queue, timeout)

    async def newest(self, queue: str | None = None, *, state: str | None = None, limit: int = 100) -> list[JobInfo]:
        """Ask a coordinator for the newest jobs of a queue, or of all. Raises ControlFailed."""
        return await (await self.control()).newest(queue, state, limit, LIST_TIMEOUT_SECONDS)

    async def pause(self, queue: str, *, by: str | None = None) -> bool:
        """Pause a queue: all workers, also those that start later, stop consuming it until it is resumed.

        Returns False if it was paused before. Running jobs continue, and pushes are accepted. `by` is recorded in the
        queue.paused event.
        """
        check_queue(queue)
        return await (await self.control()).pause(queue, by)

    async def resume(self, queue: str, *, by: str | None = None) -> bool:
        """Resume a paused queue; False if it was not paused."""
        check_queue(queue)
        return await (await self.control()).resume(queue, by)

    async def is_paused(self, queue: str) -> bool:
        """Whether a queue is paused."""
        return await (await self.control()).is_paused(queue)

    async def control(self) -> Control:
        """Return the client for requests to coordinators. Internal to the package."""
        if self.broker_substitute is not None:
            return self.broker_substitute.control()
        broker = await self._open()
        if self._control is None:
            self._control = Control(broker)
        return self._control

    async def inbox(self) -> Inbox:
        """Return the inbox that receives the outcomes of jobs. Internal to the package."""
        if self.broker_substitute is not None:
            return self.broker_substitute.inbox()
        control = await self.control()
        if self._inbox is None or self._inbox.broker is not self._broker:
            self._inbox = Inbox(await self._open(), control)
        return self._inbox

    async def close(self) -> None:
        """Wait until all events are confirmed, and disconnect. The next push connects again, in any event loop."""
        self._check_loop()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.close()
        broker, self._broker = self._broker, None
        self._control = self._publishes = None
        if broker is not None:
            try:
                await broker.events.drain(self._push_timeout_seconds)
            finally:
                await broker.close()
        if self.broker_substitute is not None:
            await self.broker_substitute.disconnect()
        self._loop = None

    async def __aenter__(self) -> Self:
        if self.broker_substitute is None:
            await self._open()
        return self

    @property
    def broker(self) -> BrokerConnection | None:
        """The connection for pushes, None if there is none. Internal to the package."""
        return self._broker

    async def broker_connection(self) -> BrokerConnection:
        """Return the connection for pushes; connects if necessary. Internal to the package."""
        return await self._open()

    def bind(self) -> None:
        """Bind this object to the running loop, unless it is bound already: for a worker, whose handlers push."""
        if self._loop is not None and self._loop.is_closed():
            self._check_loop()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def unbind(self) -> None:
        """Undo `bind`: an object without a connection may be used in any loop."""
        if self._broker is None and self._loop is running_loop():
            self._loop = None

    def _check_loop(self) -> None:
        """Raise WrongEventLoop if another loop is running than the one in which this object is connected.

        If its loop is closed, as after `asyncio.run`, the connection is lost, and it connects again.
        """
        if has_moved(self._loop, "this Jobs object"):
            self.begin_anew()

    def begin_anew(self) -> None:
        """Drop the connection and all state that belongs to one thread: for `twin`."""
        self._loop = self._broker = self._control = self._publishes = self._inbox = None
        if self.broker_substitute is None or self.broker_substitute.is_remote:
            self.broker_substitute = link_of(self.uri, self._push_timeout_seconds, self.reconnect)
        self.guard = QueueGuard(self.handlers, creates=self.create_queues)
        self._opening = asyncio.Lock()
        self._encoder = PushEncoder(self.topology.max_priority)
        self._maker = JobMaker(self.handlers)
        self._make = self._maker.make

    def connect_to(self, uri: str, topology: Topology | None = None) -> None:
        """Use another broker from the next connection on. Raises RuntimeError if this object is connected."""
        if self._broker is not None and self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this Jobs object is connected: close it first")
        self.uri = uri
        if topology is not None:
            self.topology = topology
        self.begin_anew()

    @property
    def sync(self) -> SyncJobs:
        """The same methods for threads without an event loop; see `SyncJobs`."""
        if self._sync is None:
            from waybill.ojs.sync.jobs import SyncJobs  # noqa: PLC0415 - not needed with an event loop; imports take time

            self._sync = SyncJobs(self)
        return self._sync

    def twin(self) -> Self:
        """Return an object with the same handlers, middleware and settings, for another event loop."""
        twin = copy(self)
        twin.begin_anew()
        return twin

    async def _open(self) -> BrokerConnection:
        self._check_loop()
        if self.broker_substitute is not None:
            raise RuntimeError(self.broker_substitute.no_broker)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._broker is None:
            async with self._opening:
                if self._broker is None:
                    self._broker = await BrokerConnection.open(self.uri, self.topology, self.source, self.reconnect)
        return self._broker

    @property
    def publisher_now(self) -> Publisher | None:
        """The publisher of the present connection, None if there is none yet."""
        found = self._publishes
        return found if found is not None and found.broker is self._broker else None

    async def publisher(self) -> Publisher:
        """Return the publisher. Internal to the package and the backend."""
        broker = await self._open()
        found = self._publishes
        if found is None or found.broker is not broker:
            waits = self._waits_while_blocked
            found = Publisher(broker, self._encoder, self.guard, self._push_timeout_seconds, waits_while_blocked=waits)
            self._publishes = found
        return found
