"""Quorum queues of RabbitMQ, and a command whose connections end as soon as it has sent a commit.

RabbitMQ keeps settlements for such a queue in the channel when there are too many at a time, and they end with it. It
drops what the queue has not taken by then, but for the first message of a channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from tests.ojs.proxy import Proxy
from tests.rabbitmq import RabbitMQ
from waybill.client import BasicProperties, Connection, ConnectionLost, Inspector, ReconnectPolicy, connect
from waybill.move.shovel import Destination, Shovel
from waybill.move.stamp import read_stamped
from waybill.move.transfer import QUORUM, Transfer

QUEUE, TRANSIT, LEDGER, TARGET = "claimed", "claimed.transit", "claimed.ledger", "claimed.target"
MESSAGES = 300
PATIENCE_S = 60.0
COMMIT = b"\x00\x00\x00\x04\x00\x5a\x00\x14\xce"
"""The end of the header of the frame, tx.commit, and the end of the frame."""


class CuttingProxy(Proxy):
    """Ends all connections as soon as a commit has gone to the broker, the n-th from now."""

    commits_left = 0
    later: Iterator[int] = iter(())
    """The same, for the times after that."""

    def saw(self, source: asyncio.StreamReader, data: bytes, *, answers: bool) -> None:
        if not answers and COMMIT in data:
            self.commits_left -= 1
            if not self.commits_left:
                self.commits_left = next(self.later, 0)
                asyncio.get_running_loop().call_soon(self.end)

    def end(self) -> None:
        """Close in order, so that the broker reads everything."""
        for writer in list(self._writers):
            writer.close()


@asynccontextmanager
async def filled(uri: str) -> AsyncIterator[Connection]:
    """Give a connection, and the queue with its messages; delete the queues afterwards."""
    async with connect(uri) as connection:
        channel = await connection.channel()
        await channel.declare_queue(QUEUE, durable=True, arguments=QUORUM)
        for number in range(MESSAGES):
            channel.publish_nowait(b"%d" % number, routing_key=QUEUE, properties=BasicProperties(delivery_mode=2))
        await channel.publish(b"%d" % MESSAGES, routing_key=QUEUE, properties=BasicProperties(delivery_mode=2))
        try:
            yield connection
        finally:
            for queue in (QUEUE, TRANSIT, LEDGER):
                await channel.delete_queue(queue)


async def claim_and_die(proxy: CuttingProxy, uri: str, commits: int) -> bool:
    """Claim until so many commits were sent; whether it came to that."""
    died = True
    with suppress(ConnectionLost):
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(connect(proxy.uri, reconnect=ReconnectPolicy(max_attempts=0)))
            target = await stack.enter_async_context(connect(uri))
            transfer = Transfer(source, target, TRANSIT, LEDGER)
            await transfer.open(stack, QUORUM)
            proxy.commits_left = commits
            while await transfer.claim(QUEUE):
                pass
            died = False
    return died


async def bodies_of(connection: Connection) -> list[int]:
    """Take all messages out of both queues, wherever they are."""
    inspector, found = Inspector(connection), list[int]()
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    async with await connection.channel() as channel:
        # What a killed command had taken comes back when the broker has seen its end.
        while len(found) <= MESSAGES and asyncio.get_running_loop().time() < deadline:
            for queue in (QUEUE, TRANSIT):
                while (delivery := await channel.get(queue)) is not None:
                    delivery.ack()
                    found.append(int(read_stamped(delivery, queue).body if queue == TRANSIT else delivery.body))
        counts = [await inspector.queue(queue) for queue in (QUEUE, TRANSIT)]
    return found + [-1 for one in counts if one is None or one.message_count]


async def test_a_claim_is_in_one_queue_or_the_other_however_many_messages_it_has(rabbitmq: RabbitMQ) -> None:
    uri = rabbitmq.uri("/ojs")
    async with filled(uri) as connection, CuttingProxy(uri) as proxy:
        died = [await claim_and_die(proxy, uri, commits) for commits in (1, 2, 1, 3, 1, 2, 1, 1)]
        assert any(died)
        assert sorted(await bodies_of(connection)) == list(range(MESSAGES + 1))


async def test_a_shovel_between_quorum_queues_moves_each_message_once_although_it_is_cut(rabbitmq: RabbitMQ) -> None:
    uri = rabbitmq.uri("/ojs")
    async with filled(uri) as connection, await connection.channel() as channel, CuttingProxy(uri) as proxy:
        await channel.declare_queue(TARGET, durable=True, arguments=QUORUM)
        try:
            # A claim has its commits first, then come those of the target.
            proxy.commits_left, proxy.later = 2, iter((12, 2, 5, 2, 40, 1))
            await Shovel(proxy.uri, QUEUE, proxy.uri, Destination(TARGET), queue_type="quorum").run()
            assert next(proxy.later, None) is None
            found = []
            while (delivery := await channel.get(TARGET)) is not None:
                delivery.ack()
                found.append(int(delivery.body))
            assert sorted(found) == list(range(MESSAGES + 1))
        finally:
            await channel.delete_queue(TARGET)
