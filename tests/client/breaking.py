"""Ways to break a connection from outside, and to wait for what follows."""

import asyncio
from collections.abc import Callable

from waybill.client import Connection


async def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Return when `condition` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def cut_off(connection: Connection) -> None:
    """Reset the connection as a broken network would."""
    assert connection._socket is not None
    connection._socket.pump.abort()


async def reconnected(connection: Connection) -> None:
    """Cut the connection off and wait until it is back."""
    before = connection.reconnections
    cut_off(connection)
    await until(lambda: connection.reconnections > before)
