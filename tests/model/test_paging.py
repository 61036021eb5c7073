"""Deliveries that are not settled: while memory is short their content is on the disk only, and comes back whole."""

import errno
from collections.abc import Iterator
from typing import Final

import pytest

from tests.engine.amqp010.peer import Peer as Peer010
from tests.engine.amqp091.peer import Channel
from tests.engine.disk_bench import DiskBench
from waybill.model.message_queue import MessageQueue
from waybill.wire.amqp010.class_message import MessageRelease
from waybill.wire.amqp091.methods_basic import BasicCancel
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.properties import BasicProperties

LENGTH: Final = 400
PADDING: Final = b"x" * 2000
# Entries, and the few whose copies were not certainly written yet.
HELD_MAX_BYTES: Final = LENGTH * 500
DEAD: Final[dict[str, object]] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def bench() -> Iterator[DiskBench]:
    bench = DiskBench()
    yield bench
    bench.close()


@pytest.fixture(params=[2, 1], ids=["stored", "spilled"])
def properties(request: pytest.FixtureRequest) -> BasicProperties:
    return BasicProperties(delivery_mode=request.param)


def bodies() -> list[bytes]:
    return [b"%d " % number + PADDING for number in range(LENGTH)]


def fill(bench: DiskBench, properties: BasicProperties, arguments: dict[str, object] | None = None) -> Channel:
    channel = bench.channel()
    channel.declare("q", arguments or {}, durable=True)
    channel.declare("dead", durable=True)
    for body in bodies():
        channel.publish(body, properties=properties)
    channel.sync()
    bench.settle()
    return channel


def hold(bench: DiskBench, channel: Channel) -> list[int]:
    """Take all messages and settle none. Returns their tags."""
    channel.consume("q", "holder")
    deliveries = channel.deliveries(LENGTH)
    assert [delivery.body for delivery in deliveries] == bodies()
    bench.settle()
    return [delivery.tag for delivery in deliveries]


def test_what_is_not_settled_takes_little_memory(bench: DiskBench, properties: BasicProperties) -> None:
    fill(bench, properties)
    holder = bench.channel()
    tags = hold(bench, holder)
    assert bench.memory_bytes < HELD_MAX_BYTES
    holder.ack(tags[-1], multiple=True)
    bench.settle()
    assert bench.memory_bytes == 0
    assert holder.depth() == 0


@pytest.mark.parametrize("how", ["nack", "recover", "leave"])
def test_what_comes_back_is_whole_and_in_order(bench: DiskBench, properties: BasicProperties, how: str) -> None:
    other = fill(bench, properties)
    holder = bench.channel()
    tags = hold(bench, holder)
    holder.send(BasicCancel("holder", no_wait=True))
    if how == "nack":
        for tag in [*tags[::2], *tags[1::2]]:
            holder.nack(tag, requeue=True)
        holder.sync()
    elif how == "recover":
        holder.nack(0, multiple=True, requeue=True)
        holder.sync()
    else:
        holder.peer.wire.cut()
    bench.settle()
    assert other.depth() == LENGTH
    # What came back is on the disk until somebody takes it.
    assert bench.memory_bytes < HELD_MAX_BYTES
    assert other.take_all() == bodies()
    assert bench.memory_bytes == 0


def test_what_is_rejected_is_dead_lettered_whole(bench: DiskBench, properties: BasicProperties) -> None:
    fill(bench, properties, DEAD)
    holder = bench.channel()
    hold(bench, holder)
    holder.nack(0, multiple=True, requeue=False)
    holder.sync()
    bench.settle()
    assert holder.take_all("dead") == bodies()
    assert bench.memory_bytes == 0


@pytest.mark.parametrize("requeue", [False, True])
def test_a_disk_that_fails_for_a_time_loses_nothing(bench: DiskBench, *, requeue: bool) -> None:
    fill(bench, BasicProperties(delivery_mode=2), DEAD)
    holder = bench.channel()
    hold(bench, holder)
    holder.send(BasicCancel("holder", no_wait=True))
    bench.disk.fail_next["read"] = errno.EMFILE
    bench.disk.failures_left = 5
    holder.nack(0, multiple=True, requeue=requeue)
    holder.sync()
    bench.settle()
    came_back: list[bytes] = []
    for _ in range(20):
        came_back += holder.take_all("q" if requeue else "dead")
        bench.advance(2.1)
        bench.settle()
    assert sorted(came_back) == sorted(bodies())
    assert bench.memory_bytes == 0


@pytest.mark.parametrize("requeue", [False, True])
def test_one_that_is_damaged_is_skipped(bench: DiskBench, *, requeue: bool) -> None:
    fill(bench, BasicProperties(delivery_mode=2), DEAD)
    holder = bench.channel()
    hold(bench, holder)
    holder.send(BasicCancel("holder", no_wait=True))
    holder.sync()
    bench.settle()
    for name in bench.disk.file_names():
        place = bench.disk.content(name).find(b"200 " + PADDING)
        if place >= 0:
            bench.disk.overwrite(name, place + 100, b"y")
    holder.nack(0, multiple=True, requeue=requeue)
    holder.sync()
    bench.settle()
    wanted = bodies()
    del wanted[200]
    assert holder.take_all("q" if requeue else "dead") == wanted
    assert holder.depth() == 0
    assert bench.memory_bytes == 0


def test_what_could_not_be_read_before_a_stop_comes_back_as_redelivered(bench: DiskBench) -> None:
    fill(bench, BasicProperties(delivery_mode=2), {"x-max-length-bytes": 10 << 20})
    holder = bench.channel()
    hold(bench, holder)
    bench.disk.fail_next["read"] = errno.EIO
    bench.disk.failures_left = 1 << 20
    for wire in bench.wires:
        wire.cut()
    bench.settle()
    bench.disk.fail_next.clear()
    bench.restart("stop")
    channel = bench.channel()
    found = [delivery for _ in range(LENGTH) if (delivery := channel.get("q"))]
    assert [delivery.body for delivery in found] == bodies()
    assert all(delivery.redelivered for delivery in found)


def test_a_limit_of_bytes_counts_what_comes_back(bench: DiskBench) -> None:
    fill(bench, BasicProperties(delivery_mode=2), {"x-max-length-bytes": LENGTH * len(PADDING) * 2})
    holder = bench.channel()
    hold(bench, holder)
    holder.send(BasicCancel("holder", no_wait=True))
    holder.nack(0, multiple=True, requeue=True)
    holder.sync()
    bench.settle()
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert isinstance(queue, MessageQueue)
    assert queue.ready_bytes == sum(map(len, bodies()))
    assert holder.take_all() == bodies()
    assert queue.ready_bytes == 0


def test_a_quorum_queue_gives_up_with_the_whole_message(bench: DiskBench) -> None:
    fill(bench, BasicProperties(delivery_mode=2), {"x-queue-type": "quorum", "x-delivery-limit": 0, **DEAD})
    holder = bench.channel()
    hold(bench, holder)
    holder.nack(0, multiple=True, requeue=True)
    holder.sync()
    bench.settle()
    assert holder.take_all("dead") == bodies()


def test_what_was_polled_takes_little_memory(bench: DiskBench, properties: BasicProperties) -> None:
    fill(bench, properties)
    holder = bench.channel()
    for body in bodies():
        delivery = holder.get(no_ack=False)
        assert delivery is not None
        assert delivery.body == body
        bench.settle()
    assert bench.memory_bytes < HELD_MAX_BYTES
    holder.peer.wire.cut()
    assert bench.channel().take_all() == bodies()


def test_what_a_session_of_0_10_holds_takes_little_memory(bench: DiskBench, properties: BasicProperties) -> None:
    fill(bench, properties)
    peer = Peer010(bench)
    peer.open()
    session = peer.session()
    session.subscribe("q")
    bench.settle()
    held = session.take_all()
    assert [transfer.body for transfer in held] == bodies()
    assert bench.memory_bytes < HELD_MAX_BYTES
    session.call(MessageRelease(((held[0].id, held[-1].id),), set_redelivered=True))
    session.flow(messages=LENGTH)
    bench.settle()
    again = session.take_all()
    assert [transfer.body for transfer in again] == bodies()
    assert all(transfer.delivery.redelivered for transfer in again)
    session.settle(*again)
    bench.settle()
    assert bench.memory_bytes == 0


def test_a_queue_that_is_deleted_leaves_nothing(bench: DiskBench) -> None:
    other = fill(bench, BasicProperties(delivery_mode=2), DEAD)
    holder = bench.channel()
    tags = hold(bench, holder)
    other.call(QueueDelete("q"), QueueDeleteOk)
    holder.expect(BasicCancel)
    for number, tag in enumerate(tags):
        holder.nack(tag, requeue=number % 2 == 0)
    holder.sync()
    bench.settle()
    assert bench.memory_bytes == 0
