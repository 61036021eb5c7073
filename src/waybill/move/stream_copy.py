"""Copies a stream to another broker, message by message in order, and follows it.

A copy has a header with the brokers that it has passed, so it never returns to one: streams can be copied in both
directions. To find the end, a *mark* is published to the source stream: everything before it has been read when it
arrives. A stream that was deleted and created again is detected, and copied from its first message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import uuid4

from waybill.client import BasicProperties, Channel, Connection, ConnectionLost, Consumer, Delivery
from waybill.move.ledger import StreamPosition
from waybill.move.transfer import Outgoing
from waybill.ojs.coordinator.stream_identity import StreamIdentity, StreamMark
from waybill.ojs.spec.headers import PERSISTENT

PASSED: Final = "x-waybill-passed"
"""The header with the brokers that a copy has passed."""
MARK: Final = "x-waybill-mark"
PREFETCH: Final = 500
MARK_SECONDS: Final = 60.0

_log = logging.getLogger("waybill.move")

Commit = Callable[[Sequence[Outgoing], dict[str, StreamPosition]], Awaitable[None]]


class StreamCopy:
    """Copies one stream of the source to one of the target."""

    def __init__(
        self,
        source: Connection,
        names: tuple[str, str],
        ids: tuple[str, str],
        mark: Callable[[], tuple[BasicProperties, bytes]],
        user: str,
        *,
        keeps_user: bool,
    ) -> None:
        """Both `names` and `ids` are those of the source and of the target, `user` is the login there.

        `mark` returns properties and a body that readers of the stream ignore.
        """
        self._source = source
        self.name, self._target_name = names
        self._source_id, self._target_id = ids
        self._mark = mark
        self._user, self._keeps_user = user, keeps_user
        self._channel: Channel
        self._consumer: Consumer | None = None
        self._identity = StreamIdentity()
        self._next = 0
        self._arrived: deque[Delivery] = deque()
        self._event = asyncio.Event()

    async def open(self, position: StreamPosition | None) -> None:
        """Start reading after a position. Raises NotFound if the stream does not exist."""
        self._channel = await self._source.channel(prefetch_count=PREFETCH)
        self._source.on_loss(lambda _: self._event.set())
        await self._read_from(position)

    async def copy_arrived(self, commit: Commit) -> int:
        """Copy the received messages; returns how many were read."""
        read = 0
        while self._arrived:
            read += await self._copy(commit, "")
        return read

    async def copy_to_end(self, commit: Commit) -> None:
        """Copy all current messages of the stream. Raises ConnectionLost, TimeoutError."""
        mark = uuid4().hex
        properties, body = self._mark()
        properties.headers = {MARK: mark}
        await self._channel.publish(body, routing_key=self.name, properties=properties, mandatory=True)
        while True:
            while not self._arrived:
                if not self._source.is_open:
                    raise ConnectionLost("the connection to the source was lost")
                self._event.clear()
                async with asyncio.timeout(MARK_SECONDS):
                    await self._event.wait()
            if not await self._copy(commit, mark):
                return

    async def _copy(self, commit: Commit, mark: str) -> int:
        """Copy one batch; returns how many messages were read, 0 if it ended with the mark."""
        outgoing, read, is_end = [], 0, False
        position: StreamPosition | None = None
        last: Delivery | None = None
        while self._arrived and read < PREFETCH and not is_end:
            delivery = last = self._arrived.popleft()
            read += 1
            properties = _properties(delivery)
            headers = properties.headers or {}
            offset = headers.pop("x-stream-offset", None)
            if not isinstance(offset, int):
                _log.warning("a message of the stream %s has malformed properties and was not copied", self.name)
                continue
            known = self._identity.note(offset, delivery.body)
            if known is None:
                await self._restart()
                return read
            if known.offset < self._next:
                continue
            self._next = known.offset + 1
            position = StreamPosition(known.offset, known.digest)
            is_end = bool(mark) and headers.get(MARK) == mark
            copy = self._copy_of(delivery, properties, headers)
            if copy is not None:
                outgoing.append(copy)
        if position is not None and (outgoing or is_end):
            await commit(outgoing, {self.name: position})
        if last is not None:
            last.ack(multiple=True)
        return 0 if is_end else read

    def _copy_of(self, delivery: Delivery, properties: BasicProperties, headers: dict[str, object]) -> Outgoing | None:
        passed = str(headers.get(PASSED) or "")
        if MARK in headers or self._target_id in passed.split(","):
            return None
        properties.headers = {**headers, PASSED: f"{passed},{self._source_id}" if passed else self._source_id}
        if properties.user_id not in {None, self._user} and not self._keeps_user:
            properties.user_id = None
        properties.delivery_mode = PERSISTENT
        return Outgoing("", self._target_name, properties, delivery.body)

    async def _restart(self) -> None:
        _log.warning("the stream %s was deleted and created again: copying it from its first message", self.name)
        await self._read_from(None)

    async def _read_from(self, position: StreamPosition | None) -> None:
        if self._consumer is not None:
            await self._consumer.cancel()
        self._arrived.clear()
        mark = None if position is None else StreamMark(position.offset, position.digest)
        self._identity = StreamIdentity(0 if position is None else position.offset, mark)
        self._next = 0 if position is None else position.offset + 1
        first: object = "first" if position is None or position.offset == 0 else position.offset
        self._consumer = await self._channel.consume(self.name, self._take, arguments={"x-stream-offset": first})

    def _take(self, delivery: Delivery) -> None:
        self._arrived.append(delivery)
        self._event.set()


def _properties(delivery: Delivery) -> BasicProperties:
    """Return the properties of a message, empty ones if they are malformed."""
    try:
        return delivery.properties
    except ValueError:
        return BasicProperties()
