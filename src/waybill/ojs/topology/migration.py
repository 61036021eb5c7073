"""Moves the jobs of OJS queues from one topology to another (names, prefix or queue type) without losing any.

A queue with a new name is filled from the old one. A queue that keeps its name but not its properties must be deleted
and declared again, so its jobs wait in a holding queue meanwhile:

    bind holding, unbind old -> move old to holding -> delete old (if empty and unused) -> declare new and bind it
    -> unbind holding -> move holding to new -> delete holding (if empty)

Each message is published, mandatory and confirmed, before it is acknowledged at its source. Each run reads from the
broker what has to be done, so a migration that was killed at any point is finished by running it again. A kill leaves
at most WINDOW messages in two places; duplicates that meet in a holding queue are dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from waybill.client import (
    Connection,
    Delivery,
    Inspector,
    ReconnectPolicy,
    connect,
)
from waybill.client.service import Service
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.headers import ATTEMPT, SCHEDULED_AT
from waybill.ojs.spec.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology import delay_ladder
from waybill.ojs.topology.broker_changes import BrokerChanges, declare_one
from waybill.ojs.topology.declarations import BindingDeclaration, Entity, ExchangeDeclaration, QueueDeclaration
from waybill.ojs.topology.mover import Destination, Mover, Progress
from waybill.ojs.topology.repartition import HOLDING, Division
from waybill.ojs.topology.topology import Topology


@dataclass(frozen=True)
class Move:
    """A queue of the broker that is to become another. `count` messages wait in it and in its holding queue."""

    source: str
    target: str
    count: int
    in_place: bool


@dataclass(frozen=True)
class _Pair:
    """A queue and its successor. `level` is set for the queues of the delay ladder."""

    old: QueueDeclaration
    new: QueueDeclaration
    old_bindings: Sequence[BindingDeclaration]
    new_bindings: Sequence[BindingDeclaration]
    level: int | None = None

    @property
    def holding(self) -> str:
        return HOLDING.format(queue=self.old.name)

    @property
    def in_place(self) -> bool:
        return self.old.name == self.new.name


class Migration(Service):
    """`async with Migration(uri, old, new) as migration: await migration.run(["email"])`.

    Connects once and does not reconnect: run it again after a lost connection. The event streams stay where they are.
    """

    def __init__(self, uri: str, old: Topology, new: Topology) -> None:
        self._uri = uri
        self._given = old, new
        # Messages on the ladder leave it in time, wherever new jobs will wait.
        self._old = replace(old, schedule_by="ladder")
        self._new = replace(new, schedule_by="ladder")
        self._connection: Connection | None = None
        self._user = ""

    async def start(self) -> None:
        self._connection = await connect(self._uri, name="waybill migration", reconnect=ReconnectPolicy(max_attempts=0))
        self._user = self._connection.address.settings.user

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    @property
    def _changes(self) -> BrokerChanges:
        return BrokerChanges(self._open)

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("use a migration in `async with`")
        return self._connection

    async def plan(self, queues: Sequence[str]) -> list[Move]:
        """Return what `run` would do now; changes nothing."""
        planned: list[Move] = []
        for one, counts in await self._pending(queues):
            if isinstance(one, Division):
                planned += [Move(name, one.target, count, in_place=False) for name, count in counts.items()]
            else:
                planned.append(Move(one.old.name, one.new.name, sum(counts.values()), one.in_place))
        return planned

    async def run(
        self,
        queues: Sequence[str],
        *,
        rate: float | None = None,
        delete: bool = False,
        on_progress: Progress | None = None,
    ) -> int:
        """Move everything; returns how many messages were moved.

        Name all queues of a prefix together: they share the delay ladder, which changes with the queue type. `rate` is
        in messages a second. `delete` removes old queues with another name once they are empty. Raises MigrationBlocked
        before anything is done if a queue has consumers, and the client's errors: run it again then.
        """
        pending = await self._pending(queues)
        await self._changes.require_no_consumers([name for _, counts in pending for name in counts])
        async with await self._open.channel() as channel:
            # Only the exchanges: existing queues are about to be replaced.
            for topology in (self._old, self._new, *self._given):
                for entity in [*topology.shared_entities(), *topology.schedule_entities()]:
                    if isinstance(entity, ExchangeDeclaration):
                        await declare_one(channel, entity)
            for entity in [entity for queue in queues for entity in self._new.job_queue_entities(queue)]:
                if isinstance(entity, ExchangeDeclaration):
                    await declare_one(channel, entity)
        mover = Mover(self._open, rate, on_progress, self._user)
        for one, _ in pending:
            if isinstance(one, Division):
                await one.run(self._changes, mover, Inspector(self._open), delete=delete)
            elif one.in_place:
                await self._replace(one, mover)
            else:
                await self._transfer(one, mover, delete=delete)
        for topology in (self._new, self._given[1]):
            await self._changes.declare([entity for queue in queues for entity in topology.all_entities(queue)])
        if self._new.event_partitions > 1:
            await self._changes.unbind([self._new.whole_events()])
        return mover.count

    # --- planning ---

    async def _pending(self, queues: Sequence[str]) -> list[tuple[_Pair | Division, dict[str, int]]]:
        """Return what must be done, with the counts of the queues that are to be emptied."""
        inspector = Inspector(self._open)
        found: list[tuple[_Pair | Division, dict[str, int]]] = []
        for pair in self._pairs(queues):
            if isinstance(pair, Division):
                if (counts := await pair.pending(inspector)) is not None:
                    found.append((pair, counts))
                continue
            old, held = await inspector.queue(pair.old.name), await inspector.queue(pair.holding)
            if old is None and held is None:
                continue
            if held is None and pair.in_place:
                if await inspector.queue_difference(pair.old.name, pair.new.arguments) is None:
                    continue
            elif held is None and old is not None and old.message_count == 0:
                continue
            found.append((pair, {one.name: one.message_count for one in (old, held) if one is not None}))
        return found

    def _pairs(self, queues: Sequence[str]) -> list[_Pair | Division]:
        """Return the queues of both topologies, destinations of dead letters before their sources."""
        pairs: list[_Pair | Division] = []
        old, new = self._old, self._new
        given_old, given_new = self._given
        for queue in dict.fromkeys(queues):
            check_queue(queue)
            if len(old.job_queues(queue)) == len(new.job_queues(queue)):
                pairs += _paired(
                    [*old.queue_entities(queue), *_delayed_bindings(given_old, queue)],
                    [*new.queue_entities(queue), *_delayed_bindings(given_new, queue)],
                )
            else:
                pairs += _paired(old.dead_letter_entities(queue), new.dead_letter_entities(queue))
                pairs.append(Division(given_old, given_new, queue))
            for delay_ms in RETRY_BUCKETS_MS:
                pairs += _paired(old.retry_entities(queue, delay_ms), new.retry_entities(queue, delay_ms))
            pairs += _paired(old.release_entities(queue), new.release_entities(queue))
        ladder = _paired(old.ladder_entities(), new.ladder_entities())
        # The greatest level first: a message that is put back goes to the same level or a lower one.
        return pairs + [
            _Pair(pair.old, pair.new, pair.old_bindings, pair.new_bindings, level)
            for level, pair in reversed(list(enumerate(ladder)))
        ]

    # --- moving ---

    async def _transfer(self, pair: _Pair, mover: Mover, *, delete: bool) -> None:
        await self._changes.declare([pair.new, *pair.new_bindings])
        await mover.move(pair.old.name, self._destination(pair))
        if delete:
            await self._changes.delete(pair.old)

    async def _replace(self, pair: _Pair, mover: Mover) -> None:
        inspector = Inspector(self._open)
        bindings = [*pair.old_bindings, *(one for one in pair.new_bindings if one not in pair.old_bindings)]
        exists = await inspector.queue(pair.old.name) is not None
        if exists and await inspector.queue_difference(pair.old.name, pair.new.arguments) is not None:
            await self._changes.declare(
                [QueueDeclaration(pair.holding), *(_bound(one, pair.holding) for one in bindings)]
            )
            await self._changes.unbind(pair.old_bindings)
            while True:
                await mover.move(pair.old.name, partial(_holding_destination, pair), arrives=False)
                if await self._changes.delete(pair.old):
                    break
        # Bind it under its old keys too: producers of either topology reach it.
        await self._changes.declare([pair.new, *bindings])
        if await inspector.queue(pair.holding) is not None:
            await self._changes.unbind([_bound(one, pair.holding) for one in bindings])
            while True:
                await mover.move(pair.holding, self._destination(pair), drops_copies=True)
                if await self._changes.delete(QueueDeclaration(pair.holding)):
                    break

    def _destination(self, pair: _Pair) -> Callable[[Delivery], Destination]:
        level = pair.level
        if level is None:
            return lambda _: ("", pair.new.name)
        return lambda one: ladder_destination(self._new, level, one.routing_key, one.properties.headers or {})


def _paired(old: Sequence[Entity], new: Sequence[Entity]) -> list[_Pair]:
    """Return the corresponding queues of two lists, each with its bindings."""
    queues = [[one for one in entities if isinstance(one, QueueDeclaration)] for entities in (old, new)]
    return [
        _Pair(before, after, _bindings_to(before.name, old), _bindings_to(after.name, new))
        for before, after in zip(*queues, strict=True)
    ]


def _delayed_bindings(topology: Topology, queue: str) -> list[Entity]:
    """Return the way of jobs from the delayed exchange, if they wait there."""
    return topology.release_entities(queue) if topology.schedule_by == "exchange" else []


def _bindings_to(name: str, entities: Sequence[Entity]) -> list[BindingDeclaration]:
    return [
        one
        for one in entities
        if isinstance(one, BindingDeclaration) and one.destination == name and not one.to_exchange
    ]


def _bound(binding: BindingDeclaration, queue: str) -> BindingDeclaration:
    return BindingDeclaration(queue, binding.exchange, binding.routing_key)


def _holding_destination(pair: _Pair, delivery: Delivery) -> Destination:
    """Return the route to the holding queue: on the ladder through the level's own exchange, to keep the key."""
    if pair.level is None:
        return "", pair.holding
    return pair.old_bindings[0].exchange, delivery.routing_key


def ladder_destination(topology: Topology, level: int, routing_key: str, headers: Mapping[str, object]) -> Destination:
    """Return where a waiting job goes: to the ladder again, for the remaining time.

    A job in its first attempt has its due time in its headers. A later attempt waits for a retry: only the bits of its
    key are known, so it waits on this level again in full, which makes it late by at most that time, never early.
    """
    *bits, queue = routing_key.split(".", delay_ladder.LEVELS)
    seconds = int("".join(bits), 2) & ((2 << level) - 1)
    scheduled_at = headers.get(SCHEDULED_AT)
    if headers.get(ATTEMPT) == 1 and isinstance(scheduled_at, str):
        with contextlib.suppress(ValueError):
            left = (datetime.fromisoformat(scheduled_at) - datetime.now(UTC)).total_seconds()
            if left <= 0:
                return topology.direct, queue
            seconds = delay_ladder.whole_seconds(left)
    return topology.delay_level(delay_ladder.entry_level(seconds)), delay_ladder.routing_key(seconds, queue)
