"""However few files a process may open: too many connections and streams are refused, and the store goes on."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from waybill.broker import Broker
from waybill.client import BasicProperties, connect
from waybill.client.errors import ConnectFailed, ConnectionLost, PreconditionFailed
from waybill.transport.descriptors import descriptor_limit, raise_descriptor_limit

DESCRIPTORS = 400
STREAMS = 36
PERSISTENT = BasicProperties(delivery_mode=2)


async def _end(peer: socket.socket) -> bool:
    """Wait until the broker has hung up."""
    try:
        return await asyncio.get_running_loop().sock_recv(peer, 1) == b""
    except ConnectionError:
        return True


def _silent(host: str, port: int) -> socket.socket:
    peer = socket.create_connection((host, port))
    peer.setblocking(False)
    return peer


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_all_that_is_allowed_is_taken(few_descriptors: None) -> None:
    assert descriptor_limit() == DESCRIPTORS
    raise_descriptor_limit()
    assert descriptor_limit() > DESCRIPTORS


@pytest.mark.usefixtures("few_descriptors")
async def test_connections_leave_the_store_what_it_needs(tmp_path: Path) -> None:
    broker = Broker(port=0, data_dir=tmp_path)
    # The peers live in this process, too.
    raise_descriptor_limit()
    async with broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        with ExitStack() as peers:
            crowd = [peers.enter_context(_silent(broker.host, broker.port)) for _ in range(DESCRIPTORS)]
            async with asyncio.timeout(10):
                assert await _end(crowd[0])
            await channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
            await channel.publish(b"kept", routing_key="s", properties=PERSISTENT)
        # As soon as they are gone, others may come.
        async with asyncio.timeout(10):
            while True:
                try:
                    async with connect(broker.uri()) as other:
                        await other.channel()
                    break
                except (ConnectFailed, ConnectionLost):
                    await asyncio.sleep(0)


@pytest.mark.usefixtures("few_descriptors")
async def test_streams_leave_the_store_what_it_needs(tmp_path: Path) -> None:
    async with Broker(port=0, data_dir=tmp_path) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        for number in range(STREAMS):
            await channel.declare_queue(f"s{number}", durable=True, arguments={"x-queue-type": "stream"})
        with pytest.raises(PreconditionFailed, match="streams, and each has a file open"):
            await channel.declare_queue("too-many", durable=True, arguments={"x-queue-type": "stream"})
        channel = await connection.channel(confirms=True)
        await channel.delete_queue("s0")
        await channel.declare_queue("one-more", durable=True, arguments={"x-queue-type": "stream"})
        await channel.publish(b"kept", routing_key="one-more", properties=PERSISTENT)
