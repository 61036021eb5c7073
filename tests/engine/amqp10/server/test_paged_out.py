"""Deliveries of AMQP 1.0 that are not settled: while memory is short their content is on the disk only."""

import errno
from collections.abc import Iterator
from typing import Final

import pytest

from tests.engine.amqp10.peer import Delivery, Peer, Receiver, Session, declare, message
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Released, Source
from waybill.wire.amqp10.types import Described, Symbol

LENGTH: Final = 300
PADDING: Final = b"x" * 2000
# Entries, and the few whose copies were not certainly written yet.
HELD_MAX_BYTES: Final = LENGTH * 550
LASTING: Final = Source("/queues/q", durable=2, expiry_policy="never")
FILTERED: Final = Source(
    "/queues/q", filter={Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a IS NULL")}
)


@pytest.fixture
def bench() -> Iterator[DiskBench]:
    bench = DiskBench()
    yield bench
    bench.close()


@pytest.fixture
def filled(bench: DiskBench) -> Session:
    declare(bench, "dead")
    declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    session = connect(bench)
    sender = session.sender("/queues/q")
    for body in bodies():
        sender.transfer(message(body), settled=True)
    bench.settle()
    return session


def connect(bench: DiskBench) -> Session:
    peer = Peer(bench)
    peer.open(container_id="holder")
    return peer.begin()


def bodies() -> list[bytes]:
    return [b"%d " % number + PADDING for number in range(LENGTH)]


def hold(bench: DiskBench, link: Receiver) -> list[Delivery]:
    """Take all messages and settle none."""
    link.flow(LENGTH)
    deliveries = []
    for _ in range(LENGTH):
        bench.settle()
        deliveries.append(link.delivery())
    bench.settle()
    return deliveries


def wanted() -> list[bytes]:
    return [message(body) for body in bodies()]


@pytest.mark.parametrize("source", [Source("/queues/q"), FILTERED, LASTING], ids=["plain", "filtered", "lasting"])
@pytest.mark.parametrize(
    ("state", "queue"),
    [
        (Accepted(), ""),
        (Rejected(), "dead"),
        (Released(), "q"),
        (Modified(delivery_failed=True), "q"),
        (Modified(message_annotations={Symbol("x-opt-a"): "b"}), "q"),
        (Modified(undeliverable_here=True), "dead"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Composite) else value,
)
def test_each_outcome_has_the_whole_message(
    bench: DiskBench, filled: Session, source: Source, state: Composite, queue: str
) -> None:
    link = connect(bench).receiver(None, source=source)
    deliveries = hold(bench, link)
    assert [delivery.bare for delivery in deliveries] == wanted()
    assert bench.memory_bytes < HELD_MAX_BYTES
    for delivery in deliveries:
        link.settle(delivery, state)
        bench.settle()
    link.flow(0)
    link.detach()
    bench.settle()
    if queue:
        again = hold(bench, filled.receiver(f"/queues/{queue}"))
        assert sorted(delivery.bare for delivery in again) == sorted(wanted())
        if isinstance(state, Modified) and state.message_annotations:
            assert all(delivery.annotations[Symbol("x-opt-a")] == "b" for delivery in again)
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 0
    assert bench.memory_bytes < HELD_MAX_BYTES


@pytest.mark.parametrize("is_known", [True, False])
def test_a_resumed_delivery_is_whole(bench: DiskBench, filled: Session, *, is_known: bool) -> None:
    session = connect(bench)
    first = hold(bench, session.receiver(None, name="lasting", source=LASTING))
    session.peer.wire.cut()
    unsettled = {delivery.transfer.delivery_tag: None for delivery in first} if is_known else None
    link = connect(bench).receiver(None, name="lasting", source=LASTING, unsettled=unsettled)
    again = hold(bench, link)
    assert [delivery.bare for delivery in again] == wanted()
    assert all(bool(delivery.transfer.resume) == is_known for delivery in again)
    assert bench.memory_bytes < HELD_MAX_BYTES
    for delivery in again:
        link.settle(delivery)
    bench.settle()
    assert bench.memory_bytes == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_what_cannot_be_read_is_not_resumed_and_comes_later(
    bench: DiskBench, filled: Session, *, is_known: bool
) -> None:
    session = connect(bench)
    first = hold(bench, session.receiver(None, name="lasting", source=LASTING))
    session.peer.wire.cut()
    unsettled = {delivery.transfer.delivery_tag: None for delivery in first} if is_known else None
    link = connect(bench).receiver(None, name="lasting", source=LASTING, unsettled=unsettled)
    bench.disk.fail_next["read"] = errno.EMFILE
    bench.disk.failures_left = 3
    link.flow(2 * LENGTH)
    came: list[Delivery] = []
    for _ in range(40):
        bench.advance(0.5)
        bench.settle()
        link.session.peer.receive()
        while any(getattr(value, "handle", None) == link.handle for _, value, _ in link.session.peer.received):
            came.append(link.delivery())
    aborted = [delivery for delivery in came if delivery.transfer.aborted]
    whole = [delivery for delivery in came if not delivery.transfer.aborted]
    assert bool(aborted) == is_known
    assert sorted(delivery.bare for delivery in whole) == sorted(wanted())
