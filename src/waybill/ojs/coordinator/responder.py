"""What all handlers of requests share: permission checks, replies, and retries."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from waybill.client import BasicProperties, ClientError, Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.policy import ControlPolicy
from waybill.ojs.spec.control_message import CONTENT_TYPE, ControlRequest
from waybill.ojs.spec.nesting import shown

MAX_REPLY_BYTES: Final = 16 * 1024 * 1024

_log = logging.getLogger("waybill.ojs.coordinator")


class Request(NamedTuple):
    """A request to a coordinator."""

    delivery: Delivery
    body: ControlRequest
    queue: str
    """The queue whose control queue it came from, or else the queue that it names; empty if it names none."""

    @property
    def kind(self) -> str:
        """The kind of the request."""
        return self.delivery.properties.type or ""

    @property
    def user(self) -> str | None:
        """The user of the request, verified by the broker."""
        return self.delivery.properties.user_id


Answer = Callable[[Request], Coroutine[Any, Any, None]]
"""Does what a request asks for, and acknowledges its delivery when that is safe.

It is awaited before the next request of that control queue is looked at, so what takes long goes on in a task (see
`Responder.spawn`). If it raises, it is called again a few times, and the request is then given up.
"""


class Responder:
    """Runs the handlers of requests."""

    def __init__(
        self,
        broker: BrokerConnection,
        view: JobView,
        policy: ControlPolicy,
        skipped_requests: Counter[str],
        tasks: set[asyncio.Task[None]],
        retry_pauses_seconds: Sequence[float],
    ) -> None:
        """`skipped_requests` counts requests that were not executed, by reason."""
        self.broker = broker
        self.view = view
        self.policy = policy
        self.skipped_requests = skipped_requests
        self.tasks = tasks
        self._retry_pauses_seconds = retry_pauses_seconds

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task that ends with the coordinator."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """End all tasks."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def attempt(self, request: Request, answer: Answer) -> None:
        """Handle a request; if that fails, retry in a task."""
        try:
            await answer(request)
        except Exception:  # noqa: BLE001 - one request must not end the service of all
            _log.exception("a request of type %s could not be handled, trying again", shown(request.kind))
            self.spawn(self._attempt_again(request, answer))

    async def _attempt_again(self, request: Request, answer: Answer) -> None:
        """Retry for a while: a database may come back. A faulty request must not be retried forever."""
        for pause_seconds in self._retry_pauses_seconds:
            await asyncio.sleep(pause_seconds)
            if not request.delivery.is_current:
                # The broker now delivers it to the coordinator that reads the queue.
                return
            try:
                await answer(request)
            except Exception as error:  # noqa: BLE001 - see `attempt`
                _log.warning("a request of type %s could not be handled: %r", shown(request.kind), error)
            else:
                return
        self.skipped_requests["failed"] += 1
        _log.error("gave up on a request: type %s, job %s", shown(request.kind), shown(request.body.job_id))
        request.delivery.ack()

    def is_trusted(self, request: Request) -> bool:
        """Return whether the requester may do everything."""
        return self.policy.is_trusted(request.user, self.broker.identity.user)

    def may_change(self, request: Request, owner: str | None) -> bool:
        """Return whether the requester may change a job of this user."""
        return self.policy.may_change(request.user, self.broker.identity.user, owner)

    def may_act_for(self, definer: str, owner: str | None) -> bool:
        """Return whether the definer of a workflow or cron job, "" if unknown, may change a job of this user."""
        return self.policy.may_change(definer or None, self.broker.identity.user, owner)

    def refuse(self, request: Request, job_id: str, owner: str | None, definer: str | None = None) -> None:
        """Count and log a request that the requester, or the definer of what it acts for, may not make."""
        self.skipped_requests["refused"] += 1
        user = request.user if definer is None else definer
        who = "skipped a request without user-id" if user is None else f"user {shown(user)}"
        text = "user %s may not change job %s of user %s; the coordinator's policy lists who may"
        _log.warning(text, who, shown(job_id), shown(owner or ""))

    def drop_invalid(self, request: Request) -> None:
        """Count, log and drop a request that lacks something its kind needs."""
        self.skipped_requests["invalid"] += 1
        _log.warning("unknown type of control message, skipped: %s", shown(request.kind))
        request.delivery.ack()

    async def reply(
        self, request: Request, body: msgspec.Struct | bytes, *, smaller: msgspec.Struct | None = None
    ) -> None:
        """Send a reply, or `smaller` if it is too large, if the requester wants one and may use the reply queue."""
        properties = request.delivery.properties
        if not properties.reply_to:
            return
        prefix = self.broker.declarer.topology.prefix
        if not self.policy.may_reply(properties.reply_to, properties.user_id, prefix):
            self.skipped_requests["refused"] += 1
            _log.warning(
                "sent no reply to %s: the requester has no write permission for that queue", shown(properties.reply_to)
            )
            return
        encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
        if smaller is not None and len(encoded) > MAX_REPLY_BYTES:
            encoded = msgspec.json.encode(smaller)
        # Not mandatory: the requester may be gone.
        await self.broker.publishing.publish(
            encoded,
            routing_key=properties.reply_to,
            properties=BasicProperties(
                content_type=CONTENT_TYPE, type=properties.type, correlation_id=properties.correlation_id
            ),
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, ClientError):
            # A lost connection ends many at once. Requests without an answer are made again.
            _log.warning("the broker prevented an answer or a task of the coordinator: %r", error)
        else:
            _log.error("a component of the coordinator failed", exc_info=error)
