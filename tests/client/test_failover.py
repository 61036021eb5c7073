"""A URI of several nodes: whoever answers is used, and another one when it goes."""

import asyncio
import logging
import socket

import pytest

from tests.client.breaking import cut_off, until
from tests.client.conftest import QUICK
from waybill.broker import Broker
from waybill.client import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    ConnectionPool,
    Delivery,
    ReconnectPolicy,
    connect,
)
from waybill.client.blocking import connect as connect_blocking
from waybill.client.failover import round_of
from waybill.client.uri import parse_uri

LOGIN = "amqp://guest:guest@"


def test_a_round_has_each_node_once_and_the_lost_one_last() -> None:
    address = parse_uri("amqp://a,b,c,d")
    firsts = set()
    for _ in range(200):
        nodes = round_of(address, address.nodes[1])
        assert {node.host for node in nodes} == set("abcd")
        assert nodes[-1].host == "b"
        firsts.add(nodes[0].host)
    assert firsts == set("acd")


async def test_everything_moves_to_the_other_node(caplog: pytest.LogCaptureFixture) -> None:
    at_once = ReconnectPolicy(first_delay_s=0)
    caplog.set_level(logging.INFO, "waybill.client")
    async with Broker(port=0) as one, Broker(port=0) as other:
        uri = f"{LOGIN}127.0.0.1:{one.port},127.0.0.1:{other.port}"
        async with connect(uri, reconnect=at_once) as connection:
            channel = await connection.channel(prefetch_count=5)
            await channel.declare_queue("moving", durable=True)
            received: list[Delivery] = []
            await channel.consume("moving", received.append)
            lost = connection.node
            await (one if lost.port == one.port else other).stop()
            await channel.publish(b"x", routing_key="moving", mandatory=True)
            await until(lambda: len(received) == 1)
            assert connection.node != lost
            assert connection.reconnections == 1
            assert f"connection to {lost} lost" in caplog.text
            assert f"reconnected to {connection.node}" in caplog.text


async def test_a_connection_that_does_not_last_waits_before_it_moves() -> None:
    """Nodes that take connections and end them at once are not asked in a tight loop."""
    never = ReconnectPolicy(first_delay_s=3600, max_delay_s=3600)
    async with Broker(port=0) as one, Broker(port=0) as other:
        connection = await connect([f"{LOGIN}127.0.0.1:{node.port}" for node in (one, other)], reconnect=never)
        lost = asyncio.Event()
        connection.on_loss(lambda _: lost.set())
        cut_off(connection)
        await lost.wait()
        # It would be back by now: the round trips of a connection need less than those of this one.
        async with connect(f"{LOGIN}127.0.0.1:{one.port}") as witness:
            await witness.channel()
        assert not connection.is_open
        await connection.close()


async def test_a_node_that_hangs_is_left_after_the_timeout(free_port: int) -> None:
    # The kernel takes the connection, nobody ever reads it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with Broker(port=0) as broker:
            uris = [
                f"{LOGIN}127.0.0.1:{silent.getsockname()[1]}/?connection_timeout=50",
                f"{LOGIN}127.0.0.1:{free_port}",
                f"{LOGIN}127.0.0.1:{broker.port}",
            ]
            # By chance the live node comes first; each of eight has a chance of two in three to meet another one.
            async with ConnectionPool(uris, 8) as pool:
                for _ in range(8):
                    assert (await pool.connection()).node.port == broker.port


async def test_nodes_that_all_fail_are_named_with_their_causes(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = silent.getsockname()[1]
        uri = f"amqp://u:s3cret@127.0.0.1:{hanging},127.0.0.1:{free_port}/?connection_timeout=50"
        with pytest.raises(ConnectFailed, match="none of the 2 nodes") as caught:
            await connect(uri)
    text = str(caught.value)
    assert f"127.0.0.1:{hanging}/%2F: no answer within 0.05 s" in text
    assert f"127.0.0.1:{free_port}/%2F: " in text
    assert "s3cret" not in text


async def test_a_refusal_says_more_than_a_node_that_is_down(free_port: int) -> None:
    async with Broker(port=0) as broker:
        with pytest.raises(AuthenticationFailed):
            await connect(f"amqp://guest:wrong@127.0.0.1:{free_port},127.0.0.1:{broker.port}")


async def test_an_attempt_is_a_round(free_port: int) -> None:
    policy = ReconnectPolicy(first_delay_s=0.01, max_attempts=2)
    async with Broker(port=0) as broker:
        connection = await connect(f"{LOGIN}127.0.0.1:{broker.port},127.0.0.1:{free_port}", reconnect=policy)
        channel = await connection.channel()
    await until(lambda: connection.closed)
    with pytest.raises((ConnectionClosed, ConnectionLost), match="gave up after 2 attempts"):
        await channel.publish(b"x", routing_key="q")
    await connection.close()


async def test_the_blocking_client_moves_too() -> None:
    async with Broker(port=0) as one, Broker(port=0) as other:
        uris = [f"{LOGIN}127.0.0.1:{node.port}" for node in (one, other)]
        connection = await asyncio.to_thread(connect_blocking, uris, reconnect=QUICK)
        channel = await asyncio.to_thread(connection.channel)
        await asyncio.to_thread(channel.declare_queue, "q", durable=True)
        port = connection.node.port
        await (one if port == one.port else other).stop()
        await asyncio.to_thread(channel.publish, b"x", routing_key="q", mandatory=True)
        assert connection.node.port != port
        await asyncio.to_thread(connection.close)
