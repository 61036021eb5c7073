"""Queues of the move look empty while another connection has their message: a move waits then, and does not guess."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.move.cuts import Cut
from tests.ojs.eye import until
from waybill.broker import Broker
from waybill.client import AccessRefused, connect
from waybill.move import MoveFailed, Shovel
from waybill.move.identity import identity, known_identity
from waybill.move.transfer import Transfer

IDENTITY = "waybill.shovel.identity"
WAITING = "another connection has the message"


async def cut_before_the_acknowledgement(source: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave messages in the transit queue that have arrived."""

    def cut(_batch: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Transfer, "acknowledge", staticmethod(cut))
        with pytest.raises(Cut):
            await Shovel(source, "q", target).run()


async def held_ledger(source: str) -> str:
    async with connect(source) as connection:
        return f"waybill.shovel.ledger.{await known_identity(connection, IDENTITY)}.q"


@pytest.mark.parametrize("kept", ["ledger", "identity"])
async def test_a_message_that_a_killed_move_was_reading_is_waited_for(
    kept: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "waybill.move")
    async with Broker(port=0) as one, Broker(port=0) as other, AsyncExitStack() as stack:
        source, target = one.uri(), other.uri()
        connection = await stack.enter_async_context(connect(target))
        async with connect(source) as filling, await filling.channel() as channel:
            await channel.declare_queue("q", durable=True)
            for number in range(5):
                await channel.publish(b"%d" % number, routing_key="q")
        channel = await connection.channel()
        await channel.declare_queue("q", durable=True)
        await cut_before_the_acknowledgement(source, target, monkeypatch)
        queue = IDENTITY if kept == "identity" else await held_ledger(source)
        async with connect(target) as killed:
            reader = await killed.channel()
            assert await reader.get(queue) is not None
            moving = asyncio.create_task(Shovel(source, "q", target).run())
            await until(lambda: WAITING in caplog.text or moving.done())
            assert not moving.done()
        await moving
        found = []
        while (delivery := await channel.get("q", no_ack=True)) is not None:
            found.append(delivery.body)
        assert found == [b"0", b"1", b"2", b"3", b"4"]


async def test_commands_that_start_together_agree_on_the_id_of_a_broker() -> None:
    async with Broker(port=0) as broker, AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect(broker.uri())) for _ in range(5)]
        ids = await asyncio.gather(*(identity(one, IDENTITY, {}) for one in connections))
        assert len(set(ids)) == 1
        assert await known_identity(connections[0], IDENTITY) == ids[0]


async def test_a_ledger_that_stays_empty_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(port=0) as one, Broker(port=0) as other, connect(other.uri()) as target:
        async with connect(one.uri()) as source:
            for connection in (source, target):
                async with await connection.channel() as channel:
                    await channel.declare_queue("q", durable=True)
        await Shovel(one.uri(), "q", other.uri()).run()
        ledger = await held_ledger(one.uri())
        async with await target.channel() as channel:
            await channel.purge_queue(ledger)
        monkeypatch.setattr("waybill.move.identity.LOCK_ATTEMPTS", 1)
        with pytest.raises(MoveFailed, match=f"the ledger {ledger} at .* is empty"):
            await Shovel(one.uri(), "q", other.uri()).run()


async def test_a_broker_that_refuses_the_id_keeps_no_queue_without_it() -> None:
    """Else no move would begin there, even after the user has got the permission."""
    async with Broker(port=0) as broker:
        broker.administration.put_user("mover", "mover")
        broker.administration.set_permission("mover", "/", ".*", "^$", ".*")
        async with connect(broker.uri(user="mover", password="mover")) as connection:
            with pytest.raises(AccessRefused):
                await identity(connection, IDENTITY, {})
            broker.administration.set_permission("mover", "/", ".*", ".*", ".*")
            assert await known_identity(connection, IDENTITY) is None
            assert await identity(connection, IDENTITY, {}) == await known_identity(connection, IDENTITY)
