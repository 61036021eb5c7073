"""Heads of queues that nobody consumes leave the memory, so that no alarm lasts for ever."""

from typing import Final

import pytest

from tests.engine.amqp091.peer import Channel
from tests.engine.disk_bench import DiskBench
from waybill.model.eviction import Eviction
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueuePurge, QueuePurgeOk
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties

LIMIT_BYTES: Final = 4 << 20
BODY: Final = b"x" * 4000
QUEUES: Final = 8
EACH: Final = 100
DECLARED: Final = 900


def body(number: int) -> bytes:
    return b"%d " % number + BODY


@pytest.fixture
def bench() -> DiskBench:
    return DiskBench(memory_limit_bytes=LIMIT_BYTES)


def fill(channel: Channel, *, count: int = EACH, mode: int = 1) -> None:
    """Less than the memory limit in all, so that everything stays in memory."""
    for queue in range(QUEUES):
        channel.declare(f"q{queue}", {"x-max-priority": 3} if queue == 1 else {}, durable=True)
    for number in range(count):
        for queue in range(QUEUES):
            properties = BasicProperties(delivery_mode=mode if queue else 2, priority=number % 3)
            channel.publish(body(number), f"q{queue}", properties=properties)
    channel.sync()


def raise_alarm(bench: DiskBench, channel: Channel) -> None:
    """Declare as much as the messages take."""
    for start in range(0, DECLARED, 100):
        channel.send(*(QueueDeclare(f"other{start + number}", no_wait=True) for number in range(100)))
        channel.sync()
    wait(bench)


def wait(bench: DiskBench) -> None:
    for _ in range(3):
        bench.advance(1.1)
        bench.node.maintain(bench.now)
        bench.settle()


def in_order(queue: int, numbers: list[int]) -> list[bytes]:
    if queue == 1:
        numbers = sorted(numbers, key=lambda number: (-(number % 3) if number < EACH else 0, number))
    return [body(number) for number in numbers]


@pytest.mark.plain_source
def test_an_alarm_without_eviction_would_last(bench: DiskBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eviction, "begin", lambda _: None)
    channel = bench.channel()
    fill(channel)
    raise_alarm(bench, channel)
    assert bench.node.alarm


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "durable"])
def test_an_alarm_ends_and_nothing_is_lost(bench: DiskBench, mode: int) -> None:
    channel = bench.channel()
    fill(channel, mode=mode)
    before = bench.memory_bytes
    raise_alarm(bench, channel)
    assert not bench.node.alarm
    assert bench.memory_bytes < before // 4
    for queue in range(QUEUES):
        channel.publish(body(EACH), f"q{queue}")
        taken = channel.take_all(f"q{queue}")
        assert taken == in_order(queue, [*range(EACH + 1)])
    assert bench.memory_bytes == 0


def test_what_was_put_back_keeps_its_place(bench: DiskBench) -> None:
    channel = bench.channel()
    fill(channel)
    tags = [delivery.tag for _ in range(10) if (delivery := channel.get("q2", no_ack=False))]
    channel.nack(tags[5])
    raise_alarm(bench, channel)
    for tag in tags[:5] + tags[6:]:
        channel.nack(tag)
    assert channel.take_all("q2") == in_order(2, [*range(EACH)])


def test_a_half_read_backlog_goes_back(bench: DiskBench) -> None:
    """Twice, with a tail behind it."""
    channel = bench.channel()
    fill(channel)
    raise_alarm(bench, channel)
    taken = [channel.take("q3").body for _ in range(7)]
    for number in range(5):
        channel.publish(b"late %d" % number, "q3")
    for _ in range(200):
        channel.publish(BODY, "q4")
    channel.sync()
    wait(bench)
    taken += channel.take_all("q3")
    assert taken == in_order(3, [*range(EACH)]) + [b"late %d" % number for number in range(5)]


def test_what_was_evicted_survives(bench: DiskBench) -> None:
    channel = bench.channel()
    fill(channel, mode=2)
    raise_alarm(bench, channel)
    bench.restart("kill")
    channel = bench.channel()
    for queue in range(QUEUES):
        assert channel.take_all(f"q{queue}") == in_order(queue, [*range(EACH)])


def test_expiry_and_purge_of_what_was_evicted(bench: DiskBench) -> None:
    channel = bench.channel()
    fill(channel)
    channel.declare("mortal")
    for number in range(20):
        channel.publish(body(number), "mortal", properties=BasicProperties(expiration="60000" if number < 10 else None))
    raise_alarm(bench, channel)
    bench.advance(61)
    assert channel.take_all("mortal") == [body(number) for number in range(10, 20)]
    for queue in range(QUEUES):
        channel.call(QueuePurge(f"q{queue}"), QueuePurgeOk)
    assert bench.memory_bytes == 0


@pytest.mark.parametrize("count", [1, 2])
def test_large_transactions_leave_the_memory(bench: DiskBench, count: int) -> None:
    """All messages of a commit are in one batch, and none comes after them."""
    channel = bench.channel()
    runtime = bench.node.runtime
    channel.call(TxSelect(), TxSelectOk)
    for number in range(count):
        channel.declare(f"q{number}", durable=True)
        for _ in range(LIMIT_BYTES // 2 // len(BODY)):
            channel.publish(body(number), f"q{number}", properties=BasicProperties(delivery_mode=1 + number))
        channel.call(TxCommit(), TxCommitOk)
    runtime.change_memory_limit(1 << 20)
    wait(bench)
    assert runtime.memory_bytes < LIMIT_BYTES // 4
    assert not bench.node.alarm
    for number in range(count):
        assert channel.take_all(f"q{number}") == [body(number)] * (LIMIT_BYTES // 2 // len(BODY))
