"""What a broker tells of is written before: a kill of the process cannot take back what somebody has seen."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from waybill.broker import Broker
from waybill.client import BasicProperties, connect
from waybill.node.node import Node, NodeOptions
from waybill.transport.disk import DiskFilesystem
from waybill.transport.pump import Engine, Pump

PERSISTENT = BasicProperties(delivery_mode=2)


class _WatchedTransport:
    """Calls `before_write` before anything goes out."""

    def __init__(self, transport: asyncio.BaseTransport, before_write: Callable[[], None]) -> None:
        self._transport = transport
        self._before_write = before_write

    def write(self, data: bytes) -> None:
        self._before_write()
        cast("asyncio.Transport", self._transport).write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class _WatchedPump:
    """A pump that writes to a watched transport."""

    def __init__(self, pump: Pump[Engine], before_write: Callable[[], None]) -> None:
        self._pump = pump
        self._before_write = before_write
        self.protocol = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pump.connection_made(cast("asyncio.Transport", _WatchedTransport(transport, self._before_write)))

    def __getattr__(self, name: str) -> object:
        return getattr(self._pump, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._pump

    def __hash__(self) -> int:
        return hash(self._pump)


class _WatchedBroker(Broker):
    def __init__(self, data_dir: Path, before_write: Callable[[], None]) -> None:
        super().__init__(port=0, data_dir=data_dir)
        self._before_write = before_write

    def _make_pump(self) -> Pump[Engine]:
        return cast("Pump[Engine]", _WatchedPump(super()._make_pump(), self._before_write))


def copy_directory(directory: Path, copy: Path) -> None:
    """What a kill of the process would leave behind."""
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("lock", "control"))


def contents_left(directory: Path) -> list[bytes]:
    """What a broker that starts on a copy of the directory finds in the queue."""
    node = Node.open(DiskFilesystem(directory), NodeOptions("copy", "0", bytes, 1 << 20), 0.0)
    contents = [entry.message.content for entry in node.virtual_hosts["/"].queues["q"].entries()]
    node.close()
    return contents


@pytest.mark.parametrize("rounds_of_the_loop_between", [0, 10], ids=["in one read", "in two reads"])
async def test_an_ack_is_written_before_anything_goes_out_that_follows_it(
    tmp_path: Path, rounds_of_the_loop_between: int
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    is_watching = False

    def copy_once() -> None:
        if is_watching and not copy.exists():
            copy_directory(data, copy)

    async with _WatchedBroker(data, copy_once) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        for body in (b"first", b"second"):
            await channel.publish(body, routing_key="q", properties=PERSISTENT)
        first = await channel.get("q")
        assert first is not None
        is_watching = True
        first.ack()
        for _ in range(rounds_of_the_loop_between):
            await asyncio.sleep(0)
        assert await channel.get("q") is not None
    (left,) = contents_left(copy)
    assert b"second" in left


async def test_an_ack_that_nothing_follows_is_written_soon(tmp_path: Path) -> None:
    async with Broker(port=0, data_dir=tmp_path / "data") as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        await channel.publish(b"only", routing_key="q", properties=PERSISTENT)
        delivery = await channel.get("q")
        assert delivery is not None
        (log,) = (tmp_path / "data" / "messages").iterdir()
        before = log.read_bytes()
        delivery.ack()
        async with asyncio.timeout(10):
            while log.read_bytes() == before:
                await asyncio.sleep(0)
        copy_directory(tmp_path / "data", tmp_path / "copy")
        assert contents_left(tmp_path / "copy") == []
