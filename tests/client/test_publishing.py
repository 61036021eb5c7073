"""Publishing and consuming in bulk, on both brokers."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.client.breaking import until
from tests.client.conftest import QUICK
from waybill.client import (
    Channel,
    Connection,
    ConnectionLost,
    MessageReturned,
    OutgoingMessage,
    QueueFull,
    connect,
)
from waybill.testing import TestBroker


async def test_many_messages_are_published_in_order_and_failures_are_told(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, arguments={"x-max-length": 600, "x-overflow": "reject-publish"}, exclusive=True)
    lost = OutgoingMessage(b"lost", f"{name}-nowhere", mandatory=True)

    def messages() -> Iterator[OutgoingMessage]:
        for number in range(1000):
            yield lost if number == 500 else OutgoingMessage(str(number).encode(), name)

    failures = await channel.publish_many(messages(), window=50)
    returned = [one for one in failures if isinstance(one.error, MessageReturned)]
    assert [one.message for one in returned] == [lost]
    refused = {one.message.body for one in failures if isinstance(one.error, QueueFull)}
    kept = []
    while (delivery := await channel.get(name, no_ack=True)) is not None:
        kept.append(int(delivery.body))
    assert kept == sorted(kept)
    assert len(kept) + len(refused) == 999
    assert {str(number).encode() for number in kept}.isdisjoint(refused)


async def test_what_a_lost_connection_takes_is_told() -> None:
    with TestBroker() as broker:
        async with connect(broker.uri(), reconnect=QUICK) as connection:
            channel = await connection.channel(confirms=True)
            await channel.declare_queue("q", durable=True)
            with broker.stalled():
                publishing = asyncio.gather(channel.publish_many([OutgoingMessage(b"x", "q") for _ in range(10)]))
                await until(lambda: channel.unconfirmed_count == 10)
                broker.drop_connections()
            (failures,) = await publishing
            assert len(failures) == 10
            assert {type(one.error) for one in failures} == {ConnectionLost}


async def test_batches_are_full_while_there_is_much_and_small_when_there_is_little(
    connection: Connection, channel: Channel, name: str
) -> None:
    await channel.declare_queue(name, exclusive=True)
    await channel.publish_many([OutgoingMessage(str(number).encode(), name) for number in range(25)])
    consuming = await connection.channel(prefetch_count=20)
    consumer = await consuming.consume(name)
    sizes, bodies = [], []
    async for batch in consumer.batches(10, wait_s=0.2):
        sizes.append(len(batch))
        bodies += [int(delivery.body) for delivery in batch]
        batch[-1].ack(multiple=True)
        if len(bodies) == 25:
            await channel.publish(b"25", routing_key=name)
        if len(bodies) == 26:
            break
    assert bodies == list(range(26))
    assert sizes == [10, 10, 5, 1]
    await consumer.cancel()
    assert (await channel.declare_queue(name, passive=True)).message_count == 0


async def test_a_batch_ends_with_its_consumer(connection: Connection, channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    await channel.publish(b"x", routing_key=name)
    consumer = await (await connection.channel(prefetch_count=10)).consume(name)

    async def read() -> list[int]:
        return [len(batch) async for batch in consumer.batches(10, wait_s=30)]

    reading = asyncio.create_task(read())
    await until(lambda: not consumer._backlog and consumer._waiter is not None)
    await consumer.cancel()
    assert await asyncio.wait_for(reading, 10) == [1]


async def test_the_delays_between_attempts_to_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the binding's table, 25 % to either side, as the connection really waits them."""
    waits: list[float] = []
    back = asyncio.Event()

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 9:
            await back.wait()

    with TestBroker() as broker:
        async with connect(broker.uri()) as connection:
            with broker.unreachable():
                monkeypatch.setattr("waybill.client.connection.asyncio.sleep", wait)
                async with asyncio.timeout(20):
                    while len(waits) < 9:
                        await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(int))})
            back.set()
            await asyncio.wait_for(connection.wait_ready(), 10)
            monkeypatch.undo()
    table = [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(0.75 * due <= waited <= 1.25 * due for waited, due in zip(waits, table, strict=True)), waits
    assert connection.reconnections == 1


async def test_a_refused_declaration_is_logged_and_not_repeated_differently(
    connection: Connection, channel: Channel, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await channel.declare_queue(name, durable=True)
    other = await connection.channel()
    with pytest.raises(Exception, match="inequivalent arg"):
        await other.declare_queue(name, durable=True, arguments={"x-max-length": 5})
    assert [record.levelname for record in caplog.records if "inequivalent arg" in record.message] == ["WARNING"]
    assert dict(connection.declarations.queues())[name].arguments == {}, "a reconnect declares what the broker has"
    await channel.delete_queue(name)


async def test_who_is_told_at_once_hears_what_a_future_would_have_had(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}, exclusive=True)
    told: list[BaseException | None] = []
    channel.publish_telling(told.append, b"kept", routing_key=name)
    channel.publish_telling(told.append, b"refused", routing_key=name)
    channel.publish_telling(told.append, b"lost", routing_key=f"{name}-nowhere", mandatory=True)
    await until(lambda: len(told) == 3)
    assert {type(one) for one in told} == {type(None), QueueFull, MessageReturned}


async def test_who_is_told_at_once_hears_of_a_lost_connection() -> None:
    with TestBroker() as broker:
        async with connect(broker.uri(), reconnect=QUICK) as connection:
            channel = await connection.channel(confirms=True)
            await channel.declare_queue("q", durable=True)
            told: list[BaseException | None] = []
            with broker.stalled():
                channel.publish_telling(told.append, b"x", routing_key="q")
                broker.drop_connections()
            await until(lambda: len(told) == 1)
            # While the connection is away, not from within the call.
            channel.publish_telling(told.append, b"x", routing_key="q")
            await until(lambda: len(told) == 2)
            assert type(told[0]) is ConnectionLost


async def test_what_fails_in_a_callback_leaves_the_connection_alone(
    connection: Connection, channel: Channel, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await channel.declare_queue(name, exclusive=True)
    reads = 0

    def fail() -> None:
        nonlocal reads
        reads += 1
        raise LookupError("my fault")

    connection.after_reading(fail)
    channel.publish_telling(lambda _: 1 // 0, b"x", routing_key=name)
    await channel.publish(b"y", routing_key=name)
    assert (await channel.declare_queue(name, passive=True)).message_count == 2
    assert reads >= 2
    assert "my fault" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_what_is_added_after_reading_goes_out_with_the_answers(connection: Connection, name: str) -> None:
    channel = await connection.channel(confirms=True)
    await channel.declare_queue(name, exclusive=True)
    told: list[BaseException | None] = []
    due = [b"second"]

    def add() -> None:
        if told and due:
            channel.publish_telling(told.append, due.pop(), routing_key=name)

    connection.after_reading(add)
    channel.publish_telling(told.append, b"first", routing_key=name)
    await until(lambda: len(told) == 2)
    assert told == [None, None]
    assert (await channel.declare_queue(name, passive=True)).message_count == 2
