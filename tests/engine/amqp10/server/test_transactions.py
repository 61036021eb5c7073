"""Transactions (1.0, Part 4): declared and discharged by a coordinator; messages posted, retired and acquired."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Receiver, Sender, Session, declare, message
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Released, Source
from waybill.wire.amqp10.performatives import Detach, Disposition, Transfer
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


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("way", ["late", "detach", "close", "end"])
@pytest.mark.parametrize("fail", [True, False])
def test_a_link_that_is_gone_before_the_discharge_of_what_it_retired(
    bench: NodeBench, peer: Peer, way: str, *, settled: bool, fail: bool
) -> None:
    """4.4.4.2: the outcome of a discharge is that of the delivery, whether or not its link is there to hear of it."""
    queue = declare(bench)
    controller = Controller(peer.begin(1))
    session = peer.begin()
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    identifier = controller.declare()
    delivery = receiver.delivery()
    if way == "late":
        receiver.detach(closed=False)
    retire(receiver, delivery.number, identifier, Accepted(), settled=settled)
    if way == "end":
        session.end()
    elif way != "late":
        receiver.detach(closed=way == "close")
    assert queue.message_count == 0
    controller.discharge(identifier, fail=fail)
    bench.settle()
    if way != "end":
        session.expect_nothing()
        session.end()
    assert (queue.ready_count, queue.unsettled_count) == ((1, 0) if fail else (0, 0))
    again = peer.begin().receiver("/queues/q", credit=5)
    if fail:
        again.delivery()
    again.expect_nothing()


@pytest.mark.parametrize("settled", [True, False])
def test_what_a_rollback_leaves_to_a_detached_link_waits_for_it(
    bench: NodeBench, session: Session, controller: Controller, *, settled: bool
) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1, name="again")
    identifier = controller.declare()
    retire(receiver, receiver.delivery().number, identifier, Accepted(), settled=settled)
    receiver.detach(closed=False)
    controller.discharge(identifier, fail=True)
    assert (queue.ready_count, queue.unsettled_count) == ((1, 0) if settled else (0, 1))
    again = session.receiver("/queues/q", credit=1, name="again")
    again.settle(again.delivery())
    assert (queue.message_count, queue.unsettled_count) == (0, 0)


@pytest.mark.parametrize("state", [Accepted(), Released(), None])
@pytest.mark.parametrize("settled", [True, False])
def test_an_outcome_that_comes_after_the_detach_counts(
    bench: NodeBench, session: Session, state: Composite | None, *, settled: bool
) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    delivery = receiver.delivery()
    receiver.detach(closed=False)
    assert (queue.ready_count, queue.unsettled_count) == (0, 1)
    session.send(Disposition(role=True, first=delivery.number, settled=settled, state=state))
    session.expect_nothing()
    if state is None and not settled:
        assert (queue.ready_count, queue.unsettled_count) == (0, 1)
    else:
        assert (queue.ready_count, queue.unsettled_count) == (int(state != Accepted()), 0)
    session.end()
    assert (queue.ready_count, queue.unsettled_count) == (int(state != Accepted()), 0)


@requirement("BB-084")
@pytest.mark.parametrize("way", ["commit", "rollback"])
def test_a_post_on_a_link_of_second_is_settled_by_its_sender(
    bench: NodeBench, session: Session, controller: Controller, way: str
) -> None:
    """4.4.4.1: after the discharge the state of the delivery is the outcome that was applied, or none."""
    queue = declare(bench)
    sender = session.sender("/queues/q", rcv_settle_mode=1, name="second")
    identifier = controller.declare()
    disposition = sender.send(message(), state=TransactionalState(identifier), delivery_tag=b"tag")
    assert (disposition.state, disposition.settled) == (TransactionalState(identifier, Accepted()), False)
    controller.discharge(identifier, fail=way == "rollback")
    assert queue.message_count == int(way == "commit")
    sender.detach(closed=False)
    again = session.sender("/queues/q", rcv_settle_mode=1, name="second", unsettled={b"tag": None})
    assert again.answer is not None
    assert again.answer.unsettled == ({b"tag": Accepted()} if way == "commit" else None)
    if way == "commit":
        again.transfer(b"", delivery_tag=b"tag", resume=True, state=Accepted(), settled=True)
    else:
        again.send(message(), delivery_tag=b"tag")
    assert queue.message_count == 1


def test_a_post_that_its_sender_settles_before_the_discharge(
    bench: NodeBench, session: Session, controller: Controller
) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q", rcv_settle_mode=1)
    identifier = controller.declare()
    number = sender.send(message(), state=TransactionalState(identifier)).first
    session.send(Disposition(role=False, first=number, settled=True))
    sender.detach()
    controller.discharge(identifier)
    assert queue.message_count == 1


def rejected_discharge(controller: Controller, identifier: bytes) -> Error:
    state = controller.ask(Discharge(identifier))
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:transaction:rollback"
    return state.error


@requirement("BB-084")
def test_a_provisional_outcome_that_cannot_be_honoured_fails_the_discharge(
    bench: NodeBench, session: Session, controller: Controller
) -> None:
    queue = declare(bench)
    other = declare(bench, "other")
    identifier = controller.declare()
    state = TransactionalState(identifier)
    session.sender("/queues/other").send(message(), state=state)
    outcome = session.sender("/queues/q").send(message(), state=state).state
    assert outcome == TransactionalState(identifier, Accepted())
    bench.node.virtual_hosts["/"].remove_queue(queue)
    bench.settle()
    session.expect(Detach)
    error = rejected_discharge(controller, identifier)
    assert error.description is not None
    assert "deleted" in error.description
    assert other.message_count == 0
    assert controller.declare()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("payload", [b"nonsense", message(b"x" * 2000)])
def test_a_post_that_cannot_be_processed_fails_the_discharge(
    bench: NodeBench, session: Session, controller: Controller, payload: bytes, *, settled: bool
) -> None:
    bench.node.limits.message_size_max = 1000
    queue = declare(bench)
    identifier = controller.declare()
    state = TransactionalState(identifier)
    sender = session.sender("/queues/q")
    sender.transfer(message(), state=state, settled=True)
    sender.transfer(payload, state=state, settled=settled)
    session.expect(Detach)
    rejected_discharge(controller, identifier)
    assert queue.message_count == 0


@pytest.mark.parametrize("takes_rejected", [True, False])
def test_a_settled_post_to_an_unknown_address_fails_the_discharge(
    bench: NodeBench, session: Session, *, takes_rejected: bool
) -> None:
    """Anonymous terminus, 2.2.2, in transactions: only the controller hears of it."""
    queue = declare(bench)
    outcomes = ("amqp:accepted:list", "amqp:rejected:list") if takes_rejected else ("amqp:accepted:list",)
    link = session.sender(None, target=Coordinator(), source=Source(outcomes=outcomes))
    declared = link.send(encode_amqp_value(Declare())).state
    assert isinstance(declared, Declared)
    sender = session.sender(None, source=Source(outcomes=("amqp:rejected:list",)))
    state = TransactionalState(declared.txn_id)
    sender.transfer(Properties(to="/queues/q").encode() + message(), state=state, settled=True)
    sender.transfer(
        Properties(to="/queues/none").encode() + message(), state=state, settled=True, delivery_tag=b"which"
    )
    session.expect_nothing()
    number = link.transfer(encode_amqp_value(Discharge(declared.txn_id)))
    if takes_rejected:
        disposition = session.expect(Disposition)
        assert disposition.first == number
        assert isinstance(disposition.state, Rejected)
        error = disposition.state.error
    else:
        error = session.expect(Detach).error
    assert error is not None
    assert (error.condition, error.info) == ("amqp:transaction:rollback", {"delivery-tag": b"which"})
    assert queue.message_count == 0
    session.expect_nothing()


def test_an_unsettled_post_to_an_unknown_address(session: Session, controller: Controller) -> None:
    identifier = controller.declare()
    state = TransactionalState(identifier)
    octets = Properties(to="/queues/none").encode() + message()
    sender = session.sender(None, source=Source(outcomes=("amqp:rejected:list",)))
    told = sender.send(octets, state=state, delivery_tag=b"which").state
    assert isinstance(told, TransactionalState)
    assert isinstance(told.outcome, Rejected)
    assert told.outcome.error is not None
    assert told.outcome.error.info == {"delivery-tag": b"which"}
    controller.discharge(identifier)
    identifier = controller.declare()
    sender = session.sender(None, source=Source(outcomes=("amqp:accepted:list",)))
    sender.transfer(octets, state=TransactionalState(identifier), delivery_tag=b"which")
    sender.expect_detached("amqp:not-found")
    assert rejected_discharge(controller, identifier).info == {"delivery-tag": b"which"}


@pytest.mark.parametrize("fail", [True, False])
def test_a_discharge_in_the_middle_of_a_post(
    bench: NodeBench, session: Session, controller: Controller, *, fail: bool
) -> None:
    """4.4.1: "the control link MUST be terminated with the transaction-rollback error." """
    queue = declare(bench)
    identifier = controller.declare()
    sender = session.sender("/queues/q")
    whole = message(b"x" * 100)
    sender.transfer(whole[:50], more=True, state=TransactionalState(identifier))
    if fail:
        controller.discharge(identifier, fail=True)
    else:
        controller.link.transfer(encode_amqp_value(Discharge(identifier)))
        controller.link.expect_detached("amqp:transaction:rollback")
    sender.more(whole[50:])
    sender.expect_detached("amqp:transaction:unknown-id")
    assert queue.message_count == 0


def test_a_link_that_goes_in_the_middle_of_a_post(bench: NodeBench, session: Session, controller: Controller) -> None:
    queue = declare(bench)
    identifier = controller.declare()
    sender = session.sender("/queues/q")
    sender.transfer(message(b"x" * 100)[:50], more=True, state=TransactionalState(identifier))
    sender.detach()
    rejected_discharge(controller, identifier)
    assert queue.message_count == 0


def test_an_aborted_post_is_no_obstacle(bench: NodeBench, session: Session, controller: Controller) -> None:
    queue = declare(bench)
    identifier = controller.declare()
    sender = session.sender("/queues/q")
    sender.transfer(message(b"x" * 100)[:50], more=True, state=TransactionalState(identifier))
    sender.more(b"", aborted=True)
    sender.send(message(), state=TransactionalState(identifier))
    controller.discharge(identifier)
    assert queue.message_count == 1


@pytest.mark.parametrize("is_named", [True, False])
def test_the_transaction_of_a_delivery_does_not_change(
    bench: NodeBench, session: Session, controller: Controller, *, is_named: bool
) -> None:
    queue = declare(bench)
    first, second = controller.declare(), controller.declare()
    sender = session.sender("/queues/q")
    whole = message(b"x" * 100)
    sender.transfer(whole[:50], more=True, state=TransactionalState(first) if is_named else None)
    sender.more(whole[50:], state=TransactionalState(second))
    sender.expect_detached("amqp:invalid-field")
    if is_named:
        rejected_discharge(controller, first)
    controller.discharge(second)
    assert queue.message_count == 0


@pytest.mark.parametrize("way", ["acquired", "retired"])
def test_a_delivery_of_two_transactions_ends_the_control_link(
    bench: NodeBench, session: Session, controller: Controller, way: str
) -> None:
    """4.4.2: a delivery "MUST NOT be associated with a different non discharged transaction than the outcome"."""
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    first, second = controller.declare(), controller.declare()
    receiver = session.receiver("/queues/q")
    receiver.flow(1, properties={Symbol("txn-id"): first} if way == "acquired" else None)
    delivery = receiver.delivery()
    if way == "retired":
        retire(receiver, delivery.number, first, Accepted())
    retire(receiver, delivery.number, second, Accepted())
    controller.link.expect_detached("amqp:transaction:rollback")
    assert queue.message_count + queue.unsettled_count == 1


def test_an_outcome_in_an_unknown_transaction_detaches_the_link(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    retire(receiver, receiver.delivery().number, b"none", Accepted())
    receiver.expect_detached("amqp:transaction:unknown-id")
    assert queue.ready_count == 1
    session.receiver("/queues/q", credit=1).delivery()


@pytest.mark.parametrize("kind", ["settled", "copies", "stream"])
def test_what_cannot_be_acquired_in_a_transaction(
    bench: NodeBench, session: Session, controller: Controller, kind: str
) -> None:
    declare(bench, x_queue_type="stream" if kind == "stream" else "classic")
    session.sender("/queues/q").send(message())
    source = Source("/queues/q", distribution_mode="copy" if kind == "copies" else None)
    receiver = session.receiver(None, source=source, snd_settle_mode=1 if kind == "settled" else 0)
    receiver.flow(1, properties={Symbol("txn-id"): controller.declare()})
    receiver.expect_detached("amqp:not-implemented")
