"""The coordinator: answers control requests, tracks the state of jobs, and sends cancellations to workers.

Several coordinators may run for a queue. The broker lets one of them read the control queue (single active consumer),
and the next one takes over when its consumer ends. The same holds for the queue of requests that name no queue, which
all coordinators share. Each coordinator folds the event stream into its own store, so each can answer.

The type of a request message names its kind. `Coordinator` calls the handler (`Answer`) that is registered for the
kind. Each group of handlers is in a module of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from waybill.client import Channel, Consumer, NotFound
from waybill.client.service import Service
from waybill.ojs.client import Jobs
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.features import Features
from waybill.ojs.coordinator.forgetting import forget_for_ever
from waybill.ojs.coordinator.job_requests import JobRequests
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.markers import catch_up
from waybill.ojs.coordinator.partition_lag import PartitionLag
from waybill.ojs.coordinator.policy import ControlPolicy
from waybill.ojs.coordinator.queue_counts import QueueCounts, watch_queues
from waybill.ojs.coordinator.records import RecordFold
from waybill.ojs.coordinator.replacement import Replacement
from waybill.ojs.coordinator.responder import Answer, Request, Responder
from waybill.ojs.coordinator.wait_requests import MAX_OPEN, WaitRequests
from waybill.ojs.spec.control_message import read_request
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.events import event_source
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.topology.topology import Declaration
from waybill.ojs.workflow.values import Plans

PREFETCH: Final = 500
RETRY_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
LAST_EVENTS_SECONDS: Final = 5.0

_log = logging.getLogger("waybill.ojs.coordinator")


class Coordinator(Service):
    """Coordinates some queues: `async with Coordinator(jobs, queues=["email"]): ...`.

    `database` is a SQLite file or a PostgreSQL URL. It avoids reading the whole stream at each start; by default the
    state is in memory. `rebuild` rebuilds the state from the first event. A database needs the extra `state`. `policy`
    decides who may request what. By default, a job belongs to the user who pushed it, and the coordinator's own user
    may do everything.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        queues: Sequence[str],
        database: str = ":memory:",
        rebuild: bool = False,
        policy: ControlPolicy | None = None,
        watches_queues: bool = True,
        keep_days: int | None = None,
    ) -> None:
        """Call `start` to begin. Raises InvalidJob for a bad queue name.

        With `keep_days`, a database forgets jobs that many days after their end.

        Without `watches_queues`, `queue_counts` is empty: with many queues, asking the broker is expensive.
        """
        self._watches_queues = watches_queues
        self.policy = policy or ControlPolicy()
        self.skipped_requests: Counter[str] = Counter()
        """Requests that were not executed, by reason: invalid, refused, failed."""
        self.queue_counts: dict[str, QueueCounts] = {}
        """The broker's counts by OJS queue, a few seconds old."""
        for queue in queues:
            check_queue(queue)
        self.id = new_id()
        self._jobs = jobs
        self._queues = list(dict.fromkeys(queues))
        self._database = database
        self._broker: BrokerConnection | None = None
        self._rebuild = rebuild
        self._keep_days = keep_days
        self._view: JobView | None = None
        self._replacement: Replacement | None = None
        self._responder: Responder | None = None
        self._features = Features(self._is_trusted)
        self._channel: Channel | None = None
        self._consumers: list[Consumer] = []
        """Those of requests."""
        self._job_requests: JobRequests | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._caught_up = asyncio.Event()
        self._answers: dict[str, Answer] = {}
        """The handlers by kind of request."""

    async def start(self) -> None:
        """Connect, start to read the stream, and wait for the control queues."""
        source = event_source("coordinators", self.id)
        broker = await BrokerConnection.open(self._jobs.uri, self._jobs.topology, source, self._jobs.reconnect)
        try:
            self._view = JobView(
                self._database,
                rebuild=self._rebuild,
                features=self._features.folds,
                keep_days=self._keep_days,
                coordinator=self.id,
            )
            self._broker = broker
            declarer = broker.declarer
            await declarer.ensure_shared()
            await declarer.ensure_relay()
            await self._view.start(broker)
            self._replacement = Replacement(broker, self._view)
            self._responder = responder = Responder(
                broker, self._view, self.policy, self.skipped_requests, self._tasks, RETRY_PAUSES_SECONDS
            )
            responder.spawn(self._catch_up(broker))
            if self._keep_days is not None:
                responder.spawn(forget_for_ever(self._view))
            self._job_requests = JobRequests(responder, self._replacement)
            self._answers |= self._job_requests.answers()
            self._answers |= await self._features.start(responder, self.id, self._jobs)
            self._answers |= WaitRequests(responder).answers()
            self._channel = await broker.connection.channel(prefetch_count=PREFETCH)
            for queue in self._queues:
                await self._stand_in_line(broker, queue)
            await self._serve_all(broker, responder)
            responder.spawn(self._replacement.watch(self._queues))
            if self._watches_queues:
                responder.spawn(watch_queues(broker, self._queues, self.queue_counts))
        except BaseException:
            await self.close()
            raise
        _log.info("coordinator %s has started for %s", self.id, ", ".join(self._queues) or "any queue")

    async def coordinate(self, queue: str) -> None:
        """Coordinate one more queue. Raises InvalidJob for an invalid name."""
        check_queue(queue)
        if queue not in self._queues and self._broker is not None:
            self._queues.append(queue)
            await self._stand_in_line(self._broker, queue)

    async def cancel(self, job_id: str, queue: str) -> None:
        """Cancel a job with the permissions of the coordinator's own user: see `Jobs.cancel`."""
        if self._job_requests is None:
            raise RuntimeError("the coordinator is not started")
        await self._job_requests.cancel(job_id, queue)

    @property
    def queues(self) -> list[str]:
        """The queues that this coordinator coordinates."""
        return list(self._queues)

    @property
    def records(self) -> RecordFold:
        """The fold that notes which records have changed."""
        return self._features.records

    @property
    def plans(self) -> Plans:
        """The plans of workflows, for calls of `view.read`."""
        return self._features.plans

    @property
    def view(self) -> JobView:
        """The state of all jobs. Raises RuntimeError before it is started."""
        return self._known

    def end_soon(self) -> None:
        """Wait less long for a database that does not answer: the program is about to end."""
        if self._view is not None:
            self._view.end_soon()

    async def close(self) -> None:
        """Stop. The next coordinator takes over the control queues."""
        self.end_soon()
        broker, self._broker = self._broker, None
        await self._features.close()
        if self._responder is not None:
            await self._responder.close()
        if broker is not None:
            if self._replacement is not None:
                await self._replacement.drain(LAST_EVENTS_SECONDS)
            await broker.events.drain(LAST_EVENTS_SECONDS)
            await broker.close()
        if self._view is not None:
            await self._view.close()
            self._view = None

    @property
    def skipped_events(self) -> int:
        """How many events were skipped because they could not be read or stored."""
        return 0 if self._view is None else self._view.skipped_count

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state. Blocks: do not call it from the event loop's thread.

        Raises TimeoutError if the store is busy for long, and errors of the store.
        """
        return {} if self._view is None else self._view.counts()

    def lags(self) -> list[PartitionLag]:
        """Return how far the state is behind each partition of the event stream. Any thread may call it."""
        return [] if self._view is None else self._view.lags()

    @property
    def is_connected(self) -> bool:
        """Whether it is connected to the broker."""
        return self._broker is not None and self._broker.connection.is_open

    async def problem(self, seconds: float) -> str | None:
        """Return what keeps it from its work, None if nothing is known; a database has `seconds` to answer."""
        broker, view = self._broker, self._view
        if broker is None or view is None or self._channel is None:
            return "it has not started"
        if not broker.connection.is_open:
            return "the broker cannot be reached"
        if (refusal := broker.events.refusal) is not None:
            return f"the broker refuses its events: {refusal}"
        if unread := [one.stream for one in view.lags() if one.seconds is None]:
            return f"it receives no events of {', '.join(unread)}"
        if deaf := [one.queue for one in self._consumers if not one.is_registered]:
            return f"it receives no requests of {', '.join(deaf)}"
        if not self._caught_up.is_set():
            return "it reads the events from before its start"
        found = await view.problem(seconds)
        return None if found is None else f"the job state is {found}"

    def _is_trusted(self, user: str | None) -> bool:
        return self.policy.is_trusted(user, None if self._broker is None else self._broker.identity.user)

    @property
    def _known(self) -> JobView:
        if self._view is None:
            raise RuntimeError("the coordinator is not started")
        return self._view

    async def _catch_up(self, broker: BrokerConnection) -> None:
        try:
            await catch_up(self._known, broker.events)
        except TimeoutError:
            _log.warning("the event stream has not been read to its end yet: replies may lack recent changes")
        self._caught_up.set()

    # --- requests ---

    async def _stand_in_line(self, broker: BrokerConnection, queue: str) -> None:
        """Read the control queue of a queue as soon as no other coordinator does."""
        if self._channel is not None and self._responder is not None:
            await broker.declarer.ensure_control(queue)
            await self._serve(self._channel, self._responder, broker.declarer.topology.control_queue(queue), queue)

    async def _serve(self, channel: Channel, responder: Responder, name: str, queue: str) -> None:
        consumer = await channel.consume(name)
        self._consumers.append(consumer)
        responder.spawn(self._handle_all(responder, consumer, queue))

    async def _serve_all(self, broker: BrokerConnection, responder: Responder) -> None:
        """Wait for the queue of requests that name no queue."""
        declarer = broker.declarer
        await declarer.ensure_requests()
        # A separate channel, because the queue may be missing where others declare the queues.
        channel = await broker.connection.channel(prefetch_count=2 * MAX_OPEN)
        try:
            await self._serve(channel, responder, declarer.topology.request_queue, "")
        except NotFound:
            if declarer.topology.declaration is not Declaration.NEVER:
                raise
            text = "there is no queue %s: requests that name no queue are not answered until it is declared"
            _log.warning(text, declarer.topology.request_queue)

    async def _handle_all(self, responder: Responder, consumer: Consumer, queue: str) -> None:
        """Handle the requests of a control queue; `queue` is empty for the shared one.

        They wait until the coordinator has read all events from before its start.
        """
        await self._caught_up.wait()
        async for delivery in consumer:
            try:
                body = read_request(delivery.body)
                request = Request(delivery, body, queue or body.queue)
                answer = self._answers.get(request.kind)
            except Exception as error:  # noqa: BLE001 - no message may end this, whatever it is
                self.skipped_requests["invalid"] += 1
                _log.warning("invalid message in the control queue of %s, skipped: %s", queue, type(error).__name__)
                delivery.ack()
                continue
            if answer is None:
                responder.drop_invalid(request)
            else:
                await responder.attempt(request, answer)
