"""Streams drop whole old segments beyond their limits; readers whose place is gone go on with what is there."""

from collections.abc import Iterator

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from tests.engine.disk_bench import DiskBench

SEGMENT_BYTES = 10_000
MESSAGE_BYTES = 500
PER_SEGMENT = 20


@pytest.fixture(params=["memory", "disk"])
def node(request: pytest.FixtureRequest) -> Iterator[NodeBench]:
    bench = DiskBench() if request.param == "disk" else NodeBench(Cut.WHOLE)
    yield bench
    bench.close()


def declare(bench: NodeBench, **limits: object) -> Channel:
    """A confirming channel, and a stream `s` of small segments."""
    names: dict[str, object] = {f"x-{name.replace('_', '-')}": value for name, value in limits.items()}
    channel = bench.channel()
    arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": SEGMENT_BYTES, **names}
    channel.declare("s", arguments, durable=True)
    channel.select_confirms()
    return channel


def append(channel: Channel, first: int, count: int) -> None:
    for number in range(first, first + count):
        channel.publish(b"%d " % number + bytes(MESSAGE_BYTES), "s")
        channel.await_confirms()


def reader(bench: NodeBench, start: object, prefetch: int = 65_535) -> Channel:
    channel = bench.channel()
    channel.qos(prefetch)
    channel.consume("s", arguments={"x-stream-offset": start})
    return channel


def offsets(channel: Channel) -> list[int]:
    """Of all that has arrived; each delivery carries its number as body and offset."""
    channel.peer.receive(0.0)
    taken = [channel.delivery() for _ in range(len(channel.replies))]
    assert all(int(delivery.body.split()[0]) == delivery.headers["x-stream-offset"] for delivery in taken)
    return [int(delivery.body.split()[0]) for delivery in taken]


def test_without_limits_everything_stays(node: NodeBench) -> None:
    channel = declare(node)
    append(channel, 0, 100)
    node.advance(3600.0)
    assert offsets(reader(node, "first")) == list(range(100))


def test_a_maximum_of_bytes(node: NodeBench) -> None:
    channel = declare(node, max_length_bytes=3 * SEGMENT_BYTES)
    append(channel, 0, 200)
    node.advance(2.0)
    left = offsets(reader(node, "first"))
    assert left == list(range(left[0], 200))
    assert PER_SEGMENT < len(left) <= 4 * PER_SEGMENT
    assert channel.depth("s") == len(left)
    node.advance(2.0)
    assert offsets(reader(node, "first")) == left


def test_a_maximum_age(node: NodeBench) -> None:
    channel = declare(node, max_age="1m")
    append(channel, 0, 100)
    node.advance(45.0)
    append(channel, 100, 100)
    node.advance(30.0)
    left = offsets(reader(node, "first"))
    assert 100 - PER_SEGMENT <= left[0] <= 100
    assert left[-1] == 199
    node.advance(3600.0)
    last = offsets(reader(node, "first"))
    assert 0 < len(last) <= PER_SEGMENT + 1, "the last segment always stays"
    assert last[-1] == 199


def test_a_reader_whose_place_is_gone_goes_on_with_the_first_that_is_left(node: NodeBench) -> None:
    channel = declare(node, max_length_bytes=3 * SEGMENT_BYTES)
    append(channel, 0, 40)
    slow = reader(node, "first", prefetch=5)
    assert offsets(slow) == [0, 1, 2, 3, 4]
    append(channel, 40, 160)
    node.advance(2.0)
    first = offsets(reader(node, "first"))[0]
    assert first > 100
    seen: list[int] = []
    tag = 5
    while not seen or seen[-1] < 199:
        slow.ack(tag, multiple=True)
        got = offsets(slow)
        assert got, "the reader is stuck"
        tag += len(got)
        seen += got
    assert seen == sorted(set(seen))
    # What was read ahead for it may still come; then it goes on without a gap.
    jump = seen.index(first)
    assert seen[jump:] == list(range(first, 200))


@pytest.mark.parametrize("start", [0, 50, "first"])
def test_a_place_that_is_gone_already_is_the_first_that_is_left(node: NodeBench, start: object) -> None:
    channel = declare(node, max_length_bytes=3 * SEGMENT_BYTES)
    append(channel, 0, 200)
    node.advance(2.0)
    found = offsets(reader(node, start))
    assert found[0] > 100
    assert found[-1] == 199


def test_a_reader_at_the_end_of_a_segment_that_is_dropped(node: NodeBench) -> None:
    channel = declare(node, max_length_bytes=SEGMENT_BYTES)
    follower = reader(node, "first")
    for first in range(0, 400, 10):
        append(channel, first, 10)
        assert offsets(follower) == list(range(first, first + 10))
        node.advance(1.1)
    assert channel.depth("s") <= 3 * PER_SEGMENT


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_what_is_dropped_stays_dropped_after_a_restart(how: str) -> None:
    bench = DiskBench()
    channel = declare(bench, max_length_bytes=3 * SEGMENT_BYTES)
    append(channel, 0, 200)
    bench.advance(2.0)
    channel.declare("other", durable=True)
    before = offsets(reader(bench, "first"))
    bench.restart(how)
    after = offsets(reader(bench, "first"))
    assert after == before
    channel = bench.channel()
    channel.select_confirms()
    append(channel, 200, 50)
    bench.advance(2.0)
    assert offsets(reader(bench, "first"))[-1] == 249
