"""Dead letters: list, retry and discard the jobs of a dead letter queue.

Listing gets messages and requeues them, so their order does not change. A retried job is published and confirmed, with
its job.enqueued event, before its dead letter is acknowledged: an interruption may leave a job in two places, but never
in none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.client import BasicProperties, Channel, Delivery, ResourceLocked
from waybill.client.service import Service
from waybill.ojs.client import Jobs
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.enqueued_event import enqueued_event
from waybill.ojs.spec.envelope import MAX_ID_LENGTH, Envelope, edit_envelope, parse_envelope, read_envelope
from waybill.ojs.spec.events import ReceivedEvent, event_source, read_events
from waybill.ojs.spec.headers import (
    ATTEMPT,
    COPY,
    ERROR_CODE,
    ERROR_MESSAGE,
    PLACE,
    RUN,
    kept_headers,
    push_properties,
    republish_properties,
    run_number,
)
from waybill.ojs.spec.identifiers import new_id, new_traceparent
from waybill.ojs.spec.nesting import clean_text, shown
from waybill.ojs.spec.states import Operation, State, transition
from waybill.ojs.spec.timestamps import format_timestamp, time_after
from waybill.ojs.topology.event_deliveries import EventDeliveries
from waybill.ojs.topology.topology import Declaration
from waybill.ojs.worker.delivered_job import named_in, read_delivered

QUIET_SECONDS: Final = 1.0
"""Streams have no end marker: after this time without a message, everything is read."""
FIRST_DEATH: Final = datetime(2000, 1, 1, tzinfo=UTC)
LEEWAY: Final = timedelta(seconds=60)
"""How much older an event may be than its dead letter, because two clocks are involved."""
PREFETCH: Final = 1000
FINGERPRINT_LENGTH: Final = 10
LONGEST_WAIT_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.02
CONFIRM_SECONDS: Final = 60.0

_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+|'[^']*'|\"[^\"]*\"", re.IGNORECASE)

_log = logging.getLogger("waybill.ojs")

Progress = Callable[[int], None]


@dataclass(frozen=True)
class DeadJob:
    """A dead letter. `reason` is the broker's: rejected, expired, maxlen; `error` is the text of the last error.

    `body` is the body of the last attempt's message, which a broker does not change. `envelope` is the job in its last
    state. `discarded_at` is when its worker discarded it, or, without an event, when the broker moved it.
    """

    id: str
    type: str
    attempt: int
    died_at: str | None
    reason: str
    error_type: str
    error: str
    body: bytes = field(repr=False)
    headers: dict[str, object] = field(repr=False)
    discarded_at: str | None = None
    last_error: dict[str, object] | None = field(default=None, repr=False)

    @property
    def envelope(self) -> dict[str, object] | None:
        """The job in its last state: `discarded`, with all errors; None if the body is not a job.

        ojs-dead-letter section 4.1 requires `state`, `discarded_at` and the whole history of errors.
        """
        try:
            # Callers rely on the types of its fields.
            read_envelope(self.body)
            fields = msgspec.json.decode(self.body, type=dict[str, object])
        except InvalidJob:
            return None
        history = fields.get("errors")
        errors = list(history) if isinstance(history, list) else []
        if self.last_error is not None:
            fields["error"] = self.last_error
            errors.append(self.last_error)
        return {
            **fields,
            "state": State.DISCARDED.value,
            "attempt": self.attempt,
            "discarded_at": self.discarded_at,
            "errors": errors,
        }

    @property
    def fingerprint(self) -> str:
        """Equal for jobs of one type with the same error, ignoring numbers and names in its text."""
        text = "\n".join((self.type, self.error_type, _VARIABLE.sub("?", self.error)))
        return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_LENGTH]


class DeadLetters(Service):
    """The dead letter queue of one OJS queue: `async with DeadLetters(jobs, "email") as dead: ...`."""

    def __init__(self, jobs: Jobs, queue: str) -> None:
        """Use it with `async with`."""
        self._jobs = jobs
        self._queue = queue
        self._broker: BrokerConnection | None = None

    async def start(self) -> None:
        """Connect, and declare the entities of the queue if they are missing."""
        source = event_source("clients", new_id())
        self._broker = await BrokerConnection.open(self._jobs.uri, self._jobs.topology, source, self._jobs.reconnect)
        await self._broker.declarer.ensure_queue(self._queue)

    async def close(self) -> None:
        if self._broker is not None:
            await self._broker.close()

    @property
    def _open(self) -> BrokerConnection:
        if self._broker is None:
            raise RuntimeError("use the dead letters in `async with`")
        return self._broker

    @property
    def _name(self) -> str:
        return self._open.declarer.topology.dead_letter_queue(self._queue)

    async def count(self) -> int:
        """Return the number of dead letters."""
        async with await self._open.connection.channel() as channel:
            return (await channel.declare_queue(self._name, passive=True)).message_count

    async def all(self, limit: int | None = None) -> list[DeadJob]:
        """Return the dead letters, oldest first, each with the error of its last event."""
        return await self._with_endings(await self.peek(limit))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Exclude others who do the same from the queue: dead letters that one reader holds are missing for others.

        Goes on after LONGEST_WAIT_SECONDS even if another one has not finished.
        """
        topology, connection = self._open.declarer.topology, self._open.connection
        if topology.declaration is Declaration.NEVER:
            yield
            return
        name, ends_at = f"{self._name}.reader", asyncio.get_running_loop().time() + LONGEST_WAIT_SECONDS
        while True:
            # A refusal closes the channel. The queue ends with its connection, at the latest.
            async with await connection.channel() as channel:
                try:
                    await channel.declare_queue(name, exclusive=True, auto_delete=True)
                except ResourceLocked:
                    if asyncio.get_running_loop().time() < ends_at:
                        await asyncio.sleep(LOOK_SECONDS)
                        continue
                    yield
                    return
                try:
                    yield
                finally:
                    await channel.delete_queue(name)
                return

    async def peek(self, limit: int | None = None) -> list[DeadJob]:
        """Return the dead letters, oldest first, from their messages only."""
        found: list[DeadJob] = []
        async with await self._open.connection.channel() as channel:
            held: list[Delivery] = []
            for _ in range(min(await self.count(), limit or 1 << 62)):
                delivery = await channel.get(self._name)
                if delivery is None:
                    break
                held.append(delivery)
                found.append(_dead_job(delivery))
            _give_back(held)
        return found

    async def retry(
        self,
        ids: Collection[str] | Mapping[str, dict[str, object]],
        *,
        rate: float | None = None,
        changes: dict[str, object] | None = None,
        queue: str | None = None,
        on_progress: Progress | None = None,
    ) -> int:
        """Put these jobs back into their queue, or into another one, with no attempt used; returns how many were found.

        `rate` is jobs per second; `changes` are fields of the envelope, and a mapping of ids can have additional fields
        for each job. A job that becomes invalid stays a dead letter, and the others are retried; if there are no
        others, raises InvalidJob. Raises the errors of `Channel.publish`; the dead letter stays then.
        """
        own: Mapping[str, dict[str, object]] = ids if isinstance(ids, Mapping) else {}
        target = queue or self._queue
        await self._open.declarer.ensure_queue(target)

        async def again(delivery: Delivery) -> None:
            await self._republish(delivery, target, {**(changes or {}), **own.get(_dead_job(delivery).id, {})})

        return await self._settle(ids, again, rate, on_progress)

    async def push_again(self, job: Mapping[str, object], run: int) -> None:
        """Put a discarded job without a dead letter into the queue as it was pushed; its runs are numbered from 0.

        Raises InvalidJob, and the errors of `Channel.publish`.
        """
        now = format_timestamp(datetime.now(UTC))
        broker, body = self._open, msgspec.json.encode({"created_at": now, **job, "queue": self._queue})
        await broker.declarer.ensure_queue(self._queue)
        properties = push_properties(
            _checked(body),
            max_priority=broker.declarer.topology.max_priority,
            traceparent=new_traceparent(),
        )
        await self._enqueue(body, properties, self._queue, run)

    async def discard(
        self, ids: Collection[str], *, rate: float | None = None, on_progress: Progress | None = None
    ) -> int:
        """Delete these dead letters permanently; returns how many were found."""

        async def drop(_delivery: Delivery) -> None:
            return

        return await self._settle(ids, drop, rate, on_progress)

    async def purge(self) -> int:
        """Delete all dead letters; returns how many."""
        async with await self._open.connection.channel() as channel:
            return await channel.purge_queue(self._name)

    # --- internals ---

    async def _settle(
        self,
        ids: Collection[str],
        settle: Callable[[Delivery], asyncio.Future[None]] | Callable[..., object],
        rate: float | None,
        on_progress: Progress | None,
    ) -> int:
        """Read the queue once, settle and acknowledge the wanted messages, and requeue the others.

        Raises InvalidJob if all of them are invalid.
        """
        wanted = set(ids)
        refused: InvalidJob | None = None
        done = 0
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with await self._open.connection.channel() as channel:
            held: list[Delivery] = []
            try:
                for _ in range(await self.count()):
                    delivery = await channel.get(self._name) if wanted else None
                    if delivery is None:
                        break
                    job_id = _dead_job(delivery).id
                    if job_id not in wanted:
                        held.append(delivery)
                        continue
                    held.append(delivery)
                    try:
                        await settle(delivery)  # type: ignore[misc]
                    except InvalidJob as error:
                        # Messages that are not jobs must not block those behind them.
                        refused = refused or error
                        _log.warning("dead letter %s was not moved: %s", shown(job_id), error)
                        continue
                    held.pop()
                    delivery.ack()
                    wanted.discard(job_id)
                    done += 1
                    if on_progress is not None:
                        on_progress(done)
                    if rate is not None:
                        await asyncio.sleep(max(0.0, started + done / rate - loop.time()))
            finally:
                _give_back(held)
        if refused is not None and not done:
            raise refused
        return done

    async def _republish(self, delivery: Delivery, queue: str, changes: dict[str, object]) -> None:
        read_delivered(delivery)
        body = edit_envelope(delivery.body, {**changes, "queue": queue})
        run = (run_number(delivery.encoded_properties) or 0) + 1
        await self._enqueue(body, delivery.properties, queue, run)

    async def _enqueue(self, body: bytes, properties: BasicProperties, queue: str, run: int) -> None:
        """Enqueue a job, as if it had never run. Raises InvalidJob."""
        broker, envelope = self._open, _checked(body)
        # Distinguishes this run of the job from the previous one.
        now = time_after(envelope.enqueued_at, datetime.now(UTC))
        body = edit_envelope(
            body,
            {
                "state": transition(State.DISCARDED, Operation.MANUAL_RETRY).value,
                "attempt": 0,
                "max_attempts": envelope.policy.max_attempts,
                "enqueued_at": now,
                "scheduled_at": None,
            },
        )
        headers = kept_headers(properties.headers)
        headers.pop(ERROR_CODE, None)
        # Its claim has ended, so it could not be admitted.
        headers.pop(COPY, None)
        # Another job may have its place meanwhile.
        headers.pop(PLACE, None)
        headers.pop(ERROR_MESSAGE, None)
        headers[ATTEMPT] = 1
        headers[RUN] = run
        await broker.publishing.publish(
            body,
            exchange=broker.declarer.topology.direct,
            routing_key=queue,
            properties=republish_properties(properties, headers),
            mandatory=True,
        )
        broker.events.record(
            envelope.id,
            enqueued_event(envelope, queue, body if self._jobs.describes_jobs else None, run=run),
            now,
        )
        confirmed = asyncio.Event()
        broker.events.after(confirmed.set)
        async with asyncio.timeout(CONFIRM_SECONDS):
            await confirmed.wait()

    async def _with_endings(self, jobs: list[DeadJob]) -> list[DeadJob]:
        """Look up the end of each job in the event stream, because a broker does not change moved messages."""
        times = [job.died_at for job in jobs if job.died_at is not None]
        if not times:
            return jobs
        endings: dict[str, ReceivedEvent] = {}
        missing = {job.id for job in jobs}
        async with await self._open.connection.channel(prefetch_count=PREFETCH) as channel:
            # The time of death is untrusted.
            since = max(datetime.fromisoformat(min(times)), FIRST_DEATH) - LEEWAY
            await self._read_endings(channel, since, missing, endings)
        return [_with_ending(job, endings.get(job.id)) for job in jobs]

    async def _read_endings(
        self, channel: Channel, since: datetime, missing: set[str], endings: dict[str, ReceivedEvent]
    ) -> None:
        deliveries = await EventDeliveries.open(channel, self._open.declarer.topology, since)
        try:
            while missing:
                async with asyncio.timeout(QUIET_SECONDS):
                    delivery = await anext(deliveries)
                delivery.ack()
                for event in read_events(delivery.body)[0]:
                    if event.type == "job.discarded" and event.subject in missing:
                        endings[event.subject] = event
        except TimeoutError:
            pass
        finally:
            await deliveries.close()


def _give_back(held: list[Delivery]) -> None:
    # Newest first: each returns to the head of the queue, unless the broker restores its position anyway.
    for delivery in reversed(held):
        delivery.nack(requeue=True)


def _dead_job(delivery: Delivery) -> DeadJob:
    """Describe a dead letter from its message only."""
    try:
        properties = delivery.properties
    except ValueError:
        properties = BasicProperties()
    headers = dict(properties.headers or {})
    died_at, reason = _death(headers)
    try:
        envelope = read_delivered(delivery)
    except InvalidJob as error:
        digest = hashlib.sha256(delivery.body).hexdigest()[:32]
        named_id, named_type = named_in(delivery.body)
        job_id = clean_text(properties.message_id or named_id or digest, MAX_ID_LENGTH)
        job_type = clean_text(properties.type or named_type or "", MAX_ID_LENGTH)
        return DeadJob(job_id, job_type, 0, died_at, reason, "InvalidJob", str(error), delivery.body, headers, died_at)
    attempt = headers.get(ATTEMPT)
    return DeadJob(
        id=envelope.id,
        type=envelope.type,
        attempt=attempt if isinstance(attempt, int) else envelope.attempt,
        died_at=died_at,
        reason=reason,
        error_type=envelope.error.type if envelope.error is not None else "",
        error=envelope.error.message if envelope.error is not None else "",
        body=delivery.body,
        headers=headers,
        discarded_at=died_at,
    )


def _with_ending(job: DeadJob, event: ReceivedEvent | None) -> DeadJob:
    if event is None:
        return job
    error = event.data.get("last_error")
    if not isinstance(error, dict):
        return replace(job, discarded_at=event.time)
    trace = error.get("stack_trace")
    record: dict[str, object] = {
        "type": str(error.get("type") or error.get("code") or ""),
        "message": str(error.get("message", "")),
        "code": str(error.get("code") or ""),
        "attempt": job.attempt,
        "occurred_at": event.time,
    }
    if isinstance(trace, str):
        record["backtrace"] = trace.splitlines()
    return replace(
        job,
        error_type=str(record["type"]),
        error=str(record["message"]),
        discarded_at=event.time,
        last_error=record,
    )


def _death(headers: dict[str, object]) -> tuple[str | None, str]:
    """Return when and why a message was dead-lettered."""
    deaths = headers.get("x-death")
    first = deaths[0] if isinstance(deaths, list) and deaths else None
    if not isinstance(first, dict):
        return None, "unknown"
    time = first.get("time")
    return format_timestamp(time) if isinstance(time, datetime) else None, str(first.get("reason", "unknown"))


def _checked(body: bytes) -> Envelope:
    """Return the edited job. Raises InvalidJob."""
    envelope = read_envelope(body)
    fields = msgspec.json.decode(body, type=dict[str, object])
    fields.setdefault("specversion", envelope.specversion)
    fields.setdefault("args", [])
    parse_envelope(fields, datetime.now().astimezone())
    return envelope
