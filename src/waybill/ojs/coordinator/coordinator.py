"""The coordinator: reads control queues, knows the state of jobs, tells workers what is cancelled.

Several may run for a queue; the broker lets one of them read its control queue (single active consumer), and the next
one takes over when that ends. Each folds the event stream into a store of its own, so each can answer.

A cancellation is safe before it is acknowledged: relayed to the workers, in a stream that keeps it, and confirmed. The
job.cancelled event of a waiting job is written here, that of a running one by its worker. Both may write it in a race,
so its id is made of the job's: readers that drop repeated ids count it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from waybill.client import BasicProperties, Channel, Consumer, Delivery
from waybill.ojs.client import Jobs
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.job_fold import has_ended
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.policy import ControlPolicy
from waybill.ojs.coordinator.replacement import Replacement
from waybill.ojs.spec import control_message
from waybill.ojs.spec.control_message import (
    CONTENT_TYPE,
    MAX_LEASE_SECONDS,
    MAX_LISTED,
    ControlReply,
    ControlRequest,
    JobInfo,
    Reservation,
    read_request,
)
from waybill.ojs.spec.envelope import DEFAULT_VISIBILITY_SECONDS, check_queue
from waybill.ojs.spec.events import JobCancellation, JobHeartbeat, JobReleased, JobReserved, event_source
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.message import PERSISTENT
from waybill.ojs.spec.nesting import shown
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.worker.cancellations import cancelled_event_id

PREFETCH: Final = 500
RETRY_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
MAX_REPLACEMENTS: Final = 3
"""How many jobs one that is to replace them may cancel before it gives up."""
LAST_EVENTS_SECONDS: Final = 5.0

_log = logging.getLogger("waybill.ojs.coordinator")


class Coordinator:
    """Coordinates some queues: `async with Coordinator(jobs, queues=["email"]): ...`.

    `database` is a SQLite file, or a PostgreSQL URL, that saves reading the whole stream at each start; in memory
    unless given. `rebuild` makes its state anew from the first event. A database needs the extra `state`. `policy` says
    who may ask for what: by default a job is its user's, who has pushed it, and the coordinator's own user may do all.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        queues: Sequence[str],
        database: str = ":memory:",
        rebuild: bool = False,
        policy: ControlPolicy | None = None,
    ) -> None:
        """Prepare; nothing happens before `start`. Raises InvalidJob for a bad queue name."""
        self.policy = policy or ControlPolicy()
        self.stepped_over: Counter[str] = Counter()
        """Requests that were not done, by reason: senseless, refused, failed."""
        for queue in queues:
            check_queue(queue)
        self.id = new_id()
        self._jobs = jobs
        self._queues = list(dict.fromkeys(queues))
        self._database = database
        self._broker: BrokerConnection | None = None
        self._rebuild = rebuild
        self._view: JobView | None = None
        self._replacement: Replacement | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, begin to read the stream, and stand in line for the control queues."""
        source = event_source("coordinators", self.id)
        broker = await BrokerConnection.open(self._jobs.uri, self._jobs.topology, source, self._jobs.reconnect)
        try:
            self._view = JobView(self._database, rebuild=self._rebuild)
            self._broker = broker
            await broker.declarer.ensure_shared()
            await broker.declarer.ensure_relay()
            await self._view.start(broker)
            self._replacement = Replacement(broker, self._view)
            channel = await broker.connection.channel(prefetch_count=PREFETCH)
            for queue in self._queues:
                await broker.declarer.ensure_control(queue)
                await self._serve(channel, queue)
            self._spawn(self._replacement.watch(self._queues))
        except BaseException:
            await self.close()
            raise
        _log.info("coordinator %s stands by for %s", self.id, ", ".join(self._queues))

    async def close(self) -> None:
        """Leave the control queues to the next coordinator."""
        broker, self._broker = self._broker, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if broker is not None:
            if self._replacement is not None:
                await self._replacement.drain(LAST_EVENTS_SECONDS)
            await broker.events.drain(LAST_EVENTS_SECONDS)
            await broker.close()
        if self._view is not None:
            await self._view.close()
            self._view = None

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @property
    def skipped_events(self) -> int:
        """How many events could not be understood, or kept, and were stepped over."""
        return 0 if self._view is None else self._view.skipped_count

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state. For any thread but that of the event loop: it blocks."""
        return {} if self._view is None else self._view.counts()

    @property
    def _known(self) -> JobView:
        if self._view is None:
            raise RuntimeError("the coordinator is not started")
        return self._view

    # Requests. --------------------------------------------------------------------------------------------------

    async def _serve(self, channel: Channel, queue: str) -> None:
        if self._broker is not None:
            consumer = await channel.consume(self._broker.declarer.topology.control_queue(queue))
            self._spawn(self._handle_all(consumer, queue))

    async def _handle_all(self, consumer: Consumer, queue: str) -> None:
        async for delivery in consumer:
            try:
                request, kind = read_request(delivery.body), delivery.properties.type
            except Exception as error:  # noqa: BLE001 - no message may end this, whatever it is
                self.stepped_over["senseless"] += 1
                _log.warning("a message in the control queue of %s makes no sense: %s", queue, type(error).__name__)
                delivery.ack()
                continue
            try:
                await self._handle(delivery, kind, request, queue)
            except Exception:  # noqa: BLE001 - one request must not end the service of all
                _log.exception("a control message of %s could not be handled, trying again", queue)
                again = partial(self._handle, delivery, kind, request, queue)
                self._spawn(self._handle_again(delivery, request, queue, again))

    async def _handle_again(
        self, delivery: Delivery, request: ControlRequest, queue: str, again: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Try again for a while: a database may come back. What is at fault itself must not stay here for ever."""
        for pause_seconds in RETRY_PAUSES_SECONDS:
            await asyncio.sleep(pause_seconds)
            if not delivery.is_current:
                # The broker gives it to the coordinator that reads the queue now.
                return
            try:
                await again()
            except Exception as error:  # noqa: BLE001 - see `_handle_all`
                _log.warning("a control message of %s could not be handled: %r", queue, error)
            else:
                return
        self.stepped_over["failed"] += 1
        kind = shown(delivery.properties.type or "")
        _log.error("a control message of %s is given up: type %s, job %s", queue, kind, shown(request.job_id))
        delivery.ack()

    def _may_change(self, delivery: Delivery, owner: str | None) -> bool:
        return self.policy.may_change(delivery.properties.user_id, self._own_user, owner)

    @property
    def _own_user(self) -> str | None:
        return None if self._broker is None else self._broker.identity.user

    def _refuse(self, delivery: Delivery, job_id: str, owner: str | None) -> None:
        self.stepped_over["refused"] += 1
        user = delivery.properties.user_id
        who = "a request without user-id" if user is None else f"user {shown(user)}"
        text = "%s may not change job %s of user %s: add who may to the policy of the coordinator"
        _log.warning(text, who, shown(job_id), shown(owner or ""))

    async def _handle(self, delivery: Delivery, kind: str | None, request: ControlRequest, queue: str) -> None:
        match kind:
            case control_message.CANCEL:
                if await self._known.get(request.job_id) is None:
                    # Its events may be on their way: others need not wait for them.
                    self._spawn(self._cancel_later(delivery, request, queue))
                else:
                    await self._cancel_for(delivery, request, queue)
            case control_message.HEARTBEAT:
                await self._beat(delivery, request)
                delivery.ack()
            case control_message.LOOK:
                delivery.ack()
                if self._replacement is not None:
                    self._spawn(self._replacement.look(queue))
            case control_message.INFO | control_message.LIST:
                delivery.ack()
                self._spawn(self._answer(delivery, request, queue))
            case control_message.RESERVE if request.reservation is not None:
                delivery.ack()
                self._spawn(self._reserve(delivery, request.job_id, queue, request.reservation))
            case control_message.RELEASE:
                await self._release(delivery, request.job_id, queue)
                delivery.ack()
            case _:
                self.stepped_over["senseless"] += 1
                _log.warning("nothing is known of control messages of type %s", shown(kind or ""))
                delivery.ack()

    async def _cancel_later(self, delivery: Delivery, request: ControlRequest, queue: str) -> None:
        try:
            await self._cancel_for(delivery, request, queue)
        except Exception:  # noqa: BLE001 - see `_handle_all`: the delivery must not stay unsettled
            _log.exception("a control message of %s could not be handled, trying again", queue)
            await self._handle_again(delivery, request, queue, partial(self._cancel_for, delivery, request, queue))

    async def _cancel_for(self, delivery: Delivery, request: ControlRequest, queue: str) -> None:
        """Cancel a job if whoever asks may do that."""
        await self._known.settled(request.job_id, lambda found: found is not None)
        owner = await self._known.owner(request.job_id)
        if self._may_change(delivery, owner):
            await self._cancel(request.job_id, queue)
        else:
            self._refuse(delivery, request.job_id, owner)
        delivery.ack()

    async def _cancel(self, job_id: str, queue: str) -> None:
        """Cancel a job: a waiting one for good, a running one as far as its handler lets itself be."""
        broker = self._broker
        if broker is None or not job_id:
            return
        job = await self._known.settled(job_id, lambda found: found is not None)
        if job is not None and has_ended(job):
            _log.info("job %s is %s already and cannot be cancelled", job_id, job.state)
            return
        await broker.publishing.publish(
            msgspec.json.encode(ControlRequest(job_id)),
            exchange=broker.declarer.topology.relay,
            properties=BasicProperties(
                content_type=CONTENT_TYPE, delivery_mode=PERSISTENT, type=control_message.CANCEL
            ),
            mandatory=True,
        )
        if job is None or job.state == State.ACTIVE.value:
            # Whoever has the job says what became of it.
            return
        data = JobCancellation(job_type=job.type, queue=job.queue or queue)
        broker.events.record(job_id, data, event_id=cancelled_event_id(job_id))
        confirmed = asyncio.Event()
        broker.events.after(confirmed.set)
        await confirmed.wait()
        await self._known.settled(job_id, lambda found: found is not None and has_ended(found))

    async def _reserve(self, delivery: Delivery, job_id: str, queue: str, reservation: Reservation) -> None:
        """Give a job that must be unique its place, or say what is in its way; the stream decides."""
        reply = ControlReply()
        for _ in range(MAX_REPLACEMENTS):
            obstacle = await self._obstacle(job_id, queue, reservation, delivery.properties.user_id)
            reply.jobs = [] if obstacle is None else [obstacle]
            if obstacle is None or not reservation.on_conflict.startswith("replace"):
                break
            if obstacle.state in {State.ACTIVE.value, State.PENDING.value}:
                # A job that runs is not replaced: what it has done so far stays done (section 5.2).
                break
            owner = await self._known.owner(obstacle.id)
            if not self._may_change(delivery, owner):
                self._refuse(delivery, obstacle.id, owner)
                break
            await self._cancel(obstacle.id, obstacle.queue or queue)
            reply.replaced = obstacle
        await self._reply(delivery, reply)

    async def _obstacle(self, job_id: str, queue: str, reservation: Reservation, user: str | None) -> JobInfo | None:
        broker = self._broker
        if broker is None:
            raise RuntimeError("the coordinator is closed")
        event_id = f"evt_{new_id()}"
        lease_seconds = min(max(reservation.lease_seconds, 0.0), MAX_LEASE_SECONDS)
        data = JobReserved(
            job_type=reservation.job_type,
            queue=queue,
            unique_key=reservation.unique_key,
            states=reservation.states,
            period=reservation.period,
            reserved_until=format_timestamp(datetime.now(UTC) + timedelta(seconds=lease_seconds)),
            reserved_by=user,
        )
        return await self._known.verdict(event_id, lambda: broker.events.record(job_id, data, event_id=event_id))

    async def _release(self, delivery: Delivery, job_id: str, queue: str) -> None:
        """Free a place before the next reservation is looked at; one that is not known yet, as soon as it is."""
        job = await self._known.get(job_id)
        if job is None:
            self._spawn(self._release_later(delivery, job_id, queue))
        else:
            await self._release_known(delivery, job, queue)

    async def _release_later(self, delivery: Delivery, job_id: str, queue: str) -> None:
        job = await self._known.settled(job_id, lambda found: found is not None)
        if job is not None:
            await self._release_known(delivery, job, queue)

    async def _release_known(self, delivery: Delivery, job: JobInfo, queue: str) -> None:
        owner = await self._known.owner(job.id)
        if self._may_change(delivery, owner):
            self._record_release(job, queue)
        else:
            self._refuse(delivery, job.id, owner)

    def _record_release(self, job: JobInfo, queue: str) -> None:
        if self._broker is not None:
            self._broker.events.record(job.id, JobReleased(job_type=job.type, queue=queue))

    async def _beat(self, delivery: Delivery, request: ControlRequest) -> None:
        """Extend an attempt. Whoever asks is told whether it is still theirs: an empty answer says that it is not."""
        broker, replacement = self._broker, self._replacement
        if broker is None or replacement is None:
            return
        if replacement.has_replaced(request.job_id, request.attempt):
            await self._reply(delivery, ControlReply())
            return
        job = await self._known.get(request.job_id)
        if job is not None and not request.worker_id:
            # Who does not know which worker has a job of somebody else's has no say in how long it may be away.
            owner = await self._known.owner(job.id)
            if not self._may_change(delivery, owner):
                self._refuse(delivery, job.id, owner)
                return
        if job is not None and request.worker_id in {"", job.worker_id}:
            replacement.heard(job.id)
        await self._reply(delivery, ControlReply([JobInfo(request.job_id, attempt=request.attempt)]))
        if job is None or job.state != State.ACTIVE.value or request.worker_id not in {"", job.worker_id}:
            return
        lasts_ms = job.visibility_ms or DEFAULT_VISIBILITY_SECONDS * 1000
        until = format_timestamp(datetime.now(UTC) + timedelta(milliseconds=lasts_ms))
        worker_id = request.worker_id or job.worker_id or ""
        broker.events.record(
            job.id,
            JobHeartbeat(
                job_type=job.type, queue=job.queue, worker_id=worker_id, attempt=job.attempt, visible_until=until
            ),
        )

    async def _answer(self, delivery: Delivery, request: ControlRequest, queue: str) -> None:
        properties = delivery.properties
        if self._broker is None or not properties.reply_to:
            return
        if properties.type == control_message.LIST:
            user = properties.user_id
            owners = None if self.policy.is_trusted(user, self._own_user) else {None, user}
            limit = min(max(request.limit, 0), MAX_LISTED)
            jobs = await self._known.newest(queue, request.state, limit, owners)
        else:
            job = await self._known.settled(request.job_id, lambda found: found is not None)
            jobs = [] if job is None else [job]
        await self._reply(delivery, ControlReply(jobs))

    async def _reply(self, delivery: Delivery, reply: ControlReply) -> None:
        properties = delivery.properties
        if self._broker is None or not properties.reply_to:
            return
        prefix = self._broker.declarer.topology.prefix
        if not self.policy.may_reply(properties.reply_to, properties.user_id, prefix):
            self.stepped_over["refused"] += 1
            _log.warning("no answer goes to %s: whoever asks may not write there", shown(properties.reply_to))
            return
        # Not mandatory: whoever asked may be gone.
        await self._broker.publishing.publish(
            _encode_reply(reply),
            routing_key=properties.reply_to,
            properties=BasicProperties(
                content_type=CONTENT_TYPE, type=properties.type, correlation_id=properties.correlation_id
            ),
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a part of the coordinator failed", exc_info=error)


def _encode_reply(reply: ControlReply) -> bytes:
    """Encode an answer; one that would be too large goes without the results and checkpoints of its jobs."""
    encoded = msgspec.json.encode(reply)
    if len(encoded) > MAX_REPLY_BYTES:
        jobs = [msgspec.structs.replace(job, result=None, checkpoint=None, error=None) for job in reply.jobs]
        encoded = msgspec.json.encode(ControlReply(jobs, reply.replaced))
    return encoded
