"""Deliveries, acceptances and completions are handled in runs; what the peer sees is as if each came by itself."""

from random import Random
from typing import Final

import pytest

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import NodeBench
from tests.wire.amqp010.frame_parser import Assembled
from waybill.wire.amqp010.class_connection import ConnectionClose
from waybill.wire.amqp010.class_message import (
    MessageAccept,
    MessageFlow,
    MessageProperties,
    MessageRelease,
    MessageSetFlowMode,
    MessageStop,
    MessageSubscribe,
    MessageTransfer,
)
from waybill.wire.amqp010.class_queue import QueueDeclare
from waybill.wire.amqp010.class_session import SessionCommandPoint, SessionCompleted, SessionRequestTimeout
from waybill.wire.amqp010.constants import DETACH_NOT_ATTACHED, DETACH_UNKNOWN_IDS, FLOW_WINDOW

MESSAGES: Final = 40
HEADERS: Final = (
    None, MessageProperties(content_length=1), MessageProperties(content_length=2),
    MessageProperties(application_headers={"a": 1}), MessageProperties(correlation_id=b"12345678"),
)  # fmt: skip
DELIVERIES: Final[tuple[dict[str, object], ...]] = (
    {}, {}, {}, {"delivery_mode": 2}, {"priority": 7}, {"ttl": 60_000}, {"timestamp": 5}, {"delivery_mode": 1},
)  # fmt: skip
BODIES: Final = (b"", b"1", b"22", bytes(4084), bytes(4085))


class Reader(Session):
    """A session that keeps the segments of transfers as they come."""

    def _take_transfer(self, number: int, command: MessageTransfer, one: Assembled) -> None:
        self.raw.append((number, one.payload, one.header, one.body))

    raw: list[tuple[int, bytes, bytes | None, bytes | None]]


def reader_of(bench: NodeBench, name: bytes = b"reader", *, timeout_s: int = 0) -> Reader:
    peer = Peer(bench)
    peer.open(max_frame_size=4096)
    reader = Reader(peer, name)
    reader.raw = []
    peer.resume(reader)
    reader.control(SessionRequestTimeout(timeout_s))
    reader.control(SessionCommandPoint(0, 0))
    return reader


def publish_some(session: Session, random: Random) -> None:
    """Messages of which many are like the one before."""
    header, delivery, body = HEADERS[0], DELIVERIES[0], BODIES[1]
    for _ in range(MESSAGES):
        if random.random() < 0.1:
            header = random.choice(HEADERS)
        if random.random() < 0.1:
            delivery = random.choice(DELIVERIES)
        if random.random() < 0.4:
            body = random.choices(BODIES, (4, 4, 4, 1, 1))[0]
        session.publish(body, key="q" if random.random() < 0.95 else "p", properties=header, **delivery)  # type: ignore[arg-type]


def come_back(bench: NodeBench, count: int) -> None:
    """So many messages were delivered before."""
    reader = reader_of(bench)
    reader.subscribe("q", messages=count)
    assert len(reader.raw) == count
    reader.detach()
    reader.peer.cut()


@pytest.mark.parametrize("seed", range(2))
def test_deliveries_are_the_same_in_runs_and_one_by_one(bench: NodeBench, seed: int) -> None:
    found = []
    for way in ("slow", "single", "run", "mixed"):
        random = Random(seed)
        writer = Peer(bench)
        writer.open()
        session = writer.session()
        session.call(QueueDeclare("q"))
        # One address more for the same queue.
        session.call(QueueDeclare("p", arguments={"x-max-length": 0}))
        publish_some(session, random)
        session.sync()
        ready = bench.node.virtual_hosts["/"].queues["q"].message_count
        if seed % 2:
            come_back(bench, random.randrange(1, 20))
        reader = reader_of(bench, timeout_s=60 if way == "slow" else 0)
        reader.subscribe("q", messages=ready if way in {"slow", "run"} else 0, accept_mode=seed % 2)
        if way in {"single", "mixed"}:
            while len(reader.raw) < ready:
                reader.flow(messages=1 if way == "single" else random.randrange(1, 5))
        found.append(reader.raw)
        reader.control(SessionRequestTimeout(0))
        reader.detach()
        for peer in (reader.peer, writer):
            peer.cut()
        bench.node.virtual_hosts["/"].queues["q"].purge()
    assert len(found[0]) > 30
    assert found[1:] == found[:1] * 3


class Consuming:
    """Subscriptions in window mode to queues of many messages; `is_odd`: no command is in its usual form."""

    def __init__(self, bench: NodeBench, *, is_odd: bool, queues: tuple[str, ...] = ("one", "two")) -> None:
        self.is_odd = is_odd
        writer = Peer(bench)
        writer.open()
        session = writer.session(b"writer")
        for queue in queues:
            session.call(QueueDeclare(queue, durable=True))
            for number in range(60):
                session.publish(b"%d" % number, key=queue, delivery_mode=2)
        session.sync()
        writer.cut()
        self.reader = reader_of(bench)
        for queue in queues:
            self.reader.call(MessageSubscribe(queue, queue))
            self.reader.send(MessageSetFlowMode(queue, FLOW_WINDOW))
            self.reader.send(MessageFlow(queue, 1, 2000))
            self.reader.send(MessageFlow(queue, 0, 12))
        self.reader.peer.pump()

    def ranges(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        return ((first, last),) * (2 if self.is_odd else 1)

    def step(self, random: Random) -> None:
        """One write of the client."""
        reader = self.reader
        first = random.randrange(max(len(reader.raw) - 12, 0), len(reader.raw) + 2)
        kind = random.randrange(6)
        if kind < 3:
            for number in range(first, first + random.randrange(12)):
                reader.send(MessageAccept(self.ranges(number, number)))
        elif kind == 3:
            reader.send(MessageAccept(self.ranges(max(first - 3, 0), first)), sync=bool(random.randrange(2)))
        elif kind == 4:
            reader.send(MessageRelease(self.ranges(first, first), set_redelivered=True))
        if reader.raw:
            low = random.choice((0, min(first, len(reader.raw) - 1)))
            reader.control(SessionCompleted(self.ranges(low, random.randrange(low, len(reader.raw)))))
        reader.peer.pump()


@pytest.mark.parametrize("seed", range(3))
def test_outcomes_and_completions_count_the_same_in_any_form(bench: NodeBench, seed: int) -> None:
    found = []
    for is_odd in (False, True):
        consuming = Consuming(bench, is_odd=is_odd)
        random = Random(seed)
        reader = consuming.reader
        for _ in range(40):
            consuming.step(random)
        reader.sync()
        reader.detach()
        queues = bench.node.virtual_hosts["/"].queues
        left = [queues[name].message_count for name in ("one", "two")]
        again = reader_of(bench, b"again")
        for name in ("one", "two"):
            again.subscribe(name, name, accept_mode=1)
        found.append((reader.raw, left, again.raw))
        for one in (reader, again):
            one.peer.cut()
        for name in ("one", "two"):
            queues[name].purge()
    assert len(found[0][0]) > 30
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(3))
def test_many_ranges_complete_what_single_ones_do(bench: NodeBench, seed: int) -> None:
    found = []
    for is_single in (False, True):
        random = Random(seed)
        reader = Consuming(bench, is_odd=False, queues=("one",)).reader
        for _ in range(16):
            count = len(reader.raw)
            numbers = random.sample(range(count), min(count, random.choice((1, 3, 9, 20))))
            ranges = [(first, min(first + random.choice((0, 0, 1, 5)), count - 1)) for first in numbers]
            if is_single:
                ids = {number for first, last in ranges for number in range(first, last + 1)}
                for number in sorted(ids):
                    reader.control(SessionCompleted(((number, number),)))
            else:
                reader.control(SessionCompleted(tuple(ranges)))
            if random.random() < 0.2:
                reader.send(MessageStop("one"))
                reader.send(MessageFlow("one", 1, 2000))
                reader.send(MessageFlow("one", 0, 5))
            reader.peer.pump()
        found.append(reader.raw)
        reader.detach()
        reader.peer.cut()
        bench.node.virtual_hosts["/"].queues["one"].purge()
    assert len(found[0]) > 30
    assert found[0] == found[1]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 2])
def test_a_completion_of_what_was_never_sent_detaches_in_any_form(bench: NodeBench, times: int, count: int) -> None:
    reader = Consuming(bench, is_odd=False).reader
    for _ in range(count):
        reader.control(SessionCompleted(((0, 1),)))
    reader.peer.pump()
    reader.control(SessionCompleted(((0, len(reader.raw)),) * times))
    reader.peer.pump()
    assert reader.detach_code == DETACH_UNKNOWN_IDS


@pytest.mark.parametrize("times", [1, 2])
def test_a_range_that_ends_before_it_begins_closes_the_connection_in_any_form(bench: NodeBench, times: int) -> None:
    reader = Consuming(bench, is_odd=False).reader
    reader.control(SessionCompleted(((3, 2),) * times))
    close = reader.peer.expect(ConnectionClose)
    assert close.reply_text == "commands: a range from 3 to 2"


@pytest.mark.parametrize("times", [1, 2])
def test_a_completion_without_session_is_answered_in_any_form(bench: NodeBench, times: int) -> None:
    session = reader_of(bench)
    other = Session(session.peer, b"other")
    other.client = session.peer.client
    other.channel = 9
    session.peer.client.sessions[9] = other
    other.control(SessionCompleted(((0, 0),) * times))
    session.peer.pump()
    assert other.detach_code == DETACH_NOT_ATTACHED


def test_a_message_by_itself_between_runs_does_not_change_how_they_look(session: Session) -> None:
    session.call(QueueDeclare("q"))
    bodies = [b"aaa"] * 3 + [b"b"] + [b"aaa"] * 3 + [b"b"] + [b"cc"] * 3
    headers = [HEADERS[1], HEADERS[1], HEADERS[1], HEADERS[1], HEADERS[2], HEADERS[2], HEADERS[1], *[HEADERS[2]] * 4]
    for body, header in zip(bodies, headers, strict=True):
        session.publish(body, key="q", properties=header)
    session.subscribe("q", messages=0)
    for count in (3, 1, 3, 1, 3):
        session.flow(messages=count)
    assert [one.body for one in session.take_all()] == bodies


def test_a_session_keeps_to_the_frame_size_of_the_connection_that_it_moves_to(bench: NodeBench) -> None:
    first = Peer(bench)
    first.open(max_frame_size=65_535)
    session = first.session()
    session.call(QueueDeclare("q"))
    for _ in range(8):
        session.publish(bytes(5000), key="q")
    session.subscribe("q", messages=4)
    assert len(session.take_all()) == 4
    session.control(SessionRequestTimeout(60))
    first.pump()
    first.cut()
    bench.settle()
    second = Peer(bench)
    second.open(max_frame_size=4096)
    second.client.parser.assembler.max_frame_size = 4096
    second.resume(session)
    session.control(SessionRequestTimeout(0))
    second.pump()
    session.flow(messages=4)
    assert [len(one.body) for one in session.take_all()][-4:] == [5000] * 4
