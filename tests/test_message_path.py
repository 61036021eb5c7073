"""One message's way through the core, frame by frame: the table of docs/explanation/architecture.md is what happens."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from waybill.wire.amqp091.properties import BasicProperties

PAGE: Final = Path(__file__).parents[1] / "docs/explanation/architecture.md"
CORE: Final = f"{Path('src') / 'waybill'}/"
FRAMES_MAX: Final = 30
# `storage` stands beside `model`, whose `Store` it is.
LEVELS: Final = {"wire": 0, "model": 1, "storage": 1, "engine": 2, "node": 3}
DRIVER: Final = "node.node Node.flush"
"""Of tests only: a broker works turn by turn."""
# Where a message, its acknowledgement or its confirm arrives: what is on the stack then is its way.
STEPS: Final = {
    "MemoryMessages.put",
    "ChannelConsumer.deliver_all",
    "ServerConnection.data_to_send",
    "MemoryMessages.settle",
    "MemoryStore.wait",
    "Commit.execute",
    "ServerConnection.send",
}


class Trace:
    """The calls within the core. `way`: the frames that lead to a step, in the order in which they came first."""

    def __init__(self) -> None:
        self.way: dict[str, None] = {}
        self.upward: set[str] = set()
        self._stack: list[tuple[str, str]] = []

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        _, is_core, name = frame.f_code.co_filename.rpartition(CORE)
        room = name.split("/")[0]
        if not is_core or room not in LEVELS:
            return
        if event == "return":
            self._stack.pop()
        elif event == "call":
            self._enter(room, f"{name.removesuffix('.py').replace('/', '.')}", frame.f_code.co_qualname)

    def _enter(self, room: str, module: str, function: str) -> None:
        caller = self._stack[-1][0] if self._stack else "node"
        self._stack.append((room, f"{module} {function}"))
        if LEVELS[room] > LEVELS[caller]:
            self.upward.add(f"{module} {function}")
        if function in STEPS:
            self.way.update(dict.fromkeys(name for _, name in self._stack if name != DRIVER))


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    sys.setprofile(trace.note)
    try:
        yield
    finally:
        sys.setprofile(None)


def table() -> list[str]:
    """The frames of the page, in order."""
    rows = re.findall(r"^\| \d+ \| [^|]* \| `([\w.]+)` \| `([\w.]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return [f"{module} {function}" for module, function in rows]


def warm_up(publisher: Channel, consumer: Channel) -> None:
    """What is different for the first messages of a connection: nothing is recognised yet."""
    for _ in range(3):
        publisher.publish(b"1", "q", properties=BasicProperties(delivery_mode=2))
        publisher.await_confirms()
        consumer.ack(consumer.delivery().tag)


@pytest.mark.plain_source
def test_one_message_takes_the_frames_of_the_table_and_no_call_leads_up() -> None:
    bench = NodeBench(Cut.WHOLE)
    publisher, consumer = bench.channel(), bench.channel()
    publisher.declare("q", durable=True)
    consumer.qos(10)
    consumer.consume()
    publisher.select_confirms()
    warm_up(publisher, consumer)
    trace = Trace()
    with traced(trace):
        publisher.publish(b"1", "q", properties=BasicProperties(delivery_mode=2))
    publisher.await_confirms()
    delivery = consumer.delivery()
    with traced(trace):
        consumer.ack(delivery.tag)
    assert list(trace.way) == table()
    assert len(trace.way) <= FRAMES_MAX
    assert trace.upward == set()
