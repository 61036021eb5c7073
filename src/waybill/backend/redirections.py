"""Moves jobs to another queue (ojs-queue-config sections 5.3 and 6.4).

These are dead letters whose queue has a `dead_letter_queue`, and the jobs of a queue that is deleted with the strategy
`move`. A job is published to the other queue, its event is recorded, then the first message is settled. Servers of one
broker share the work: each takes messages that the others do not see. A deleted queue is watched until all of its jobs
have ended or moved, because those that are scheduled, will be retried or run reach it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.dead_letter_list import DeadLetterList
from waybill.backend.job_form import EXPIRED, UNFINISHED
from waybill.backend.queue_configs import DEFAULT
from waybill.backend.repeated import Repeated
from waybill.client import Delivery, Inspector
from waybill.ojs.coordinator.markers import catch_up
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.enqueued_event import enqueued_event
from waybill.ojs.spec.envelope import Envelope, edit_envelope
from waybill.ojs.spec.headers import requeue_properties, run_number
from waybill.ojs.spec.timestamps import time_after
from waybill.ojs.worker.delivered_job import read_delivered

PAUSE_SECONDS: Final = 1.0
CONFIRM_SECONDS: Final = 30.0
AT_A_TIME: Final = 100
QUIET_LOOKS: Final = 10


class Redirections(Repeated):
    """The moves of one server."""

    def __init__(self, backend: Backend, on_moved: Callable[[str], Awaitable[None]]) -> None:
        """`on_moved` is called with a deleted queue when all of its jobs have moved. Call this within the loop."""
        super().__init__(PAUSE_SECONDS, "jobs could not be moved to other queues")
        self._backend = backend
        self._on_moved = on_moved
        self._dead = DeadLetterList(backend)
        self._left: dict[str, int] = {}
        """How many dead letters of a queue stay, because they are older than its setting or cannot be moved."""
        self._seen = -1
        self._quiet_count = 0
        """How often no event was seen in a row: a dead letter arrives shortly after the event of its failure."""

    async def work(self) -> None:
        """Move dead letters, and the jobs of deleted queues."""
        await self._move_dead()
        for queue, move in self._backend.extensions.queue_moves.items():
            await self.move(queue, move.target)

    # --- deleted queues ---

    async def move(self, queue: str, target: str) -> None:
        """Move the waiting jobs of a queue. When there are no others, the move is over. Raises ClientError."""
        backend = self._backend
        broker = backend.broker
        await broker.declarer.ensure_queue(target)
        await backend.coordinate_queue(target)
        for name in broker.declarer.topology.job_queues(queue):
            if await Inspector(broker.connection).queue(name) is None:
                continue
            async with await broker.connection.channel() as channel:
                while deliveries := await channel.get_many(name, AT_A_TIME):
                    moved = [one for one in deliveries if await self._move(one, queue, target)]
                    await self._recorded()
                    for delivery in moved:
                        delivery.ack()
        counts = await backend.counts()
        if not any(counts.get((queue, state), 0) for state in UNFINISHED):
            await backend.extensions.queue_moves.remove(queue)
            await self._on_moved(queue)

    async def _recorded(self) -> None:
        """Wait until the events so far are safe. Raises TimeoutError."""
        recorded = asyncio.Event()
        self._backend.broker.events.after(recorded.set)
        async with asyncio.timeout(CONFIRM_SECONDS):
            await recorded.wait()

    async def _move(self, delivery: Delivery, queue: str, target: str) -> bool:
        """Publish a job to another queue, and record that; False for a message that is no job. Raises ClientError."""
        broker = self._backend.broker
        try:
            envelope = read_delivered(delivery)
        except InvalidJob as error:
            self._backend.settlement.unreadable(delivery, queue, error)
            return False
        if delivery.redelivered and await self._has_moved(envelope, target):
            return True
        now = time_after(envelope.enqueued_at, datetime.now(UTC))
        body = edit_envelope(delivery.body, {"queue": target, "enqueued_at": now})
        properties, run = requeue_properties(delivery.properties), run_number(delivery.encoded_properties) or 0
        await broker.publishing.publish(
            body,
            exchange=broker.declarer.topology.direct,
            routing_key=target,
            properties=properties,
            mandatory=True,
        )
        broker.events.record(envelope.id, enqueued_event(envelope, target, body, run=run), now)
        return True

    async def _has_moved(self, envelope: Envelope, target: str) -> bool:
        """Whether a server has moved a job and died before it settled this message."""
        await catch_up(self._backend.view, self._backend.broker.events)
        job = await self._backend.view.get(envelope.id)
        return job is not None and job.queue == target and (job.enqueued_at or "") > (envelope.enqueued_at or "")

    # --- dead letters ---

    async def _move_dead(self) -> None:
        configs, seen = self._backend.extensions.queue_configs, self._backend.events.seen_count
        wanted = [name for name, config in configs.table.known.items() if config.dead_letter_queue]
        self._quiet_count = self._quiet_count + 1 if seen == self._seen else 0
        self._seen = seen
        if not wanted or self._quiet_count > QUIET_LOOKS:
            return
        for queue in await self._backend.job_queues() if DEFAULT in wanted else wanted:
            config, count = configs.of(queue), await self._dead.count(queue)
            target = config.dead_letter_queue
            if target and target != queue and count and count != self._left.get(queue):
                await self._move_letters(queue, target, config.dead_letter_since or "")
                self._left[queue] = await self._dead.count(queue)

    async def _move_letters(self, queue: str, target: str, since: str) -> None:
        """Move the dead letters of jobs that have failed since a time; those of expired jobs stay."""
        wanted: dict[str, dict[str, object]] = {}
        for form in await self._dead.all_of(queue):
            error = form.get("error")
            is_expired = isinstance(error, dict) and error.get("code") == EXPIRED
            if str(form.get("discarded_at") or form.get("died_at") or "") > since and not is_expired:
                wanted[str(form["id"])] = {name: form[name] for name in ("error", "errors") if name in form}
        if wanted:
            await self._backend.coordinate_queue(target)
            await self._dead.move(queue, wanted, target)
