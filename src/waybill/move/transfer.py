"""Moves messages from one broker to another, exactly once, even if the mover is killed.

    source                                            target
    queue ---claim (tx)---> transit queue ---carry (tx)---> queue
                                                      ledger

*Claim*: one transaction moves messages from their queue into the transit queue, with numbers. From then on they belong
to the move, and no worker can take them. *Carry*: one transaction publishes them on the target, together with a ledger
of the arrived numbers. Then they are acknowledged in the transit queue. After a kill, the next run finds unacknowledged
messages there, looks up in the ledger which of them have arrived, and acknowledges those.

A transaction is atomic at Waybill's broker. RabbitMQ executes all of it after it has read the commit, so it is also
atomic if the move is killed. If the RabbitMQ node itself is killed during a commit, a part may remain: see
docs/explanation/move.md.

Nothing here reconnects: a lost connection is handled like a kill, so there is only one way of recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import msgspec

from waybill.client import BasicProperties, Connection, Delivery, EncodeError, Inspector, PreconditionFailed
from waybill.client.side_channel import SideChannel
from waybill.move.errors import MoveFailed
from waybill.move.ledger import PROPERTIES, Record, StreamPosition, open_record
from waybill.move.stamp import InTransit, read_stamped, stamped

BATCH_MESSAGES: Final = 500
BATCH_OCTETS: Final = 8 << 20
FIRST_BATCH: Final = 20
CLAIMED_AT_ONCE: Final = 32
"""How many messages one transaction claims on RabbitMQ.

It executes a transaction in one step, but it hands a quorum queue only so many commands at a time, and each `get` is
settled by a command of its own (its setting quorum_commands_soft_limit). It keeps the others in the channel, which ends
with the connection: messages that were already in transit would return to their queue.
"""
QUORUM: Final[dict[str, object]] = {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}
"""Arguments of the ledger and of the id on a cluster.

Each start reads and requeues them: the default delivery limit of 20 would eventually remove them.
"""
IN_TRANSIT: Final[dict[str, object]] = {}
"""Arguments of the transit queue, a classic one everywhere.

A quorum queue of RabbitMQ puts messages that it gets in a lower order than settlements and than the end of a channel.
If the command is killed during a claim, messages that were already acknowledged in their queue would be lost.
"""

_log = logging.getLogger("waybill.move")


@dataclass(frozen=True)
class Outgoing:
    """A message for the target. `message` is the one in transit, None for a copy of a stream's message."""

    exchange: str
    routing_key: str
    properties: BasicProperties | bytes
    body: bytes
    message: InTransit | None = None


class Transfer:
    """One pair of connections: `open`, then `claim`, `take` and `commit`, from one task."""

    def __init__(self, source: Connection, target: Connection, transit: str, ledger: str) -> None:
        """`transit` and `ledger` are names of queues, on the source and on the target."""
        self.record = Record()
        """The messages that have arrived at the target."""
        self._source = source
        self._target = target
        self._transit_name = transit
        self._ledger = ledger
        self._run = uuid4().hex
        self._number = 0
        self._mean_octets = BATCH_OCTETS // FIRST_BATCH
        self._claiming: SideChannel
        self._transit: SideChannel

    async def open(self, stack: AsyncExitStack, arguments: Mapping[str, object]) -> None:
        """Read the ledger, or declare it with `arguments`, and the transit queue. `stack` closes what is opened here.

        Existing queues of an earlier run are used unchanged. Raises MoveFailed and the client's errors.
        """
        is_new = await Inspector(self._source).queue(self._transit_name) is None
        self.record = await open_record(self._target, self._ledger, arguments, is_new=is_new)
        if is_new:
            async with await self._source.channel() as channel:
                await channel.declare_queue(self._transit_name, durable=True, arguments=IN_TRANSIT)
        self._claiming = await stack.enter_async_context(self._source.side_channel())
        self._transit = await stack.enter_async_context(self._source.side_channel())
        await self._claiming.tx_select()

    async def claim(self, queue: str) -> int:
        """Claim a batch of messages of a queue; returns how many. Raises MoveFailed and the client's errors."""
        most = BATCH_MESSAGES if self._source.is_waybill else CLAIMED_AT_ONCE
        claimed = 0
        while claimed < BATCH_MESSAGES:
            count = await self._claim_at_once(queue, min(most, BATCH_MESSAGES - claimed))
            claimed += count
            if count < most:
                break
        return claimed

    async def _claim_at_once(self, queue: str, most: int) -> int:
        await self._source.wait_flowing()
        found = await self._get(self._claiming, queue, most)
        if not found:
            return 0
        self._learn_size(found)
        returned = len(self._claiming.returned)
        for delivery in found:
            self._number += 1
            properties, body = stamped(delivery, queue, self._run, self._number)
            self._claiming.publish(body, routing_key=self._transit_name, properties=properties)
        found[-1].ack(multiple=True)
        try:
            await self._claiming.tx_commit()
        except PreconditionFailed as error:
            # In transit, a message is larger by its properties.
            raise MoveFailed(f"the source refuses a message of {queue} in {self._transit_name}: {error}") from None
        if len(self._claiming.returned) > returned:
            raise MoveFailed(f"{self._transit_name} was deleted with its messages")
        return len(found)

    async def take(self) -> tuple[list[InTransit], list[InTransit]]:
        """Return the next batch in transit, and the messages that had arrived before a kill. Both are empty at the end.

        Commit the first, then acknowledge both.
        """
        name = self._transit_name
        batch = await self._get(self._transit, name, 1 if self.record.is_careful else BATCH_MESSAGES)
        found = [read_stamped(one, name) for one in batch]
        fresh: list[InTransit] = []
        arrived: list[InTransit] = []
        for one in found:
            (arrived if self.record.done.has(one.stamp.run, one.stamp.number) else fresh).append(one)
        if arrived:
            _log.info("%d messages had arrived before this run and are not sent again", len(arrived))
        if not found and self.record.is_careful:
            await self._write(msgspec.structs.replace(self.record, is_careful=False))
        return fresh, arrived

    @staticmethod
    def acknowledge(batch: Sequence[InTransit]) -> None:
        """Acknowledge a whole batch of `take`, which has arrived."""
        if batch:
            max(batch, key=lambda one: one.delivery.delivery_tag).delivery.ack(multiple=True)

    async def commit(self, outgoing: Sequence[Outgoing], streams: Mapping[str, StreamPosition] | None = None) -> None:
        """Publish messages on the target, each in one transaction with the ledger.

        `streams` are the positions of the copies in `outgoing`, which are published all or none. Raises MoveFailed if
        the target has no queue for some messages, or refuses some: the accepted ones are in the ledger.
        """
        if self._target.is_waybill or streams:
            await self._commit_at_once(outgoing, streams or {})
        else:
            # A quorum queue of RabbitMQ numbers the messages of each channel, and starts at 1 again after the end of
            # the channel, which overtakes messages. So it takes the first one in any case, and may drop the others.
            for one in outgoing:
                await self._commit_at_once([one], {})

    async def _commit_at_once(self, outgoing: Sequence[Outgoing], streams: Mapping[str, StreamPosition]) -> None:
        moved = [one.message for one in outgoing if one.message is not None]
        before = self.record
        numbers = [(one.stamp.run, one.stamp.number) for one in moved]
        record = Record(before.done.after(numbers), {**before.streams, **streams}, before.is_careful)
        await self._target.wait_flowing()
        try:
            async with self._target.side_channel(waits=False) as channel:
                channel.tx_begin()
                for one in outgoing:
                    _publish(channel, one)
                channel.publish(record.encode(), routing_key=self._ledger, properties=PROPERTIES)
                await channel.tx_commit()
        except PreconditionFailed as error:
            # RabbitMQ may have accepted a part, including the ledger, which is wrong then.
            await self._write(msgspec.structs.replace(before, is_careful=True))
            text = f"the target refuses messages, as a queue is full ({error}); up to {len(outgoing)} may be duplicated"
            raise MoveFailed(text if len(outgoing) > 1 else f"the target refused a message: {error}") from None
        missing = {(one.exchange, one.routing_key) for one in channel.returned}
        if missing:
            taken = [
                (one.message.stamp.run, one.message.stamp.number)
                for one in outgoing
                if one.message is not None and (one.exchange, one.routing_key) not in missing
            ]
            await self._write(Record(before.done.after(taken), before.streams, before.is_careful))
            names = ", ".join(sorted(f"{exchange or 'queue'} {key}" for exchange, key in missing))
            raise MoveFailed(f"the target has no queue for messages to {names}")
        self.record = record

    async def _write(self, record: Record) -> None:
        """Write only the ledger, on a separate channel: the other one is closed, or has unwanted messages."""
        async with await self._target.channel() as channel:
            await channel.publish(record.encode(), routing_key=self._ledger, properties=PROPERTIES, mandatory=True)
        self.record = record

    async def _get(self, channel: SideChannel, queue: str, limit: int) -> list[Delivery]:
        """Get a batch with limits of messages and octets, by the mean size so far."""
        # A get of an empty queue costs RabbitMQ as much as one of a message.
        count = min(limit, max(1, BATCH_OCTETS // self._mean_octets), await channel.message_count(queue))
        return await channel.get_some(queue, count, BATCH_OCTETS)

    def _learn_size(self, found: Sequence[Delivery]) -> None:
        octets = sum(len(one.body) + len(one.encoded_properties) for one in found)
        self._mean_octets = max(1, octets // len(found))


def _publish(channel: SideChannel, one: Outgoing) -> None:
    try:
        channel.publish(one.body, exchange=one.exchange, routing_key=one.routing_key, properties=one.properties)
    except EncodeError as error:
        raise MoveFailed(f"the target cannot take a message to {one.routing_key}: {error}") from None
