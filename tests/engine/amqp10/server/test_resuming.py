"""Links that are lost and attached again, with what both ends remember (1.0, 2.6.1, 3.4.6, 3.5.6).

The numbers are those of the example in 3.4.6.
"""

from typing import Any

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Cut, NodeBench
from tests.engine.amqp10.peer import Delivery, Peer, Receiver, Sender, Session, declare, message
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.messaging import Accepted, Received, Rejected, Released, Source, Target
from waybill.wire.amqp10.performatives import RECEIVER_SECOND, Disposition


def connect(bench: NodeBench) -> Session:
    peer = Peer(bench)
    peer.open(container_id="resuming")
    return peer.begin()


def receiver(session: Session, **fields: Any) -> Receiver:
    source = Source("/queues/q", durable=2, expiry_policy="never")
    return session.receiver(None, name="resumed", source=source, **fields)


def sender(session: Session, **fields: Any) -> Sender:
    target = Target("/queues/q", durable=2, expiry_policy="never")
    return session.sender(None, name="resumed", target=target, rcv_settle_mode=RECEIVER_SECOND, **fields)


@pytest.fixture
def held(bench: NodeBench) -> Delivery:
    """A delivery that was not settled when the connection of its link was lost."""
    declare(bench)
    session = connect(bench)
    session.sender("/queues/q").send(message(b"held"))
    link = receiver(session)
    link.flow(5)
    delivery = link.delivery()
    session.peer.wire.cut()
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (0, 1)
    return delivery


def tag_of(delivery: Delivery) -> bytes:
    tag = delivery.transfer.delivery_tag
    assert tag is not None
    return tag


# --- we send ---


@requirement("M10-068")
def test_1_the_peer_has_no_record(bench: NodeBench, held: Delivery) -> None:
    link = receiver(connect(bench))
    assert link.answer is not None
    assert link.answer.unsettled == {tag_of(held): None}
    link.flow(5)
    again = link.delivery()
    assert not again.transfer.resume
    assert tag_of(again) == tag_of(held)
    assert again.bare == held.bare
    link.settle(again)
    assert bench.node.virtual_hosts["/"].queues["q"].unsettled_count == 0


@requirement("M10-069", "M10-055", "M10-056", "M10-073")
@pytest.mark.parametrize("state", [Received(1, 3), None])
def test_2_and_4_the_peer_has_a_part_or_no_state(bench: NodeBench, held: Delivery, state: Composite | None) -> None:
    link = receiver(connect(bench), unsettled={tag_of(held): state})
    link.flow(5)
    again = link.delivery()
    assert again.transfer.resume
    assert again.transfer.state == (None if state is None else Received(0, 0))
    assert tag_of(again) == tag_of(held)
    assert again.payload == held.payload
    link.settle(again)
    assert bench.node.virtual_hosts["/"].queues["q"].unsettled_count == 0


@requirement("M10-070", "M10-071", "M10-072", "M10-080")
@pytest.mark.parametrize(("state", "waiting"), [(Accepted(), 0), (Rejected(), 0), (Released(), 1)])
def test_3_the_peer_has_an_outcome(bench: NodeBench, held: Delivery, state: Composite, waiting: int) -> None:
    link = receiver(connect(bench), unsettled={tag_of(held): state})
    link.flow(1)
    again = link.delivery()
    assert again.transfer.resume
    assert again.transfer.settled
    assert again.transfer.state == state
    assert again.payload == b""
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (waiting, 0)


def test_resumed_deliveries_need_credit(bench: NodeBench, held: Delivery) -> None:
    link = receiver(connect(bench), unsettled={tag_of(held): None})
    link.expect_nothing()
    link.flow(1)
    assert link.delivery().transfer.resume


def test_resumed_deliveries_come_before_others(bench: NodeBench, held: Delivery) -> None:
    session = connect(bench)
    session.sender("/queues/q").send(message(b"later"))
    link = receiver(session)
    link.flow(5)
    assert [link.delivery().bare, link.delivery().bare] == [held.bare, message(b"later")]


# --- we receive ---


def lose_after(bench: NodeBench, payload: bytes, **fields: object) -> bytes:
    """Send a transfer, then lose the connection. Returns the delivery-tag."""
    declare(bench)
    session = connect(bench)
    sender(session).transfer(payload, delivery_tag=b"tag", **fields)
    session.peer.wire.cut()
    return b"tag"


@requirement("BB-051", "BB-052", "M10-070", "M10-082", "M10-085", "BB-053")
def test_3_and_12_we_have_the_outcome(bench: NodeBench) -> None:
    tag = lose_after(bench, message())
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert queue.message_count == 1
    session = connect(bench)
    link = sender(session, unsettled={tag: Accepted()})
    assert link.answer is not None
    assert link.answer.unsettled == {tag: Accepted()}
    link.transfer(b"", delivery_tag=tag, resume=True, state=Accepted(), settled=True)
    session.expect_nothing()
    assert queue.message_count == 1
    session.peer.wire.cut()
    assert sender(connect(bench)).answer.unsettled is None  # type: ignore[union-attr] # there is an answer


@requirement("M10-083")
def test_13_outcomes_differ(bench: NodeBench) -> None:
    tag = lose_after(bench, message())
    session = connect(bench)
    link = sender(session, unsettled={tag: Released()})
    number = link.transfer(b"", delivery_tag=tag, resume=True, state=Released())
    answer = session.expect(Disposition)
    assert (answer.first, answer.settled, answer.state) == (number, True, Released())


@requirement("BB-051")
def test_a_message_that_is_sent_again_is_stored_once(bench: NodeBench) -> None:
    tag = lose_after(bench, message())
    session = connect(bench)
    link = sender(session, unsettled={tag: None})
    disposition = link.send(message(), delivery_tag=tag)
    assert (disposition.state, disposition.settled) == (Accepted(), False)
    session.send(Disposition(role=False, first=disposition.first, settled=True))
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 1
    session.peer.wire.cut()
    assert sender(connect(bench), unsettled={tag: None}).answer.unsettled is None  # type: ignore[union-attr]


@requirement("BB-051", "BB-052")
def test_a_message_that_was_refused_is_refused_once(bench: NodeBench) -> None:
    """Whatever became of it meanwhile: a queue that was full has room, another one has taken it."""
    full = declare(
        bench,
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    dead = declare(bench, "dead")
    session = connect(bench)
    session.sender("/queues/q").send(message())
    told = sender(session).send(message(b"too much"), delivery_tag=b"tag")
    assert isinstance(told.state, Rejected)
    assert not told.settled
    session.peer.wire.cut()
    full.purge()
    session = connect(bench)
    link = sender(session, unsettled={b"tag": None})
    assert link.answer is not None
    assert link.answer.unsettled == {b"tag": told.state}
    again = link.send(message(b"too much"), delivery_tag=b"tag")
    assert (again.state, again.settled) == (told.state, False)
    assert (full.message_count, dead.message_count) == (0, 1)
    session.send(Disposition(role=False, first=again.first, settled=True))
    assert link.send(message(b"other"), delivery_tag=b"tag").state == Accepted()


@requirement("BB-052")
def test_who_settles_second_settles_what_went_nowhere_second(bench: NodeBench) -> None:
    session = connect(bench)
    link = session.sender("/exchanges/amq.direct/nowhere", rcv_settle_mode=RECEIVER_SECOND)
    told = link.send(message())
    assert (told.state, told.settled) == (Released(), False)
    session.send(Disposition(role=False, first=told.first, settled=True))
    session.expect_nothing()


@requirement("M10-076", "M10-069", "M10-074")
@pytest.mark.parametrize("state", [Received(0, 4), Received(0, 8), None, Received(0, 0)])
def test_2_and_6_we_have_a_part(bench: NodeBench, state: Received | None) -> None:
    payload = message(b"0123456789")
    tag = lose_after(bench, payload[:8], more=True)
    session = connect(bench)
    link = sender(session, unsettled={tag: None})
    assert link.answer is not None
    assert link.answer.unsettled == {tag: Received(0, 8)}
    offset = 0 if state is None else state.section_offset
    disposition = link.send(payload[offset:], delivery_tag=tag, resume=True, state=state)
    assert disposition.state == Accepted()
    link = session.receiver("/queues/q", name="other", credit=1)  # type: ignore[assignment]
    assert link.delivery().bare == payload  # type: ignore[attr-defined]


@requirement("M10-074", "M10-077", "M10-079", "M10-081", "M10-084")
@pytest.mark.parametrize("said", [Received(0, 3), Received(1, 0), Accepted(), Rejected(), None])
@pytest.mark.parametrize("has_part", [True, False])
def test_7_9_11_and_14_the_peer_aborts(bench: NodeBench, said: Composite | None, *, has_part: bool) -> None:
    """Whether the peer has a part or an outcome, and whether we have a part or nothing: an abort is the end of it."""
    tag = lose_after(bench, message()[:5] if has_part else b"", more=True)
    session = connect(bench)
    link = sender(session, unsettled={tag: said})
    assert link.answer is not None
    # What has no data is not kept (tag 4).
    assert link.answer.unsettled == ({tag: Received(0, 5)} if has_part else None)
    link.transfer(b"", delivery_tag=tag, resume=True, aborted=True, state=said)
    session.expect_nothing()
    link.detach(closed=False)
    link = sender(session, unsettled={tag: said})
    assert link.answer is not None
    assert link.answer.unsettled is None
    assert link.send(message(b"new"), delivery_tag=b"new").state == Accepted()
    assert bench.node.virtual_hosts["/"].queues["q"].message_count == 1


@requirement("M10-075", "M10-080")
def test_1_5_and_10_we_have_nothing(bench: NodeBench) -> None:
    declare(bench)
    link = sender(connect(bench), unsettled={b"a": Received(0, 3), b"b": Accepted()})
    assert link.answer is not None
    assert link.answer.unsettled is None
    assert link.send(message(), delivery_tag=b"a").state == Accepted()


def test_a_gap_detaches(bench: NodeBench) -> None:
    tag = lose_after(bench, message()[:5], more=True)
    link = sender(connect(bench), unsettled={tag: None})
    link.transfer(b"rest", delivery_tag=tag, resume=True, state=Received(0, 7))
    link.expect_detached("amqp:illegal-state")


# --- termini ---


@requirement("M10-094", "M10-109", "M10-110")
@pytest.mark.parametrize(
    ("policy", "survives"),
    [
        ("link-detach", (False, False, False)),
        ("session-end", (True, False, False)),
        ("connection-close", (True, True, False)),
        ("never", (True, True, True)),
    ],
)
@pytest.mark.parametrize("timeout", [0, 5])
def test_expiry_policies(bench: NodeBench, policy: str, survives: tuple[bool, bool, bool], timeout: int) -> None:
    queue = declare(bench)
    for event in range(3):
        session = connect(bench)
        session.sender("/queues/q").send(message())
        source = Source("/queues/q", expiry_policy=policy, timeout=timeout)
        link = session.receiver(None, name=f"link-{event}", source=source, credit=1)
        link.delivery()
        if event == 0:
            link.detach(closed=False)
        elif event == 1:
            session.end()
        else:
            session.peer.wire.cut()
        is_kept = survives[event] or timeout > 0
        assert queue.unsettled_count == int(is_kept), event
        if timeout:
            bench.advance(timeout + 1)
            assert queue.unsettled_count == int(survives[event]), event
        if survives[event]:
            terminus = bench.node.termini.find("/", "guest", "resuming", f"link-{event}", is_source=True)
            assert terminus is not None
            terminus.destroy()
        assert (queue.unsettled_count, queue.message_count) == (0, 1)
        queue.purge()


@requirement("M10-109")
def test_attaching_again_stops_the_clock(bench: NodeBench) -> None:
    queue = declare(bench)
    source = Source("/queues/q", expiry_policy="link-detach", timeout=5)
    session = connect(bench)
    session.sender("/queues/q").send(message())
    link = session.receiver(None, name="resumed", source=source, credit=1)
    delivery = link.delivery()
    for _ in range(3):
        link.detach(closed=False)
        bench.advance(4)
        link = session.receiver(None, name="resumed", source=source, unsettled={tag_of(delivery): None})
        bench.advance(4)
    link.detach(closed=False)
    bench.advance(4)
    assert queue.unsettled_count == 1
    bench.advance(2)
    assert (queue.unsettled_count, queue.message_count) == (0, 1)


def test_a_stolen_link(bench: NodeBench) -> None:
    declare(bench)
    first = connect(bench)
    first.sender("/queues/q").send(message())
    loser = receiver(first)
    loser.flow(1)
    held = loser.delivery()
    winner = receiver(connect(bench), unsettled={tag_of(held): None})
    loser.expect_detached("amqp:link:stolen", closed=False)
    winner.flow(1)
    assert winner.delivery().transfer.resume


@requirement("M10-089")
def test_a_link_that_copies_goes_on_where_it_was(bench: NodeBench) -> None:
    declare(bench)
    session = connect(bench)
    messages = session.sender("/queues/q")
    messages.send(message(b"1"))
    messages.send(message(b"2"))
    source = Source("/queues/q", distribution_mode="copy")
    link = session.receiver(None, name="browser", source=source, credit=1)
    link.settle(link.delivery())
    link.detach(closed=False)
    link = session.receiver(None, name="browser", source=source, credit=5)
    assert link.delivery().bare == message(b"2")
    link.expect_nothing()


def test_another_address_is_another_terminus(bench: NodeBench, held: Delivery) -> None:
    declare(bench, "other")
    session = connect(bench)
    source = Source("/queues/other", durable=2, expiry_policy="never")
    link = session.receiver(None, name="resumed", source=source)
    assert link.answer is not None
    assert link.answer.unsettled is None
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (1, 0)


def test_of_a_large_message_no_part_is_kept() -> None:
    # Octet by octet a megabyte would take too long.
    bench = NodeBench(Cut.WHOLE)
    declare(bench)
    session = connect(bench)
    link = sender(session)
    link.transfer(b"\x00\x53\x75\xb0\x00\x20\x00\x00", delivery_tag=b"tag", more=True)
    for _ in range(11):
        link.more(bytes(100_000), more=True)
    session.peer.wire.cut()
    link = sender(connect(bench), unsettled={b"tag": None})
    assert link.answer is not None
    assert link.answer.unsettled is None


def test_peers_cannot_leave_any_number_of_termini(bench: NodeBench, session: Session) -> None:
    bench.node.termini.limit = 1
    declare(bench)
    lasting = Source("/queues/q", expiry_policy="never")
    session.receiver(None, source=lasting)
    session.expect_refused(session.receiver_attach(None, source=lasting), "amqp:resource-limit-exceeded")
    session.receiver("/queues/q")


@pytest.mark.parametrize("state", [Accepted(), Rejected()])
def test_an_outcome_by_the_former_number_of_what_is_still_to_be_resumed(bench: NodeBench, state: Composite) -> None:
    queue = declare(bench)
    session = connect(bench)
    for number in range(3):
        session.sender("/queues/q").send(message(b"%d" % number))
    link = receiver(session, credit=3)
    deliveries = [link.delivery() for _ in range(3)]
    link.detach(closed=False)
    link = receiver(session, unsettled={tag_of(delivery): None for delivery in deliveries})
    link.settle(deliveries[1], state)
    assert queue.unsettled_count == 2
    link.flow(5)
    assert [tag_of(link.delivery()) for _ in range(2)] == [tag_of(deliveries[0]), tag_of(deliveries[2])]
    link.expect_nothing()
