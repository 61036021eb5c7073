"""The lock that lets one move at a time use a broker."""

from __future__ import annotations

import asyncio

import pytest

from tests.ojs.eye import until
from waybill.broker import Broker
from waybill.client import connect
from waybill.move.identity import lock


async def test_a_move_says_that_it_waits_for_the_lock_of_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "waybill.move")
    async with Broker(port=0) as broker, connect(broker.uri()) as killed, connect(broker.uri()) as started_again:
        await lock(killed, "move.lock")
        waiting = asyncio.create_task(lock(started_again, "move.lock"))
        await until(lambda: "another move holds the queue move.lock" in caplog.text)
        assert not waiting.done()
        await killed.close()
        await waiting
    assert caplog.text.count("another move holds") == 1
