"""Rules of 1.0 that RabbitMQ waives, and a node keeps that is told to."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Session, declare, message
from waybill.wire.amqp10.descriptors import DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Rejected, Source
from waybill.wire.amqp10.sections import encode_annotations

DURABLE = Header(durable=True)
PRECONDITION_FAILED = "amqp:precondition-failed"


@pytest.fixture(autouse=True)
def _strict(bench: NodeBench) -> None:
    bench.node.limits.is_strict_amqp10 = True


@requirement("M10-009", "M10-010")
def test_a_durable_message_is_rejected_where_it_would_be_lost(bench: NodeBench, session: Session) -> None:
    declare(bench, "passing", durable=False)
    declare(bench, "lasting")
    virtual_host = bench.node.virtual_hosts["/"]
    for name in ("passing", "lasting"):
        virtual_host.bind_queue(virtual_host.queues[name], "amq.fanout", "", {})
    for source in (Source(), Source(outcomes=("amqp:accepted:list", "amqp:rejected:list"))):
        for address in ("/queues/passing", "/exchanges/amq.fanout"):
            sender = session.sender(address, source=source)
            # The first, the third, and one that looks as those before.
            for _ in range(4):
                assert sender.send(message()).state == Accepted()
            for _ in range(4):
                state = sender.send(message(header=DURABLE)).state
                assert isinstance(state, Rejected)
                assert state.error is not None
                assert state.error.condition == PRECONDITION_FAILED
    sender = session.sender("/queues/lasting")
    assert sender.send(message(header=DURABLE)).state == Accepted()


@requirement("M10-011")
@pytest.mark.parametrize("settled", [True, None])
def test_a_durable_message_detaches_its_link_where_it_cannot_be_rejected(
    bench: NodeBench, session: Session, *, settled: bool | None
) -> None:
    queue = declare(bench, durable=False)
    outcomes = () if settled else ("amqp:accepted:list",)
    sender = session.sender("/queues/q", source=Source(outcomes=outcomes))
    sender.transfer(message(header=DURABLE), settled=settled)
    sender.expect_detached(PRECONDITION_FAILED)
    assert queue.message_count == 0


@requirement("M10-046")
@pytest.mark.parametrize("kind", [DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS])
@pytest.mark.parametrize(("name", "is_taken"), [("foo", False), (7, False), ("x-opt-foo", True), ("x-delay", True)])
def test_an_annotation_that_must_be_understood(
    bench: NodeBench, session: Session, kind: int, name: object, *, is_taken: bool
) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    sender.send(message())
    octets = encode_annotations(kind, {name: "bar"}) + message()
    if is_taken:
        assert sender.send(octets).state == Accepted()
    else:
        sender.transfer(octets)
        sender.expect_detached("amqp:not-implemented")


@requirement("M10-059")
def test_a_dead_letter_tells_why_it_was_rejected(bench: NodeBench, session: Session) -> None:
    declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    declare(bench, "dead")
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    receiver.settle(receiver.delivery(), Rejected(Error("amqp:internal-error", "no such customer")))
    annotations = session.receiver("/queues/dead", credit=1).delivery().annotations
    assert annotations["x-opt-delivery-count"] == 1
    assert annotations["x-opt-rejected-condition"] == "amqp:internal-error"
    assert annotations["x-opt-rejected-description"] == "no such customer"
