"""Class message: transfers, outcomes, acquisition, credit."""

from collections.abc import Callable

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp010.peer import Peer, RemoteError, Session
from tests.engine.amqp010.strict import UNLIMITED
from tests.engine.amqp091.peer import NodeBench
from waybill.wire.amqp010.class_exchange import ExchangeBind, ExchangeDeclare
from waybill.wire.amqp010.class_message import (
    Acquired,
    MessageAccept,
    MessageAcquire,
    MessageCancel,
    MessageFlow,
    MessageFlush,
    MessageProperties,
    MessageReject,
    MessageRelease,
    MessageResume,
    MessageSetFlowMode,
    MessageStop,
    MessageSubscribe,
    ReplyTo,
)
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueDelete, QueueQuery, QueueQueryResult
from waybill.wire.amqp010.constants import (
    ERROR_NOT_ALLOWED,
    ERROR_NOT_FOUND,
    ERROR_RESOURCE_LOCKED,
    FLOW_WINDOW,
    REJECT_IMMEDIATE,
    REJECT_UNROUTABLE,
    UNIT_BYTE,
    UNIT_MESSAGE,
)
from waybill.wire.amqp10.types import Uuid

CREDIT_OF_EIGHT_OCTETS = 19
"""What a message of eight octets takes of the credit, with delivery-properties that name a queue of one letter."""


def depth(session: Session, queue: str = "q") -> int:
    result = session.call(QueueQuery(queue))
    assert isinstance(result, QueueQueryResult)
    return result.message_count


@pytest.fixture
def filled(session: Session) -> Session:
    """A session with ten messages in the queue `q`."""
    session.call(QueueDeclare("q"))
    for number in range(10):
        session.publish(b"octets %d" % number, key="q")
    session.sync()
    return session


def bodies(session: Session) -> list[bytes]:
    return [one.body for one in session.take_all()]


@requirement("M010-033", "M010-060")
def test_a_message_comes_as_it_was_sent(session: Session) -> None:
    session.call(QueueDeclare("q"))
    sent = MessageProperties(
        content_length=3,
        message_id=Uuid(bytes(range(16))),
        correlation_id=b"\x00correlation",
        reply_to=ReplyTo("amq.direct", "key"),
        content_type="text/plain",
        content_encoding="identity",
        user_id=b"guest",
        app_id=b"app",
        application_headers={"text": "value", "number": 7, "list": [True, None, 1.5], "map": {"inner": b"octets"}},
    )
    session.publish(b"abc", key="q", properties=sent, priority=7, delivery_mode=2, ttl=60_000, timestamp=1_600_000_000)
    session.subscribe("q")
    came = session.take()
    assert (came.body, came.properties) == (b"abc", sent)
    delivery = came.delivery
    assert (delivery.priority, delivery.delivery_mode, delivery.timestamp) == (7, 2, 1_600_000_000)
    assert (delivery.exchange, delivery.routing_key, delivery.redelivered) == ("", "q", False)
    assert delivery.ttl is not None
    assert delivery.ttl <= 60_000


@requirement("M010-002", "X010-003")
@pytest.mark.parametrize("size", [0, 1, 5000, 300_000])
def test_a_body_of_any_size_comes_whole(bench: NodeBench, size: int) -> None:
    peer = Peer(bench)
    peer.open(max_frame_size=4096)
    session = peer.session()
    session.call(QueueDeclare("q"))
    body = bytes(number % 251 for number in range(size))
    session.publish(body, key="q")
    session.subscribe("q")
    assert session.take().body == body


@requirement("X010-039")
def test_without_acceptance_a_message_is_gone_when_it_is_sent(filled: Session) -> None:
    filled.subscribe("q", accept_mode=1)
    assert len(filled.take_all()) == 10
    filled.detach()
    assert depth(filled.peer.session(b"other")) == 0


@requirement("X010-039", "M010-102")
@pytest.mark.parametrize("marks", [True, False])
def test_released_messages_come_again_in_their_order(filled: Session, marks: bool) -> None:
    filled.subscribe("q", messages=10)
    held = filled.take_all()
    ranges = ((held[5].id, held[9].id), (held[0].id, held[4].id))
    filled.call(MessageRelease(ranges, set_redelivered=marks))
    filled.flow(messages=UNLIMITED)
    again = filled.take_all()
    assert [one.body for one in again] == [one.body for one in held]
    assert {one.delivery.redelivered for one in again} == {marks}


def test_what_a_session_holds_comes_again_when_it_ends(filled: Session) -> None:
    filled.subscribe("q")
    assert len(filled.take_all()) == 10
    filled.detach()
    other = filled.peer.session(b"other")
    other.subscribe("q")
    assert {one.delivery.redelivered for one in other.take_all()} == {True}


@requirement("X010-029", "X010-030")
def test_acceptance_takes_ranges(filled: Session) -> None:
    filled.subscribe("q")
    ids = [one.id for one in filled.take_all()]
    filled.call(MessageAccept(((ids[0], ids[2]), (ids[5], ids[5]), (ids[7], ids[9]))))
    filled.detach()
    other = filled.peer.session(b"other")
    other.subscribe("q")
    assert bodies(other) == [b"octets 3", b"octets 4", b"octets 6"]


@requirement("X010-031")
def test_an_acceptance_of_what_is_settled_changes_nothing(filled: Session) -> None:
    filled.subscribe("q", messages=1)
    first = filled.take()
    filled.call(MessageAccept(((first.id, first.id),)))
    filled.call(MessageAccept(((first.id, first.id),)))
    filled.call(MessageRelease(((0, 2**31 - 1),), set_redelivered=True))
    assert depth(filled) == 9


@requirement("X010-038")
def test_who_only_looks_takes_nothing_until_it_acquires(filled: Session) -> None:
    filled.subscribe("q", acquire_mode=1)
    seen = filled.take_all()
    assert (len(seen), depth(filled)) == (10, 10)
    other = filled.peer.session(b"other", 2)
    other.subscribe("q", messages=1)
    assert other.take().body == b"octets 0"
    result = filled.call(MessageAcquire(((seen[0].id, seen[1].id),)))
    assert result == Acquired(((seen[1].id, seen[1].id),))
    assert depth(filled) == 8
    filled.call(MessageAccept(((seen[0].id, seen[9].id),)))
    filled.call(MessageCancel("d"))
    filled.detach()
    assert depth(other) == 8


def test_what_was_acquired_late_is_accepted_with_other_deliveries(filled: Session) -> None:
    filled.subscribe("q", "look", acquire_mode=1, messages=3)
    seen = filled.take_all()
    filled.subscribe("q", messages=2)
    taken = filled.take_all()
    assert [one.body for one in taken] == [b"octets 0", b"octets 1"]
    filled.call(MessageAcquire(((seen[2].id, seen[2].id),)))
    filled.flow(messages=1)
    newest = filled.take()
    filled.call(MessageAccept(((seen[2].id, seen[2].id), (newest.id, newest.id))))
    filled.detach()
    other = filled.peer.session(b"other", 2)
    assert depth(other) == 8


def test_what_needs_no_acceptance_is_gone_once_it_is_acquired(filled: Session) -> None:
    filled.subscribe("q", acquire_mode=1, accept_mode=1)
    seen = filled.take_all()
    filled.call(MessageAcquire(((seen[3].id, seen[3].id),)))
    filled.detach()
    other = filled.peer.session(b"other", 2)
    assert depth(other) == 9


@requirement("X010-037", "M010-067")
def test_credit_in_messages(filled: Session) -> None:
    filled.subscribe("q", messages=3)
    assert bodies(filled) == [b"octets 0", b"octets 1", b"octets 2"]
    filled.flow(messages=2)
    assert bodies(filled) == [b"octets 3", b"octets 4"]


@requirement("X010-037", "M010-067")
def test_credit_in_octets_counts_header_and_body(filled: Session) -> None:
    filled.subscribe("q", octets=CREDIT_OF_EIGHT_OCTETS * 5)
    assert len(filled.take_all()) == 5
    filled.flow(octets=CREDIT_OF_EIGHT_OCTETS - 1)
    assert filled.take_all() == []
    filled.flow(octets=1)
    assert bodies(filled) == [b"octets 5"]


def test_another_subscription_gets_what_is_too_large_for_one(filled: Session) -> None:
    filled.subscribe("q", octets=CREDIT_OF_EIGHT_OCTETS - 1)
    assert filled.take_all() == []
    filled.subscribe("q", "other")
    assert len(filled.take_all()) == 10


@requirement("X010-037")
@pytest.mark.parametrize("unit", [UNIT_MESSAGE, UNIT_BYTE])
def test_in_window_mode_credit_comes_back_with_completion(filled: Session, unit: int) -> None:
    filled.call(MessageSubscribe("q", "d"))
    filled.call(MessageSetFlowMode("d", FLOW_WINDOW))
    filled.call(MessageFlow("d", unit, 4 if unit == UNIT_MESSAGE else 4 * CREDIT_OF_EIGHT_OCTETS))
    filled.call(MessageFlow("d", UNIT_BYTE if unit == UNIT_MESSAGE else UNIT_MESSAGE, UNLIMITED))
    first = filled.take_all()
    assert len(first) == 4
    filled.complete(first[0].id, first[1].id)
    assert bodies(filled) == [b"octets 4", b"octets 5"]
    filled.complete(*[one.id for one in first])
    assert bodies(filled) == [b"octets 6", b"octets 7"]


@requirement("X010-037")
def test_stop_takes_the_credit_back(filled: Session) -> None:
    filled.subscribe("q", messages=1)
    filled.take()
    filled.call(MessageFlow("d", UNIT_MESSAGE, 0))
    filled.call(MessageStop("d"))
    filled.flow(messages=5)
    assert filled.take_all() == []
    filled.flow(octets=UNLIMITED)
    assert len(filled.take_all()) == 5


@requirement("X010-037")
@pytest.mark.parametrize("durable", [True, False])
def test_flush_delivers_what_is_there_and_takes_the_rest_back(session: Session, durable: bool) -> None:
    session.call(QueueDeclare("q", durable=durable))
    for number in range(40):
        session.publish(b"%d" % number, key="q", delivery_mode=2)
    session.subscribe("q", messages=50)
    session.call(MessageFlush("d"))
    assert len(session.take_all()) == 40
    session.publish(b"late", key="q")
    session.sync()
    assert session.take_all() == []


def test_after_cancel_nothing_comes(filled: Session) -> None:
    filled.subscribe("q", messages=1)
    held = filled.take()
    filled.call(MessageCancel("d"))
    filled.call(MessageRelease(((held.id, held.id),)))
    assert filled.take_all() == []
    assert depth(filled) == 10


@requirement("X010-026", "M010-034")
def test_what_nobody_takes_is_rejected_before_it_is_complete(session: Session) -> None:
    number = session.publish(b"", key="nowhere", accept_mode=0)
    session.sync()
    _, reject = session.commands[0]
    assert reject == MessageReject(((number, number),), REJECT_UNROUTABLE, "no queue takes it")


@requirement("M010-034")
@pytest.mark.parametrize("accept_mode", [0, 1])
def test_what_nobody_takes_is_dropped_if_the_publisher_does_not_care(session: Session, accept_mode: int) -> None:
    session.publish(b"", key="nowhere", accept_mode=accept_mode, discard_unroutable=accept_mode == 0)
    session.sync()
    assert not session.commands


@requirement("M010-038")
def test_an_immediate_message_that_nobody_waits_for_is_rejected(session: Session) -> None:
    session.call(QueueDeclare("q"))
    session.publish(b"", key="q", accept_mode=0, immediate=True)
    session.sync()
    _, reject = session.commands[0]
    assert isinstance(reject, MessageReject)
    assert reject.code == REJECT_IMMEDIATE
    session.subscribe("q", accept_mode=1)
    session.publish(b"now", key="q", accept_mode=0, immediate=True)
    assert session.take().body == b"now"


@requirement("X010-039")
def test_transfers_with_explicit_accept_mode_are_accepted(session: Session) -> None:
    session.call(QueueDeclare("q"))
    ids = [session.publish(b"", key="q", accept_mode=mode) for mode in (0, 0, 1, 0)]
    session.sync()
    accepted = [command for _, command in session.commands if isinstance(command, MessageAccept)]
    found = {number for one in accepted for first, last in one.transfers for number in range(first, last + 1)}
    assert found == {ids[0], ids[1], ids[3]}


def test_a_time_to_live_ends(bench: NodeBench, session: Session) -> None:
    session.call(QueueDeclare("q"))
    session.publish(b"short", key="q", ttl=1000)
    session.publish(b"expires", key="q", expiration=int(bench.now) + 2)
    session.publish(b"long", key="q")
    session.sync()
    bench.advance(3)
    session.subscribe("q")
    assert bodies(session) == [b"long"]


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda session: session.call(MessageSubscribe("nowhere", "x")), ERROR_NOT_FOUND),
        (lambda session: session.call(MessageSubscribe("q", "d")), ERROR_NOT_ALLOWED),
        (lambda session: session.call(MessageSubscribe("q", "x", exclusive=True)), ERROR_RESOURCE_LOCKED),
        (lambda session: session.call(MessageCancel("nowhere")), ERROR_NOT_FOUND),
        (lambda session: session.call(MessageFlow("nowhere", 0, 1)), ERROR_NOT_FOUND),
        (lambda session: session.call(MessageResume("d", "id")), ERROR_NOT_FOUND),
    ],
    ids=["queue", "destination", "exclusive", "cancel", "flow", "resume"],
)
def test_what_is_refused(filled: Session, ask: Callable[[Session], object], code: int) -> None:
    filled.subscribe("q", messages=1)
    with pytest.raises(RemoteError) as refusal:
        ask(filled)
    assert refusal.value.exception.error_code == code


def test_priorities(session: Session) -> None:
    session.call(QueueDeclare("q", arguments={"qpid.priorities": 10}))
    for priority in (1, 9, 5, 0, 7):
        session.publish(b"%d" % priority, key="q", priority=priority)
    session.sync()
    session.subscribe("q")
    assert bodies(session) == [b"9", b"7", b"5", b"1", b"0"]


@requirement("X010-039", "X010-041")
def test_a_rejected_message_goes_to_the_alternate_exchange(session: Session) -> None:
    session.call(ExchangeDeclare("other", "fanout"))
    session.call(QueueDeclare("rejected"))
    session.call(ExchangeBind("rejected", "other", ""))
    session.call(QueueDeclare("q", alternate_exchange="other"))
    session.publish(b"good", key="q")
    session.publish(b"bad", key="q")
    session.subscribe("q")
    good, bad = session.take_all()
    session.call(MessageReject(((bad.id, bad.id),)))
    session.settle(good)
    assert (depth(session, "q"), depth(session, "rejected")) == (0, 1)
    session.subscribe("rejected", "r")
    assert bodies(session) == [b"bad"]


@requirement("X010-041")
def test_what_a_deleted_queue_has_delivered_goes_to_the_alternate_exchange(session: Session, peer: Peer) -> None:
    """At once, and once, whatever its subscribers say of it later; what they accepted before is gone."""
    session.call(ExchangeDeclare("other", "fanout"))
    session.call(QueueDeclare("orphans"))
    session.call(ExchangeBind("orphans", "other", ""))
    session.call(QueueDeclare("q", alternate_exchange="other"))
    for number in range(6):
        session.publish(b"%d" % number, key="q")
    session.sync()
    subscriber = peer.session(b"subscriber", 2)
    subscriber.subscribe("q", messages=4)
    held = subscriber.take_all()
    subscriber.settle(held[1])
    session.call(QueueDelete("q"))
    assert depth(session, "orphans") == 5
    subscriber.call(MessageAccept(((held[0].id, held[0].id),)))
    subscriber.call(MessageRelease(((held[2].id, held[2].id),)))
    subscriber.call(MessageReject(((held[3].id, held[3].id),)))
    subscriber.detach()
    session.subscribe("orphans")
    assert bodies(session) == [b"0", b"2", b"3", b"4", b"5"]
