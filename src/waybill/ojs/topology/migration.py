"""Moves the jobs of OJS queues from one topology to another without losing one: other names, prefix or queue type.

A queue of another name is filled from the old one. A queue that keeps its name but not its properties must be deleted
and made anew, so its jobs spend the time between in a holding queue:

    bind holding, unbind old -> move old to holding -> delete old (if empty and unused) -> declare new and bind it
    -> unbind holding -> move holding to new -> delete holding (if empty)

Each message is published, mandatory and confirmed, before it is acknowledged where it came from. What has to be done is
read off the broker each time, never remembered, so a migration that was killed at any point is finished by running it
again. A kill leaves at most WINDOW messages in two places; copies that meet in a holding queue are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, Self

from waybill.client import (
    BasicProperties,
    Channel,
    Connection,
    Delivery,
    Inspector,
    NotFound,
    PreconditionFailed,
    ReconnectPolicy,
    connect,
)
from waybill.ojs.errors import JobsError
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.headers import ATTEMPT, SCHEDULED_AT
from waybill.ojs.spec.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology import delay_ladder
from waybill.ojs.topology.topology import BindingDeclaration, Entity, ExchangeDeclaration, QueueDeclaration, Topology

HOLDING: Final = "{queue}.migrating"
WINDOW: Final = 32
IDLE_SECONDS: Final = 0.2

Progress = Callable[[int], None]
Destination = tuple[str, str]
"""Exchange and routing key."""


class MigrationBlocked(JobsError):
    """Somebody consumes a queue that is to be moved: pause it, or end its workers."""


@dataclass(frozen=True)
class Move:
    """One queue of the broker that is to become another. `count` messages wait in it, and in its holding queue."""

    source: str
    target: str
    count: int
    in_place: bool


@dataclass(frozen=True)
class _Pair:
    """What is to be moved. `level` is set for the queues of the delay ladder."""

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


class Migration:
    """`async with Migration(uri, old, new) as migration: await migration.run(["email"])`.

    Connects once and does not reconnect: run it again after a lost connection. The event streams stay where they are.
    """

    def __init__(self, uri: str, old: Topology, new: Topology) -> None:
        self._uri = uri
        # What waits on the ladder leaves it in time, wherever new jobs will wait.
        self._old = replace(old, schedule_by="ladder")
        self._new = replace(new, schedule_by="ladder")
        self._connection: Connection | None = None
        self._user = ""

    async def __aenter__(self) -> Self:
        """Connect."""
        self._connection = await connect(self._uri, name="waybill migration", reconnect=ReconnectPolicy(max_attempts=0))
        self._user = self._connection.address.settings.user
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("use a migration in `async with`")
        return self._connection

    async def plan(self, queues: Sequence[str]) -> list[Move]:
        """What `run` would do now; changes nothing."""
        return [Move(pair.old.name, pair.new.name, count, pair.in_place) for pair, count in await self._pending(queues)]

    async def run(
        self,
        queues: Sequence[str],
        *,
        rate: float | None = None,
        delete: bool = False,
        on_progress: Progress | None = None,
    ) -> int:
        """Move everything; how many messages have arrived.

        Name all queues of a prefix together: they share the delay ladder, which changes with the queue type. `rate` is
        messages a second. `delete` removes old queues of another name once they are empty. Raises MigrationBlocked
        before anything is done if a queue has consumers, or the client's errors: run it again then.
        """
        pending = await self._pending(queues)
        await self._require_no_consumers([pair.old.name for pair, _ in pending])
        async with await self._open.channel() as channel:
            # Only the exchanges: the queues that stand there are what is about to be replaced.
            for topology in (self._old, self._new):
                for entity in [*topology.shared_entities(), *topology.ladder_entities()]:
                    if isinstance(entity, ExchangeDeclaration):
                        await channel.declare_exchange(entity.name, entity.type, durable=True)
        mover = _Mover(self._open, rate, on_progress, self._user)
        for pair, _ in pending:
            if pair.in_place:
                await self._replace(pair, mover)
            else:
                await self._transfer(pair, mover, delete=delete)
        await self._declare([entity for queue in queues for entity in self._new.all_entities(queue)])
        return mover.count

    # --- planning ---

    async def _pending(self, queues: Sequence[str]) -> list[tuple[_Pair, int]]:
        inspector = Inspector(self._open)
        found: list[tuple[_Pair, int]] = []
        for pair in self._pairs(queues):
            old, held = await inspector.queue(pair.old.name), await inspector.queue(pair.holding)
            if old is None and held is None:
                continue
            if held is None and pair.in_place:
                if await inspector.queue_difference(pair.old.name, pair.new.arguments) is None:
                    continue
            elif held is None and old is not None and old.message_count == 0:
                continue
            found.append((pair, sum(one.message_count for one in (old, held) if one is not None)))
        return found

    def _pairs(self, queues: Sequence[str]) -> list[_Pair]:
        """Return the queues of both topologies, those that dead letters go to before those that they come from."""
        pairs: list[_Pair] = []
        old, new = self._old, self._new
        for queue in dict.fromkeys(queues):
            check_queue(queue)
            pairs += _paired(old.queue_entities(queue), new.queue_entities(queue))
            for delay_ms in RETRY_BUCKETS_MS:
                pairs += _paired(old.retry_entities(queue, delay_ms), new.retry_entities(queue, delay_ms))
            pairs += _paired(old.release_entities(queue), new.release_entities(queue))
        ladder = _paired(old.ladder_entities(), new.ladder_entities())
        # The greatest level first: what is put back goes to a level at most as great.
        return pairs + [
            _Pair(pair.old, pair.new, pair.old_bindings, pair.new_bindings, level)
            for level, pair in reversed(list(enumerate(ladder)))
        ]

    async def _require_no_consumers(self, names: Sequence[str]) -> None:
        inspector = Inspector(self._open)
        for name in names:
            queue = await inspector.queue(name)
            if queue is not None and queue.consumer_count:
                raise MigrationBlocked(f"{name} has {queue.consumer_count} consumers")

    # --- moving ---

    async def _transfer(self, pair: _Pair, mover: _Mover, *, delete: bool) -> None:
        await self._declare([pair.new, *pair.new_bindings])
        await mover.move(pair.old.name, self._destination(pair))
        if delete:
            await self._delete(pair.old)

    async def _replace(self, pair: _Pair, mover: _Mover) -> None:
        inspector = Inspector(self._open)
        bindings = [*pair.old_bindings, *(one for one in pair.new_bindings if one not in pair.old_bindings)]
        exists = await inspector.queue(pair.old.name) is not None
        if exists and await inspector.queue_difference(pair.old.name, pair.new.arguments) is not None:
            await self._declare([QueueDeclaration(pair.holding), *(_bound(one, pair.holding) for one in bindings)])
            await self._unbind(pair.old_bindings)
            while True:
                await mover.move(pair.old.name, partial(_holding_destination, pair), arrives=False)
                if await self._delete(pair.old):
                    break
        # Bound under its old keys too: producers of either topology reach it.
        await self._declare([pair.new, *bindings])
        if await inspector.queue(pair.holding) is not None:
            await self._unbind([_bound(one, pair.holding) for one in bindings])
            while True:
                await mover.move(pair.holding, self._destination(pair), drops_copies=True)
                if await self._delete(QueueDeclaration(pair.holding)):
                    break

    def _destination(self, pair: _Pair) -> Callable[[Delivery], Destination]:
        level = pair.level
        if level is None:
            return lambda _: ("", pair.new.name)
        return lambda one: ladder_destination(self._new, level, one.routing_key, one.properties.headers or {})

    async def _declare(self, entities: Sequence[Entity]) -> None:
        async with await self._open.channel() as channel:
            for entity in {repr(entity): entity for entity in entities}.values():
                await _declare_one(channel, entity)

    async def _unbind(self, bindings: Sequence[BindingDeclaration]) -> None:
        for binding in bindings:
            with contextlib.suppress(NotFound):
                async with await self._open.channel() as channel:
                    await channel.unbind_queue(binding.destination, binding.exchange, binding.routing_key)

    async def _delete(self, queue: QueueDeclaration) -> bool:
        """Delete an empty queue without consumers; False if it is not empty any more."""
        await self._require_no_consumers([queue.name])
        # RabbitMQ knows no conditions for quorum queues. Nothing is bound to this one any more, so it stays empty.
        is_quorum = queue.arguments.get("x-queue-type") == "quorum"
        if is_quorum:
            found = await Inspector(self._open).queue(queue.name)
            if found is not None and found.message_count:
                return False
        try:
            async with await self._open.channel() as channel:
                await channel.delete_queue(queue.name, if_unused=not is_quorum, if_empty=not is_quorum)
        except PreconditionFailed:
            await self._require_no_consumers([queue.name])
            return False
        return True


class _Mover:
    """Moves messages from queue to queue, WINDOW at a time."""

    def __init__(self, connection: Connection, rate: float | None, on_progress: Progress | None, user: str) -> None:
        self.count = 0
        self._sent = 0
        self._connection = connection
        self._rate = rate
        self._on_progress = on_progress
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()

    async def move(
        self,
        source: str,
        destination: Callable[[Delivery], Destination],
        *,
        drops_copies: bool = False,
        arrives: bool = True,
    ) -> None:
        """Move all that is in `source`. Raises what publishing raises; what is not confirmed stays in `source`.

        What `arrives` counts as moved; what is only held does not.
        """
        inspector = Inspector(self._connection)
        found = await inspector.queue(source)
        if found is None or found.message_count == 0:
            return
        seen: set[bytes] = set()
        failures: list[BaseException] = []
        async with (
            await self._connection.channel(prefetch_count=WINDOW) as taking,
            await self._connection.channel(confirms=True) as publishing,
        ):
            consumer = await taking.consume(source)
            while True:
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        delivery = await anext(consumer)
                except TimeoutError:
                    queue = await inspector.queue(source)
                    if failures or queue is None or (queue.message_count == 0 and not publishing.unconfirmed_count):
                        break
                    continue
                if failures:
                    break
                if drops_copies and _is_copy(delivery, seen):
                    delivery.ack()
                    continue
                future = self._publish(publishing, delivery, destination(delivery))
                future.add_done_callback(partial(self._settle, delivery, failures, arrives))
                if self._rate is not None:
                    self._sent += 1
                    due = self._started + self._sent / self._rate
                    await asyncio.sleep(max(0.0, due - self._loop.time()))
            await consumer.cancel()
        if failures:
            raise failures[0]

    def _publish(self, channel: Channel, delivery: Delivery, destination: Destination) -> asyncio.Future[None]:
        exchange, routing_key = destination
        return channel.publish_nowait(
            delivery.body,
            exchange=exchange,
            routing_key=routing_key,
            properties=_movable(delivery.properties, self._user),
            mandatory=True,
        )

    def _settle(
        self,
        delivery: Delivery,
        failures: list[BaseException],
        arrives: bool,  # noqa: FBT001 - bound by partial
        future: asyncio.Future[None],
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            failures.append(error)
            return
        delivery.ack()
        if not arrives:
            return
        self.count += 1
        if self._on_progress is not None:
            self._on_progress(self.count)


def _paired(old: Sequence[Entity], new: Sequence[Entity]) -> list[_Pair]:
    """Return the queues of two lists that correspond, each with the bindings to it."""
    queues = [[one for one in entities if isinstance(one, QueueDeclaration)] for entities in (old, new)]
    return [
        _Pair(before, after, _bindings_to(before.name, old), _bindings_to(after.name, new))
        for before, after in zip(*queues, strict=True)
    ]


def _bindings_to(name: str, entities: Sequence[Entity]) -> list[BindingDeclaration]:
    return [
        one
        for one in entities
        if isinstance(one, BindingDeclaration) and one.destination == name and not one.to_exchange
    ]


def _bound(binding: BindingDeclaration, queue: str) -> BindingDeclaration:
    return BindingDeclaration(queue, binding.exchange, binding.routing_key)


async def _declare_one(channel: Channel, entity: Entity) -> None:
    match entity:
        case ExchangeDeclaration():
            await channel.declare_exchange(entity.name, entity.type, durable=True)
        case QueueDeclaration():
            await channel.declare_queue(entity.name, durable=True, arguments=entity.arguments)
        case BindingDeclaration(to_exchange=True):
            await channel.bind_exchange(entity.destination, entity.exchange, entity.routing_key)
        case BindingDeclaration():
            await channel.bind_queue(entity.destination, entity.exchange, entity.routing_key)


def _is_copy(delivery: Delivery, seen: set[bytes]) -> bool:
    """Whether this very job was moved before in this run; notes it if not. What has no id is never a copy."""
    message_id = delivery.properties.message_id
    if not message_id:
        return False
    digest = hashlib.blake2b(message_id.encode() + b"\0" + delivery.body, digest_size=16).digest()
    if digest in seen:
        return True
    seen.add(digest)
    return False


def _movable(properties: BasicProperties, user: str) -> BasicProperties:
    """Return the same properties, without what would send the copy elsewhere or have the broker refuse it."""
    headers = properties.headers
    if headers is not None and ("CC" in headers or "BCC" in headers):
        # RabbitMQ would route the copy to those keys as well, a second time.
        properties.headers = {name: value for name, value in headers.items() if name not in {"CC", "BCC"}}
    if properties.user_id not in {None, user}:
        # It is checked against the login of whoever publishes.
        properties.user_id = None
    return properties


def _holding_destination(pair: _Pair, delivery: Delivery) -> Destination:
    """Return the way to the holding queue: on the ladder by the level's own exchange, as the key is to be kept."""
    if pair.level is None:
        return "", pair.holding
    return pair.old_bindings[0].exchange, delivery.routing_key


def ladder_destination(topology: Topology, level: int, routing_key: str, headers: Mapping[str, object]) -> Destination:
    """Return where a job goes that waits for its time: to the ladder again, for as long as is left.

    A job of its first attempt says itself when it is due. A later one waits for a retry: of that only the bits of its
    key are known, so it waits on this level again in full, and is late by that at most, never early.
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
