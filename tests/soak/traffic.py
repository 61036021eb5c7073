"""The clients of a soak: what they do to the broker until it dies, and how they look at it afterwards.

Each is a coroutine that ends when its connection does. All of them note in a ledger what they know before they do the
next thing, so that the ledgers are true at whatever moment the broker is killed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Final

from tests.soak.branches import BRANCH_SOURCE, BRANCH_TARGET, BranchClients
from tests.soak.ledger import Figures, StreamLedger, TransactionLedger, WorkLedger
from waybill.client import BasicProperties, Channel, Delivery, MessageReturned, ReconnectPolicy, connect
from waybill.client.errors import ClientError

WORK: Final = "soak.work"
TRANSACTED: Final = ("soak.tx.a", "soak.tx.b")
SOURCE: Final = "soak.source"
TARGET: Final = "soak.target"
STREAM: Final = "soak.stream"
NOWHERE: Final = "soak.nowhere"
STREAM_ARGUMENTS: Final[dict[str, object]] = {
    "x-queue-type": "stream",
    "x-max-length-bytes": 64 << 20,
    "x-stream-max-segment-size-bytes": 4 << 20,
}
WINDOW: Final = 200
PREFETCH: Final = 100
MOVABLE: Final = 200
MARKER: Final = b"marker"
PERSISTENT: Final = BasicProperties(delivery_mode=2)
ONE_LIFE: Final = ReconnectPolicy(first_delay_s=0.01, max_attempts=1)
LOOK_TIMEOUT_S: Final = 60.0


class Clients:
    """All that is known of one broker, over all its lives."""

    def __init__(self, uri: str, random: Random) -> None:
        self.uri = uri
        self.random = random
        self.figures = Figures()
        self.work = WorkLedger()
        self.transactions = TransactionLedger()
        self.stream = StreamLedger()
        self.branches = BranchClients(uri, random, self.figures)

    @contextlib.asynccontextmanager
    async def channel(self, *, confirms: bool = False, prefetch_count: int = 0) -> AsyncIterator[Channel]:
        """A channel of a connection that does not come back; that it is lost ends the block in silence."""
        with contextlib.suppress(ClientError):
            async with connect(self.uri, reconnect=ONE_LIFE) as connection:
                yield await connection.channel(confirms=confirms, prefetch_count=prefetch_count)

    async def declare(self) -> None:
        async with self.channel() as channel:
            for name in (WORK, SOURCE, TARGET, BRANCH_SOURCE, BRANCH_TARGET, *TRANSACTED):
                await channel.declare_queue(name, durable=True)
            await channel.declare_queue(STREAM, durable=True, arguments=STREAM_ARGUMENTS)

    def body(self, number: int) -> bytes:
        """A number and padding, now and then more than one frame of it."""
        size = self.random.randrange(2000) if self.random.random() < 0.999 else 300_000
        return b"%d " % number + b"x" * size

    # --- until the broker dies ---

    def traffic(self) -> list["asyncio.Task[None]"]:
        """Start everybody."""
        clients = [
            self.publish(),
            self.publish(),
            self.consume(),
            self.consume(),
            self.publish_transactions(),
            self.move(),
            self.append(),
            self.read(),
            self.branches.move(b"one"),
            self.branches.move(b"two"),
        ]
        return [asyncio.ensure_future(client) for client in clients]

    async def publish(self) -> None:
        """Pipelined, with a window of unconfirmed messages; some of them lead nowhere and come back."""
        work = self.work
        async with self.channel(confirms=True) as channel:
            window = _Window(WINDOW)
            while await window.open():
                number = work.next_number
                work.next_number += 1
                key = WORK if self.random.random() < 0.98 else NOWHERE
                confirm = channel.publish_nowait(
                    self.body(number), routing_key=key, properties=PERSISTENT, mandatory=True
                )
                confirm.add_done_callback(partial(self._confirmed, number, work.confirmed, window))

    def _confirmed(self, number: int, confirmed: set[int], window: "_Window", confirm: "asyncio.Future[None]") -> None:
        error = None if confirm.cancelled() else confirm.exception()
        if isinstance(error, MessageReturned):
            self.work.returned.add(number)
        elif error is None and not confirm.cancelled():
            confirmed.add(number)
        else:
            window.end()
            return
        window.release()

    async def consume(self) -> None:
        """Acks most and requeues some; a synchronous call on the same channel proves the acks before it."""
        work = self.work
        acked: set[int] = set()

        def take(delivery: Delivery) -> None:
            number = int(delivery.body.split()[0])
            work.deliver(number, redelivered=delivery.redelivered)
            if self.random.random() < 0.95:
                work.acked.add(number)
                acked.add(number)
                delivery.ack()
            else:
                delivery.nack()

        async with self.channel(prefetch_count=PREFETCH) as channel:
            await channel.consume(WORK, take)
            while True:
                proved = set(acked)
                acked.clear()
                await channel.declare_queue(WORK, durable=True)
                work.settled |= proved
                await asyncio.sleep(0.001)

    async def publish_transactions(self) -> None:
        """Each transaction's messages go to two queues."""
        ledger = self.transactions
        async with self.channel() as channel:
            await channel.tx_select()
            while True:
                number = ledger.next_number
                ledger.next_number += 1
                size = self.random.randint(1, 30)
                ledger.sizes[number] = size
                for _ in range(size):
                    channel.publish_nowait(
                        self.body(number), routing_key=self.random.choice(TRANSACTED), properties=PERSISTENT
                    )
                await channel.tx_commit()
                ledger.committed.add(number)

    async def move(self) -> None:
        """Takes from one queue and publishes to another, in transactions."""
        ledger = self.transactions
        async with self.channel() as channel:
            await channel.tx_select()
            while True:
                numbers: set[int] = set()
                for _ in range(self.random.randint(1, 4)):
                    delivery = await channel.get(SOURCE)
                    if delivery is None:
                        return
                    numbers.add(int(delivery.body))
                    channel.publish_nowait(delivery.body, routing_key=TARGET, properties=PERSISTENT)
                    delivery.ack()
                await channel.tx_commit()
                ledger.moved |= numbers

    async def append(self) -> None:
        stream = self.stream
        async with self.channel(confirms=True) as channel:
            window = _Window(WINDOW)
            while await window.open():
                number = stream.next_number
                stream.next_number += 1
                confirm = channel.publish_nowait(b"%d " % number + b"x" * 100, routing_key=STREAM)
                confirm.add_done_callback(partial(self._confirmed, number, stream.confirmed, window))

    async def read(self) -> None:
        stream = self.stream
        stream.next_offset = stream.end
        async with self.channel(prefetch_count=PREFETCH) as channel:
            consumer = await channel.consume(STREAM, arguments={"x-stream-offset": stream.end})
            async for delivery in consumer:
                stream.read(_offset_of(delivery), delivery.body)
                delivery.ack()

    # --- afterwards ---

    async def look(self) -> None:
        """Take everything out of the queues of a broker that has come back, and check it. Then fill the source."""
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            found = await self.drain(WORK)
            self.work.check([(int(body.split()[0]), redelivered) for body, redelivered in found], self.figures)
            transacted = [await self.drain(queue) for queue in TRANSACTED]
            self.transactions.check([int(body.split()[0]) for queue in transacted for body, _ in queue], self.figures)
            source, target = await self.drain(SOURCE), await self.drain(TARGET)
            self.transactions.check_moves(
                [int(body) for body, _ in source], [int(body) for body, _ in target], self.figures
            )
            await self.branches.decide_all()
            source, target = await self.drain(BRANCH_SOURCE), await self.drain(BRANCH_TARGET)
            self.branches.ledger.check([int(body) for body, _ in source], [int(body) for body, _ in target])
            self.stream.check(await self.read_to_the_end(), self.figures)
            await self.fill()

    async def drain(self, queue: str) -> list[tuple[bytes, bool]]:
        """What a queue holds: bodies and redelivered flags. Returns once it is durably empty."""
        found = []
        async with connect(self.uri, reconnect=ONE_LIFE) as connection:
            channel = await connection.channel(confirms=True, prefetch_count=1000)
            await channel.publish(MARKER, routing_key=queue, properties=PERSISTENT)
            consumer = await channel.consume(queue)
            async for delivery in consumer:
                delivery.ack()
                if delivery.body == MARKER:
                    break
                found.append((delivery.body, delivery.redelivered))
            await channel.declare_queue(queue, durable=True)
        return found

    async def read_to_the_end(self) -> list[tuple[int, bytes]]:
        """All that is new in the stream, with offsets. One message more is appended to find its end."""
        stream = self.stream
        records: list[tuple[int, bytes]] = []
        number = stream.next_number
        stream.next_number += 1
        async with connect(self.uri, reconnect=ONE_LIFE) as connection:
            channel = await connection.channel(confirms=True, prefetch_count=1000)
            await channel.publish(b"%d " % number, routing_key=STREAM)
            consumer = await channel.consume(STREAM, arguments={"x-stream-offset": stream.end})
            async for delivery in consumer:
                delivery.ack()
                records.append((_offset_of(delivery), delivery.body))
                if int(delivery.body.split()[0]) == number:
                    break
        return records

    async def fill(self) -> None:
        """Messages to be moved."""
        async with connect(self.uri, reconnect=ONE_LIFE) as connection:
            channel = await connection.channel(confirms=True)
            confirms = []
            for ledger, queue in ((self.transactions, SOURCE), (self.branches.ledger, BRANCH_SOURCE)):
                for _ in range(MOVABLE):
                    ledger.movable.add(ledger.next_number)
                    confirms.append(
                        channel.publish_nowait(b"%d" % ledger.next_number, routing_key=queue, properties=PERSISTENT)
                    )
                    ledger.next_number += 1
            await asyncio.gather(*confirms)


class _Window:
    """How many publishes may be unconfirmed at a time; `end` lets nobody publish any more."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)
        self._is_over = False

    async def open(self) -> bool:
        """Wait for room. False once it is over."""
        await self._free.acquire()
        return not self._is_over

    def release(self) -> None:
        self._free.release()

    def end(self) -> None:
        self._is_over = True
        self._free.release()


def _offset_of(delivery: Delivery) -> int:
    offset = (delivery.properties.headers or {}).get("x-stream-offset")
    assert isinstance(offset, int), f"a delivery of a stream without its offset: {delivery.properties}"
    return offset
