"""A disk that fails: the broker confirms nothing more and stops."""

import asyncio
import errno
from pathlib import Path

import pytest

from waybill.broker import Broker, BrokerFailed
from waybill.client import BasicProperties, connect


async def test_a_failed_sync_confirms_nothing_and_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(port=0, data_dir=tmp_path)
    await broker.start()
    async with connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "the disk is gone")

        monkeypatch.setattr("os.fdatasync", fail)
        publish = asyncio.ensure_future(
            channel.publish(b"1", routing_key="q", properties=BasicProperties(delivery_mode=2))
        )
        with pytest.raises(BrokerFailed, match="the disk is gone"):
            await asyncio.wait_for(broker.wait_stopped(), 10)
        with pytest.raises(Exception):  # noqa: B017 - whatever the client calls the loss, it is no success
            await asyncio.wait_for(publish, 10)


async def test_a_disk_that_turns_read_only_stops_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(port=0, data_dir=tmp_path)
    await broker.start()
    async with connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)

        def fail(*_: object, **_more: object) -> None:
            raise OSError(errno.EROFS, "the disk is read-only")

        with monkeypatch.context() as patch:
            for name in ("fdatasync", "pwrite", "unlink"):
                patch.setattr(f"os.{name}", fail)
            publish = asyncio.ensure_future(
                channel.publish(b"1", routing_key="q", properties=BasicProperties(delivery_mode=2))
            )
            with pytest.raises(BrokerFailed, match="the disk is read-only"):
                await asyncio.wait_for(broker.wait_stopped(), 10)
            with pytest.raises(Exception):  # noqa: B017 - as above
                await asyncio.wait_for(publish, 10)
    # Nothing holds the directory any more.
    async with Broker(port=0, data_dir=tmp_path) as again, connect(again.uri()) as connection:
        assert (await (await connection.channel()).declare_queue("q", durable=True)).message_count == 0
