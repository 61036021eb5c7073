"""Pushes unique jobs: with the decision of a coordinator, with a place on the broker, or both.

                      a coordinator runs                        none runs
    Waybill's broker  it decides, and the job takes its place   the place decides
    RabbitMQ          it decides                                an error at once

With both, a push finds the jobs that were pushed while no coordinator ran, and vice versa. A job has its place from its
push to its end, whatever happens in between: other policies need a coordinator.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Final

from waybill.client import AccessRefused, ClientError, ConnectionLost
from waybill.client.side_channel import SideChannel
from waybill.ojs.control.control import Control
from waybill.ojs.control.reservations import release, reserve
from waybill.ojs.control.unique_places import Refused
from waybill.ojs.coordinator.job_fold import has_ended
from waybill.ojs.errors import ControlFailed, DuplicateJob, PushFailed
from waybill.ojs.push.new_envelope import stamp
from waybill.ojs.push.outgoing import Outgoing, record
from waybill.ojs.push.publisher import Publisher, encode_all, is_back
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.unique import DEFAULT_STATES, Unique, read_unique
from waybill.ojs.topology.topology import Declaration, Topology

AT_A_TIME: Final = 50
INFO_SECONDS: Final = 10.0
UNKNOWN: Final = "unknown"
"""The reported state of a job that has a place, if nothing more is known."""


async def enqueue_unique(
    control: Control, publisher: Publisher, jobs: list[Outgoing], now: datetime, *, describes: bool = False
) -> list[Envelope | PushFailed]:
    """Publish jobs that are not unique or get their places; return the outcome of each, in order."""
    push = UniquePush(control, publisher, describes=describes)
    outcomes = await push.run([one for one in jobs if one.unique_key is not None], now)
    rest = [one for one in jobs if one.envelope.id not in outcomes]
    if rest:
        encode_all(rest, describes=describes)
        pushed = await publisher.enqueue(rest, now)
        outcomes |= {one.envelope.id: outcome for one, outcome in zip(rest, pushed, strict=True)}
        await release(
            control,
            [
                one
                for one, outcome in zip(rest, pushed, strict=True)
                if one.unique_key and isinstance(outcome, PushFailed)
            ],
        )
    return [outcomes[one.envelope.id] for one in jobs]


class UniquePush:
    """One push of unique jobs."""

    def __init__(self, control: Control, publisher: Publisher, *, describes: bool = False) -> None:
        self._describes = describes
        self._control = control
        self._publisher = publisher
        self._broker = publisher.broker
        self._topology = self._broker.declarer.topology
        self._deadline = time.monotonic() + publisher.timeout_seconds
        self._heard: dict[str, bool] = {}
        """By queue: whether a coordinator reads its requests."""

    async def run(self, jobs: list[Outgoing], now: datetime) -> dict[str, Envelope | PushFailed]:
        """Return outcomes by job id; a job that is missing there has its reservation and can be published normally."""
        policies = {one.envelope.id: read_unique(one.envelope.unique or {}) for one in jobs}
        try:
            async with asyncio.timeout(self._left()):
                await self._listen({one.envelope.queue for one in jobs})
        except TimeoutError:
            return {one.envelope.id: _out_of_reach(one) for one in jobs}
        except ClientError as error:
            return {one.envelope.id: PushFailed(one.envelope.id, "BACKEND_UNAVAILABLE", str(error)) for one in jobs}
        outcomes: dict[str, Envelope | PushFailed] = {}
        for one in jobs:
            reason = None if self._heard[one.envelope.queue] else self._why_not(one, policies[one.envelope.id])
            if reason is not None:
                outcomes[one.envelope.id] = PushFailed(one.envelope.id, "BACKEND_UNAVAILABLE", reason)
        known = [one for one in jobs if self._heard[one.envelope.queue]]
        outcomes |= await reserve(self._control, known, self._deadline)
        limit = asyncio.Semaphore(AT_A_TIME)
        places: list[Outgoing] = []
        for one in jobs:
            # A job that took over the time of the job it replaces is scheduled.
            stamp(one.envelope, now)
            if one.envelope.id not in outcomes and self._has_places(one, policies[one.envelope.id]):
                places.append(one)

        async def place(one: Outgoing) -> None:
            async with limit:
                outcomes[one.envelope.id] = await self._place(one, policies[one.envelope.id], now)

        await asyncio.gather(*(place(one) for one in places))
        if places:
            await self._publisher.recorded()
            held = [one for one in places if self._heard[one.envelope.queue]]
            await release(self._control, [one for one in held if _has_failed(one, outcomes[one.envelope.id])])
        return outcomes

    async def _listen(self, queues: set[str]) -> None:
        """Find out where coordinators run, retrying after lost connections."""
        while True:
            try:
                for queue in queues:
                    self._heard[queue] = await self._control.is_heard(queue)
                return
            except ConnectionLost:
                if not await is_back(self._broker, self._deadline):
                    raise

    # --- choosing the method ---

    def _has_places(self, one: Outgoing, policy: Unique) -> bool:
        """Return whether the broker can hold a place for the job from its push to its end."""
        return (
            self._broker.connection.is_waybill
            and set(policy.states) == set(DEFAULT_STATES)
            and _keeps_jobs(self._topology)
            and "enqueue_ttl" not in one.options
        )

    def _why_not(self, one: Outgoing, policy: Unique) -> str | None:
        """Return why a job cannot be unique without a coordinator, None if it can."""
        queue, connection = one.envelope.queue, self._broker.connection
        hint = f"run `waybill coordinator {queue}`, or one of its workers with coordinator=True"
        if not connection.is_waybill:
            return f"no coordinator runs for queue {queue}, which unique jobs need on {connection.product}: {hint}"
        if policy.on_conflict not in {"reject", "ignore"}:
            reason = f"unique.on_conflict {policy.on_conflict!r} needs one"
        elif set(policy.states) != set(DEFAULT_STATES):
            reason = "unique.states other than the default need one"
        elif not self._has_places(one, policy):
            reason = (
                "unique jobs need one if the broker can drop or expire them, or if their queues are declared elsewhere"
            )
        else:
            return None
        return f"no coordinator runs for queue {queue}, and {reason}: {hint}"

    # --- with a place queue ---

    async def _place(self, one: Outgoing, policy: Unique, now: datetime) -> Envelope | PushFailed:
        """Publish a job with its place, retrying after lost connections; return the outcome."""
        job_id, publisher, broker = one.envelope.id, self._publisher, self._broker
        encode_all([one], describes=self._describes)
        one.place = one.unique_key
        is_declared_again = False
        while True:
            try:
                async with asyncio.timeout(self._left()):
                    await publisher.declare([one.envelope])
                    if broker.connection.blocked is not None:
                        await broker.publishing.drain()
                    publisher.address(one, now)
                    holder = await self._take(one, policy)
                break
            except PushFailed as error:
                return error
            except Refused as error:
                if not error.is_returned or is_declared_again:
                    code = "NOT_FOUND" if error.is_returned else "QUEUE_FULL"
                    return PushFailed(job_id, code, str(error))
                is_declared_again = True
                broker.declarer.forget_queue(one.envelope.queue)
            except AccessRefused as error:
                return PushFailed(
                    job_id, "BACKEND_UNAVAILABLE", f"its place in the queue of unique jobs is refused: {error}"
                )
            except TimeoutError:
                return _out_of_reach(one)
            except ClientError:
                if not await is_back(broker, self._deadline):
                    return _out_of_reach(one)
        if holder is not None:
            return self._duplicate(one, policy, holder)
        record(broker, one)
        broker.events.counters.pushed[one.envelope.queue] += 1
        return one.envelope

    async def _take(self, one: Outgoing, policy: Unique) -> JobInfo | None:
        """Publish a job with its place; return the id of the job that already has the place."""
        obstacle: JobInfo | None = None
        is_heard = self._heard[one.envelope.queue]

        async def may_replace(holder: str) -> bool:
            nonlocal obstacle
            obstacle = await self._known(holder, one.envelope.queue) if is_heard else None
            obstacle = obstacle or JobInfo(id=holder, type=one.envelope.type, queue=one.envelope.queue, state=UNKNOWN)
            # The coordinator has given the job its place, so a job that has ended, or is too old, does not conflict.
            return has_ended(obstacle) or (is_heard and policy.period is not None)

        def publish(channel: SideChannel) -> None:
            channel.publish(one.body, exchange=one.exchange, routing_key=one.key, properties=one.properties)

        lasts_ms = None if policy.period is None else max(1, round(policy.period.total_seconds() * 1000))
        holder = await self._publisher.places.take(
            one.unique_key or "", one.envelope.id, publish, lasts_ms=lasts_ms, may_replace=may_replace
        )
        return None if holder is None else obstacle

    async def _known(self, job_id: str, queue: str) -> JobInfo | None:
        try:
            return await self._control.info(job_id, queue, min(INFO_SECONDS, self._left()))
        except ControlFailed:
            return None

    def _duplicate(self, one: Outgoing, policy: Unique, found: JobInfo) -> Envelope | PushFailed:
        if policy.on_conflict != "ignore":
            return DuplicateJob(one.envelope.id, found.id, found.state or UNKNOWN, one.unique_key or "")
        there = Envelope(id=found.id, type=found.type, queue=found.queue, state=found.state)
        there.is_duplicate = True
        return there

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _keeps_jobs(topology: Topology) -> bool:
    """Return whether a job can leave its queue only through a worker, and places can be declared."""
    is_limited = topology.max_length is not None or topology.max_length_bytes is not None
    return (
        topology.declaration is not Declaration.NEVER
        and topology.message_ttl_ms is None
        and (topology.reject_when_full or not is_limited)
    )


def _has_failed(one: Outgoing, outcome: Envelope | PushFailed) -> bool:
    return isinstance(outcome, PushFailed) or outcome.id != one.envelope.id


def _out_of_reach(one: Outgoing) -> PushFailed:
    return PushFailed(one.envelope.id, "BACKEND_UNAVAILABLE", "the broker cannot be reached")
