"""aio-pika against the broker: all that it offers, and its robust connection over a broker that is killed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import aio_pika.exceptions
import pytest
from aio_pika.abc import AbstractConnection

from tests.broker.process import BrokerProcess


@pytest.fixture
async def connection(broker: BrokerProcess) -> AsyncIterator[AbstractConnection]:
    async with await aio_pika.connect(broker.uri()) as connection:
        yield connection


async def test_publish_consume_and_settle(connection: AbstractConnection) -> None:
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=2)
    exchange = await channel.declare_exchange("aio.topic", aio_pika.ExchangeType.TOPIC, auto_delete=True)
    queue = await channel.declare_queue("aio", durable=True)
    await queue.bind(exchange, "a.*")
    for number in range(3):
        confirmed = await exchange.publish(
            aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, headers={"n": number}),
            "a.b",
        )
        assert confirmed is not None
    async with queue.iterator() as messages:
        first = await anext(messages)
        assert (first.body, first.headers, first.redelivered) == (b"0", {"n": 0}, False)
        await first.nack(requeue=True)
        second = await anext(messages)
        await second.ack()
        again = await anext(messages)
        await again.reject(requeue=False)
        last = await anext(messages)
        await last.ack()
    assert {second.body, again.body, last.body} == {b"0", b"1", b"2"}
    await queue.unbind(exchange, "a.*")
    await queue.delete()


async def test_polling_purging_and_returns(connection: AbstractConnection) -> None:
    channel = await connection.channel(on_return_raises=True)
    queue = await channel.declare_queue(exclusive=True)
    assert await queue.get(fail=False) is None
    await channel.default_exchange.publish(aio_pika.Message(b"1"), queue.name)
    await channel.default_exchange.publish(aio_pika.Message(b"2"), queue.name)
    message = await queue.get(no_ack=True)
    assert (message.body, message.message_count) == (b"1", 1)
    assert (await queue.purge()).message_count == 1
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(b"back"), "nowhere", mandatory=True)


async def test_exchanges_feed_exchanges(connection: AbstractConnection) -> None:
    channel = await connection.channel()
    source = await channel.declare_exchange("aio.source", aio_pika.ExchangeType.DIRECT, auto_delete=True)
    target = await channel.declare_exchange("aio.target", aio_pika.ExchangeType.FANOUT, internal=True)
    await target.bind(source, "key")
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(target)
    await source.publish(aio_pika.Message(b"1"), "key")
    assert (await queue.get(no_ack=True)).body == b"1"
    await target.unbind(source, "key")
    await target.delete()


async def test_transactions(connection: AbstractConnection) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(exclusive=True)
    async with channel.transaction():
        await channel.default_exchange.publish(aio_pika.Message(b"1"), queue.name)
    message = await queue.get(no_ack=True)
    assert message.body == b"1"


async def test_errors_have_their_own_exceptions(connection: AbstractConnection) -> None:
    channel = await connection.channel()
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        await channel.declare_queue("aio.absent", passive=True)
    channel = await connection.channel()
    await channel.declare_queue("aio.plain", exclusive=True)
    with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
        await channel.declare_queue("aio.plain", exclusive=True, arguments={"x-max-length": 1})


async def test_a_robust_connection_comes_back_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        connection = await aio_pika.connect_robust(broker.uri(), reconnect_interval=0.1)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("robust", durable=True)
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                await message.ack()
                received.put_nowait(message.body)

            await queue.consume(take)
            await channel.default_exchange.publish(aio_pika.Message(b"before"), "robust")
            assert await asyncio.wait_for(received.get(), 10) == b"before"
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            async with await aio_pika.connect(broker.uri()) as other:
                publisher = await other.channel()
                await publisher.default_exchange.publish(aio_pika.Message(b"after"), "robust")
            assert await asyncio.wait_for(received.get(), 20) == b"after"
