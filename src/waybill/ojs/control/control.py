"""The caller's side of control: cancel a job, or query one (binding sections 5.6 and 5.8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from waybill.client import BasicProperties, Channel, ClientError, Delivery, Inspector
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.pauses import is_paused, pause_queue, resume_queue
from waybill.ojs.errors import ControlFailed
from waybill.ojs.spec.control_message import (
    CANCEL,
    CONTENT_TYPE,
    HEARTBEAT,
    INFO,
    LIST,
    RELEASE,
    RESERVE,
    ControlReply,
    ControlRequest,
    JobInfo,
    Reservation,
    read_reply,
)
from waybill.ojs.spec.headers import PERSISTENT
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.worker.execution import Execution

TAKEN_SHARE: Final = 0.8
"""The share of the timeout within which a coordinator must have taken the request."""
EVENTS_SECONDS: Final = 1.0
"""How long a request waits for the events of earlier pushes, which a coordinator should know."""
BEAT_LIFE_MS: Final = 60_000
"""Without a coordinator, heartbeats expire."""


def beat(broker: BrokerConnection, worker_id: str, execution: Execution, confirmed: Callable[[], None]) -> None:
    """Tell the coordinators that a job still runs (binding section 5.7). Does not wait for a reply."""
    topology = broker.declarer.topology
    future = broker.publishing.publish_nowait(
        msgspec.json.encode(ControlRequest(execution.envelope.id, worker_id)),
        exchange=topology.direct,
        routing_key=topology.control_queue(execution.queue),
        properties=BasicProperties(
            content_type=CONTENT_TYPE,
            delivery_mode=PERSISTENT,
            type=HEARTBEAT,
            expiration=str(BEAT_LIFE_MS),
            user_id=broker.identity.user,
        ),
    )

    def done(future: asyncio.Future[None]) -> None:
        # The next one makes up for a lost one.
        error = None if future.cancelled() else future.exception()
        if not future.cancelled() and not broker.identity.is_refused(error) and error is None:
            confirmed()

    future.add_done_callback(done)


class Control:
    """Sends requests to coordinators over one connection, and reads their replies from an exclusive queue."""

    def __init__(self, broker: BrokerConnection) -> None:
        """The reply queue is declared with the first request."""
        self._broker = broker
        self._waiting: dict[str, asyncio.Future[bytes | None]] = {}
        """Waiters by request; None tells them that their reply is lost."""
        self._reply_queue = ""
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()

    async def cancel(self, job_id: str, queue: str | None) -> None:
        """Return when the broker has the request. Raises ControlFailed."""
        await self._send(queue, CANCEL, ControlRequest(job_id))

    async def info(self, job_id: str, queue: str | None, timeout_seconds: float) -> JobInfo | None:
        """Query a job, None if none of its events is known. Raises ControlFailed."""
        jobs = (await self._ask(queue, INFO, ControlRequest(job_id), timeout_seconds)).jobs
        return jobs[0] if jobs else None

    async def newest(self, queue: str | None, state: str | None, limit: int, timeout_seconds: float) -> list[JobInfo]:
        """Query the newest jobs of a queue, or of all. Raises ControlFailed."""
        return (await self._ask(queue, LIST, ControlRequest(state=state, limit=limit), timeout_seconds)).jobs

    async def pause(self, queue: str, by: str | None) -> bool:
        """Pause a queue; False if it was paused before. Raises ClientError."""
        return await pause_queue(self._broker, queue, by)

    async def resume(self, queue: str, by: str | None) -> bool:
        """End a pause; False if there was none. Raises ClientError."""
        return await resume_queue(self._broker, queue, by)

    async def is_paused(self, queue: str) -> bool:
        """Whether a queue is paused. Raises ClientError."""
        return await is_paused(self._broker, queue)

    async def renew(self, job_id: str, worker_id: str, attempt: int, queue: str, timeout_seconds: float) -> bool:
        """Send a heartbeat and wait for the reply: False if the attempt was replaced. Raises ControlFailed."""
        request = ControlRequest(job_id, worker_id, attempt=attempt)
        return bool((await self._ask(queue, HEARTBEAT, request, timeout_seconds)).jobs)

    async def is_heard(self, queue: str) -> bool:
        """Return whether a coordinator reads the control queue. Raises ClientError."""
        name = self._broker.declarer.topology.control_queue(queue)
        found = await Inspector(self._broker.connection).queue(name)
        return found is not None and found.consumer_count > 0

    async def reserve(self, job_id: str, queue: str, reservation: Reservation, timeout_seconds: float) -> ControlReply:
        """Reserve the place of a unique job. May be repeated with the same id. Raises ControlFailed."""
        return await self._ask(queue, RESERVE, ControlRequest(job_id, reservation=reservation), timeout_seconds)

    async def release(self, job_id: str, queue: str, life_seconds: float) -> None:
        """Release the place of a job that was not enqueued; it expires after that time anyway. Raises ControlFailed."""
        await self._send(queue, RELEASE, ControlRequest(job_id), expiration_ms=max(1, int(life_seconds * 1000)))

    async def _ask(self, queue: str | None, kind: str, request: ControlRequest, timeout_seconds: float) -> ControlReply:
        body = await self.ask(queue, kind, request, timeout_seconds, again=True)
        try:
            return read_reply(body)
        except Exception as error:
            name = type(error).__name__
            raise ControlFailed(f"the coordinator sent an invalid reply: {name}") from error

    async def ask(
        self, queue: str | None, kind: str, request: msgspec.Struct, timeout_seconds: float, *, again: bool = False
    ) -> bytes:
        """Send a request of any kind, and return the body of the reply. Raises ControlFailed.

        It goes to the coordinators of `queue`, or, if that is empty, to the one that answers requests without a queue.
        A lost connection loses the reply. With `again` the request is then repeated, which must be harmless; otherwise
        this raises.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            body = await self._ask_once(queue, kind, request, max(deadline - time.monotonic(), 0.001))
            if body is not None:
                return body
            if not again:
                raise ControlFailed("the connection was lost before the reply arrived")

    async def _ask_once(
        self, queue: str | None, kind: str, request: msgspec.Struct, timeout_seconds: float
    ) -> bytes | None:
        """Send a request, and return the body of the reply, None if that is lost. Raises ControlFailed."""
        correlation_id = new_id()
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        try:
            async with asyncio.timeout(timeout_seconds):
                reply_to = await self._listen()
                # Expire a request that is not answered in time. If it were taken at the last moment, the reply would be
                # too late.
                expiration_ms = max(1, int(timeout_seconds * 1000 * TAKEN_SHARE))
                await self._send(queue, kind, request, (reply_to, correlation_id), expiration_ms)
                return await answer
        except TimeoutError:
            whom = "" if queue is None else f" for queue {queue}"
            text = f"no coordinator answers{whom}: does `waybill coordinator` run, or a worker with --coordinator?"
            raise ControlFailed(text) from None
        finally:
            del self._waiting[correlation_id]

    async def send(self, kind: str, request: msgspec.Struct, reply_to: str, expiration_ms: int) -> None:
        """Send a request whose replies go to a queue of the caller. Raises ControlFailed."""
        await self._send(None, kind, request, (reply_to, new_id()), expiration_ms)

    async def _send(
        self,
        queue: str | None,
        kind: str,
        request: msgspec.Struct,
        answer: tuple[str, str] | None = None,
        expiration_ms: int | None = None,
    ) -> None:
        declarer = self._broker.declarer
        topology = declarer.topology
        name = topology.request_queue if queue is None else topology.control_queue(queue)
        reply_to, correlation_id = answer or (None, None)
        properties = BasicProperties(
            content_type=CONTENT_TYPE,
            delivery_mode=PERSISTENT,
            type=kind,
            reply_to=reply_to,
            correlation_id=correlation_id,
            expiration=None if expiration_ms is None else str(expiration_ms),
            user_id=self._broker.identity.user,
        )
        await self._broker.events.catch_up(EVENTS_SECONDS)
        try:
            await (declarer.ensure_requests() if queue is None else declarer.ensure_control(queue))
            await self._broker.publishing.publish(
                msgspec.json.encode(request),
                exchange=topology.direct,
                routing_key=name,
                properties=properties,
                mandatory=True,
            )
        except ClientError as error:
            if self._broker.identity.is_refused(error):
                await self._send(queue, kind, request, answer, expiration_ms)
                return
            raise ControlFailed(f"{name} did not accept the request: {error}") from error

    async def _listen(self) -> str:
        """Return the name of the reply queue, which changes with each reconnect."""
        connection = self._broker.connection
        async with self._opening:
            if self._channel is None:
                channel = await connection.channel()
                declared = await channel.declare_queue(exclusive=True, auto_delete=True)
                self._reply_queue = declared.name
                await channel.consume(declared.name, self._answered, no_ack=True)
                self._channel = channel
                connection.on_loss(self._lost)
        try:
            await connection.wait_ready()
        except ClientError as error:
            raise ControlFailed(f"the request cannot be sent: {error}") from error
        return connection.current_queue_name(self._reply_queue)

    def _lost(self, _error: Exception) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)

    def _answered(self, delivery: Delivery) -> None:
        try:
            future = self._waiting.get(delivery.properties.correlation_id or "")
        except ValueError:
            return
        if future is not None and not future.done():
            future.set_result(delivery.body)
