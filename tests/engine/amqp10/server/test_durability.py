"""What of AMQP 1.0 outlives the process: messages, subscriptions, termini with their unsettled state (1.0, 3.5.5)."""

from collections.abc import Iterator

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp10.peer import Peer, Session, declare, message
from tests.engine.amqp10.server.test_links import ODD
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Modified, Released, Source, Target
from waybill.wire.amqp10.performatives import RECEIVER_SECOND, Disposition
from waybill.wire.amqp10.sections import encode_amqp_value
from waybill.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState

DURABLE = Header(durable=True)
LINK = Source("/queues/q", durable=2, expiry_policy="never")
TARGET = Target("/queues/q", durable=2, expiry_policy="never")


@pytest.fixture
def bench() -> Iterator[DiskBench]:
    bench = DiskBench()
    yield bench
    bench.close()


@pytest.fixture(params=["stop", "kill", "power"])
def way(request: pytest.FixtureRequest) -> str:
    """How the node ends."""
    way: str = request.param
    return way


def connect(bench: DiskBench) -> Session:
    peer = Peer(bench)
    peer.open(container_id="durable")
    return peer.begin()


@requirement("M10-004", "M10-008", "BB-009", "M10-025", "M10-043")
def test_accepted_messages_outlive_the_node_octet_by_octet(bench: DiskBench, way: str) -> None:
    declare(bench)
    footer = b"\x00\x53\x78\xc1\x08\x02\xa3\x03sum\x54\x07"
    assert connect(bench).sender("/queues/q").send(DURABLE.encode() + ODD + footer).state == Accepted()
    bench.restart(way)
    delivery = connect(bench).receiver("/queues/q", credit=1).delivery()
    assert delivery.payload.endswith(ODD + footer)
    assert delivery.header.durable


@requirement("BB-016")
def test_transient_messages_do_not(bench: DiskBench, way: str) -> None:
    declare(bench)
    bench.node.when_durable(lambda: None)
    bench.settle()
    connect(bench).sender("/queues/q").send(message())
    bench.restart(way)
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 0


@requirement("BB-017", "BB-001")
def test_durable_messages_are_accepted_when_they_are_on_the_disk(bench: DiskBench) -> None:
    declare(bench)
    session = connect(bench)
    sender = session.sender("/queues/q")
    bench.is_stuck = True
    number = sender.transfer(message(header=DURABLE))
    session.expect_nothing()
    bench.is_stuck = False
    bench.settle()
    disposition = session.expect(Disposition)
    assert (disposition.first, disposition.state, disposition.settled) == (number, Accepted(), True)


@requirement("M10-108")
@pytest.mark.parametrize("durable", [0, 1, 2])
def test_what_of_a_terminus_outlives_the_node(bench: DiskBench, way: str, durable: int) -> None:
    """0: nothing; 1: that it exists and what it is subscribed to; 2: its unsettled deliveries as well."""
    source = Source("amq.topic", durable=durable, expiry_policy="never")
    receiver = connect(bench).receiver(None, name="subscription", source=source, credit=1)
    connect(bench).sender("/exchanges/amq.topic/a").send(message(b"1", header=DURABLE))
    tag = receiver.delivery().transfer.delivery_tag
    assert tag is not None
    bench.restart(way)
    assert bool(bench.node.virtual_hosts["/"].queues) is (durable > 0)
    again = connect(bench).receiver(None, name="subscription", source=source, credit=1, unsettled={tag: Accepted()})
    if durable:
        assert again.delivery().transfer.delivery_tag == tag
    if durable == 2:
        (queue,) = bench.node.virtual_hosts["/"].queues.values()
        assert (queue.message_count, queue.unsettled_count) == (0, 0)


@requirement("M10-093", "M10-108")
def test_a_durable_subscription_outlives_the_node(bench: DiskBench, way: str) -> None:
    source = Source("amq.topic", durable=2, expiry_policy="never")
    connect(bench).receiver(None, name="subscription", source=source)
    connect(bench).sender("/exchanges/amq.topic/a").send(message(b"1", header=DURABLE))
    bench.restart(way)
    other = Peer(bench)
    other.open()
    other.begin().sender("/exchanges/amq.topic/a").send(message(b"2", header=DURABLE))
    receiver = connect(bench).receiver(None, name="subscription", source=source, credit=5)
    assert [receiver.delivery().bare for _ in range(2)] == [message(b"1"), message(b"2")]
    receiver.detach()
    assert not bench.node.virtual_hosts["/"].queues
    bench.settle()
    bench.restart(way)
    assert not bench.node.virtual_hosts["/"].queues


@requirement("BB-051", "M10-085", "M10-093", "M10-108")
def test_a_message_is_stored_once_over_a_restart(bench: DiskBench, way: str) -> None:
    declare(bench)
    session = connect(bench)
    sender = session.sender(None, name="once", target=TARGET, rcv_settle_mode=RECEIVER_SECOND)
    disposition = sender.send(message(header=DURABLE), delivery_tag=b"tag")
    assert (disposition.state, disposition.settled) == (Accepted(), False)
    bench.restart(way)
    session = connect(bench)
    sender = session.sender(None, name="once", target=TARGET, rcv_settle_mode=RECEIVER_SECOND, unsettled={b"tag": None})
    assert sender.answer is not None
    assert sender.answer.unsettled == {b"tag": Accepted()}
    again = sender.send(message(header=DURABLE), delivery_tag=b"tag")
    assert (again.state, again.settled) == (Accepted(), False)
    session.send(Disposition(role=False, first=again.first, settled=True))
    bench.settle()
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 1
    bench.restart(way)
    sender = connect(bench).sender(
        None, name="once", target=TARGET, rcv_settle_mode=RECEIVER_SECOND, unsettled={b"tag": None}
    )
    assert sender.answer is not None
    # That the peer settled may be forgotten when the power goes: then it can do so again.
    assert sender.answer.unsettled is None or way == "power"


def test_a_tag_is_told_of_when_its_message_and_itself_are_kept(bench: DiskBench) -> None:
    declare(bench)
    session = connect(bench)
    sender = session.sender(None, name="once", target=TARGET, rcv_settle_mode=RECEIVER_SECOND)
    bench.is_stuck = True
    sender.transfer(message(header=DURABLE), delivery_tag=b"tag")
    session.expect_nothing()
    commit = bench.node.begin_commit()
    assert commit is not None
    commit.execute()
    bench.node.end_commit(commit)
    bench.flush()
    assert session.expect(Disposition).state == Accepted()


@requirement("M10-070", "M10-073", "M10-068", "M10-093", "M10-108")
@pytest.mark.parametrize(("state", "waiting"), [(Accepted(), 0), (Released(), 1)])
def test_what_the_peer_says_of_a_delivery_counts_after_a_restart(
    bench: DiskBench, way: str, state: Accepted | Released, waiting: int
) -> None:
    declare(bench)
    session = connect(bench)
    session.sender("/queues/q").send(message(header=DURABLE))
    tag = session.receiver(None, name="link", source=LINK, credit=1).delivery().transfer.delivery_tag
    assert tag is not None
    bench.restart(way)
    receiver = connect(bench).receiver(None, name="link", source=LINK, credit=1, unsettled={tag: state})
    again = receiver.delivery()
    assert (again.transfer.resume, again.transfer.settled, again.transfer.state) == (True, True, state)
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (waiting, 0)


def test_what_the_peer_does_not_know_comes_again_after_a_restart(bench: DiskBench, way: str) -> None:
    declare(bench)
    session = connect(bench)
    session.sender("/queues/q").send(message(header=DURABLE))
    session.receiver(None, name="link", source=LINK, credit=1).delivery()
    bench.restart(way)
    again = connect(bench).receiver(None, name="link", source=LINK, credit=1).delivery()
    assert not again.transfer.resume
    assert not again.header.first_acquirer


@requirement("BB-078")
def test_a_discharged_transaction_outlives_the_node(bench: DiskBench, way: str) -> None:
    declare(bench)
    session = connect(bench)
    coordinator = session.sender(None, target=Coordinator())
    declared = coordinator.send(encode_amqp_value(Declare())).state
    assert isinstance(declared, Declared)
    session.sender("/queues/q").send(message(b"old", header=DURABLE))
    receiver = session.receiver("/queues/q", credit=1)
    delivery = receiver.delivery()
    sender = session.sender("/queues/q")
    sender.send(message(b"new", header=DURABLE), state=TransactionalState(declared.txn_id))
    receiver.settle(delivery, TransactionalState(declared.txn_id, Accepted()))
    assert coordinator.send(encode_amqp_value(Discharge(declared.txn_id))).state == Accepted()
    bench.restart(way)
    receiver = connect(bench).receiver("/queues/q", credit=5)
    assert receiver.delivery().bare == message(b"new")
    receiver.expect_nothing()


@requirement("M10-063", "M10-066")
def test_what_modified_changed_outlives_the_node(bench: DiskBench, way: str) -> None:
    declare(bench)
    session = connect(bench)
    session.sender("/queues/q").send(DURABLE.encode() + ODD)
    receiver = session.receiver("/queues/q", credit=5)
    for number in range(2):
        changes: dict[str, object] = {"x-opt-tried": number, f"x-opt-by-{number}": "me"}
        receiver.settle(receiver.delivery(), Modified(delivery_failed=True, message_annotations=changes))
    bench.node.when_durable(lambda: None)
    bench.settle()
    bench.restart(way)
    delivery = connect(bench).receiver("/queues/q", credit=1).delivery()
    assert delivery.header.delivery_count == 2
    assert delivery.bare == ODD
    assert delivery.annotations | {"x-opt-tried": 1, "x-opt-by-0": "me", "x-opt-by-1": "me"} == delivery.annotations


def test_what_modified_changed_is_kept_of_messages_that_are_not_in_memory(bench: DiskBench) -> None:
    """After a restart most of a long queue is on the disk only."""
    declare(bench)
    session = connect(bench)
    sender = session.sender("/queues/q")
    count = 100
    for number in range(count):
        sender.send(message(b"%d" % number + bytes(30_000), header=DURABLE))
    receiver = session.receiver("/queues/q", credit=count)
    for delivery in [receiver.delivery() for _ in range(count)]:
        changes: dict[str, object] = {"x-opt-number": delivery.number}
        receiver.settle(delivery, Modified(delivery_failed=True, message_annotations=changes))
    bench.node.when_durable(lambda: None)
    bench.settle()
    for _ in range(2):
        bench.restart("kill")
    receiver = connect(bench).receiver("/queues/q", credit=count)
    for number in range(count):
        delivery = receiver.delivery()
        assert delivery.annotations["x-opt-number"] == number
        assert delivery.header.delivery_count == 1
