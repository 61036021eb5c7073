"""The shovel: moves the messages of one queue to another broker, until it is stopped or the queue is empty."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from waybill.client import Connection, connect
from waybill.move.checks import check_target, waiting_messages
from waybill.move.identity import identity, lock
from waybill.move.names import own_name
from waybill.move.sessions import NO_RECONNECT, Sessions, opener
from waybill.move.stamp import arriving
from waybill.move.transfer import QUORUM, Outgoing, Transfer

IDLE_SECONDS: Final = 0.5
NAME: Final = "waybill shovel"
"""The name of the connections."""

_log = logging.getLogger("waybill.move")


@dataclass(frozen=True)
class Destination:
    """Where messages go: to a queue (`exchange` is empty), or to an exchange, with their own key if `key` is None."""

    key: str | None
    exchange: str = ""


class Shovel:
    """`await Shovel(source_uri, "invoices", target_uri).run()`; `stop` ends it after the current batch.

    Messages go to the queue of the same name on the target, or to `destination`.
    """

    def __init__(
        self,
        source: str,
        queue: str,
        target: str,
        destination: Destination | None = None,
        *,
        keeps_user: bool = False,
        queue_type: str = "classic",
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """`keeps_user`: the target's login may publish for other users (RabbitMQ's tag `impersonator`).

        `queue_type` is that of the shovel's own queues. Raises ValueError for a queue without a name.
        """
        self._destination = destination or Destination(queue)
        if not self._destination.exchange and not self._destination.key:
            raise ValueError("the target queue has no name")
        self.moved = 0
        """The number of messages that have arrived in this run."""
        self.sessions = Sessions(opener(source, NAME), opener(target, NAME))
        self._source = source
        self._queue = queue
        self._keeps_user = keeps_user
        self._arguments: Mapping[str, object] = QUORUM if queue_type == "quorum" else {}
        self._on_progress = on_progress

    def stop(self) -> None:
        """Stop after the current batch."""
        self.sessions.stop()

    async def waiting(self) -> int:
        """Return the number of messages in the source queue. Raises MoveFailed if it is missing, or has partitions."""
        async with connect(self._source, name=NAME, reconnect=NO_RECONNECT) as source:
            return await waiting_messages(source, self._queue)

    async def run(self, *, follows: bool = False) -> int:
        """Move until the queue is empty, or until `stop` with `follows`; returns the number of moved messages.

        Continues after lost connections. Raises MoveFailed, and the errors of the first connection attempt.
        """
        await self.sessions.run(functools.partial(self._session, follows=follows))
        return self.moved

    async def _session(self, stack: AsyncExitStack, source: Connection, target: Connection, *, follows: bool) -> None:
        await waiting_messages(source, self._queue)
        if not self._destination.exchange:
            await check_target(target, self._destination.key or "")
        await lock(source, own_name("waybill.shovel.lock", self._queue))
        ids = [await identity(one, "waybill.shovel.identity", {}) for one in (source, target)]
        transit = own_name(f"waybill.shovel.transit.{ids[1]}", self._queue)
        transfer = Transfer(source, target, transit, own_name(f"waybill.shovel.ledger.{ids[0]}", self._queue))
        await transfer.open(stack, self._arguments)
        user = target.address.settings.user
        while True:
            claimed = 0 if self.sessions.is_stopping else await transfer.claim(self._queue)
            carried = await self._carry(transfer, user)
            if claimed or carried:
                continue
            if not follows or self.sessions.is_stopping:
                return
            await self.sessions.pause(IDLE_SECONDS)

    async def _carry(self, transfer: Transfer, user: str) -> int:
        fresh, arrived = await transfer.take()
        if fresh:
            await transfer.commit(
                [
                    Outgoing(
                        self._destination.exchange,
                        one.stamp.routing_key if self._destination.key is None else self._destination.key,
                        arriving(one, user, keeps_user=self._keeps_user),
                        one.body,
                        one,
                    )
                    for one in fresh
                ]
            )
            self.moved += len(fresh)
            if self._on_progress is not None:
                self._on_progress(self.moved)
        transfer.acknowledge([*arrived, *fresh])
        return len(fresh) + len(arrived)
