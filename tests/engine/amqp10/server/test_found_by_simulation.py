"""What the simulator found between two parts of a broker that were each right by themselves."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Sender, Session, declare, message
from tests.engine.amqp10.server.test_transactions import Controller
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Source, Target
from waybill.wire.amqp10.performatives import RECEIVER_SECOND, Detach, Transfer
from waybill.wire.amqp10.transactions import Discharge
from waybill.wire.amqp10.types import Symbol

DURABLE = Header(durable=True)
KEPT = Source("/queues/q", durable=2, expiry_policy="never")


def connect(bench: NodeBench) -> Session:
    peer = Peer(bench)
    peer.open(container_id="peer")
    return peer.begin()


def test_a_link_acquires_for_no_transaction_that_is_over(bench: NodeBench, session: Session) -> None:
    declare(bench)
    controller = Controller(session)
    identifier = controller.declare()
    receiver = session.receiver("/queues/q")
    receiver.flow(5, properties={Symbol("txn-id"): identifier})
    # It has acquired nothing when the transaction ends.
    assert controller.ask(Discharge(identifier, fail=True)) == Accepted()
    session.sender("/queues/q").send(message())
    delivery = receiver.delivery()
    assert delivery.transfer.state is None
    receiver.settle(delivery)
    assert bench.node.virtual_hosts["/"].queues["q"].unsettled_count == 0


def test_what_was_sent_before_credit_was_taken_back_is_taken(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    full = declare(bench, "full")
    sender = session.sender("/queues/q")
    filler = connect(bench).sender("/queues/full", name="filler")
    bench.node._memory_alarm_bytes = 1000
    assert filler.send(message(bytes(2000))).state == Accepted()
    assert bench.node.alarm
    assert sender.send(message(b"on its way")).state == Accepted()
    assert queue.message_count == 1
    assert sender.take_credit().link_credit == 0
    full.purge()
    bench.flush()
    flow = sender.take_credit()
    assert (flow.delivery_count, flow.link_credit) == (1, 1024)


def test_a_delivery_goes_on_as_far_as_the_window_opens(bench: NodeBench, peer: Peer) -> None:
    declare(bench)
    other = Peer(bench)
    other.open(max_frame_size=512)
    other.begin().sender("/queues/q").send(message(b"x" * 4000))
    session = other.begin(1, incoming_window=2)
    receiver = session.receiver("/queues/q")
    session.flow(handle=receiver.handle, link_credit=5, delivery_count=0, incoming_window=2)
    assert [session.expect(Transfer).more for _ in range(2)] == [True, True]
    # Not enough for all of it.
    session.flow(incoming_window=3, next_incoming_id=2)
    assert [session.expect(Transfer).more for _ in range(3)] == [True, True, True]


def resumed_after_power_loss(bench: DiskBench, *, is_written: bool) -> Sender:
    """An exactly-once link that is resumed: the power went while its message was on the way to the disk."""
    target = Target("/queues/q", durable=2, expiry_policy="never")
    sender = connect(bench).sender(None, name="once", target=target, rcv_settle_mode=RECEIVER_SECOND)
    bench.settle()
    bench.is_stuck = True
    sender.transfer(message(header=DURABLE), delivery_tag=b"tag")
    commit = bench.node.begin_commit()
    assert commit is not None
    if is_written:
        commit.execute()
    bench.restart("power")
    bench.is_stuck = False
    return connect(bench).sender(
        None, name="once", target=target, rcv_settle_mode=RECEIVER_SECOND, unsettled={b"tag": None}
    )


@requirement("BB-051")
def test_a_message_and_its_tag_are_kept_in_one_step() -> None:
    """Whenever the power goes, a resumed link leaves one message in the queue."""
    for operations in range(1, 12):
        bench = DiskBench(seed=operations)
        declare(bench)
        sender = resumed_after_power_loss(bench, is_written=bool(operations % 2))
        assert sender.answer is not None
        queue = bench.node.virtual_hosts["/"].queues["q"]
        assert (queue.message_count == 1) == (sender.answer.unsettled == {b"tag": Accepted()})
        if not sender.answer.unsettled:
            assert sender.send(message(header=DURABLE), delivery_tag=b"tag").state == Accepted()
        assert queue.message_count == 1
        bench.close()


@requirement("BB-051")
def test_a_dead_letter_and_the_tag_of_what_was_refused_are_kept_in_one_step() -> None:
    """Whenever the power goes, a resumed link says `rejected` if what it refused is a dead letter, and only then."""
    outcomes = set()
    for operations in range(1, 12):
        bench = DiskBench(seed=operations)
        declare(bench, "dead")
        declare(
            bench,
            "q",
            durable=True,
            x_max_length=0,
            x_overflow="reject-publish-dlx",
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="dead",
        )
        sender = resumed_after_power_loss(bench, is_written=bool(operations % 2))
        assert sender.answer is not None
        dead = bench.node.virtual_hosts["/"].queues["dead"]
        is_refused = isinstance((sender.answer.unsettled or {}).get(b"tag"), Rejected)
        assert (dead.message_count == 1) == is_refused
        outcomes.add(is_refused)
        assert isinstance(sender.send(message(header=DURABLE), delivery_tag=b"tag").state, Rejected)
        assert dead.message_count == 1
        bench.close()
    assert outcomes == {False, True}


def test_a_tag_means_no_other_message_after_a_restart() -> None:
    bench = DiskBench()
    declare(bench)
    session = connect(bench)
    session.sender("/queues/q").send(message(b"transient"))
    tag = session.receiver(None, name="link", source=KEPT, credit=1).delivery().transfer.delivery_tag
    assert tag is not None
    bench.restart("kill")
    session = connect(bench)
    session.sender("/queues/q").send(message(b"another", header=DURABLE))
    receiver = session.receiver(None, name="link", source=KEPT, credit=1, unsettled={tag: Accepted()})
    delivery = receiver.delivery()
    assert not delivery.transfer.resume
    assert delivery.bare == message(b"another")
    bench.close()


def test_a_tag_means_no_message_of_another_queue(bench: NodeBench) -> None:
    declare(bench)
    session = connect(bench)
    session.sender("/queues/q").send(message(b"old"))
    receiver = session.receiver(None, name="link", source=KEPT, credit=1)
    tag = receiver.delivery().transfer.delivery_tag
    assert tag is not None
    receiver.detach(closed=False)
    virtual_host = bench.node.virtual_hosts["/"]
    virtual_host.remove_queue(virtual_host.queues["q"])
    bench.settle()
    assert session.expect(Detach).closed
    queue = declare(bench)
    session.sender("/queues/q").send(message(b"new"))
    receiver = session.receiver(None, name="link", source=KEPT, credit=1, unsettled={tag: Accepted()})
    assert receiver.answer is not None
    assert receiver.answer.unsettled is None
    assert receiver.delivery().bare == message(b"new")
    assert queue.unsettled_count == 1


def test_what_a_peer_has_forgotten_comes_with_a_warning(bench: NodeBench) -> None:
    declare(bench)
    session = connect(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver(None, name="link", source=KEPT, credit=1)
    assert receiver.delivery().header.first_acquirer
    receiver.detach(closed=False)
    again = session.receiver(None, name="link", source=KEPT, credit=1).delivery()
    assert not again.transfer.resume
    assert not again.header.first_acquirer


def test_what_a_peer_has_forgotten_may_have_expired(bench: NodeBench) -> None:
    declare(bench, "dead")
    queue = declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    session = connect(bench)
    session.sender("/queues/q").send(message(header=Header(ttl=1000)))
    receiver = session.receiver(None, name="link", source=KEPT, credit=1)
    receiver.delivery()
    receiver.detach(closed=False)
    bench.advance(2)
    receiver = session.receiver(None, name="link", source=KEPT, credit=1)
    receiver.expect_nothing()
    assert (queue.message_count, queue.unsettled_count) == (0, 0)
    assert session.receiver("/queues/dead", credit=1).delivery().annotations["x-first-death-reason"] == "expired"


@pytest.mark.parametrize("priority", [-1, 0, 5])
def test_who_chooses_comes_before_its_equals_and_after_higher_priorities(bench: NodeBench, priority: int) -> None:
    declare(bench)
    session = connect(bench)
    sender = session.sender("/queues/q")
    chooser = session.receiver("/queues/q", credit=1)
    plain = session.receiver("/queues/q", properties={Symbol("rabbitmq:priority"): priority})
    sender.send(message(b"shunned"))
    # What is undeliverable here makes a link choose.
    chooser.settle(chooser.delivery(), Modified(undeliverable_here=True))
    plain.flow(2)
    plain.settle(plain.delivery())
    chooser.flow(1)
    sender.send(message(b"next"))
    first, other = (plain, chooser) if priority > 0 else (chooser, plain)
    assert first.delivery().bare == message(b"next")
    sender.send(message(b"last"))
    assert other.delivery().bare == message(b"last")
