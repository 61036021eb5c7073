"""The shovel for AMQP 1.0, at one broker or both: each message at least once.

    source                                    target
    queue ---take, unsettled---> here ---put---> queue
          <--accept------------       <--accepted, or confirmed

There is no ledger, because not every broker has transactions over AMQP 1.0. A message is settled at the source after it
has arrived at the target. After a kill in between it is at both, and is sent again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from waybill.client import Channel, Connection, EncodeError, MessageNacked, MessageReturned, PreconditionFailed
from waybill.client.side_channel import SideChannel
from waybill.move.bridged import Bridged, From091
from waybill.move.checks import check_target, waiting_messages
from waybill.move.errors import MoveFailed
from waybill.move.sessions import Opener, Sessions, opener
from waybill.move.shovel import IDLE_SECONDS, NAME, Destination
from waybill.move.transfer import BATCH_MESSAGES, BATCH_OCTETS, FIRST_BATCH

if TYPE_CHECKING:
    from waybill.move.amqp10_connection import Amqp10Connection

Either: TypeAlias = "Connection | Amqp10Connection"
ProtocolName = Literal["0-9-1", "1.0"]


class Source(Protocol):
    """The source of messages."""

    async def take(self) -> Sequence[Bridged]:
        """Take a batch, empty if there are no messages now."""


class Target(Protocol):
    """The target of messages."""

    async def put(self, batch: Sequence[Bridged]) -> list[str]:
        """Send a batch; returns for each message why it has not arrived, empty if it has."""


@dataclass(frozen=True)
class From:
    """A queue to take from. Over 1.0, `queue` is the address of a node, such as `/queues/invoices`."""

    uri: str
    queue: str
    protocol: ProtocolName = "0-9-1"


@dataclass(frozen=True)
class To:
    """A destination. Over 1.0 it is an address, the key, without an exchange."""

    uri: str
    destination: Destination
    protocol: ProtocolName = "0-9-1"


class Bridge:
    """`await Bridge(From(uri, "/queues/invoices", "1.0"), To(other, Destination("invoices"))).run()`."""

    def __init__(
        self,
        source: From,
        target: To,
        *,
        keeps_user: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """`keeps_user`: the target's login may publish for other users.

        Raises ValueError for a destination without a key, ImportError without Proton.
        """
        if not target.destination.key:
            raise ValueError("between protocols, a destination needs a queue, an address or a routing key")
        if target.protocol == "1.0" and target.destination.exchange:
            raise ValueError("over AMQP 1.0, an exchange is part of the address")
        self.moved = 0
        """The number of messages that have arrived in this run."""
        self._from, self._to = source, target
        self._keeps_user = keeps_user
        self._on_progress = on_progress
        self._sessions: Sessions[Either] = Sessions(
            _opener(source.uri, source.protocol), _opener(target.uri, target.protocol)
        )

    def stop(self) -> None:
        """Stop after the current batch."""
        self._sessions.stop()

    async def run(self, *, follows: bool = False) -> int:
        """Move until the queue is empty, or until `stop` with `follows`; returns the number of moved messages.

        Continues after lost connections. Raises MoveFailed, and the errors of the first connection attempt.
        """
        await self._sessions.run(functools.partial(self._session, follows=follows))
        return self.moved

    async def _session(self, stack: AsyncExitStack, source: Either, target: Either, *, follows: bool) -> None:
        taking = await stack.enter_async_context(_source(source, self._from))
        putting = await stack.enter_async_context(_target(target, self._to, keeps_user=self._keeps_user))
        while not self._sessions.is_stopping:
            batch = await taking.take()
            if batch:
                self._settle(batch, await putting.put(batch))
            elif not follows:
                return
            else:
                await self._sessions.pause(IDLE_SECONDS)

    def _settle(self, batch: Sequence[Bridged], reasons: Sequence[str]) -> None:
        """Accept messages that have arrived. The others return to the source when the connection ends."""
        refused = [reason for reason in reasons if reason]
        for one, reason in zip(batch, reasons, strict=True):
            if not reason:
                one.accept()
        self.moved += len(batch) - len(refused)
        if self._on_progress is not None:
            self._on_progress(self.moved)
        if refused:
            raise MoveFailed(
                f"the target has not taken {len(refused)} messages, they stay at the source ({refused[0]})"
            )


class _Source091:
    """Takes messages with basic.get, many at a time."""

    def __init__(self, channel: SideChannel, queue: str) -> None:
        self._channel = channel
        self._queue = queue
        self._mean_octets = BATCH_OCTETS // FIRST_BATCH

    async def take(self) -> Sequence[Bridged]:
        """Take up to a batch of the messages in the queue."""
        limit = min(BATCH_MESSAGES, max(1, BATCH_OCTETS // self._mean_octets))
        count = min(limit, await self._channel.message_count(self._queue))
        found = [From091(one) for one in await self._channel.get_some(self._queue, count, BATCH_OCTETS)]
        if found:
            self._mean_octets = max(1, sum(one.octets for one in found) // len(found))
        return found


class _Target091:
    """Publishes mandatory messages, and waits for confirms."""

    def __init__(self, channel: Channel, destination: Destination, user: str, *, keeps_user: bool) -> None:
        self._channel = channel
        self._to = destination
        self._user = user
        self._keeps_user = keeps_user

    async def put(self, batch: Sequence[Bridged]) -> list[str]:
        """Publish messages in order."""
        sent: list[asyncio.Future[None] | str] = []
        for one in batch:
            await self._channel.drain()
            try:
                properties, body = one.amqp091(self._user, keeps_user=self._keeps_user)
                key, exchange = self._to.key or "", self._to.exchange
                sent.append(
                    self._channel.publish_nowait(
                        body, exchange=exchange, routing_key=key, properties=properties, mandatory=True
                    )
                )
            except (MoveFailed, EncodeError) as error:
                sent.append(str(error))
        await asyncio.gather(*(one for one in sent if not isinstance(one, str)), return_exceptions=True)
        return [one if isinstance(one, str) else _reason(one) for one in sent]


def _reason(published: asyncio.Future[None]) -> str:
    error = published.exception()
    if error is None or not isinstance(error, (MessageReturned, MessageNacked, PreconditionFailed)):
        published.result()
    return "" if error is None else str(error)


def _opener(uri: str, protocol: ProtocolName) -> Opener[Either]:
    if protocol == "0-9-1":
        return cast("Opener[Either]", opener(uri, NAME))
    from waybill.move.amqp10_connection import connect10

    return lambda: connect10(uri, name=NAME)


@asynccontextmanager
async def _source(connection: Either, source: From) -> AsyncIterator[Source]:
    if isinstance(connection, Connection):
        await waiting_messages(connection, source.queue)
        async with connection.side_channel() as channel:
            yield _Source091(channel, source.queue)
        return
    from waybill.move.amqp10_links import Source10

    link = Source10(connection, source.queue)
    await link.open()
    yield link


@asynccontextmanager
async def _target(connection: Either, target: To, *, keeps_user: bool) -> AsyncIterator[Target]:
    to = target.destination
    if isinstance(connection, Connection):
        if not to.exchange:
            await check_target(connection, to.key or "")
        user = connection.address.settings.user
        async with await connection.channel() as channel:
            yield _Target091(channel, to, user, keeps_user=keeps_user)
        return
    from waybill.move.amqp10_links import Target10

    link = Target10(connection, to.key or "", keeps_user=keeps_user)
    await link.open()
    yield link
