"""What a move says when it is stopped while a broker is away."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from waybill.broker import Broker
from waybill.client import Connection, ConnectionLost
from waybill.move import MoveFailed
from waybill.move.sessions import Sessions, opener


async def test_a_stop_without_a_broker_is_an_error() -> None:
    async with Broker(port=0) as broker:
        sessions = Sessions(opener(broker.uri(), "test"), opener(broker.uri(), "test"))

        async def session(stack: AsyncExitStack, source: Connection, target: Connection) -> None:
            # The order comes while the connection is lost.
            sessions.stop()
            raise ConnectionLost("the broker is gone")

        with pytest.raises(MoveFailed, match=r"stopped .* messages may be in transit \(the broker is gone\)"):
            await sessions.run(session)


async def test_a_lost_connection_is_tried_again_until_a_session_ends_by_itself() -> None:
    sessions_begun = 0
    async with Broker(port=0) as broker:

        async def session(stack: AsyncExitStack, source: Connection, target: Connection) -> None:
            nonlocal sessions_begun
            sessions_begun += 1
            if sessions_begun == 1:
                raise ConnectionLost("once")

        await Sessions(opener(broker.uri(), "test"), opener(broker.uri(), "test")).run(session)
    assert sessions_begun == 2
