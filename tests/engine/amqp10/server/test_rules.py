"""Single rules of messaging and of the broker that no other file here is about."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from tests.engine.amqp10.server.test_resuming import connect, lose_after, sender
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.messaging import Accepted, Modified, Received, Rejected, Released, Source, Target
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, Attach, Disposition, Transfer
from waybill.wire.amqp10.types import Described, Symbol, ULong


@requirement("M10-019", "BB-036")
@pytest.mark.parametrize(
    ("state", "count"),
    [(Released(), 0), (Modified(), 0), (Modified(delivery_failed=True), 1), (Modified(undeliverable_here=True), 0)],
)
def test_which_outcomes_count_as_failed(bench: NodeBench, session: Session, state: Composite, count: int) -> None:
    declare(bench)
    session.sender("/queues/q").send(message())
    first = session.receiver("/queues/q", credit=1)
    second = session.receiver("/queues/q")
    first.settle(first.delivery(), state)
    second.flow(1)
    assert second.delivery().header.delivery_count == count


@requirement("M10-053")
def test_what_happens_in_one_queue_leaves_others_alone(bench: NodeBench, session: Session) -> None:
    virtual_host = bench.node.virtual_hosts["/"]
    for name in ("one", "two"):
        virtual_host.bind_queue(declare(bench, name), "amq.fanout", "", {})
    session.sender("/exchanges/amq.fanout").send(message())
    one = session.receiver("/queues/one", credit=1)
    one.settle(one.delivery(), Modified(delivery_failed=True, message_annotations={"x-opt-a": 1}))
    two = session.receiver("/queues/two", credit=1).delivery()
    assert "x-opt-a" not in two.annotations
    assert (two.header.delivery_count, two.header.first_acquirer) == (0, True)


@requirement("M10-054")
def test_a_settled_delivery_has_its_outcome_for_good(bench: NodeBench, session: Session) -> None:
    queue = declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    dead = declare(bench, "dead")
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    delivery = receiver.delivery()
    receiver.settle(delivery, Accepted(), settled=False)
    receiver.settle(delivery, Rejected(), settled=False)
    receiver.settle(delivery, Released())
    assert (queue.message_count, queue.unsettled_count, dead.message_count) == (0, 0, 0)
    answer = session.expect(Disposition)
    assert (answer.state, answer.settled) == (Accepted(), True)
    session.expect_nothing()


@requirement("M10-058")
def test_a_delivery_can_be_accepted_before_all_of_it_came(bench: NodeBench) -> None:
    queue = declare(bench)
    peer = Peer(bench)
    peer.open(max_frame_size=512)
    peer.begin().sender("/queues/q").send(message(b"x" * 2000))
    session = peer.begin(1, incoming_window=1)
    receiver = session.receiver("/queues/q")
    session.flow(handle=receiver.handle, link_credit=1, delivery_count=0, incoming_window=1)
    first = session.expect(Transfer)
    assert first.more
    session.send(Disposition(role=True, first=first.delivery_id or 0, settled=True, state=Accepted()))
    assert (queue.message_count, queue.unsettled_count) == (0, 0)
    session.flow(incoming_window=100, next_incoming_id=1)
    mores = [session.expect(Transfer).more for _ in range(4)]
    assert mores == [True, True, True, False]


@requirement("M10-078")
def test_8_the_peer_has_a_part_and_we_have_the_outcome(bench: NodeBench) -> None:
    tag = lose_after(bench, message())
    session = connect(bench)
    link = sender(session, unsettled={tag: Received(0, 3)})
    assert link.answer is not None
    assert link.answer.unsettled == {tag: Accepted()}
    link.transfer(b"", delivery_tag=tag, resume=True, state=Accepted(), settled=True)
    session.expect_nothing()
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 1


@requirement("BB-023", "BB-024", "BB-025")
def test_an_attach_is_answered_with_what_was_asked_for(bench: NodeBench, session: Session) -> None:
    declare(bench)
    asked = Source("here", outcomes=("amqp:accepted:list", "amqp:released:list"), default_outcome=Released())
    attach = Attach(
        "name", 77, role=False, snd_settle_mode=0, rcv_settle_mode=1, source=asked, target=Target("/queues/q"),
        initial_delivery_count=5,
    )  # fmt: skip
    answer = session.attach(attach)
    assert (answer.name, answer.role, answer.snd_settle_mode, answer.rcv_settle_mode) == ("name", True, 0, 1)
    assert answer.source == asked
    assert isinstance(answer.target, Target)
    assert answer.target.address == "/queues/q"


@requirement("BB-059", "M10-099", "BB-022")
def test_filters_and_capabilities_that_nobody_knows_are_not_in_the_answer(bench: NodeBench, session: Session) -> None:
    declare(bench)
    known = Described(Symbol("apache.org:selector-filter:string"), "a = 1")
    source = Source("/queues/q", filter={"known": known, "other": Described(Symbol("nobody:knows"), "x")})
    answer = session.attach(session.receiver_attach(None, source=source, desired_capabilities=("unheard-of",)))
    assert isinstance(answer.source, Source)
    assert answer.source.filter == {"known": known}
    assert answer.offered_capabilities == ()


@requirement("BB-048", "BB-049", "BB-036")
def test_a_publisher_is_not_held_up_by_windows(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    link = session.sender("/queues/q")
    assert session.answer is not None
    count = session.answer.incoming_window + 500
    octets = b"".join(
        frame(0, Transfer(link.handle, number, b"%d" % number, 0).encode(), message()) for number in range(count)
    )
    # What this test sees does not depend on cuts, and so many octets one by one would take their time.
    session.peer.wire.engine.receive_data(octets, bench.now)
    bench.settle()
    assert queue.message_count == count
    settled: set[int] = set()
    session.peer.receive()
    for _, value, _ in session.peer.received:
        if isinstance(value, Disposition):
            last = value.first if value.last is None else value.last
            assert (value.state, value.settled) == (Accepted(), True)
            settled.update(range(value.first, last + 1))
    assert settled == set(range(count))


@requirement("BB-067", "BB-062")
def test_a_subscriber_that_wants_its_outcomes_confirmed(bench: NodeBench, session: Session) -> None:
    subscriber = session.receiver("/exchanges/amq.topic/news", credit=2, rcv_settle_mode=1)
    session.sender("/exchanges/amq.topic/news").send(message())
    delivery = subscriber.delivery()
    subscriber.settle(delivery, settled=False)
    answer = session.expect(Disposition)
    assert (answer.role, answer.first, answer.settled) == (False, delivery.number, True)
    session.expect_nothing()


@requirement("M10-060")
def test_the_source_never_rejects_by_itself(bench: NodeBench) -> None:
    queue = declare(bench)
    session = connect(bench)
    sender = session.sender("/queues/q")
    sender.send(message())
    sender.detach()
    receiver = session.receiver("/queues/q", credit=1)
    receiver.delivery()
    bench.node.virtual_hosts["/"].remove_queue(queue)
    bench.settle()
    receiver.expect_detached("amqp:resource-deleted")
    session.expect_nothing()


@requirement("M10-114")
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_sources_tell_which_filters_they_know(bench: NodeBench, session: Session, kind: str) -> None:
    declare(bench, x_queue_type=kind)
    answer = session.receiver("/queues/q").answer
    assert answer is not None
    assert isinstance(answer.source, Source)
    known = set(answer.source.capabilities)
    assert {"apache.org:selector-filter:string", "amqp:sql-filter", "amqp:properties-filter"} <= known
    assert ("rabbitmq:stream-offset-spec" in known) == (kind == "stream")
    assert "apache.org:no-local-filter:list" not in known
    # What it says that it knows it puts in force; what it does not know it leaves out.
    wanted: dict[str, object] = {
        Symbol("known"): Described(Symbol("amqp:sql-filter"), "properties.subject = 'a'"),
        Symbol("unknown"): Described(Symbol("apache.org:no-local-filter:list"), []),
    }
    answer = session.receiver(None, source=Source("/queues/q", filter=wanted)).answer
    assert answer is not None
    assert isinstance(answer.source, Source)
    assert list(answer.source.filter or {}) == ["known"]


@requirement("BB-003")
def test_what_an_attach_declares_is_what_happens(bench: NodeBench, session: Session) -> None:
    bench.node.limits.message_size_max = 1000
    dead = declare(bench, "dead")
    queue = declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    sender = session.sender("/queues/q")
    assert sender.answer is not None
    limit = sender.answer.max_message_size
    assert limit == 1000
    fits = message(bytes(limit - 8))
    assert len(fits) == limit
    # Credit: as many as it gave, and no limit that it did not tell.
    for _ in range(sender.credit // 2):
        sender.transfer(message(), settled=True)
    assert sender.send(fits).state == Accepted()
    queue.purge()
    assert sender.send(fits).state == Accepted()
    # Its outcomes, and the default one for what is left unsettled when the link goes.
    asked = Source("/queues/q", default_outcome=Rejected(), outcomes=("amqp:accepted:list", "amqp:rejected:list"))
    receiver = session.receiver(None, source=asked, credit=1)
    assert receiver.answer is not None
    told = receiver.answer.source
    assert isinstance(told, Source)
    assert (told.default_outcome, tuple(told.outcomes)) == (Rejected(), asked.outcomes)
    receiver.delivery()
    receiver.detach()
    assert (queue.message_count, queue.unsettled_count, dead.message_count) == (0, 0, 1)
    receiver = session.receiver(None, source=asked, credit=1)
    assert sender.send(fits).state == Accepted()
    receiver.settle(receiver.delivery(), Released())
    receiver.expect_detached("amqp:not-allowed")
    sender.transfer(fits + b"x")
    sender.expect_detached("amqp:link:message-size-exceeded")


@requirement("M10-047")
@pytest.mark.parametrize("address", [7, b"/queues/q", Symbol("/queues/q"), True, [1]])
def test_an_address_is_a_string(bench: NodeBench, session: Session, address: object) -> None:
    declare(bench)
    source = Described(ULong(descriptors.SOURCE), [address])
    session.send(Attach("link", 0, ROLE_RECEIVER, source=source, target=Target()))
    session.expect_ended("amqp:decode-error")
