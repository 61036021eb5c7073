"""Losing the connection and coming back."""

import asyncio

import pytest

from tests.client.breaking import cut_off, reconnected, until
from tests.client.conftest import QUICK
from tests.conformance.requirement import requirement
from waybill.broker import Broker
from waybill.client import (
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Delivery,
    ReconnectPolicy,
    connect,
)


@requirement("OJS-096", "OJS-105")
async def test_everything_is_restored(connection: Connection, channel: Channel, name: str) -> None:
    events: list[str] = []
    connection.on_reconnect(lambda: events.append("back"))
    connection.on_loss(lambda _error: events.append("lost"))
    await channel.declare_exchange(name, "fanout", auto_delete=True)
    queue = (await channel.declare_queue(exclusive=True)).name
    await channel.bind_queue(queue, name)
    received: list[Delivery] = []
    await channel.consume(queue, received.append)
    await reconnected(connection)
    assert events == ["lost", "back"]
    assert connection.current_queue_name(queue) != queue
    await channel.publish(b"after", exchange=name, mandatory=True)
    await until(lambda: len(received) == 1)
    assert received[0].ack()
    assert await channel.purge_queue(queue) == 0
    await reconnected(connection)
    await channel.publish(b"again", exchange=name, mandatory=True)
    await until(lambda: len(received) == 2)


@requirement("OJS-105")
async def test_the_prefetch_count_is_restored(connection: Connection, channel: Channel, name: str) -> None:
    await channel.declare_queue(name, durable=True)
    consuming = await connection.channel(prefetch_count=3)
    received: list[Delivery] = []
    await consuming.consume(name, received.append)
    await reconnected(connection)
    await asyncio.gather(*(channel.publish_nowait(b"x", routing_key=name) for _ in range(10)))
    await until(lambda: len(received) == 3)
    assert (await channel.declare_queue(name, passive=True)).message_count == 7
    await channel.delete_queue(name)


async def test_a_delivery_of_a_lost_connection_cannot_be_settled(
    connection: Connection, channel: Channel, name: str
) -> None:
    await channel.declare_queue(name, durable=True)
    await channel.publish(b"x", routing_key=name)
    first = await channel.get(name)
    assert first is not None
    await reconnected(connection)
    assert not first.ack()
    second = await channel.get(name)
    assert second is not None
    assert second.redelivered
    await channel.delete_queue(name)


async def test_unconfirmed_publishes_fail_with_connection_lost(
    connection: Connection, channel: Channel, name: str
) -> None:
    await channel.declare_queue(name, exclusive=True)
    futures = [channel.publish_nowait(b"x", routing_key=name) for _ in range(10)]
    cut_off(connection)
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, ConnectionLost) for result in results)
    with pytest.raises(ConnectionLost):
        await channel.publish_nowait(b"x", routing_key=name)
    await channel.publish(b"waits for the connection", routing_key=name)


async def test_calls_wait_for_the_connection(connection: Connection, channel: Channel, name: str) -> None:
    cut_off(connection)
    await until(lambda: not connection.is_open)
    declared = await channel.declare_queue(name, exclusive=True)
    assert declared.name == name


async def test_a_consumer_that_is_started_while_the_connection_is_away_is_registered_once(
    connection: Connection, channel: Channel, name: str
) -> None:
    """Twice with one tag would be an error of the whole connection."""
    await channel.declare_queue(name)
    cut_off(connection)
    await until(lambda: not connection.is_open)
    consumer = await channel.consume(name)
    reconnections = connection.reconnections
    await channel.publish(b"x", routing_key=name)
    delivery = await anext(consumer)
    delivery.ack()
    assert (await channel.declare_queue(name, passive=True)).consumer_count == 1
    assert connection.reconnections == reconnections == 1


async def test_what_was_deleted_is_not_restored(connection: Connection, channel: Channel, name: str) -> None:
    await channel.declare_exchange(name)
    await channel.declare_queue(name, durable=True)
    await channel.bind_queue(name, name, "key")
    await channel.delete_queue(name)
    await channel.delete_exchange(name)
    assert connection.declarations.bindings() == []
    assert connection.declarations.queues() == []
    assert connection.declarations.exchanges() == []


@requirement("OJS-105")
async def test_a_broker_that_forgot_everything_is_set_up_again(free_port: int, name: str) -> None:
    async with Broker(port=free_port) as broker:
        connection = await connect(f"amqp://guest:guest@127.0.0.1:{broker.port}", reconnect=QUICK)
        channel = await connection.channel(confirms=True, prefetch_count=10)
        await channel.declare_exchange(name, durable=True)
        await channel.declare_queue(name, durable=True)
        await channel.bind_queue(name, name, "key")
        received: list[Delivery] = []
        await channel.consume(name, received.append)
    await until(lambda: not connection.is_open)
    async with Broker(port=free_port):
        await channel.publish(b"x", exchange=name, routing_key="key", mandatory=True)
        await until(lambda: len(received) == 1)
        await connection.close()


async def test_giving_up(free_port: int) -> None:
    policy = ReconnectPolicy(first_delay_s=0.01, max_attempts=2)
    async with Broker(port=free_port) as broker:
        connection = await connect(f"amqp://guest:guest@127.0.0.1:{broker.port}", reconnect=policy)
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q")
        consumer = await channel.consume("q")
    with pytest.raises(ConnectionClosed, match="gave up after 2 attempts"):
        await anext(consumer)
    with pytest.raises(ConnectionClosed):
        await channel.publish(b"x", routing_key="q")
    await connection.close()


async def test_a_failed_attempt_says_when_the_next_one_follows(
    free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    policy = ReconnectPolicy(first_delay_s=0.01, factor=2, jitter=0, max_attempts=2)
    async with Broker(port=free_port) as broker:
        connection = await connect(f"amqp://guest:guest@127.0.0.1:{broker.port}", reconnect=policy)
    await until(lambda: connection.closed)
    first, last = [one.getMessage() for one in caplog.records if "to reconnect failed" in one.getMessage()]
    assert first.startswith("attempt 1 to reconnect failed: ")
    assert first.endswith("; the next follows in 0.0 s")
    assert "follows" not in last


@requirement("OJS-103", "OJS-104", "OJSW-025")
def test_the_delays_of_the_binding() -> None:
    policy = ReconnectPolicy(jitter=0.0)
    assert [policy.delay_s(attempt) for attempt in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    spread = [ReconnectPolicy().delay_s(4) for _ in range(500)]
    assert 6.0 <= min(spread) < 6.6
    assert 9.4 < max(spread) <= 10.0
    assert ReconnectPolicy(jitter=0).delay_s(10**6) == 60
