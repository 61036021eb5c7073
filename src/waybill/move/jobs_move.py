"""Moves a running job system from one broker to another.

    hold        no coordinator of the target may lead
    history     the streams of events and cancellations are copied up to their current end
    hand over   no coordinator of the source may lead; its lease ends; its last events are copied; those of the target
                may lead
    jobs        in rounds: claim the jobs in the queues of the source, copy the streams to their end, carry the jobs

A job reaches the target after its events, because each round copies the streams between claiming and carrying. Every
step can be repeated, and progress is read from the brokers: after a kill, run the move again.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.client import BasicProperties, Connection, Inspector, connect
from waybill.move.errors import MoveFailed
from waybill.move.identity import identity, lock
from waybill.move.leadership import LEASE_ENDS_SECONDS, hold, is_held, lift
from waybill.move.ledger import StreamPosition
from waybill.move.partitions import with_event_partitions, with_job_partitions
from waybill.move.places import Places
from waybill.move.plan import PlannedQueue, QueueWay, counted, headers_of, queue_ways, stream_names
from waybill.move.sessions import NO_RECONNECT, Sessions, opener
from waybill.move.shovel import IDLE_SECONDS
from waybill.move.stamp import InTransit, arriving
from waybill.move.stream_copy import StreamCopy
from waybill.move.transfer import QUORUM, Outgoing, Transfer
from waybill.ojs.spec.control_message import ControlRequest
from waybill.ojs.spec.events import ViewMarked, encode_events, event_source, make_event
from waybill.ojs.spec.headers import PERSISTENT
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.topology.declarer import TopologyDeclarer
from waybill.ojs.topology.discovery import known_queues
from waybill.ojs.topology.topology import Declaration, Topology

HISTORY: Final = timedelta(days=20_000)
LOOK_AGAIN_SECONDS: Final = 30.0
NAME: Final = "waybill move"
"""The name of the connections."""

_log = logging.getLogger("waybill.move")


@dataclass(frozen=True)
class Moved:
    """The progress of a run: the current `stage`, and the numbers of moved `jobs` and `events`."""

    stage: str = "connecting"
    jobs: int = 0
    events: int = 0


@dataclass(frozen=True)
class System:
    """A broker and its topology."""

    uri: str
    topology: Topology


class JobsMove:
    """`await JobsMove(System(a, Topology()), System(b, Topology()), ["email"]).run()`.

    Without queues, it moves those named by the events on the source.
    """

    def __init__(
        self,
        source: System,
        target: System,
        queues: Sequence[str] = (),
        *,
        keeps_user: bool = False,
        on_progress: Callable[[Moved], None] | None = None,
    ) -> None:
        """`keeps_user`: the target's login may publish for other users (RabbitMQ's tag `impersonator`)."""
        self.moved = Moved()
        self.sessions = Sessions(opener(source.uri, NAME), opener(target.uri, NAME))
        # Scheduled jobs on a ladder are moved to a ladder; those in a delayed exchange are moved when they are due.
        self._source = replace(source, topology=replace(source.topology, schedule_by="ladder"))
        self._target = replace(target, topology=replace(target.topology, schedule_by="ladder"))
        self._queues = list(dict.fromkeys(queues))
        self._keeps_user = keeps_user
        self._on_progress = on_progress

    def stop(self) -> None:
        """Stop after the current round."""
        self.sessions.stop()

    async def plan(self) -> list[PlannedQueue]:
        """Return the existing queues to move. Changes nothing.

        RabbitMQ's counts of stream messages are delayed.
        """
        async with (
            connect(self._source.uri, name=NAME, reconnect=NO_RECONNECT) as source,
            connect(self._target.uri, name=NAME, reconnect=NO_RECONNECT) as target,
        ):
            queues = await self._found_queues(source, target)
            old, new = self._source.topology, self._target.topology
            planned = await counted(source, queue_ways(old, new, queues))
            for name, target_name in stream_names(old, new):
                found = await Inspector(source).queue(name)
                count = None if found is None else found.message_count
                planned.append(PlannedQueue(name, target_name, "stream", count))
            return [one for one in planned if one.message_count is not None]

    async def run(self, *, follows: bool = False) -> Moved:
        """Move everything, until all queues of the source are empty, or until `stop` with `follows`.

        Continues after lost connections. Raises MoveFailed, and the errors of the first connection attempt.
        """
        await self.sessions.run(functools.partial(self._session, follows=follows))
        return self.moved

    async def _session(self, stack: AsyncExitStack, source: Connection, target: Connection, *, follows: bool) -> None:
        queues = await self._found_queues(source, target)
        if not queues:
            raise MoveFailed("the events on the source name no queue: specify the queues to move")
        session = await _Session.open(stack, self, (source, target), queues)
        if await session.has_handed_over():
            await session.declare()
        else:
            await session.begin()
            await session.copy_history()
            if not self.sessions.is_stopping:
                await session.hand_over()
        await session.move_jobs(follows=follows)

    async def _found_queues(self, source: Connection, target: Connection) -> list[str]:
        """Return the queues to move, and find the partitions on both sides.

        A queue with partitions is a placeholder that keeps nothing: jobs must not be sent there.
        """
        old = await with_event_partitions(source, self._source.topology)
        new = await with_event_partitions(target, self._target.topology)
        if not self._queues:
            self._queues = await known_queues(source, old, HISTORY)
        old = await with_job_partitions(source, old, self._queues)
        new = await with_job_partitions(target, new, self._queues)
        self._source, self._target = replace(self._source, topology=old), replace(self._target, topology=new)
        return self._queues

    # --- for its sessions ---

    @property
    def systems(self) -> tuple[System, System]:
        """The source and the target."""
        return self._source, self._target

    @property
    def keeps_user(self) -> bool:
        """Whether messages keep the ids of other users."""
        return self._keeps_user

    def tell(self, stage: str, *, jobs: int = 0, events: int = 0) -> None:
        """Report progress."""
        self.moved = Moved(stage, self.moved.jobs + jobs, self.moved.events + events)
        if self._on_progress is not None:
            self._on_progress(self.moved)


class _Session:
    """A move over one pair of connections."""

    def __init__(self, move: JobsMove, connections: tuple[Connection, Connection], queues: Sequence[str]) -> None:
        """Use `open`."""
        self._move = move
        self._source, self._target = connections
        self._old, self._new = (system.topology for system in move.systems)
        self._queues = queues
        self._streams: dict[str, StreamCopy] = {}
        self._ids = ("", "")
        self._places = Places(self._source, self._old, self._target, self._new)
        self._transfer: Transfer
        self._ways: dict[str, QueueWay] = {way.source: way for way in queue_ways(self._old, self._new, queues)}
        self._present: list[str] = []
        self._looked_at = float("-inf")

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        move: JobsMove,
        connections: tuple[Connection, Connection],
        queues: Sequence[str],
    ) -> _Session:
        """Take the locks, open the transfer and the streams."""
        one = cls(move, connections, queues)
        topologies, prefixes = (one._old, one._new), (one._old.prefix, one._new.prefix)
        ids: list[str] = []
        for connection, topology in zip(connections, topologies, strict=True):
            # If source and target are the same broker, the second lock fails.
            await lock(connection, f"{topology.prefix}waybill.move.lock")
            arguments = QUORUM if topology.queue_type == "quorum" else {}
            ids.append(await identity(connection, f"{topology.prefix}waybill.move.identity", arguments))
        one._transfer = Transfer(
            *connections, f"{prefixes[0]}waybill.move.transit.{ids[1]}", f"{prefixes[1]}waybill.move.ledger.{ids[0]}"
        )
        is_quorum = "quorum" in {one._old.queue_type, one._new.queue_type}
        await one._transfer.open(stack, QUORUM if is_quorum else {})
        one._ids = ids[0], ids[1]
        await one._open_streams()
        return one

    async def _open_streams(self) -> None:
        """Open the existing streams: the first worker creates that of cancellations."""
        user = self._target.address.settings.user
        for name, target_name in stream_names(self._old, self._new):
            mark = _relay_mark if name == self._old.relay_stream else _event_mark
            if name in self._streams or await Inspector(self._source).queue(name) is None:
                continue
            names = name, target_name
            copy = StreamCopy(self._source, names, self._ids, mark, user, keeps_user=self._move.keeps_user)
            await copy.open(self._transfer.record.streams.get(name))
            self._streams[name] = copy

    # --- steps ---

    async def has_handed_over(self) -> bool:
        """Whether the coordinators of the target may lead, and those of the source may not."""
        return await is_held(self._source, self._old) and not await is_held(self._target, self._new)

    async def begin(self) -> None:
        """Hold the leadership on the target, declare the queues and exchanges for jobs there, and copy pauses."""
        await hold(self._target, self._new)
        await self.declare()
        async with await self._target.channel() as channel:
            for queue in self._queues:
                if await Inspector(self._source).queue(self._old.pause(queue)) is not None:
                    mark, arguments = self._new.pause(queue), self._new.control_arguments()
                    await channel.declare_queue(mark, durable=True, arguments=arguments)

    async def declare(self) -> None:
        """Declare the queues and exchanges for jobs on the target; existing queues are not changed."""
        self._move.tell("declaring")
        async with await self._target.channel() as channel:
            declarer = TopologyDeclarer(channel, replace(self._new, declaration=Declaration.EAGER))
            for queue in self._queues:
                await declarer.ensure_queue(queue, as_found=True)

    async def copy_history(self) -> None:
        """Copy the streams up to their present end."""
        await self._copy_to_end("history")

    async def hand_over(self) -> None:
        """Let the coordinators of the target lead instead of those of the source."""
        self._move.tell("handing over")
        leader = await Inspector(self._source).queue(self._old.leader_queue)
        # A killed move may have started the hold just before.
        may_lead = leader is not None and (leader.consumer_count > 0 or await is_held(self._source, self._old))
        await hold(self._source, self._old)
        if may_lead:
            await self._move.sessions.sleep(LEASE_ENDS_SECONDS)
        await self._copy_to_end("handing over")
        await lift(self._target, self._new)
        _log.info("the coordinators of the target have taken over")

    async def move_jobs(self, *, follows: bool) -> None:
        """Move jobs in rounds."""
        sessions = self._move.sessions
        self._move.tell("jobs")
        while True:
            claimed = 0 if sessions.is_stopping else await self._claim()
            if claimed:
                await self._copy_to_end("jobs")
            else:
                for stream in self._streams.values():
                    await stream.copy_arrived(self._commit_events)
            carried = 0
            while batch := await self._carry():
                carried += batch
            if claimed or carried:
                continue
            if sessions.is_stopping or not follows:
                # The last events of the source.
                await self._copy_to_end("jobs")
                return
            await sessions.pause(IDLE_SECONDS)

    # --- helpers for jobs ---

    async def _claim(self) -> int:
        now = time.monotonic()
        if now - self._looked_at > LOOK_AGAIN_SECONDS:
            self._looked_at = now
            planned = await counted(self._source, list(self._ways.values()))
            self._present = [one.source for one in planned if one.message_count is not None]
            await self._open_streams()
        claimed = 0
        for name in self._present:
            claimed += await self._transfer.claim(name)
        return claimed

    async def _copy_to_end(self, stage: str) -> None:
        self._move.tell(stage)
        for stream in self._streams.values():
            await stream.copy_to_end(self._commit_events)

    async def _commit_events(self, outgoing: Sequence[Outgoing], positions: Mapping[str, StreamPosition]) -> None:
        await self._transfer.commit(outgoing, positions)
        self._move.tell(self._move.moved.stage, events=len(outgoing))

    async def _carry(self) -> int:
        fresh, arrived = await self._transfer.take()
        if fresh:
            await self._transfer.commit([await self._outgoing(one) for one in fresh])
            self._move.tell("jobs", jobs=len(fresh))
        for one in (*arrived, *fresh):
            await self._places.left(one)
        self._transfer.acknowledge([*arrived, *fresh])
        return len(fresh) + len(arrived)

    async def _outgoing(self, message: InTransit) -> Outgoing:
        way = self._ways.get(message.stamp.queue)
        if way is None:
            raise MoveFailed(f"messages of {message.stamp.queue} are in transit: also specify its OJS queue")
        properties = arriving(message, self._target.address.settings.user, keeps_user=self._move.keeps_user)
        properties = await self._places.taken(message, properties)
        exchange, key = way.way(message, headers_of(message.properties))
        return Outgoing(exchange, key, properties, message.body, message)


def _event_mark() -> tuple[BasicProperties, bytes]:
    """Return an event that changes nothing."""
    source = event_source("clients", "waybill-move")
    event = make_event(source, format_timestamp(datetime.now(UTC)), "move", ViewMarked())
    event_type, body = encode_events([event])
    return BasicProperties(type=event_type, delivery_mode=PERSISTENT), body


def _relay_mark() -> tuple[BasicProperties, bytes]:
    """Return a message that workers ignore."""
    return BasicProperties(type="move.mark", delivery_mode=PERSISTENT), msgspec.json.encode(ControlRequest())
