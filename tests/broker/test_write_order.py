"""What a broker tells of is written before: a kill of the process cannot take back what somebody has seen."""

import asyncio
import shutil
from pathlib import Path

import pytest

from waybill.broker import Broker
from waybill.broker.broker import _PumpOutput
from waybill.client import BasicProperties, connect
from waybill.node.node import Node, NodeOptions
from waybill.transport.disk import DiskFilesystem

PERSISTENT = BasicProperties(delivery_mode=2)


def copy_directory(directory: Path, copy: Path) -> None:
    """What a kill of the process would leave behind."""
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("lock"))


def contents_left(directory: Path) -> list[bytes]:
    """What a broker that starts on a copy of the directory finds in the queue."""
    node = Node.open(DiskFilesystem(directory), NodeOptions("copy", "0", bytes, 1 << 20), 0.0)
    lane = node.virtual_hosts["/"].queues["q"].lane
    contents = [entry.message.content for entry in lane.entries()]
    node.close()
    return contents


@pytest.mark.parametrize("rounds_of_the_loop_between", [0, 10], ids=["in one read", "in two reads"])
async def test_an_ack_is_written_before_anything_goes_out_that_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds_of_the_loop_between: int
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    write = _PumpOutput.flush

    def copy_and_write(output: _PumpOutput) -> None:
        if not copy.exists():
            copy_directory(data, copy)
        write(output)

    async with Broker(port=0, data_dir=data) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        for body in (b"first", b"second"):
            await channel.publish(body, routing_key="q", properties=PERSISTENT)
        first = await channel.get("q")
        assert first is not None
        monkeypatch.setattr(_PumpOutput, "flush", copy_and_write)
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
