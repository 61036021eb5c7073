"""Queues longer than what is kept of them in memory: what waits is in chunks on the disk, and still in order."""

from collections.abc import Iterator

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Channel
from tests.engine.disk_bench import DiskBench
from waybill.model.delivery_recorder import MIN_DELIVERY_WINDOW
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk, BasicGet, BasicGetOk
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk, QueuePurge, QueuePurgeOk
from waybill.wire.amqp091.properties import BasicProperties

LENGTH = 3000
PADDING = b"x" * 200
MEMORY_MAX_BYTES = 3 << 19


@pytest.fixture
def disk_bench() -> Iterator[DiskBench]:
    bench = DiskBench()
    yield bench
    bench.close()


@pytest.fixture(params=["stored", "spilled"])
def mode(request: pytest.FixtureRequest) -> str:
    """Persistent messages are in the log anyway; transient ones are written out to free their memory."""
    name: str = request.param
    return name


def properties(mode: str, **others: object) -> BasicProperties:
    return BasicProperties(delivery_mode=2 if mode == "stored" else 1, **others)  # type: ignore[arg-type]


def fill(channel: Channel, mode: str, first: int = 0, count: int = LENGTH, **others: object) -> None:
    for number in range(first, first + count):
        channel.publish(b"%d " % number + PADDING, properties=properties(mode, **others))


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body.split()[0]) for body in bodies]


def long_queue(bench: DiskBench, mode: str, arguments: dict[str, object] | None = None) -> Channel:
    channel = bench.channel()
    channel.declare("q", arguments or {}, durable=True)
    fill(channel, mode)
    assert channel.depth() == LENGTH
    assert bench.memory_bytes < MEMORY_MAX_BYTES
    return channel


@requirement("091-basic.02")
def test_order_and_memory(disk_bench: DiskBench, mode: str) -> None:
    channel = long_queue(disk_bench, mode)
    assert numbers(channel.take_all()) == list(range(LENGTH))
    assert disk_bench.memory_bytes == 0


@requirement("091-basic.04", "091-basic.08")
def test_kinds_that_alternate(disk_bench: DiskBench) -> None:
    channel = disk_bench.channel()
    channel.declare("q", durable=True)
    for number in range(LENGTH):
        fill(channel, "stored" if number % 3 else "spilled", number, 1)
    assert numbers(channel.take_all()) == list(range(LENGTH))
    assert disk_bench.memory_bytes == 0


def test_publishing_while_consuming(disk_bench: DiskBench, mode: str) -> None:
    """The head is refilled from chunks, then from what is sealed, then from the tail, and the queue is short again."""
    channel = long_queue(disk_bench, mode)
    taken: list[bytes] = []
    published = LENGTH
    while len(taken) < published:
        taken += [channel.take().body for _ in range(min(700, published - len(taken)))]
        if published < 2 * LENGTH:
            fill(channel, mode, published, 500)
            published += 500
    assert numbers(taken) == list(range(2 * LENGTH))
    assert disk_bench.memory_bytes == 0


def test_a_disk_that_is_slow(disk_bench: DiskBench, mode: str) -> None:
    """Nothing can be dropped from memory before it is written, and nothing is read back before."""
    disk_bench.is_stuck = True
    channel = disk_bench.channel()
    channel.declare("q")
    fill(channel, mode)
    assert numbers([channel.take().body for _ in range(LENGTH // 2)]) == list(range(LENGTH // 2))
    disk_bench.is_stuck = False
    fill(channel, mode, LENGTH)
    assert numbers(channel.take_all()) == list(range(LENGTH // 2, 2 * LENGTH))


def test_large_messages_make_small_chunks(disk_bench: DiskBench, mode: str) -> None:
    channel = disk_bench.channel()
    channel.declare("q", durable=True)
    most = 0
    for _ in range(100):
        channel.publish(bytes(300_000), properties=properties(mode))
        most = max(most, disk_bench.memory_bytes)
    for _ in range(100):
        assert len(channel.take().body) == 300_000
        most = max(most, disk_bench.memory_bytes)
    assert most < 8 << 20
    assert disk_bench.memory_bytes == 0


def test_purge(disk_bench: DiskBench, mode: str) -> None:
    channel = long_queue(disk_bench, mode)
    held = channel.get(no_ack=False)
    assert held is not None
    assert channel.call(QueuePurge("q"), QueuePurgeOk).message_count == LENGTH - 1
    assert channel.depth() == 0
    fill(channel, mode, LENGTH, 3)
    channel.nack(held.tag)
    assert numbers(channel.take_all()) == [0, LENGTH, LENGTH + 1, LENGTH + 2]
    assert disk_bench.memory_bytes == 0
    disk_bench.restart("kill")
    assert disk_bench.channel().depth() == 0


def test_delete(disk_bench: DiskBench, mode: str) -> None:
    channel = long_queue(disk_bench, mode)
    assert channel.call(QueueDelete("q"), QueueDeleteOk).message_count == LENGTH
    assert disk_bench.memory_bytes == 0
    channel.declare("q", durable=True)
    assert channel.depth() == 0
    disk_bench.restart("kill")
    assert disk_bench.channel().depth() == 0


def test_priorities(disk_bench: DiskBench, mode: str) -> None:
    channel = disk_bench.channel()
    channel.declare("q", {"x-max-priority": 3}, durable=True)
    for number in range(LENGTH):
        fill(channel, mode, number, 1, priority=number % 4)
    expected = sorted(range(LENGTH), key=lambda number: (-(number % 4), number))
    assert numbers(channel.take_all()) == expected
    assert disk_bench.memory_bytes == 0


def test_requeueing_keeps_the_order(disk_bench: DiskBench, mode: str) -> None:
    channel = long_queue(disk_bench, mode)
    other = disk_bench.channel()
    other.qos(2000)
    other.consume()
    assert numbers(other.bodies(2000)) == list(range(2000))
    other.nack(1000, multiple=True)
    other.peer.wire.cut()
    taken = [channel.take() for _ in range(LENGTH)]
    assert numbers([delivery.body for delivery in taken]) == list(range(LENGTH))
    assert {int(delivery.body.split()[0]) for delivery in taken if delivery.redelivered} >= set(range(2000))
    assert not any(delivery.redelivered for delivery in taken[2700:])
    assert disk_bench.memory_bytes == 0


def test_the_time_to_live_of_a_backlog(disk_bench: DiskBench, mode: str) -> None:
    channel = long_queue(disk_bench, mode, {"x-message-ttl": 10_000, "x-dead-letter-exchange": "dead"})
    channel.exchange("dead", "fanout")
    channel.declare("dead")
    channel.bind("dead", "dead")
    disk_bench.advance(11.0)
    assert (channel.depth(), channel.depth("dead")) == (0, LENGTH)
    assert numbers(channel.take_all("dead")) == list(range(LENGTH))
    assert disk_bench.memory_bytes == 0


def test_a_backlog_expires_behind_a_consumer_without_credit(disk_bench: DiskBench, mode: str) -> None:
    """Whatever the consumer has left of the head: the time comes for the chunks behind it too."""
    for count in (200, 1000, 2000):
        channel = long_queue(disk_bench, mode, {"x-message-ttl": 10_000})
        consumer = disk_bench.channel()
        consumer.qos(count)
        consumer.consume()
        consumer.deliveries(count)
        disk_bench.advance(11.0)
        assert channel.depth() == 0
        channel.call(QueueDelete("q"), QueueDeleteOk)


def test_a_maximum_length_drops_the_head(disk_bench: DiskBench, mode: str) -> None:
    channel = disk_bench.channel()
    channel.declare("q", {"x-max-length": 2000}, durable=True)
    fill(channel, mode)
    assert channel.depth() == 2000
    assert numbers(channel.take_all()) == list(range(LENGTH - 2000, LENGTH))
    assert disk_bench.memory_bytes == 0


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
@requirement("091-basic.02")
def test_a_restart(disk_bench: DiskBench, how: str) -> None:
    channel = disk_bench.channel()
    channel.declare("q", durable=True)
    channel.select_confirms()
    fill(channel, "stored")
    channel.await_confirms()
    assert numbers([channel.take().body for _ in range(1200)]) == list(range(1200))
    channel.declare("q", durable=True)
    disk_bench.restart(how)
    channel = disk_bench.channel()
    assert disk_bench.memory_bytes < MEMORY_MAX_BYTES
    assert channel.depth() == LENGTH - 1200
    fill(channel, "stored", LENGTH, 100)
    assert numbers(channel.take_all()) == list(range(1200, LENGTH + 100))
    assert disk_bench.memory_bytes == 0
    channel.declare("q", durable=True)
    disk_bench.restart(how)
    assert disk_bench.channel().depth() == 0


@requirement("091-basic.04", "M010-016")
def test_a_restart_forgets_what_was_only_spilled(disk_bench: DiskBench) -> None:
    long_queue(disk_bench, "spilled")
    disk_bench.restart("kill")
    channel = disk_bench.channel()
    assert channel.depth() == 0
    fill(channel, "spilled")
    assert numbers(channel.take_all()) == list(range(LENGTH))


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize(("seconds", "seen"), [(0.02, 300), (0.2, 100)])
def test_a_crash_flags_what_was_delivered_and_hardly_more(
    disk_bench: DiskBench, how: str, seconds: float, seen: int
) -> None:
    """Whoever counts redeliveries as attempts would charge jobs that nobody has had in hand."""
    channel = long_queue(disk_bench, "stored")
    channel.qos(5)
    channel.consume()
    for _ in range(seen - 5):
        channel.ack(channel.delivery().tag)
        disk_bench.advance(seconds)
    channel.bodies(5)
    disk_bench.restart(how)
    channel = disk_bench.channel()
    flagged = [delivery.redelivered for delivery in (channel.take() for _ in range(200))]
    known = flagged.index(False)
    assert not any(flagged[known:])
    assert 5 <= known <= 5 + 0.1 / seconds + 2 * MIN_DELIVERY_WINDOW


@requirement("M010-102")
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_crash_flags_all_that_was_fetched_at_once(disk_bench: DiskBench, how: str) -> None:
    channel = long_queue(disk_bench, "stored")
    # The first of them asks the store to record a limit, which those after it exceed before it is recorded.
    seen = 5 * MIN_DELIVERY_WINDOW
    channel.send(*[BasicGet("q", no_ack=False)] * seen)
    for _ in range(seen):
        assert isinstance(channel.answer().method, BasicGetOk)
    disk_bench.restart(how)
    channel = disk_bench.channel()
    assert all(channel.take().redelivered for _ in range(seen))


def test_delivery_counts_outlive_a_restart_behind_the_head(disk_bench: DiskBench) -> None:
    """A message that fails again and again is not given new lives by a crash, however long its queue is."""
    arguments: dict[str, object] = {"x-queue-type": "quorum", "x-delivery-limit": 1}
    channel = long_queue(disk_bench, "stored", arguments)
    fail_all(disk_bench)
    channel.declare("q", arguments, durable=True)
    assert channel.depth() == LENGTH
    disk_bench.restart("kill")
    fail_all(disk_bench)
    assert disk_bench.channel().depth() == 0


def fail_all(bench: DiskBench) -> None:
    channel = bench.channel()
    channel.qos(LENGTH)
    tag = channel.consume()
    channel.deliveries(LENGTH)
    channel.call(BasicCancel(tag), BasicCancelOk)
    channel.nack(0, multiple=True)
    channel.sync()
