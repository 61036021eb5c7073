"""Pools of channels and connections."""

import asyncio
import os

from tests.client.conftest import QUICK
from tests.conformance.requirement import requirement
from waybill.client import Channel, ChannelPool, Connection, ConnectionPool


async def test_channels_are_used_again(connection: Connection) -> None:
    async with ChannelPool(connection, 2) as pool:
        seen: set[Channel] = set()
        most = in_use = 0

        async def use() -> None:
            nonlocal in_use, most
            async with pool.channel() as channel:
                in_use += 1
                most = max(most, in_use)
                seen.add(channel)
                await channel.declare_queue(exclusive=True)
                in_use -= 1

        await asyncio.gather(*(use() for _ in range(10)))
        assert (most, len(seen), pool.idle_count) == (2, 2, 2)
        async with pool.channel() as channel:
            await channel.close()
        assert pool.idle_count == 1


async def test_a_pool_may_close_while_channels_are_lent(connection: Connection) -> None:
    pool = ChannelPool(connection)
    async with pool.channel() as channel:
        await pool.close()
        assert channel.is_open
    assert channel.closed


@requirement("OJS-100")
async def test_a_pool_begins_with_one_connection_and_ends_with_one_for_each_core(broker_uri: str) -> None:
    async with ConnectionPool(broker_uri, reconnect=QUICK) as pool:
        assert len(pool._connections) == 1
        connections = {await pool.connection() for _ in range(3 * (os.cpu_count() or 1))}
        assert len(connections) == os.cpu_count()
        assert {connection.heartbeat_s for connection in connections} == {60}


async def test_connections_are_handed_out_in_turn(broker_uri: str) -> None:
    async with ConnectionPool(broker_uri, 2, name="pool", reconnect=QUICK) as pool:
        connections = [await pool.connection() for _ in range(5)]
        assert len(set(connections)) == 2
        assert all(connection.is_open for connection in connections)
    assert not any(connection.is_open for connection in connections)
