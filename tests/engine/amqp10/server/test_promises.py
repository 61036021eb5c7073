"""What an attach promises: delivery modes, outcomes, capabilities, and that nodes which go are told of."""

from typing import Any

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from tests.engine.amqp10.server.test_transactions import Controller, retire
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import (
    Accepted,
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Rejected,
    Released,
    Source,
    Target,
)
from waybill.wire.amqp10.performatives import Disposition, Transfer
from waybill.wire.amqp10.sections import encode_amqp_value, encode_application_properties, encode_data, encode_sequence
from waybill.wire.amqp10.types import Described, Symbol

ACCEPTED = "amqp:accepted:list"
REJECTED = "amqp:rejected:list"
RELEASED = "amqp:released:list"
LASTING = Target("/queues/q", durable=2, expiry_policy="never")
NOT_IMPLEMENTED = "amqp:not-implemented"


# --- delivery modes ---


@requirement("BB-040", "BB-051")
@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (Target("/queues/q"), {"rcv_settle_mode": 1}),
        (Target("/queues/q", durable=1, expiry_policy="never"), {"rcv_settle_mode": 1}),
        (Target("/queues/q", durable=2), {"rcv_settle_mode": 1}),
        (LASTING, {"rcv_settle_mode": 0}),
        (LASTING, {"rcv_settle_mode": 1, "snd_settle_mode": 1}),
    ],
)
def test_exactly_once_needs_what_remembers(
    bench: NodeBench, session: Session, target: Target, fields: dict[str, Any]
) -> None:
    declare(bench)
    mode = {Symbol("delivery-mode"): "exactly-once"}
    session.expect_refused(session.sender_attach(None, target=target, properties=mode, **fields), NOT_IMPLEMENTED)
    for settle_mode in (0, 2):
        answer = session.sender(
            None, target=LASTING, rcv_settle_mode=1, snd_settle_mode=settle_mode, properties=mode
        ).answer
        assert answer is not None
        assert answer.properties == mode


@requirement("BB-040")
@pytest.mark.parametrize(
    ("mode", "settle_mode", "condition"),
    [
        ("at-most-once", 0, NOT_IMPLEMENTED),
        ("at-most-once", 1, ""),
        ("at-most-once", 2, ""),
        ("at-least-once", 0, ""),
        ("at-least-once", 1, NOT_IMPLEMENTED),
        ("exactly-once", 0, NOT_IMPLEMENTED),
        ("twice", 2, NOT_IMPLEMENTED),
        (7, 2, NOT_IMPLEMENTED),
    ],
)
def test_a_receivers_delivery_mode_is_kept_or_refused(
    bench: NodeBench, session: Session, mode: object, settle_mode: int, condition: str
) -> None:
    declare(bench)
    properties = {Symbol("delivery-mode"): mode}
    attach = session.receiver_attach("/queues/q", snd_settle_mode=settle_mode, properties=properties)
    if condition:
        session.expect_refused(attach, condition)
        # An option may be ignored, whatever it asks for.
        optional = {Symbol("opt-delivery-mode"): mode}
        assert session.receiver("/queues/q", properties=optional).answer is not None
        return
    assert session.attach(attach).properties == properties
    session.sender("/queues/q").send(message())
    session.flow(handle=attach.handle, link_credit=1, delivery_count=0)
    session.peer.receive()
    settled = [value.settled for _, value, _ in session.peer.received if isinstance(value, Transfer)]
    assert settled == [mode == "at-most-once"]


# --- outcomes ---


@requirement("BB-025", "M10-104")
def test_a_sender_that_knows_no_answer(bench: NodeBench, session: Session) -> None:
    declare(bench)
    attach = session.sender_attach("/queues/q", source=Source(outcomes=(RELEASED,)))
    session.expect_refused(attach, NOT_IMPLEMENTED)


@requirement("M10-104")
def test_outcomes_that_nobody_knows(bench: NodeBench, session: Session) -> None:
    declare(bench)
    wrong = Source("/queues/q", outcomes=(ACCEPTED, "foo"))
    session.expect_refused(session.sender_attach("/queues/q", source=wrong), "amqp:invalid-field")
    session.expect_refused(session.receiver_attach(None, source=wrong), "amqp:invalid-field")


@requirement("BB-025")
@pytest.mark.parametrize(
    ("outcomes", "unroutable", "full"),
    [
        ((), Released, Rejected),
        ((ACCEPTED, RELEASED, REJECTED), Released, Rejected),
        ((ACCEPTED, REJECTED), Rejected, Rejected),
        ((ACCEPTED, RELEASED), Released, Released),
        ((ACCEPTED,), None, None),
    ],
)
def test_only_outcomes_that_the_source_lists(
    bench: NodeBench,
    session: Session,
    outcomes: tuple[str, ...],
    unroutable: type[Composite] | None,
    full: type[Composite] | None,
) -> None:
    declare(bench, x_max_length=1, x_overflow="reject-publish")
    sender = session.sender("/queues/q", source=Source(outcomes=outcomes))
    assert sender.send(message()).state == Accepted()
    if full is None:
        sender.transfer(message())
        sender.expect_detached("amqp:resource-limit-exceeded")
    else:
        assert isinstance(sender.send(message()).state, full)
    sender = session.sender("/exchanges/amq.direct/nowhere", source=Source(outcomes=outcomes))
    if unroutable is None:
        sender.transfer(message())
        sender.expect_detached("amqp:not-found")
    else:
        assert isinstance(sender.send(message()).state, unroutable)


# --- capabilities ---


@requirement("M10-105", "BB-003")
@pytest.mark.parametrize(
    ("address", "kind"),
    [("/queues/q", "queue"), ("q", "queue"), ("/queues/s", "queue"), ("amq.topic", "topic"), ("amq.direct", "topic")],
)
@pytest.mark.parametrize("asked", [(), ("queue",), ("topic",), ("topic", "shared", "global"), ("DELAYED_DELIVERY",)])
def test_capabilities_are_those_of_the_node(
    bench: NodeBench, session: Session, address: str, kind: str, asked: tuple[str, ...]
) -> None:
    declare(bench)
    declare(bench, "s", x_queue_type="stream")
    known = {"queue", "topic", "temporary-queue", "temporary-topic", "shared", "global", "DELAYED_DELIVERY"}
    answer = session.receiver(None, source=Source(address, capabilities=asked)).answer
    assert answer is not None
    assert isinstance(answer.source, Source)
    assert known & set(answer.source.capabilities) == {kind}
    answer = session.sender(None, target=Target(address, capabilities=asked)).answer
    assert answer is not None
    assert isinstance(answer.target, Target)
    assert answer.target.capabilities == (kind,)


@requirement("M10-105")
def test_a_temporary_queue_is_for_its_connection(bench: NodeBench, session: Session) -> None:
    target = Target(dynamic=True, capabilities=("temporary-queue",))
    answer = session.sender(None, target=target).answer
    assert answer is not None
    assert isinstance(answer.target, Target)
    assert answer.target.capabilities == ("temporary-queue",)
    address = answer.target.address
    other = Peer(bench)
    other.open(container_id="other")
    foreign = other.begin()
    foreign.expect_refused(foreign.receiver_attach(address), "amqp:resource-locked")
    assert foreign.sender(address).send(message()).state == Accepted()
    source = Source(address, capabilities=("temporary-queue",))
    receiver = session.receiver(None, source=source, credit=1)
    assert receiver.answer is not None
    assert isinstance(receiver.answer.source, Source)
    assert "temporary-queue" in receiver.answer.source.capabilities
    assert receiver.delivery().bare == message()


def test_other_dynamic_nodes_are_for_all(bench: NodeBench, session: Session) -> None:
    answer = session.sender(None, target=Target(dynamic=True)).answer
    assert answer is not None
    assert isinstance(answer.target, Target)
    other = Peer(bench)
    other.open(container_id="other")
    other.begin().receiver(answer.target.address)


# --- nodes that go ---


@requirement("BB-031")
@pytest.mark.parametrize("way", ["deleted", "expired"])
def test_all_links_hear_at_once_that_their_queue_is_gone(bench: NodeBench, session: Session, way: str) -> None:
    queue = declare(bench, x_expires=1000)
    sender = session.sender("/queues/q")
    receiver = None
    if way == "deleted":
        receiver = session.receiver("/queues/q", credit=1)
        bench.node.virtual_hosts["/"].remove_queue(queue)
        bench.settle()
    else:
        bench.advance(1.5)
        bench.settle()
    found = set()
    for link in (sender, receiver):
        if link is not None:
            found.add(link.handle)
            link.expect_detached("amqp:resource-deleted")
    session.expect_nothing()
    # Both can be attached again to another queue of the name.
    queue = declare(bench)
    assert session.sender("/queues/q").send(message()).state == Accepted()
    session.receiver("/queues/q", credit=1).delivery()


@requirement("BB-031")
def test_senders_hear_with_their_next_transfer_that_their_exchange_is_gone(bench: NodeBench, session: Session) -> None:
    virtual_host = bench.node.virtual_hosts["/"]
    virtual_host.declare_exchange("gone", "direct", durable=False, auto_delete=False, internal=False, arguments={})
    links = [session.sender("/exchanges/gone/key"), session.sender("/exchanges/gone")]
    left = session.sender("/exchanges/amq.direct/key")
    anonymous = session.sender(None)
    detached = session.sender("/exchanges/gone/other")
    detached.detach()
    deletion = virtual_host.delete_exchange("gone", if_unused=False)
    assert deletion is not None
    virtual_host.runtime.work_left = 1 << 20
    assert deletion.work()
    bench.settle()
    session.expect_nothing()
    for link in links:
        link.transfer(message())
        link.expect_detached("amqp:not-found")
    assert left.send(message()).state == Released()
    anonymous.detach()


# --- the time that a delivery may take ---


def pass_minutes(bench: NodeBench, minutes: int) -> None:
    for _ in range(minutes):
        bench.advance(60.0)
        bench.node.maintain(bench.now)
        bench.settle()


@requirement("M10-062")
def test_a_delivery_that_is_never_settled_is_released(bench: NodeBench) -> None:
    bench.node.limits.consumer_timeout_s = 600.0
    bench.node.limits.heartbeat_s = 0
    queue = declare(bench)
    peer = Peer(bench)
    peer.open()
    session = peer.begin()
    sender = session.sender("/queues/q")
    receiver = session.receiver("/queues/q", credit=3)
    for body in (b"prompt", b"forgotten", b"forgotten too"):
        sender.send(message(body))
    prompt, *forgotten = (receiver.delivery() for _ in range(3))
    receiver.settle(prompt)
    pass_minutes(bench, 9)
    session.expect_nothing()
    sender.send(message(b"young"))
    receiver.flow(1)
    young = receiver.delivery()
    pass_minutes(bench, 3)
    for delivery in reversed(forgotten):
        disposition = session.expect(Disposition)
        assert (disposition.role, disposition.first, disposition.settled) == (False, delivery.number, True)
        assert disposition.state == Released()
    assert (queue.ready_count, queue.unsettled_count) == (2, 1)
    # What the peer says now comes too late; what is young is its own still.
    receiver.settle(forgotten[0])
    receiver.settle(young)
    assert (queue.ready_count, queue.unsettled_count) == (2, 0)
    again = session.receiver("/queues/q", credit=2)
    assert [again.delivery().bare for _ in range(2)] == [message(b"forgotten"), message(b"forgotten too")]


def test_without_a_timeout_deliveries_stay(bench: NodeBench) -> None:
    bench.node.limits.consumer_timeout_s = 0.0
    bench.node.limits.heartbeat_s = 0
    queue = declare(bench)
    peer = Peer(bench)
    peer.open()
    session = peer.begin()
    session.sender("/queues/q").send(message())
    session.receiver("/queues/q", credit=1).delivery()
    pass_minutes(bench, 60)
    session.expect_nothing()
    assert queue.unsettled_count == 1


def test_a_transaction_that_keeps_a_delivery_times_out(bench: NodeBench) -> None:
    bench.node.limits.consumer_timeout_s = 600.0
    bench.node.limits.heartbeat_s = 0
    queue = declare(bench)
    peer = Peer(bench)
    peer.open()
    session = peer.begin()
    session.sender("/queues/q").send(message())
    controller = Controller(session)
    receiver = session.receiver("/queues/q", credit=1)
    retire(receiver, receiver.delivery().number, controller.declare(), Accepted())
    pass_minutes(bench, 12)
    controller.link.expect_detached("amqp:transaction:timeout")
    assert (queue.ready_count, queue.unsettled_count) == (1, 0)


# --- settling, and what a message is ---


@requirement("BB-047")
@pytest.mark.parametrize("batchable", [True, False])
def test_the_outcome_is_told_with_the_turn(bench: NodeBench, session: Session, *, batchable: bool) -> None:
    """One disposition for all of a read, as soon as it was taken: nobody waits for more to come."""
    declare(bench)
    sender = session.sender("/queues/q")
    octets = b"".join(
        frame(0, Transfer(sender.handle, number, b"%d" % number, 0, batchable=batchable).encode(), message())
        for number in range(3)
    )
    session.peer.wire.engine.receive_data(octets, bench.now)
    bench.settle()
    disposition = session.expect(Disposition)
    assert (disposition.first, disposition.last, disposition.settled) == (0, 2, True)


@requirement("M10-007")
def test_a_message_without_a_header_counts_as_priority_4_and_transient(bench: NodeBench, session: Session) -> None:
    queue = declare(bench, x_max_priority=9)
    sender = session.sender("/queues/q")
    for name, header in ((b"3", Header(priority=3)), (b"none", None), (b"5", Header(priority=5)), (b"4", Header(priority=4))):  # fmt: skip # noqa: E501
        sender.send(message(name, header=header))
    receiver = session.receiver("/queues/q", credit=4)
    deliveries = [receiver.delivery() for _ in range(4)]
    assert [delivery.bare for delivery in deliveries] == [message(name) for name in (b"5", b"none", b"4", b"3")]
    assert not deliveries[1].header.durable
    assert queue.unsettled_count == 4


@requirement("M10-005")
@pytest.mark.parametrize(
    "body",
    [
        encode_data(b"a") * 2,
        encode_sequence([1]) * 3,
        encode_amqp_value(None),
        encode_data(b"") + b"\x00\x53\x78\xc1\x01\x00",
    ],
)
def test_what_a_body_may_be(bench: NodeBench, session: Session, body: bytes) -> None:
    declare(bench)
    assert session.sender("/queues/q").send(body).state == Accepted()
    assert session.receiver("/queues/q", credit=1).delivery().payload.endswith(body)


@requirement("M10-087")
def test_a_filter_shows_the_same_messages_again(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    for number in range(6):
        sender.send(encode_application_properties({"a": number % 2}) + message(b"%d" % number))
    selector = Described(Symbol("apache.org:selector-filter:string"), "a = 1")
    source = Source("/queues/q", filter={Symbol("a"): selector})
    wanted = [message(b"%d" % number) for number in (1, 3, 5)]
    for state in (Released(), None, Accepted()):
        receiver = session.receiver(None, source=source, credit=3)
        deliveries = [receiver.delivery() for _ in range(3)]
        assert [delivery.payload[-len(wanted[0]) :] for delivery in deliveries] == wanted
        receiver.expect_nothing()
        if state is not None:
            first, last = deliveries[0].number, deliveries[-1].number
            session.send(Disposition(role=True, first=first, last=last, settled=True, state=state))
        receiver.detach()
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 3


@requirement("M10-111")
def test_copies_go_to_all_and_moves_to_one(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    for number in range(4):
        sender.send(message(b"%d" % number))
    copies = [session.receiver(None, source=Source("/queues/q", distribution_mode="copy"), credit=9) for _ in range(2)]
    for link in copies:
        assert [link.delivery().bare for _ in range(4)] == [message(b"%d" % number) for number in range(4)]
        link.detach()
    assert (queue.ready_count, queue.unsettled_count) == (4, 0)
    movers = [session.receiver(None, source=Source("/queues/q", distribution_mode="move")) for _ in range(2)]
    for link in movers:
        link.flow(2)
    found = [link.delivery().bare for link in movers for _ in range(2)]
    assert sorted(found) == [message(b"%d" % number) for number in range(4)]
    assert (queue.ready_count, queue.unsettled_count) == (0, 4)


@requirement("BB-007")
def test_an_alias_is_the_address(bench: NodeBench, session: Session) -> None:
    """A plain name stands for the address of its node, and is what is told of it."""
    declare(bench)
    for address in ("q", "/queues/q", "amq.topic", "/exchanges/amq.topic"):
        answer = session.receiver(address).answer
        assert answer is not None
        assert isinstance(answer.source, Source)
        assert answer.source.address == address
        answer = session.sender(address).answer
        assert answer is not None
        assert isinstance(answer.target, Target)
        assert answer.target.address == address
    session.sender("q").send(message())
    assert session.receiver("q", credit=1).delivery().bare == message()


@requirement("BB-008")
def test_names_of_dynamic_nodes_cannot_be_guessed(session: Session) -> None:
    ends = set()
    for _ in range(8):
        answer = session.sender(None, target=Target(dynamic=True)).answer
        assert answer is not None
        assert isinstance(answer.target, Target)
        end = (answer.target.address or "").rpartition(".")[2]
        assert len(bytes.fromhex(end)) * 8 >= 96
        ends.add(end)
    assert len(ends) == 8


@requirement("M10-117")
@pytest.mark.parametrize("policy", [DeleteOnClose(), DeleteOnNoLinks(), DeleteOnNoMessages(), DeleteOnNoLinksOrMessages()])  # fmt: skip # noqa: E501
def test_a_dynamic_node_is_there_as_long_as_its_link(bench: NodeBench, session: Session, policy: Composite) -> None:
    properties: dict[str, object] = {Symbol("lifetime-policy"): policy}
    sender = session.sender(None, target=Target(dynamic=True, dynamic_node_properties=properties))
    assert sender.answer is not None
    assert isinstance(sender.answer.target, Target)
    address = sender.answer.target.address
    queues = bench.node.virtual_hosts["/"].queues
    sender.send(message())
    other = session.receiver(address, credit=1)
    other.settle(other.delivery())
    other.detach()
    assert len(queues) == 1
    sender.detach(closed=False)
    assert len(queues) == 1
    sender = session.sender(None, name=sender.attach.name, target=Target(address))
    assert len(queues) == 1
    sender.detach()
    assert not queues
