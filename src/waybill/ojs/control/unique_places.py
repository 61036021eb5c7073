"""The places of unique jobs on Waybill's broker, which work without a coordinator.

A place is a durable queue, `ojs.unique.{fingerprint}`, with one message: the id of the job that has the place. To read
or change it, a client first takes its turn: it declares the exclusive queue `ojs.unique.{fingerprint}.turn`, which the
broker gives to one connection at a time, and deletes when that connection ends.

    push    turn -> nobody there -> one transaction: the id into the place, the job into its queue
    start   turn -> the id is that of the job: it may run; else it has ended before, and is acknowledged
    end     job.completed confirmed -> turn -> the id is taken out -> the job is acknowledged

A whole turn uses one socket, and nothing is repeated on another. So a client that is killed or cut off leaves both a
job and its place, or neither. A client that hung finds its connection closed when it continues.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from waybill.client import BasicProperties, Connection, Delivery, PreconditionFailed, ResourceLocked
from waybill.client.side_channel import SideChannel
from waybill.ojs.spec.headers import PERSISTENT, PLACE
from waybill.ojs.topology.topology import Topology

FIRST_PAUSE_SECONDS: Final = 0.002
MAX_PAUSE_SECONDS: Final = 0.1

_ENCODED_PLACE: Final = bytes([len(PLACE)]) + PLACE.encode() + b"S"
_FINGERPRINT: Final = re.compile("[0-9a-f]{64}")


class Refused(Exception):
    """The broker has not accepted the job; the place is free."""

    def __init__(self, *, is_returned: bool) -> None:
        """`is_returned`: no queue is bound for the job. Otherwise its queue is full."""
        super().__init__("no queue is bound for it" if is_returned else "its queue is full")
        self.is_returned = is_returned


def place_of(delivery: Delivery) -> str | None:
    """Return the fingerprint in the header of a job, None if it has no place. Never raises."""
    if _ENCODED_PLACE not in delivery.encoded_properties:
        return None
    try:
        place = (delivery.properties.headers or {}).get(PLACE)
    except ValueError:
        return None
    return place if isinstance(place, str) and _FINGERPRINT.fullmatch(place) else None


class UniquePlaces:
    """The places on one broker, over one connection."""

    def __init__(self, connection: Connection, topology: Topology) -> None:
        self._connection = connection
        self._topology = topology
        self._own_turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(
        self,
        key: str,
        job_id: str,
        publish: Callable[[SideChannel], None],
        *,
        lasts_ms: int | None,
        may_replace: Callable[[str], Awaitable[bool]],
    ) -> str | None:
        """Put a job into its place and publish it, atomically; return the id of the job that already has the place.

        A job that already has the place is not published again. `publish` is called in the transaction, `may_replace`
        is asked about another job that has the place. Raises Refused, and ClientError if the outcome is unknown.
        """
        name = self._topology.unique_place(key)
        async with self._turn(name) as turn:
            try:
                async with turn.another() as channel:
                    await channel.declare_queue(name, durable=True)
                    found = await channel.get(name)
                    holder = _holder(found)
                    if holder == job_id:
                        return None
                    if holder is not None and not await may_replace(holder):
                        return holder
                    await channel.tx_select()
                    if found is not None:
                        found.ack()
                    properties = BasicProperties(
                        message_id=job_id,
                        delivery_mode=PERSISTENT,
                        expiration=None if lasts_ms is None else str(lasts_ms),
                    )
                    channel.publish(b"", routing_key=name, properties=properties)
                    publish(channel)
                    await _commit(channel)
            except Refused:
                # The rest of the transaction was accepted.
                await self._leave(turn, name, job_id)
                raise
        return None

    async def release(self, key: str, job_id: str) -> None:
        """Free a place if this job has it. Raises ClientError."""
        name = self._topology.unique_place(key)
        async with self._turn(name) as turn:
            await self._leave(turn, name, job_id)

    async def holder(self, key: str) -> str | None:
        """Return the id of the job that has a place. Raises ClientError."""
        name = self._topology.unique_place(key)
        async with self._turn(name) as turn, turn.another() as channel:
            await channel.declare_queue(name, durable=True)
            holder = _holder(await channel.get(name))
            if holder is None:
                channel.delete_queue(name, if_empty=True)
        return holder

    async def _leave(self, turn: SideChannel, name: str, job_id: str) -> None:
        async with turn.another() as channel:
            await channel.declare_queue(name, durable=True)
            found = await channel.get(name)
            holder = _holder(found)
            if found is not None and holder == job_id:
                await channel.tx_select()
                found.ack()
                await channel.tx_commit()
            if holder in {None, job_id}:
                channel.delete_queue(name, if_empty=True)

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[SideChannel]:
        """Hold the turn of a place. Channels that are opened meanwhile must be on the same socket."""
        own = self._own_turns.get(name)
        if own is None:
            own = self._own_turns[name] = asyncio.Lock()
        # The broker tells connections apart, not channels.
        async with own, AsyncExitStack() as stack:
            yield await self._begin_turn(stack, f"{name}.turn")

    async def _begin_turn(self, stack: AsyncExitStack, name: str) -> SideChannel:
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with AsyncExitStack() as attempt:
                    turn = await attempt.enter_async_context(self._connection.side_channel())
                    await turn.declare_queue(name, exclusive=True)
                    # After the channels that were opened in this turn: their messages are requeued before the turn
                    # ends.
                    attempt.callback(turn.delete_queue, name)
                    stack.push_async_exit(attempt.pop_all())
                    return turn
            except ResourceLocked:
                await asyncio.sleep(pause_seconds * (0.5 + random.random()))  # noqa: S311 - jitter
            pause_seconds = min(2 * pause_seconds, MAX_PAUSE_SECONDS)


def _holder(found: Delivery | None) -> str | None:
    return None if found is None else found.properties.message_id or ""


async def _commit(channel: SideChannel) -> None:
    """Commit. Raises Refused if the job was returned, or a full queue has rejected it."""
    try:
        await channel.tx_commit()
    except PreconditionFailed as error:
        raise Refused(is_returned=False) from error
    if channel.returned:
        raise Refused(is_returned=True)
