"""Transactions (1.0, Part 4): declared and discharged by a coordinator; messages posted, retired and acquired."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp10.peer import Peer, Receiver, Sender, Session, declare, message
from tests.engine.server.peer import NodeBench
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Released, Source
from waybill.wire.amqp10.performatives import Disposition, Transfer
from waybill.wire.amqp10.sections import encode_amqp_value
from waybill.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from waybill.wire.amqp10.types import Symbol


class Controller:
    """The peer's end of a coordinator link."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.link: Sender = session.sender(None, target=Coordinator(), name=f"coordinator-{session.next_handle}")

    def ask(self, request: Composite) -> object:
        disposition = self.link.send(encode_amqp_value(request))
        assert disposition.settled
        return disposition.state

    def declare(self) -> bytes:
        state = self.ask(Declare())
        assert isinstance(state, Declared)
        return state.txn_id

    def discharge(self, identifier: bytes, *, fail: bool = False) -> None:
        assert self.ask(Discharge(identifier, fail)) == Accepted()


@pytest.fixture
def controller(session: Session) -> Controller:
    return Controller(session)


def retire(receiver: Receiver, number: int, identifier: bytes, state: Composite, *, settled: bool = False) -> None:
    receiver.session.send(
        Disposition(role=True, first=number, settled=settled, state=TransactionalState(identifier, state))
    )


@requirement("BB-079", "BB-080", "BB-081", "BB-088", "BB-096")
def test_a_coordinator_says_what_it_can(session: Session) -> None:
    attach = session.sender_attach(None, target=Coordinator(("amqp:distributed-transactions",)), source=None)
    answer = session.attach(attach)
    assert isinstance(answer.target, Coordinator)
    assert set(answer.target.capabilities) == {
        "amqp:local-transactions",
        "amqp:multi-txns-per-ssn",
        "amqp:multi-ssns-per-txn",
    }


@requirement("BB-078", "BB-087", "BB-083", "BB-084")
def test_posted_messages_are_there_after_the_discharge(
    bench: NodeBench, session: Session, controller: Controller
) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    identifier = controller.declare()
    outcome = sender.send(message(header=Header(durable=True)), state=TransactionalState(identifier)).state
    assert outcome == TransactionalState(identifier, Accepted())
    assert queue.message_count == 0
    controller.discharge(identifier)
    assert queue.message_count == 1


def test_a_rollback_forgets_posted_messages(bench: NodeBench, session: Session, controller: Controller) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    identifier = controller.declare()
    sender.send(message(), state=TransactionalState(identifier))
    controller.discharge(identifier, fail=True)
    assert queue.message_count == 0
    assert sender.send(message()).state == Accepted()


def test_an_unroutable_message_is_released_in_its_transaction(session: Session, controller: Controller) -> None:
    identifier = controller.declare()
    sender = session.sender("/exchanges/amq.direct/nowhere")
    state = sender.send(message(), state=TransactionalState(identifier)).state
    assert state == TransactionalState(identifier, Released())


@requirement("BB-090", "BB-091", "BB-085", "BB-092")
def test_a_retired_message_is_gone_after_the_discharge(
    bench: NodeBench, session: Session, controller: Controller
) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=5)
    delivery = receiver.delivery()
    identifier = controller.declare()
    retire(receiver, delivery.number, identifier, Accepted())
    assert queue.unsettled_count == 1
    number = controller.link.transfer(encode_amqp_value(Discharge(identifier)))
    discharged = session.expect(Disposition)
    assert (discharged.role, discharged.first, discharged.state) == (True, number, Accepted())
    settled = session.expect(Disposition)
    assert (settled.role, settled.first, settled.settled) == (False, delivery.number, True)
    assert (queue.message_count, queue.unsettled_count) == (0, 0)


@requirement("BB-090", "BB-039", "BB-086")
def test_a_rollback_leaves_a_retired_message_with_its_link(
    bench: NodeBench, session: Session, controller: Controller
) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    delivery = receiver.delivery()
    identifier = controller.declare()
    retire(receiver, delivery.number, identifier, Accepted())
    controller.discharge(identifier, fail=True)
    assert (queue.message_count, queue.unsettled_count) == (0, 1)
    session.expect_nothing()
    receiver.settle(delivery, Released())
    assert (queue.message_count, queue.unsettled_count) == (1, 0)


def test_a_rollback_makes_settled_messages_available_again(
    bench: NodeBench, session: Session, controller: Controller
) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    identifier = controller.declare()
    retire(receiver, receiver.delivery().number, identifier, Accepted(), settled=True)
    controller.discharge(identifier, fail=True)
    assert (queue.message_count, queue.unsettled_count) == (1, 0)


@pytest.mark.parametrize(
    ("default_outcome", "ready", "failed"),
    [(Released(), 1, 0), (Modified(delivery_failed=True), 1, 1), (Rejected(), 0, 0)],
)
def test_a_rollback_leaves_the_default_outcome_to_what_is_settled(
    bench: NodeBench, session: Session, controller: Controller, default_outcome: Composite, ready: int, failed: int
) -> None:
    """4.4, settlement: the controller has settled, so it can no longer say what becomes of the delivery."""
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", source=Source("/queues/q", default_outcome=default_outcome), credit=1)
    identifier = controller.declare()
    retire(receiver, receiver.delivery().number, identifier, Accepted(), settled=True)
    controller.discharge(identifier, fail=True)
    assert (queue.message_count, queue.unsettled_count) == (ready, 0)
    if ready:
        assert session.receiver("/queues/q", credit=1).delivery().header.delivery_count == failed


@requirement("BB-039")
def test_a_provisional_outcome_may_change(bench: NodeBench, session: Session, controller: Controller) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    delivery = receiver.delivery()
    identifier = controller.declare()
    retire(receiver, delivery.number, identifier, Accepted())
    retire(receiver, delivery.number, identifier, Released())
    controller.discharge(identifier)
    assert (queue.message_count, queue.unsettled_count) == (1, 0)


@requirement("BB-093", "BB-094", "BB-095")
@pytest.mark.parametrize("fail", [True, False])
def test_transactional_acquisition(bench: NodeBench, session: Session, controller: Controller, *, fail: bool) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    identifier = controller.declare()
    receiver = session.receiver("/queues/q")
    receiver.flow(5, properties={Symbol("txn-id"): identifier}, drain=True)
    delivery = receiver.delivery()
    assert delivery.transfer.state == TransactionalState(identifier)
    controller.discharge(identifier, fail=fail)
    if fail:
        assert (queue.message_count, queue.unsettled_count) == (1, 0)
        return
    assert (queue.message_count, queue.unsettled_count) == (0, 1)
    receiver.settle(delivery)
    assert queue.unsettled_count == 0


def test_unknown_transactions(bench: NodeBench, session: Session, controller: Controller) -> None:
    declare(bench)
    refused = controller.ask(Discharge(b"none"))
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, Error)
    assert refused.error.condition == "amqp:transaction:unknown-id"
    sender = session.sender("/queues/q")
    sender.transfer(message(), state=TransactionalState(b"none"))
    sender.expect_detached("amqp:transaction:unknown-id")
    receiver = session.receiver("/queues/q")
    receiver.flow(1, properties={Symbol("txn-id"): b"none"})
    receiver.expect_detached("amqp:transaction:unknown-id")


def test_what_a_coordinator_refuses(session: Session, controller: Controller) -> None:
    for request in (Declare(b"global"), Accepted()):
        refused = controller.ask(request)
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert refused.error.condition == "amqp:not-implemented"
    strict = session.sender(None, target=Coordinator(), source=Source(outcomes=("amqp:accepted:list",)))
    strict.transfer(encode_amqp_value(Declare(b"global")))
    strict.expect_detached("amqp:not-implemented")
    controller.link.transfer(encode_amqp_value(Declare()), settled=True)
    controller.link.expect_detached("amqp:illegal-state")


@requirement("BB-078")
@pytest.mark.parametrize("way", ["detach", "end", "cut"])
def test_a_lost_coordinator_rolls_back(bench: NodeBench, peer: Peer, way: str) -> None:
    queue = declare(bench)
    session = peer.begin()
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    delivery = receiver.delivery()
    other = peer.begin(1)
    controller = Controller(other)
    identifier = controller.declare()
    sender = other.sender("/queues/q")
    sender.send(message(), state=TransactionalState(identifier))
    retire(receiver, delivery.number, identifier, Accepted())
    if way == "detach":
        controller.link.detach()
    elif way == "end":
        other.end()
    else:
        peer.wire.cut()
    if way == "cut":
        assert (queue.message_count, queue.unsettled_count) == (1, 0)
        return
    assert (queue.message_count, queue.unsettled_count) == (0, 1)
    receiver.settle(delivery)
    assert (queue.message_count, queue.unsettled_count) == (0, 0)


def test_several_transactions_in_a_session(bench: NodeBench, session: Session, controller: Controller) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    first, second = controller.declare(), controller.declare()
    assert first != second
    sender.send(message(b"1"), state=TransactionalState(first))
    sender.send(message(b"2"), state=TransactionalState(second))
    controller.discharge(first, fail=True)
    controller.discharge(second)
    assert queue.message_count == 1


def test_a_full_queue_rolls_all_of_it_back(bench: NodeBench, session: Session, controller: Controller) -> None:
    full = declare(bench, "full", x_max_length=1, x_overflow="reject-publish")
    queue = declare(bench)
    identifier = controller.declare()
    for address, count in (("/queues/q", 1), ("/queues/full", 2)):
        sender = session.sender(address)
        for _ in range(count):
            sender.send(message(), state=TransactionalState(identifier))
    refused = controller.ask(Discharge(identifier))
    assert isinstance(refused, Rejected)
    assert refused.error is not None
    assert refused.error.condition == "amqp:transaction:rollback"
    assert (queue.message_count, full.message_count) == (0, 0)


@requirement("BB-017", "BB-078")
def test_the_discharge_waits_for_the_disk(bench: NodeBench, session: Session, controller: Controller) -> None:
    declare(bench)
    identifier = controller.declare()
    sender = session.sender("/queues/q")
    sender.send(message(header=Header(durable=True)), state=TransactionalState(identifier))
    bench.is_stuck = True
    number = controller.link.transfer(encode_amqp_value(Discharge(identifier)))
    session.expect_nothing()
    bench.is_stuck = False
    bench.settle()
    discharged = session.expect(Disposition)
    assert (discharged.first, discharged.state) == (number, Accepted())


def test_deliveries_outside_of_transactions_have_no_state(bench: NodeBench, session: Session) -> None:
    declare(bench)
    session.sender("/queues/q").send(message())
    session.receiver("/queues/q", credit=1)
    assert session.expect(Transfer).state is None
