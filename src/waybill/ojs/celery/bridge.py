"""The bridge: consumes the messages of Celery's queue, and pushes them as jobs of our handlers.

A message is acknowledged when the broker has confirmed its job, or its dead letter. After a crash in between, the same
job is pushed twice, with one id that is derived from the task's id. Priorities, times, time limits and used retries are
kept; results do not go back to Celery's callers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.client import Channel, Connection, Delivery, Inspector, connect
from waybill.client.service import Service
from waybill.ojs.celery.message import CeleryTask, Refused, job_type_of, read_task, reason_of
from waybill.ojs.client import Jobs
from waybill.ojs.errors import InvalidJob, PushFailed
from waybill.ojs.handler import AnyHandler, NewJob, Options
from waybill.ojs.spec.envelope import Envelope, ErrorRecord, check_queue
from waybill.ojs.spec.event_data import ErrorSummary
from waybill.ojs.spec.events import JobDiscarded
from waybill.ojs.spec.headers import push_properties
from waybill.ojs.spec.identifiers import derived_id, new_traceparent
from waybill.ojs.spec.nesting import clean_text, shown
from waybill.ojs.spec.timestamps import format_timestamp

PREFETCH: Final = 200
PAUSE_SECONDS: Final = 1.0
MAX_REASON: Final = 1000

_log = logging.getLogger("waybill.ojs.celery")


class CeleryBridge(Service):
    """`async with CeleryBridge(jobs, "celery"): ...` moves messages until it ends; a `Worker` runs the jobs.

    `names` maps task names to job types that are not just the lower-case name. `uri` is Celery's broker, by default
    that of `jobs`. Refused messages become dead letters of the OJS queue `dead_letters`.
    """

    def __init__(
        self,
        jobs: Jobs,
        queue: str,
        *,
        uri: str | None = None,
        names: Mapping[str, str] | None = None,
        dead_letters: str = "celery",
    ) -> None:
        """Raises InvalidJob for an invalid name of `dead_letters`."""
        check_queue(dead_letters)
        self.queue = queue
        self.counts: Counter[str] = Counter()
        """The numbers of pushed and refused messages."""
        self._jobs = jobs
        self._uri = uri
        self._names = dict(names or {})
        self._dead_letters = dead_letters
        self._connection: Connection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._moving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, and start. Raises connection errors."""
        self._connection = connect(self._uri or self._jobs.uri, name="waybill-celery-bridge")
        await self._connection.__aenter__()
        await (await self._jobs.broker_connection()).declarer.ensure_queue(self._dead_letters)
        channel = await self._connection.channel(prefetch_count=PREFETCH)
        await self._ensure(channel)
        consumer = await channel.consume(self.queue)

        async def read() -> None:
            async for delivery in consumer:
                task = asyncio.get_running_loop().create_task(self._move(delivery))
                self._moving.add(task)
                task.add_done_callback(self._moving.discard)

        self._reading = asyncio.get_running_loop().create_task(read())
        _log.info("the bridge consumes Celery's messages from %s", self.queue)

    async def close(self) -> None:
        """Stop consuming, finish current messages and disconnect; other messages stay in Celery's queue."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._moving:
            await asyncio.wait(set(self._moving), timeout=10)
        if self._connection is not None:
            await self._connection.close()

    async def _ensure(self, channel: Channel) -> None:
        """Use Celery's queue unchanged; if there is none, declare it like Celery does by default."""
        if self._connection is None or await Inspector(self._connection).queue(self.queue) is not None:
            return
        await channel.declare_queue(self.queue, durable=True)

    async def _move(self, delivery: Delivery) -> None:
        """Push one message, or move it to the dead letters. It is never lost: after a failure it is redelivered."""
        try:
            task = None
            try:
                task = read_task(delivery)
                await self._push(task)
                self.counts["pushed"] += 1
            except (Refused, InvalidJob, TypeError) as error:
                await self._refuse(delivery, task, reason_of(error))
                self.counts["refused"] += 1
            delivery.ack()
        except PushFailed as error:
            _log.warning("a message of %s cannot be pushed and is requeued: %s", self.queue, error)
            await asyncio.sleep(PAUSE_SECONDS)
            delivery.nack(requeue=True)
        except Exception:  # noqa: BLE001 - no message may end the bridge
            _log.exception("a message of %s cannot be moved and is requeued", self.queue)
            await asyncio.sleep(PAUSE_SECONDS)
            delivery.nack(requeue=True)

    async def _push(self, task: CeleryTask) -> None:
        handler = self._handler(task)
        await self._jobs.push_job(job_of(task, handler))

    def _handler(self, task: CeleryTask) -> AnyHandler:
        kind = self._names.get(task.name) or job_type_of(task.name)
        handler = self._jobs.handlers.get(kind)
        if handler is None:
            raise Refused(f"no handler has the job type {kind} of the task {shown(task.name)}")
        return handler

    async def _refuse(self, delivery: Delivery, task: CeleryTask | None, reason: str) -> None:
        """Move a message to the dead letters, with the reason, and its arguments as far as they are readable."""
        broker = await self._jobs.broker_connection()
        now = format_timestamp(datetime.now(UTC))
        name = "celery.unknown" if task is None else job_type_of(task.name)
        text = clean_text(reason, MAX_REASON)
        _log.error("a message of %s is refused: %s", self.queue, text)
        record = ErrorRecord(type="CeleryRefused", message=text, code="INVALID_PAYLOAD", occurred_at=now)
        job = Envelope(
            id=derived_id(0, "celery", delivery.body.hex()[:64] if task is None else task.id),
            type=name,
            queue=self._dead_letters,
            args=[] if task is None else [*task.args, *([task.kwargs] if task.kwargs else [])],
            meta={"celery_task_id": task.id, "celery_task": task.name} if task is not None else {},
            created_at=now,
            enqueued_at=now,
            error=record,
            errors=[record],
        )
        if task is None:
            job.meta = {"celery_body": delivery.body[: 32 * 1024].decode("utf-8", "replace")}
        topology = broker.declarer.topology
        await broker.publishing.publish(
            job.encode(),
            exchange=topology.dead_letter_exchange,
            routing_key=self._dead_letters,
            properties=push_properties(job, max_priority=topology.max_priority, traceparent=new_traceparent()),
            mandatory=True,
        )
        summary = ErrorSummary(code=record.code, message=text, type=record.type)
        data = JobDiscarded(job_type=name, queue=self._dead_letters, total_attempts=0, last_error=summary)
        broker.events.record(job.id, data)


def job_of(task: CeleryTask, handler: AnyHandler) -> NewJob:
    """Return the job of a message. Raises InvalidJob, TypeError if its arguments do not fit the handler."""
    options: Options = {**handler.defaults, "id": derived_id(0, "celery", task.id), "correlation_id": task.id}
    options["meta"] = {
        key: value
        for key, value in (
            ("celery_task_id", task.id),
            ("celery_task", task.name),
            ("celery_root_id", task.root_id),
            ("celery_parent_id", task.parent_id),
            ("celery_retries", task.retries),
        )
        if value
    }
    if task.eta is not None:
        options["scheduled_at"] = task.eta
    if task.expires is not None:
        options["expires_at"] = task.expires
    if task.time_limit is not None:
        options["timeout"] = task.time_limit
    if task.priority:
        options["priority"] = task.priority
    policy = handler.defaults.get("retry")
    if task.retries and policy is not None:
        # Celery's earlier attempts count.
        options["retry"] = msgspec.structs.replace(policy, max_attempts=max(1, policy.max_attempts - task.retries))
    return NewJob(handler.type, handler.arguments.encode_names(task.args, task.kwargs), options)
