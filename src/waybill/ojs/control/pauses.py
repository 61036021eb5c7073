"""Paused queues: workers cancel their consumers, jobs stay in the queue, pushes continue.

Both parts are plain AMQP. A durable, empty queue with a certain name marks a queue as paused: it outlives workers,
coordinators and the broker, and workers that start later can check for it. A change is announced by a message to the
relay exchange, which reaches every worker immediately. A worker that receives one, or has lost its connection, checks
the mark again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from waybill.client import ClientError, Inspector
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.spec.control_message import PAUSE, RESUME, ControlRequest
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import QueuePaused, QueueResumed
from waybill.ojs.spec.timestamps import format_timestamp

CONFIRM_SECONDS: Final = 30.0
ASKED_AT_ONCE: Final = 20
"""How many queues the broker is asked for at a time: others wait meanwhile."""

_log = logging.getLogger("waybill.ojs.worker")


async def pause_queue(broker: BrokerConnection, queue: str, by: str | None = None) -> bool:
    """Pause an OJS queue for all workers; False if it was already paused. `by` names the requester in the event."""
    topology = broker.declarer.topology
    marker = topology.pause(queue)
    was_paused = await is_paused(broker, queue)
    async with await broker.connection.channel() as channel:
        await channel.declare_queue(marker, durable=True, arguments=topology.control_arguments() or None)
    # Must not be declared again after a reconnect: the queue may have been resumed meanwhile.
    broker.connection.declarations.queue_deleted(marker)
    await _announce(broker, PAUSE, queue, QueuePaused(queue=queue, paused_by=by))
    return not was_paused


async def resume_queue(broker: BrokerConnection, queue: str, by: str | None = None) -> bool:
    """Let workers consume an OJS queue again; False if it was not paused."""
    was_paused = await is_paused(broker, queue)
    async with await broker.connection.channel() as channel:
        await channel.delete_queue(broker.declarer.topology.pause(queue))
    await _announce(broker, RESUME, queue, QueueResumed(queue=queue, resumed_by=by))
    return was_paused


async def is_paused(broker: BrokerConnection, queue: str) -> bool:
    """Whether an OJS queue is paused."""
    return await Inspector(broker.connection).queue(broker.declarer.topology.pause(queue)) is not None


async def paused_among(broker: BrokerConnection, queues: Sequence[str]) -> set[str]:
    """Return which of these OJS queues are paused. Raises ClientError."""
    paused: set[str] = set()
    for start in range(0, len(queues), ASKED_AT_ONCE):
        some = queues[start : start + ASKED_AT_ONCE]
        answers = await asyncio.gather(*(is_paused(broker, queue) for queue in some))
        paused.update(queue for queue, stands in zip(some, answers, strict=True) if stands)
    return paused


async def _announce(broker: BrokerConnection, kind: str, queue: str, data: EventData) -> None:
    """Tell all workers, and write the event; returns when the broker has both."""
    await broker.declarer.ensure_relay()
    await broker.declarer.ensure_shared()
    await broker.tell_workers(kind, ControlRequest(queue=queue))
    broker.events.record(queue, data, format_timestamp(datetime.now(UTC)))
    confirmed = asyncio.Event()
    broker.events.after(confirmed.set)
    async with asyncio.timeout(CONFIRM_SECONDS):
        await confirmed.wait()


class PausedQueues:
    """The paused queues of a worker: read at its start, and each time they may have changed."""

    def __init__(self, broker: BrokerConnection, queues: Sequence[str], on_change: Callable[[], None]) -> None:
        """`on_change` is called when `queues`, the paused ones, has changed."""
        self.queues: frozenset[str] = frozenset()
        self._broker = broker
        self._watched = queues
        self._on_change = on_change
        self._looking: asyncio.Task[None] | None = None
        self._changed: dict[str, None] = {}
        """Queues to check."""

    async def look(self, queues: Sequence[str] | None = None) -> None:
        """Check some queues, or all, with the broker. Raises ClientError."""
        watched = dict.fromkeys(self._watched)
        looked_at = [*watched] if queues is None else [queue for queue in queues if queue in watched]
        paused = await paused_among(self._broker, looked_at)
        self.queues = self.queues.difference(looked_at) | paused

    def look_soon(self, queue: str = "") -> None:
        """Check a queue with the broker in the background, or all, because something may have changed."""
        self._changed |= dict.fromkeys([queue] if queue else self._watched)
        if self._looking is None or self._looking.done():
            self._looking = self._broker.connection.spawn(self._look_again())

    async def _look_again(self) -> None:
        while self._changed:
            queues, self._changed = [*self._changed], {}
            before = self.queues
            try:
                await self.look(queues)
            except ClientError as error:
                # After the reconnect, they are checked again.
                _log.debug("could not find out which queues are paused: %s", error)
                return
            if self.queues != before:
                self._on_change()
