"""Opening, closing, cancelling."""

import asyncio
import gc
import socket

import pytest

from tests.client.breaking import until
from waybill.client import (
    AuthenticationFailed,
    Channel,
    ClientError,
    ConnectFailed,
    Connection,
    ConnectionClosed,
    Delivery,
    NotAllowed,
    connect,
)


def with_login(uri: str, login: str) -> str:
    return f"amqp://{login}@{uri.rpartition('@')[2]}"


async def test_a_login_by_scram(waybill_uri: str) -> None:
    async with connect(f"{waybill_uri}?auth_mechanism=SCRAM-SHA-256") as connection:
        await connection.channel()
    with pytest.raises(AuthenticationFailed):
        await connect(with_login(waybill_uri, "guest:wrong") + "?auth_mechanism=SCRAM-SHA-256")


async def test_a_wrong_password_is_told_and_not_shown(broker_uri: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        await connect(with_login(broker_uri, "guest:s3cret-word"))
    assert "s3cret-word" not in repr(caught.value) + str(caught.value)


async def test_an_unknown_virtual_host_is_told(broker_uri: str) -> None:
    with pytest.raises(NotAllowed):
        await connect(broker_uri.rpartition("/")[0] + "/nowhere")


async def test_nobody_listens(free_port: int) -> None:
    with pytest.raises(ConnectFailed, match=f"amqp://127.0.0.1:{free_port}/%2F"):
        await connect(f"amqp://guest:guest@127.0.0.1:{free_port}")


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConnectFailed, match="no answer within"):
            await connect(f"amqp://127.0.0.1:{port}?connection_timeout=50")


async def test_the_heartbeat_of_the_binding(connection: Connection) -> None:
    assert connection.heartbeat_s == 60


async def test_closing_leaves_no_task_behind(broker_uri: str) -> None:
    before = asyncio.all_tasks()
    async with connect(broker_uri) as connection:
        channel = await connection.channel(confirms=True)
        queue = (await channel.declare_queue(exclusive=True)).name
        await channel.consume(queue, lambda delivery: None)
        channel.publish_nowait(b"written before the end", routing_key=queue).cancel()
    assert asyncio.all_tasks() == before
    gc.collect()
    with pytest.raises(ConnectionClosed):
        await channel.publish(b"x", routing_key=queue)
    with pytest.raises(ClientError):
        await connection.channel()
    await connection.close()


async def test_closing_a_connection_ends_its_iterators(broker_uri: str) -> None:
    async with connect(broker_uri) as connection:
        channel = await connection.channel()
        queue = (await channel.declare_queue(exclusive=True)).name
        consumer = await channel.consume(queue)
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
    with pytest.raises(ConnectionClosed):
        await waiting


async def test_a_cancelled_get_returns_its_message(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    await channel.publish(b"x", routing_key=name)
    for _ in range(20):
        task = asyncio.create_task(channel.get(name))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    delivery = None
    async with asyncio.timeout(10):
        while delivery is None:
            delivery = await channel.get(name)
    assert delivery.body == b"x"


async def test_a_cancelled_consume_leaves_no_consumer(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    received: list[Delivery] = []
    task = asyncio.create_task(channel.consume(name, received.append))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10):
        while (await channel.declare_queue(name, passive=True)).consumer_count:
            await asyncio.sleep(0.01)
    await channel.publish(b"x", routing_key=name)
    assert (await channel.declare_queue(name, passive=True)).message_count == 1


async def test_a_cancelled_publish_does_no_harm(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    task = asyncio.create_task(channel.publish(b"x", routing_key=name))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await channel.publish(b"y", routing_key=name)
    assert channel.unconfirmed_count == 0


async def test_a_cancelled_connect_leaves_nothing_open() -> None:
    lost = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        lost.set()
        writer.close()

    async def serve_until_lost(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            lost.set()
            writer.close()

    server = await asyncio.start_server(serve_until_lost, "127.0.0.1", 0)

    async def open_connection() -> None:
        await connect(f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    task = asyncio.create_task(open_connection())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(lost.wait(), 5)
    server.close()


async def test_many_channels(connection: Connection) -> None:
    channels = await asyncio.gather(*(connection.channel(confirms=True) for _ in range(50)))
    await asyncio.gather(*(channel.declare_queue(exclusive=True) for channel in channels))
    await asyncio.gather(*(channel.close() for channel in channels))
    await until(lambda: not any(channel.is_open for channel in channels))
