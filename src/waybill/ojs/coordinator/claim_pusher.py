"""Pushes claimed jobs while its coordinator is the leader: see `claims`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from waybill.client import ClientError
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.control.reservations import reserve
from waybill.ojs.coordinator.claims import PENDING, Claim, key_of
from waybill.ojs.coordinator.feature_fold import kind_of
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.leader import Leader
from waybill.ojs.coordinator.leader_loop import LeaderLoop
from waybill.ojs.coordinator.marked_rows import MarkedRows
from waybill.ojs.coordinator.stream_identity import StreamReplaced
from waybill.ojs.errors import ControlFailed, DuplicateJob, InvalidJob, PushFailed, TopologyConflict
from waybill.ojs.handler import Options
from waybill.ojs.push.new_envelope import trace_of
from waybill.ojs.push.outgoing import SCHEDULED, Outgoing
from waybill.ojs.spec.cron_events import ClaimCopied, ClaimDropped, ClaimPushed
from waybill.ojs.spec.enqueued_event import enqueued_event
from waybill.ojs.spec.envelope import Envelope, parse_envelope, seconds_until_scheduled
from waybill.ojs.spec.headers import COPY, push_properties
from waybill.ojs.spec.identifiers import new_id, push_event_id
from waybill.ojs.spec.nesting import shown
from waybill.ojs.spec.states import State
from waybill.ojs.spec.unique import read_unique, unique_key

BATCH: Final = 500
BATCHES_AT_ONCE: Final = 4
"""How many portions of claims that must wait are read to find others."""
MOST_AT_ONCE: Final = 1000
"""How many pushes go on at the same time."""
PUSH_SECONDS: Final = 60.0
"""How long a push may take: a queue without a majority of its replicas confirms nothing."""
REMEMBERED: Final = 100_000
FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 60.0
RESERVE_SECONDS: Final = 10.0
REPLACES: Final = "cancels"
"""In the note of a claim: its job replaces others."""

BeforePush = Callable[[str, Claim], Awaitable[None]]
"""Awaited before a push; if it raises, the job is not pushed yet."""
OnPushed = Callable[[str, Claim], None]
"""Called with a job's id and its claim after the push is confirmed, to write the feature's event."""
Definer = Callable[[str], Awaitable[str | None]]
"""Returns the user who has defined what the key of an owner's row belongs to."""
Maker = Callable[[str, Claim], Awaitable[dict[str, object]]]
"""Returns the job of a claim that is too large to store twice, and is therefore made when it is pushed."""

_EXPECTED: Final = (ClientError, ControlFailed, PushFailed, TopologyConflict, InvalidJob, StreamReplaced, TimeoutError)

_log = logging.getLogger("waybill.ojs.coordinator")


class ClaimPusher(LeaderLoop):
    """Pushes pending claims."""

    def __init__(
        self, broker: BrokerConnection, view: JobView, leader: Leader, coordinator: str, *, describes: bool = False
    ) -> None:
        """`coordinator` is the id of this coordinator. With `describes`, events contain the jobs."""
        super().__init__(view, leader)
        self._describes = describes
        self.on_pushed: dict[str, OnPushed] = {}
        """By kind of the owner's row, for example `cron`."""
        self.makers: dict[str, Maker] = {}
        """By kind: functions that make the job of a claim that only has an id."""
        self.definers: dict[str, Definer] = {}
        """By kind: a job replaces others with the rights of the user who has defined its cron job or workflow."""
        self.before_push: dict[str, BeforePush] = {}
        self._broker = broker
        self._control = Control(broker)
        self._coordinator = coordinator
        self._tried: BoundedDict[str, None] = BoundedDict(REMEMBERED)
        """Jobs whose first copy was used: another push needs a new copy."""
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        """When a failed push is retried, by the loop's clock."""
        self._in_hand: set[str] = set()
        """Pushed jobs whose claim.pushed event is not folded yet."""
        self._pending = MarkedRows(view, PENDING, Claim, BATCH)
        self._pushing: set[asyncio.Task[None]] = set()
        self._known: set[str] = set()
        """The pending jobs that this round has found."""

    def forget(self) -> None:
        """Forget started pushes: if this coordinator leads again, it pushes these jobs again."""
        self._in_hand.clear()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await super().run()
        finally:
            for task in self._pushing:
                task.cancel()

    async def look(self) -> None:
        """Begin to push the jobs whose claims are pending."""
        if len(self._pushing) >= MOST_AT_ONCE:
            return
        for _ in range(BATCHES_AT_ONCE):
            due = await self._next_due()
            if due or self._pending.is_round:
                break
        for job_id, one in due.items():
            self._in_hand.add(job_id)
            task = asyncio.get_running_loop().create_task(self._push_guarded(job_id, one))
            self._pushing.add(task)
            task.add_done_callback(self._pushing.discard)

    async def _next_due(self) -> dict[str, Claim]:
        """Return the next pending claims by job, except those whose push has begun, or has failed a moment ago."""
        found = {str(one.job.get("id", "")): one for _, one in await self._pending.next()}
        self._known |= found.keys()
        if self._pending.is_round:
            known, self._known = self._known, set()
            self._in_hand &= known
            self._failures = {job_id: count for job_id, count in self._failures.items() if job_id in known}
            self._not_before = {job_id: at for job_id, at in self._not_before.items() if job_id in known}
        now = asyncio.get_running_loop().time()
        return {
            job_id: one
            for job_id, one in found.items()
            if job_id not in self._in_hand and self._not_before.get(job_id, 0.0) <= now
        }

    async def _push_guarded(self, job_id: str, one: Claim) -> None:
        try:
            async with asyncio.timeout(PUSH_SECONDS):
                await self._push(job_id, one)
        except Exception as error:  # noqa: BLE001 - an error of one job must not affect the others
            self._in_hand.discard(job_id)
            failures = self._failures[job_id] = self._failures.get(job_id, 0) + 1
            pause = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), MAX_PAUSE_SECONDS)
            self._not_before[job_id] = asyncio.get_running_loop().time() + pause
            expected = isinstance(error, _EXPECTED)
            _log.warning(
                "could not push job %s to %s, trying again in %g s: %r",
                shown(job_id),
                shown(one.owner),
                pause,
                error,
                exc_info=None if expected else error,
            )
        else:
            self._not_before.pop(job_id, None)

    async def _push(self, job_id: str, one: Claim) -> None:
        now = datetime.now(UTC)
        maker = self.makers.get(kind_of(one.owner))
        envelope = read_claimed(one.job if maker is None else await maker(job_id, one), now)
        before_push = self.before_push.get(kind_of(one.owner))
        if before_push is not None:
            await before_push(job_id, one)
        # A job that replaces the one before it has no other in its way (ojs-extension-interactions section 13).
        is_unique = envelope.unique is not None and REPLACES not in one.note
        obstacle = await self._obstacle(envelope, one.owner) if is_unique else None
        delay = seconds_until_scheduled(envelope, now)
        # It may have taken over the time of a job that it replaces.
        envelope.state = SCHEDULED if delay > 0 else State.AVAILABLE.value
        if obstacle is not None:
            _log.info("job %s of %s is a duplicate of job %s", shown(job_id), shown(one.owner), shown(obstacle))
            self._broker.events.record(job_id, ClaimDropped(by=self._coordinator, existing_job_id=obstacle))
            return
        copy = await self._copy(job_id, one)
        if copy is None:
            return
        broker = self._broker
        await broker.declarer.ensure_queue(envelope.queue, as_found=True)
        topology = broker.declarer.topology
        exchange, key = topology.direct, envelope.queue
        waiting: dict[str, object] = {}
        if delay > 0:
            await broker.declarer.ensure_schedule(envelope.queue, as_found=True)
            exchange, key, waiting = topology.schedule_address(envelope.queue, delay)
        options = Options()
        traceparent, tracestate = trace_of(envelope, options)
        await broker.publishing.publish(
            envelope.encode(),
            exchange=exchange,
            routing_key=key,
            properties=push_properties(
                envelope,
                max_priority=topology.max_priority,
                traceparent=traceparent,
                tracestate=tracestate,
                more_headers={COPY: copy, **waiting},
            ),
            mandatory=True,
        )
        self._tell(job_id, one, envelope, copy)

    async def _obstacle(self, envelope: Envelope, owner: str) -> str | None:
        """Reserve the place of a unique job; returns the id of the job that has it. Raises PushFailed."""
        made = Outgoing(envelope, Options())
        made.unique_key = unique_key(envelope, read_unique(envelope.unique or {}))
        definer = self.definers.get(kind_of(owner))
        user = "" if definer is None else await definer(owner) or ""
        outcomes = await reserve(self._control, [made], time.monotonic() + RESERVE_SECONDS, user)
        found = outcomes.get(envelope.id)
        if found is None or isinstance(found, Envelope):
            return None if found is None else found.id
        if isinstance(found, DuplicateJob):
            return found.existing_id
        raise found

    async def _copy(self, job_id: str, one: Claim) -> str | None:
        """Return a copy id that no other push of this job has; None if the job need not be pushed any more."""
        if one.by == self._coordinator and job_id not in self._tried:
            self._tried[job_id] = None
            return one.copies[0]
        copy = new_id()
        event_id = f"evt_{new_id()}"
        data = ClaimCopied(copy=copy, by=self._coordinator)
        await self._view.folded(event_id, lambda: self._broker.events.record(job_id, data, event_id=event_id))
        # Now everything is known that was told before: the job may have been pushed, and may have ended.
        found = await self._view.folded_row(key_of(job_id), Claim)
        return None if found is None or found.is_pushed else copy

    def _tell(self, job_id: str, one: Claim, envelope: Envelope, copy: str) -> None:
        events = self._broker.events
        key = None if envelope.unique is None else unique_key(envelope, read_unique(envelope.unique))
        enqueued = enqueued_event(envelope, envelope.queue, envelope.encode() if self._describes else None, key)
        events.record(job_id, enqueued, envelope.enqueued_at, event_id=push_event_id(job_id))
        on_pushed = self.on_pushed.get(kind_of(one.owner))
        if on_pushed is not None:
            on_pushed(job_id, one)
        events.record(job_id, ClaimPushed(copy=copy, by=self._coordinator))


def read_claimed(job: dict[str, object], now: datetime) -> Envelope:
    """Return the envelope in a claim, checked again, with the times of the claim.

    Raises InvalidJob naming the field.
    """
    envelope = parse_envelope(job, now)
    created_at = job.get("created_at")
    envelope.created_at = envelope.enqueued_at = created_at if isinstance(created_at, str) else None
    envelope.state = SCHEDULED if seconds_until_scheduled(envelope, now) > 0 else State.AVAILABLE.value
    envelope.max_attempts = envelope.policy.max_attempts
    return envelope


__all__ = ["ClaimPusher", "OnPushed", "read_claimed"]
