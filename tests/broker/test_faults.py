"""A fault in serving one connection, or in a turn of work, keeps nothing from anybody else."""

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from tests.engine.amqp091.conftest import bench as bench  # noqa: PLC0414 - a fixture, found by its name
from tests.engine.amqp091.conftest import node_bench as node_bench  # noqa: PLC0414
from tests.engine.amqp091.peer import EngineOutput, NodeBench
from waybill.broker import Broker, BrokerFailed
from waybill.client import BasicProperties, connect
from waybill.model.runtime import Chore
from waybill.model.timers import Timer
from waybill.node.node import ServerEngine
from waybill.transport.clock import Clock


class FailingEngine(ServerEngine):
    def end_batch(self) -> None:
        raise ValueError("the engine fails")


@pytest.mark.plain_source
def test_an_engine_that_fails_leaves_the_output_of_others(node_bench: NodeBench) -> None:
    node = node_bench.node
    first, second = node_bench.channel(), node_bench.channel()
    first.declare("q")
    others = [wire.engine for wire in node_bench.wires[-2:]]
    failing = FailingEngine(EngineOutput())
    for engine in (others[0], failing, others[1]):
        assert isinstance(engine, ServerEngine)
        node.mark_dirty(engine)
    with pytest.raises(ValueError, match="the engine fails"):
        node.take_dirty()
    assert node.failed == [failing]
    assert node.take_dirty() == others
    assert not node.has_output
    second.publish(b"1", "q")
    assert second.take_all("q") == [b"1"]


@pytest.mark.plain_source
async def test_a_transport_that_fails_leaves_the_output_of_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ValueError("the transport fails")

    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel()
        outputs = broker._commit_loop.outputs
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        while len(outputs) < 2:
            await asyncio.sleep(0)
        monkeypatch.setattr(list(outputs.values())[-1], "serve", fail)
        writer.write(b"HTTP/1.1")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await channel.declare_queue(exclusive=True)
    assert told(caplog) == ["the transport fails"]


async def test_a_fault_in_a_turn_is_logged_and_the_broker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("nobody expected this")

    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        queue = (await channel.declare_queue(exclusive=True)).name
        told = asyncio.Event()
        broker._node.when_durable(fail)
        broker._node.when_durable(told.set)
        broker._commit_loop.work()
        await asyncio.wait_for(told.wait(), 10)
        await channel.publish(b"1", routing_key=queue)
        assert (await channel.declare_queue(queue, passive=True)).message_count == 1
    faults = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(faults) == 1
    assert faults[0].exc_info is not None
    assert "nobody expected this" in str(faults[0].exc_info[1])


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Each exception that was logged as an error, as it prints."""
    found = [record.exc_info for record in caplog.records if record.levelno >= logging.ERROR]
    return [str(info[1]) for info in found if info is not None]


async def test_maintenance_goes_on_after_a_fault(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.broker.broker.MAINTENANCE_INTERVAL_S", 0.001)
    again = asyncio.Event()
    calls: list[float] = []

    def fail_once() -> None:
        calls.append(0.0)
        if len(calls) == 1:
            raise ValueError("maintenance is wrong")
        again.set()

    async with Broker(port=0) as broker:
        monkeypatch.setattr(broker._log, "report_suppressed", fail_once)
        await asyncio.wait_for(again.wait(), 10)
    assert told(caplog) == ["maintenance is wrong"]


class FastClock(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


class FailingTimer(Timer):
    def __init__(self) -> None:
        self.calls = 0

    def fire(self, now: float) -> None:
        self.calls += 1
        if self.calls == 1:
            raise ValueError("the deadline is wrong")


async def test_a_deadline_that_fails_is_tried_again_and_others_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    clock = FastClock()
    async with Broker(port=0, clock=clock) as broker:
        first, second = FailingTimer(), FailingTimer()
        second.calls = 1
        timers = broker._node.runtime.timers
        for timer in (first, second):
            timers.schedule(clock.now(), timer)
        broker._commit_loop.catch_up()
        clock.ahead_s += 2
        broker._commit_loop.catch_up()
        assert (first.calls, second.calls) == (2, 2)
    assert told(caplog) == ["the deadline is wrong"]


class FailingChore(Chore):
    def __init__(self, left: int) -> None:
        self.left = left
        self.failures = 0

    def work(self) -> bool:
        self.left -= 1
        if self.left % 2:
            raise ValueError("a piece of the work is wrong")
        return self.left <= 0


@pytest.mark.parametrize(("left", "faults"), [(4, 2), (40, 3)])
async def test_a_chore_that_fails_goes_on_with_the_rest_but_not_for_ever(
    caplog: pytest.LogCaptureFixture, left: int, faults: int
) -> None:
    async with Broker(port=0) as broker:
        chore = FailingChore(left)
        broker._node.runtime.go_on_with(chore)
        for _ in range(50):
            broker._commit_loop.work()
        assert not broker._node.has_late_work
    assert len(told(caplog)) == faults


async def test_a_commit_that_ends_in_a_fault_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise ValueError("this is no error of a disk")

    broker = Broker(port=0, data_dir=tmp_path)
    await broker.start()
    async with connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        monkeypatch.setattr("os.pwrite", fail)
        monkeypatch.setattr("os.pwritev", fail)
        properties = BasicProperties(delivery_mode=2)
        publish = asyncio.ensure_future(channel.publish(b"1", routing_key="q", properties=properties))
        with pytest.raises(BrokerFailed, match="this is no error of a disk"):
            await asyncio.wait_for(broker.wait_stopped(), 10)
        with pytest.raises(Exception):  # noqa: B017 - whatever the client calls the loss, it is no success
            await asyncio.wait_for(publish, 10)
    assert told(caplog) == ["this is no error of a disk"]


async def test_a_fault_of_one_who_waited_leaves_reading_as_it_should_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("nobody expected this")

    async with Broker(port=0, data_dir=tmp_path) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        queue = (await channel.declare_queue(exclusive=True)).name
        loop = broker._commit_loop
        # As on a slow disk: the commit is done on the other thread, and too much waits for the next one.
        loop._sync_s = 1.0
        broker._node.when_durable(fail)
        loop.work()
        assert loop.is_committing
        loop._set_reading_paused(paused=True)
        await loop.settle()
        async with asyncio.timeout(10):
            await channel.publish(b"1", routing_key=queue)
    assert told(caplog) == ["nobody expected this"]


async def test_a_start_that_comes_to_nothing_leaves_nothing_behind(tmp_path: Path) -> None:
    start = asyncio.ensure_future(Broker(port=0, data_dir=tmp_path).start())
    while not (tmp_path / "lock").exists():
        await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not (tmp_path / "lock").exists()
    async with Broker(port=0, data_dir=tmp_path) as broker:
        assert broker.port > 0
