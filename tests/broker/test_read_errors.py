"""Reads that fail while a backlog is read back: the queue waits, nobody else notices, and nothing is lost by it."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waybill.broker import Broker
from waybill.client import BasicProperties, connect

DURABLE = BasicProperties(delivery_mode=2)
COUNT = 3000
# Little enough that most of the queue leaves memory, and enough that publishers need not wait.
MEMORY_LIMIT_BYTES = 300 << 10


def body_of(number: int) -> bytes:
    return b"<%d>" % number + bytes(300)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """One whose queue `q` and stream `s` have a backlog on the disk."""
    async with Broker(port=0, data_dir=tmp_path, memory_limit_bytes=MEMORY_LIMIT_BYTES) as running:
        async with connect(running.uri()) as connection:
            channel = await connection.channel(confirms=True)
            await channel.declare_queue("q", durable=True)
            await channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
            for name in ("q", "s"):
                # In several batches, so that those before are written and leave memory.
                for first in range(0, COUNT, 100):
                    numbers = range(first, first + 100)
                    await asyncio.gather(
                        *[channel.publish(body_of(number), routing_key=name, properties=DURABLE) for number in numbers]
                    )
        yield running


async def take(broker: Broker, queue: str, count: int) -> list[bytes]:
    async with connect(broker.uri()) as connection:
        channel = await connection.channel(prefetch_count=100)
        arguments: dict[str, object] = {"x-stream-offset": "first"} if queue == "s" else {}
        bodies: list[bytes] = []
        consumer = await channel.consume(queue, arguments=arguments)
        async for delivery in consumer:
            bodies.append(bytes(delivery.body))
            delivery.ack()
            if len(bodies) == count:
                break
        return bodies


async def log_in(broker: Broker) -> None:
    async with asyncio.timeout(10), connect(broker.uri()) as connection:
        await (await connection.channel()).declare_queue("", exclusive=True)


@pytest.mark.parametrize("queue", ["q", "s"])
@pytest.mark.parametrize("failure", [errno.EIO, errno.EMFILE])
async def test_a_read_that_fails_for_a_while_is_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, queue: str, failure: int
) -> None:
    real = os.pread
    failures = [failure] * 4

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if failures:
            raise OSError(failures.pop(), "for a while")
        return real(descriptor, size, offset)

    monkeypatch.setattr("os.pread", pread)
    with caplog.at_level(logging.WARNING, "waybill.broker"):
        taking = asyncio.ensure_future(take(broker, queue, COUNT))
        await log_in(broker)
        assert await asyncio.wait_for(taking, 30) == [body_of(number) for number in range(COUNT)]
    assert "a read failed" in caplog.text


async def test_what_cannot_be_read_is_skipped_and_is_there_at_the_next_start(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("waybill.model.read_retry.FIRST_DELAY_S", 0.001)
    monkeypatch.setattr("waybill.model.read_retry.MAX_DELAY_S", 0.001)
    [log] = (tmp_path / "messages").glob("*1.log")
    bad = log.read_bytes().index(b"<1000>")
    real = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if offset <= bad < offset + size and os.fstat(descriptor).st_ino == log.stat().st_ino:
            raise OSError(errno.EIO, "for good")
        return real(descriptor, size, offset)

    monkeypatch.setattr("os.pread", pread)
    with caplog.at_level(logging.WARNING, "waybill.broker"):
        taking = asyncio.ensure_future(take(broker, "q", COUNT - 1))
        await log_in(broker)
        bodies = await asyncio.wait_for(taking, 30)
    assert bodies == [body_of(number) for number in range(COUNT) if number != 1000]
    assert "damage in the store: messages/" in caplog.text
    assert "skipped: queue 'q': 1 cannot be read" in caplog.text
    monkeypatch.setattr("os.pread", real)
    await broker.stop()
    async with Broker(port=0, data_dir=tmp_path) as again:
        assert await asyncio.wait_for(take(again, "q", 1), 30) == [body_of(1000)]


async def test_a_damaged_message_is_reported_and_not_settled(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [log] = (tmp_path / "messages").glob("*1.log")
    octets = log.read_bytes()
    bad = octets.index(b"<1000>")
    with log.open("r+b") as file:
        file.seek(bad)
        file.write(b"x")
        file.flush()
        with caplog.at_level(logging.ERROR, "waybill.broker"):
            assert len(await asyncio.wait_for(take(broker, "q", COUNT - 1), 30)) == COUNT - 1
        file.seek(bad)
        file.write(b"<")
    assert "fails its checksum" in caplog.text
    await broker.stop()
    async with Broker(port=0, data_dir=tmp_path) as again:
        assert await asyncio.wait_for(take(again, "q", 1), 30) == [body_of(1000)]
