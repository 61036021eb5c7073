"""Distribution modes, subscriptions to exchanges, dynamic nodes and their lifetimes (1.0, 3.5)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.descriptors import DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import (
    Accepted,
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
)
from waybill.wire.amqp10.performatives import Disposition
from waybill.wire.amqp10.sections import encode_annotations, encode_application_properties
from waybill.wire.amqp10.types import Array, Described, Symbol, UInt


@requirement("BB-075", "M10-088", "M10-111", "BB-060")
def test_copies_leave_the_queue_as_it_is(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    for body in (b"1", b"2", b"3"):
        sender.send(message(body))
    browser = session.receiver(None, source=Source("/queues/q", distribution_mode="copy"), credit=10)
    assert browser.answer is not None
    assert isinstance(browser.answer.source, Source)
    assert browser.answer.source.distribution_mode == "copy"
    assert [browser.delivery().payload[-1:] for _ in range(3)] == [b"1", b"2", b"3"]
    other = session.receiver(None, source=Source("/queues/q", distribution_mode="copy"), credit=2)
    assert [other.delivery().payload[-1:] for _ in range(2)] == [b"1", b"2"]
    assert (queue.message_count, queue.unsettled_count) == (3, 0)


@requirement("M10-089")
@pytest.mark.parametrize("state", [Accepted(), Released(), Rejected()])
def test_each_message_is_copied_once_whatever_becomes_of_it(
    bench: NodeBench, session: Session, state: Composite
) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    sender.send(message(b"1"))
    sender.send(message(b"2"))
    browser = session.receiver(None, source=Source("/queues/q", distribution_mode="copy"), credit=1)
    browser.settle(browser.delivery(), state)
    browser.expect_nothing()
    browser.flow(5)
    assert browser.delivery().payload.endswith(b"2")
    browser.expect_nothing()
    sender.send(message(b"3"))
    assert browser.delivery().payload.endswith(b"3")
    assert queue.message_count == 3


def test_moved_messages_are_not_copied(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    sender.send(message(b"1"))
    sender.send(message(b"2"))
    mover = session.receiver("/queues/q", credit=1)
    mover.delivery()
    browser = session.receiver(None, source=Source("/queues/q", distribution_mode="copy"), credit=5)
    assert browser.delivery().payload.endswith(b"2")
    browser.expect_nothing()


@requirement("BB-060")
def test_unknown_distribution_modes_are_refused(bench: NodeBench, session: Session) -> None:
    declare(bench)
    attach = session.receiver_attach(None, source=Source("/queues/q", distribution_mode="share"))
    session.expect_refused(attach, "amqp:invalid-field")
    attach = session.receiver_attach(None, source=Source("amq.topic", distribution_mode="move"))
    session.expect_refused(attach, "amqp:not-implemented")
    declare(bench, "stream", x_queue_type="stream")
    attach = session.receiver_attach(None, source=Source("/queues/stream", distribution_mode="move"))
    session.expect_refused(attach, "amqp:not-implemented")


@requirement("M10-065")
def test_an_undeliverable_message_goes_to_others_only(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    first = session.receiver("/queues/q", credit=5)
    sender.send(message(b"1"))
    second = session.receiver("/queues/q")
    first.settle(first.delivery(), Modified(delivery_failed=True, undeliverable_here=True))
    first.expect_nothing()
    assert queue.message_count == 1
    sender.send(message(b"2"))
    assert first.delivery().payload.endswith(b"2")
    second.flow(5)
    delivery = second.delivery()
    assert delivery.payload.endswith(b"1")
    assert delivery.header.delivery_count == 1


@requirement("M10-065")
@pytest.mark.parametrize("other", ["none", "browser", "filter", "shunned"])
@pytest.mark.parametrize("dead_letters", [True, False])
def test_what_nobody_can_take_is_a_dead_letter(
    bench: NodeBench, session: Session, other: str, *, dead_letters: bool
) -> None:
    """As in RabbitMQ 4: undeliverable here and nowhere else, so it must not wait for ever."""
    queue = declare(bench)
    if dead_letters:
        bench.node.virtual_hosts["/"].remove_queue(queue)
        queue = declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    dead = declare(bench, "dead")
    sender = session.sender("/queues/q")
    first = session.receiver("/queues/q", credit=5)
    sender.send(message(b"1"))
    delivery = first.delivery()
    undeliverable = Modified(undeliverable_here=True)
    if other == "browser":
        session.receiver(None, source=Source("/queues/q", distribution_mode="copy"))
    elif other == "filter":
        selector = Described(Symbol("apache.org:selector-filter:string"), "a = 1")
        session.receiver(None, source=Source("/queues/q", filter={Symbol("a"): selector}))
    elif other == "shunned":
        second = session.receiver("/queues/q", credit=1)
        first.settle(delivery, undeliverable)
        assert dead.message_count == 0
        second.settle(second.delivery(), undeliverable)
    if other != "shunned":
        first.settle(delivery, undeliverable)
    assert (queue.message_count, queue.unsettled_count, dead.message_count) == (0, 0, int(dead_letters))
    sender.send(message(b"2"))
    assert first.delivery().payload.endswith(b"2")


def test_few_of_very_many_are_asked_whether_they_could_take_a_message(bench: NodeBench, session: Session) -> None:
    """Each answer may cost a look at a long text. It is assumed that one of the others could."""
    queue = declare(bench)
    first = session.receiver("/queues/q", credit=1)
    session.sender("/queues/q").send(Properties(subject="a" * 15_000).encode() + message())
    selector = Described(Symbol("apache.org:selector-filter:string"), "amqp.subject LIKE '%a_a_ab%'")
    for _ in range(200):
        session.receiver(None, source=Source("/queues/q", filter={Symbol("a"): selector}))
    number = first.delivery().number
    bench.node.end_turn()
    outcome = Disposition(True, number, number, True, Modified(undeliverable_here=True))
    session.peer.wire.engine.receive_data(frame(session.channel, outcome.encode()), bench.now)
    assert queue.message_count == 1
    assert bench.node.runtime.work_left > -1024


def test_very_many_senders_learn_in_turns_that_their_queue_is_gone(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    senders = [session.sender("/queues/q") for _ in range(20)]
    bench.node.runtime.turn_units = 16
    bench.node.runtime.begin_turn()
    bench.node.virtual_hosts["/"].remove_queue(queue)
    assert bench.node.has_late_work
    # A new queue of that name concerns nobody of them.
    declare(bench)
    bench.settle()
    for sender in senders:
        sender.expect_detached("amqp:resource-deleted")


def test_a_message_that_comes_back_is_offered_to_a_choosing_link_again(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    first = session.receiver("/queues/q", credit=5)
    for body in (b"1", b"2", b"3"):
        sender.send(message(body))
    deliveries = [first.delivery() for _ in range(3)]
    session.receiver("/queues/q")
    first.settle(deliveries[0], Modified(undeliverable_here=True))
    first.settle(deliveries[2], Released())
    assert first.delivery().payload.endswith(b"3")
    first.settle(deliveries[1], Released())
    assert first.delivery().payload.endswith(b"2")
    first.expect_nothing()


@requirement("BB-061")
@pytest.mark.parametrize("address", ["/exchanges/amq.topic/news.%23", "amq.topic", "/exchanges/amq.topic"])
def test_every_subscriber_of_an_exchange_gets_a_copy(bench: NodeBench, session: Session, address: str) -> None:
    receivers = [session.receiver(address, credit=5) for _ in range(2)]
    sender = session.sender("/exchanges/amq.topic/news.today")
    sender.send(message())
    assert [receiver.delivery().bare for receiver in receivers] == [message(), message()]
    for receiver in receivers:
        receiver.detach()
    assert not bench.node.virtual_hosts["/"].queues


@requirement("M10-105")
def test_a_durable_subscription_outlives_its_connection(bench: NodeBench) -> None:
    source = Source("amq.topic", durable=2, expiry_policy="never")
    peer = Peer(bench)
    peer.open(container_id="subscriber")
    peer.begin().receiver(None, name="subscription", source=source)
    peer.wire.cut()
    other = Peer(bench)
    other.open()
    other.begin().sender("/exchanges/amq.topic/a").send(message(b"meanwhile"))
    again = Peer(bench)
    again.open(container_id="subscriber")
    session = again.begin()
    receiver = session.receiver(None, name="subscription", source=source, credit=5)
    assert receiver.delivery().payload.endswith(b"meanwhile")
    receiver.detach()
    assert not bench.node.virtual_hosts["/"].queues


def test_a_subscription_can_be_found_by_its_name_alone(bench: NodeBench, session: Session) -> None:
    source = Source("amq.topic", durable=2, expiry_policy="never")
    session.receiver(None, name="subscription", source=source).detach(closed=False)
    attach = session.receiver_attach(None, name="subscription")
    answer = session.attach(type(attach)(attach.name, attach.handle, role=True, source=None, target=Target()))
    assert isinstance(answer.source, Source)
    assert answer.source.address == "amq.topic"
    refused = session.receiver_attach(None, name="other")
    session.expect_refused(
        type(refused)(refused.name, refused.handle, role=True, source=None, target=Target()), "amqp:invalid-field"
    )


# --- dynamic nodes ---


@requirement("BB-076", "BB-006", "BB-008", "M10-091", "M10-092", "M10-096", "M10-116", "M10-033")
def test_a_dynamic_source(bench: NodeBench, session: Session) -> None:
    receiver = session.receiver(None, name="replies", source=Source(dynamic=True), credit=5)
    assert receiver.answer is not None
    source = receiver.answer.source
    assert isinstance(source, Source)
    assert source.dynamic
    assert source.address is not None
    assert "peer.replies." in source.address
    assert len(source.address.rpartition(".")[2]) >= 24
    properties = source.dynamic_node_properties
    assert properties is not None
    assert properties["supported-dist-modes"] == Array(codes.SYMBOL_8, (Symbol("move"), Symbol("copy")))
    other = Peer(bench)
    other.open()
    other.begin().sender(source.address).send(message(b"reply"))
    assert receiver.delivery().payload.endswith(b"reply")


@requirement("M10-106")
def test_a_dynamic_target(session: Session) -> None:
    sender = session.sender(None, target=Target(dynamic=True))
    assert sender.answer is not None
    target = sender.answer.target
    assert isinstance(target, Target)
    assert target.address is not None
    sender.send(message())
    assert session.receiver(target.address, credit=1).delivery().payload.endswith(message())


WRONG_PROPERTIES: list[dict[str, object]] = [
    {Symbol("lifetime-policy"): Symbol("delete-on-close")},
    {Symbol("lifetime-policy"): Accepted()},
    {Symbol("lifetime-policy"): UInt(7)},
    {Symbol("supported-dist-modes"): UInt(0)},
    {Symbol("supported-dist-modes"): "move"},
    {Symbol("supported-dist-modes"): Array(codes.SMALL_UINT, (UInt(1),))},
]


@requirement("M10-091", "M10-095", "M10-107", "M10-115", "M10-106")
def test_what_a_dynamic_node_cannot_be(bench: NodeBench, session: Session) -> None:
    declare(bench)
    for source in (
        Source("/queues/q", dynamic=True),
        Source("/queues/q", dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnClose()}),
    ):
        session.expect_refused(session.receiver_attach(None, source=source), "amqp:invalid-field")
    for target in (
        Target("/queues/q", dynamic=True),
        Target("/queues/q", dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnClose()}),
    ):
        session.expect_refused(session.sender_attach(None, target=target), "amqp:invalid-field")
    for wrong in WRONG_PROPERTIES:
        from_it = Source(dynamic=True, dynamic_node_properties=wrong)
        session.expect_refused(session.receiver_attach(None, source=from_it), "amqp:decode-error")
        to_it = Target(dynamic=True, dynamic_node_properties=wrong)
        session.expect_refused(session.sender_attach(None, target=to_it), "amqp:decode-error")
    assert len(bench.node.virtual_hosts["/"].queues) == 1


def dynamic_source(policy: Composite) -> Source:
    return Source(dynamic=True, dynamic_node_properties={Symbol("lifetime-policy"): policy})


@requirement("M10-117", "M10-118", "M10-119", "M10-120", "M10-121", "BB-077")
@pytest.mark.parametrize(
    ("policy", "with_link", "with_message", "is_kept"),
    [
        (DeleteOnClose(), True, True, False),
        (DeleteOnNoLinks(), False, True, False),
        (DeleteOnNoLinks(), True, False, True),
        (DeleteOnNoMessages(), True, False, False),
        (DeleteOnNoMessages(), False, True, True),
        (DeleteOnNoLinksOrMessages(), False, False, False),
        (DeleteOnNoLinksOrMessages(), True, False, True),
        (DeleteOnNoLinksOrMessages(), False, True, True),
    ],
)
def test_lifetimes_of_dynamic_nodes(
    bench: NodeBench,
    peer: Peer,
    session: Session,
    policy: Composite,
    with_link: bool,
    with_message: bool,
    is_kept: bool,
) -> None:
    virtual_host = bench.node.virtual_hosts["/"]
    creator = session.receiver(None, source=dynamic_source(policy))
    assert creator.answer is not None
    source = creator.answer.source
    assert isinstance(source, Source)
    assert source.address is not None
    if with_message:
        sender = session.sender(source.address)
        sender.send(message())
        sender.detach()
        assert virtual_host.queues
    other = peer.begin(1)
    link = other.receiver(source.address) if with_link else None
    creator.detach()
    assert bool(virtual_host.queues) == is_kept
    if not is_kept:
        return
    if with_message:
        drain = other.receiver(source.address, credit=1)
        drain.settle(drain.delivery())
        assert bool(virtual_host.queues) == isinstance(policy, DeleteOnNoLinksOrMessages)
        drain.detach()
    elif link is not None:
        link.detach()
    assert not virtual_host.queues


def test_a_lost_connection_ends_dynamic_nodes(bench: NodeBench, peer: Peer, session: Session) -> None:
    session.receiver(None, source=Source(dynamic=True))
    session.sender(None, target=Target(dynamic=True))
    assert len(bench.node.virtual_hosts["/"].queues) == 2
    peer.wire.cut()
    assert not bench.node.virtual_hosts["/"].queues


# --- headers ---


@requirement("M10-015", "M10-016", "BB-018")
def test_the_ttl_shrinks_and_runs_out(bench: NodeBench, session: Session) -> None:
    declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    declare(bench, "dead")
    sender = session.sender("/queues/q")
    sender.send(message(b"1", header=Header(ttl=10_000)))
    bench.advance(2)
    receiver = session.receiver("/queues/q", credit=1)
    ttl = receiver.delivery().header.ttl
    assert ttl is not None
    assert 7_900 <= ttl <= 8_000
    sender.send(message(b"2", header=Header(ttl=200)))
    bench.advance(1)
    receiver.flow(5)
    receiver.expect_nothing()
    assert session.receiver("/queues/dead", credit=1).delivery().payload.endswith(b"2")


@requirement("M10-037", "BB-020")
def test_absolute_expiry_times_are_kept(bench: NodeBench, session: Session) -> None:
    from waybill.wire.amqp10.message import Properties

    queue = declare(bench)
    sender = session.sender("/queues/q")
    sender.send(Properties(absolute_expiry_time=int(bench.now * 1000) + 500).encode() + message())
    assert queue.message_count == 1
    bench.advance(1)
    assert queue.message_count == 0


@requirement("M10-012", "M10-013", "M10-014", "BB-014", "BB-015")
@pytest.mark.parametrize(
    ("levels", "sent", "expected"),
    [
        (2, [4, 0, 5, 9], [5, 9, 4, 0]),
        (3, [3, 0, 4, 5, 9], [5, 9, 4, 3, 0]),
        (10, [0, 9, 200, 8], [9, 200, 8, 0]),
    ],
)
def test_priorities(bench: NodeBench, session: Session, levels: int, sent: list[int], expected: list[int]) -> None:
    declare(bench, x_max_priority=levels - 1)
    sender = session.sender("/queues/q")
    for priority in sent:
        sender.send(message(header=Header(priority=priority)))
    receiver = session.receiver("/queues/q", credit=10)
    assert [receiver.delivery().header.priority for _ in sent] == expected


@requirement("M10-020")
def test_delivery_annotations_are_for_one_hop(bench: NodeBench, session: Session) -> None:

    declare(bench)
    sent = (
        Header(durable=True).encode()
        + encode_annotations(DELIVERY_ANNOTATIONS, {"x-opt-hop": 1})
        + encode_annotations(MESSAGE_ANNOTATIONS, {"x-opt-way": 2})
        + message()
    )
    session.sender("/queues/q").send(sent)
    delivery = session.receiver("/queues/q", credit=1).delivery()
    assert delivery.facts.delivery_annotations == -1
    assert delivery.annotations == {"x-opt-way": 2, "x-exchange": "", "x-routing-key": "q"}


@requirement("BB-010", "BB-011")
def test_a_message_may_miss_all_but_its_body(bench: NodeBench, session: Session) -> None:
    declare(bench)
    assert session.sender("/queues/q").send(message(b"")).state == Accepted()
    delivery = session.receiver("/queues/q", credit=1).delivery()
    assert delivery.bare == message(b"")
    assert delivery.facts.body_kind >= 0


@requirement("M10-005", "BB-011", "BB-012")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        Header(durable=True).encode(),
        encode_annotations(DELIVERY_ANNOTATIONS, {"x-opt-hop": 1}),
        encode_annotations(MESSAGE_ANNOTATIONS, {"x-opt-way": 1}),
        b"\x00\x53\x73\x45",
        encode_application_properties({"a": 1}),
        b"\x00\x53\x78\xc1\x01\x00",
        message() + b"\x00\x53\x76\x45",
        b"\x00\x53\x77\x40" * 2,
        b"\x00\x53\x73\x45" * 2 + message(),
        b"\x00\x53\x99\xa0\x00",
        message() + Header().encode(),
        Header(durable=True).encode() * 2 + message(),
        message() + b"\x00\x53\x77\x40",
        b"\x00\x53\x75\xa0\x05ab",
        b"nonsense",
    ],
)
def test_what_is_no_message_detaches_the_link(bench: NodeBench, session: Session, payload: bytes) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    sender.transfer(payload)
    sender.expect_detached("amqp:decode-error")
    assert queue.message_count == 0


@requirement("M10-030")
def test_another_users_id_is_refused(bench: NodeBench, session: Session) -> None:
    from waybill.wire.amqp10.message import Properties

    declare(bench)
    sender = session.sender("/queues/q")
    assert sender.send(Properties(user_id=b"guest").encode() + message()).state == Accepted()
    sender.transfer(Properties(user_id=b"other").encode() + message())
    sender.expect_detached("amqp:unauthorized-access")


@requirement("BB-040", "BB-041", "BB-065", "BB-066")
@pytest.mark.parametrize(("mode", "settled"), [("at-most-once", True), ("at-least-once", False)])
def test_delivery_modes(bench: NodeBench, session: Session, mode: str, *, settled: bool) -> None:
    queue = declare(bench)
    session.sender("/queues/q", properties={Symbol("delivery-mode"): mode}).send(message())
    receiver = session.receiver("/queues/q", credit=1, properties={Symbol("delivery-mode"): mode})
    assert receiver.delivery().transfer.settled is settled
    assert queue.unsettled_count == int(not settled)
    attach = session.receiver_attach("/queues/q", properties={Symbol("delivery-mode"): "twice"})
    session.expect_refused(attach, "amqp:not-implemented")
