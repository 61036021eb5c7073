"""Classes exchange and queue: declarations, deletions, bindings, alternates, queries."""

from collections.abc import Callable

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp010.peer import Peer, RemoteError, Session
from tests.engine.amqp091.peer import Cut
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp010.class_connection import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp010.class_exchange import (
    ExchangeBind,
    ExchangeBound,
    ExchangeBoundResult,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeQuery,
    ExchangeQueryResult,
    ExchangeUnbind,
)
from waybill.wire.amqp010.class_message import MessageCancel, MessageReject, MessageSubscribe
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueDelete, QueuePurge, QueueQuery, QueueQueryResult
from waybill.wire.amqp010.constants import (
    ERROR_INTERNAL_ERROR,
    ERROR_INVALID_ARGUMENT,
    ERROR_NOT_ALLOWED,
    ERROR_NOT_FOUND,
    ERROR_NOT_IMPLEMENTED,
    ERROR_PRECONDITION_FAILED,
    ERROR_RESOURCE_LOCKED,
    ERROR_UNAUTHORIZED_ACCESS,
)
from waybill.wire.amqp010.struct import Command
from waybill.wire.amqp010.types import Array, Datetime
from waybill.wire.amqp10.types import Float, UByte, ULong, Uuid


def refused(session: Session, command: Command) -> int:
    with pytest.raises(RemoteError) as refusal:
        session.call(command)
    return refusal.value.exception.error_code


def bodies(session: Session, queue: str) -> list[bytes]:
    session.subscribe(queue, "b" + queue, accept_mode=1)
    return [one.body for one in session.take_all()]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (ExchangeDeclare("", "direct"), ERROR_INVALID_ARGUMENT),
        (ExchangeDeclare("amq.mine", "direct"), ERROR_NOT_ALLOWED),
        (ExchangeDeclare("amq.direct", "topic"), ERROR_NOT_ALLOWED),
        (ExchangeDeclare("x", "nonsense"), ERROR_NOT_FOUND),
        (ExchangeDeclare("nowhere", "", passive=True), ERROR_NOT_FOUND),
        (ExchangeDeclare("e", "fanout"), ERROR_NOT_ALLOWED),
        (ExchangeDeclare("e", "direct", alternate_exchange="amq.fanout"), ERROR_NOT_ALLOWED),
        (ExchangeDeclare("x", "direct", alternate_exchange="nowhere"), ERROR_NOT_FOUND),
        (ExchangeDelete(""), ERROR_INVALID_ARGUMENT),
        (ExchangeDelete("nowhere"), ERROR_NOT_FOUND),
        (ExchangeDelete("amq.topic"), ERROR_NOT_ALLOWED),
        (ExchangeDelete("e", if_unused=True), ERROR_PRECONDITION_FAILED),
        (ExchangeBind("", "e", "k"), ERROR_INVALID_ARGUMENT),
        (ExchangeBind("q", "", "k"), ERROR_INVALID_ARGUMENT),
        (ExchangeBind("nowhere", "e", "k"), ERROR_NOT_FOUND),
        (ExchangeBind("q", "nowhere", "k"), ERROR_NOT_FOUND),
        (ExchangeBind("q", "amq.match", "k", {"name": "value"}), ERROR_INTERNAL_ERROR),
        (ExchangeUnbind("q", "e", "other"), ERROR_NOT_FOUND),
        (QueueDeclare("nowhere", passive=True), ERROR_NOT_FOUND),
        (QueueDeclare(""), ERROR_INVALID_ARGUMENT),
        (QueueDeclare("amq.mine"), ERROR_NOT_ALLOWED),
        (QueueDeclare("x", alternate_exchange="nowhere"), ERROR_NOT_FOUND),
        (QueueDeclare("x", arguments={"nonsense": 1}), ERROR_NOT_IMPLEMENTED),
        (QueueDeclare("x", arguments={"qpid.priorities": 0}), ERROR_INVALID_ARGUMENT),
        (QueueDelete("nowhere"), ERROR_NOT_FOUND),
        (QueueDelete("q", if_empty=True), ERROR_PRECONDITION_FAILED),
        (QueueDelete("q", if_unused=True), ERROR_PRECONDITION_FAILED),
        (QueuePurge("nowhere"), ERROR_NOT_FOUND),
    ],
    ids=str,
)
@requirement("M010-008", "M010-046", "M010-048", "M010-049", "M010-096")
def test_what_is_refused(session: Session, command: Command, code: int) -> None:
    session.call(ExchangeDeclare("e", "direct"))
    session.call(QueueDeclare("q"))
    session.call(ExchangeBind("q", "e", "k"))
    session.call(MessageSubscribe("q", "d"))
    session.publish(b"", key="q")
    assert refused(session, command) == code


@pytest.mark.parametrize("kind", ["nonsense", 1, ["ring"], {"a": 1}], ids=str)
def test_a_policy_type_that_nobody_knows_is_ignored(session: Session, kind: object) -> None:
    session.call(QueueDeclare("q", arguments={"qpid.policy_type": kind, "qpid.max_count": 1}))
    for body in (b"1", b"2"):
        session.publish(body, key="q")
    session.sync()
    found = session.call(QueueQuery("q"))
    assert isinstance(found, QueueQueryResult)
    assert found.message_count == 1


@requirement("X010-005", "M010-029", "M010-050", "M010-056", "M010-082")
def test_exchanges_and_bindings_work_without_any_message(session: Session) -> None:
    session.call(ExchangeDeclare("e", "topic", durable=True))
    session.call(ExchangeDeclare("e", "topic"))
    session.call(QueueDeclare("q"))
    session.call(ExchangeBind("q", "e", "a.*"))
    session.publish(b"yes", exchange="e", key="a.b")
    session.publish(b"no", exchange="e", key="b.b")
    session.call(ExchangeUnbind("q", "e", "a.*"))
    session.publish(b"late", exchange="e", key="a.b")
    session.sync()
    assert bodies(session, "q") == [b"yes"]
    session.call(ExchangeDelete("e"))
    assert session.call(ExchangeQuery("e")) == ExchangeQueryResult(not_found=True)


def test_headers_are_matched(session: Session) -> None:
    from waybill.wire.amqp010.class_message import MessageProperties

    session.call(QueueDeclare("q"))
    session.call(ExchangeBind("q", "amq.match", "k", {"x-match": "all", "a": 1, "b": "two"}))
    session.publish(
        b"yes", exchange="amq.match", properties=MessageProperties(application_headers={"a": 1, "b": "two"})
    )
    session.publish(b"no", exchange="amq.match", properties=MessageProperties(application_headers={"a": 1}))
    session.sync()
    assert bodies(session, "q") == [b"yes"]


@requirement("M010-025")
def test_an_exclusive_queue_is_for_its_session(session: Session, peer: Peer) -> None:
    session.call(QueueDeclare("own", exclusive=True))
    session.call(QueueDeclare("own", exclusive=True))
    for number, command in enumerate(
        [
            QueueDeclare("own", exclusive=True),
            MessageSubscribe("own", "d"),
            QueueDelete("own"),
            QueuePurge("own"),
            ExchangeBind("own", "amq.direct", "k"),
        ]
    ):
        other = peer.session(b"other %d" % number, 2 + number)
        assert refused(other, command) == ERROR_RESOURCE_LOCKED
    session.detach()
    late = peer.session(b"late", 9)
    late.call(QueueDeclare("own", exclusive=True))


@requirement("M010-053", "M010-055")
@pytest.mark.parametrize("exclusive", [True, False])
def test_auto_deletion(session: Session, peer: Peer, exclusive: bool) -> None:
    """Of an exclusive queue with its session, of another one with its last subscription."""
    session.call(QueueDeclare("q", exclusive=exclusive, auto_delete=True))
    session.call(MessageSubscribe("q", "d"))
    session.call(MessageCancel("d"))
    is_there = session.call(QueueQuery("q")) != QueueQueryResult()
    assert is_there is exclusive
    session.detach()
    assert peer.session(b"other").call(QueueQuery("q")) == QueueQueryResult()


@requirement("X010-041")
def test_alternate_exchanges(session: Session) -> None:
    """They get what an exchange cannot route, what is rejected, and what a deleted queue has left."""
    session.call(ExchangeDeclare("rest", "fanout"))
    session.call(QueueDeclare("left"))
    session.call(ExchangeBind("left", "rest", ""))
    session.call(ExchangeDeclare("first", "direct", alternate_exchange="rest"))
    session.call(QueueDeclare("q", alternate_exchange="rest"))
    session.publish(b"unroutable", exchange="first", key="nowhere", accept_mode=0)
    session.publish(b"rejected", key="q")
    session.publish(b"deleted", key="q")
    session.subscribe("q", messages=1)
    one = session.take()
    session.call(MessageReject(((one.id, one.id),)))
    session.call(QueueDelete("q"))
    assert bodies(session, "left") == [b"unroutable", b"rejected", b"deleted"]


@requirement("X010-041")
@pytest.mark.parametrize(
    "user", [QueueDeclare("user", alternate_exchange="e"), ExchangeDeclare("user", "direct", alternate_exchange="e")]
)
def test_an_alternate_exchange_in_use_is_not_deleted(session: Session, peer: Peer, user: Command) -> None:
    session.call(ExchangeDeclare("e", "fanout"))
    session.call(user)
    assert refused(session, ExchangeDelete("e")) == ERROR_NOT_ALLOWED
    again = peer.session(b"again", 3)
    again.call(QueueDelete("user") if isinstance(user, QueueDeclare) else ExchangeDelete("user"))
    again.call(ExchangeDelete("e"))


@requirement("X010-040")
def test_queries(session: Session) -> None:
    session.call(ExchangeDeclare("e", "direct", durable=True, arguments={"x-own": "value"}))
    session.call(
        QueueDeclare("q", alternate_exchange="e", durable=True, auto_delete=True, arguments={"x-max-length": 9})
    )
    session.publish(b"", key="q")
    assert session.call(ExchangeQuery("e")) == ExchangeQueryResult("direct", True, False, {"x-own": "value"})
    expected = QueueQueryResult("q", "e", True, False, True, {"x-max-length": 9}, 1, 0)
    assert session.call(QueueQuery("q")) == expected


@requirement("X010-040")
@pytest.mark.parametrize(
    ("command", "result"),
    [
        (ExchangeBound("e", "q", "k"), ExchangeBoundResult()),
        (ExchangeBound("e", "q"), ExchangeBoundResult()),
        (ExchangeBound("", "q", "q"), ExchangeBoundResult()),
        (ExchangeBound("nowhere", "q"), ExchangeBoundResult(exchange_not_found=True)),
        (ExchangeBound("e", "nowhere"), ExchangeBoundResult(queue_not_found=True)),
        (ExchangeBound("nowhere", "nowhere"), ExchangeBoundResult(exchange_not_found=True, queue_not_found=True)),
        (ExchangeBound("e", "p", "k"), ExchangeBoundResult(queue_not_matched=True)),
        (ExchangeBound("e", "q", "z"), ExchangeBoundResult(key_not_matched=True)),
        (ExchangeBound("e", "q", arguments={"a": 1}), ExchangeBoundResult(args_not_matched=True)),
    ],
    ids=str,
)
def test_exchange_bound(session: Session, command: Command, result: ExchangeBoundResult) -> None:
    session.call(ExchangeDeclare("e", "direct"))
    session.call(QueueDeclare("q"))
    session.call(QueueDeclare("p"))
    session.call(ExchangeBind("q", "e", "k"))
    assert session.call(command) == result


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.call(QueueDeclare("forbidden")),
        lambda session: session.call(QueueDelete("q")),
        lambda session: session.call(QueuePurge("q")),
        lambda session: session.call(ExchangeDeclare("forbidden", "direct")),
        lambda session: session.call(ExchangeBind("q", "amq.direct", "k")),
        lambda session: session.call(MessageSubscribe("q", "d")),
        lambda session: session.call(QueueDeclare("mine", alternate_exchange="amq.direct")),
        lambda session: (session.publish(b"", key="q"), session.sync()),
    ],
)
def test_what_the_permissions_do_not_allow(session: Session, peer: Peer, ask: Callable[[Session], object]) -> None:
    session.call(QueueDeclare("q"))
    administration = peer.bench.node.administration
    administration.put_user("limited", "secret")
    administration.set_permission("limited", "/", "mine", "mine", "mine")
    other = Peer(peer.bench)
    other.start()
    other.control(ConnectionStartOk({}, "PLAIN", b"\0limited\0secret", "en_US"))
    other.expect(ConnectionTune)
    other.control(ConnectionTuneOk(100, 65_535, 0))
    other.control(ConnectionOpen("/"))
    other.expect(ConnectionOpenOk)
    with pytest.raises(RemoteError) as refusal:
        ask(other.session(b"limited"))
    assert refusal.value.exception.error_code == ERROR_UNAUTHORIZED_ACCESS
    session.sync()


VALUES: dict[str, object] = {
    "wide": ULong((1 << 64) - 1),
    "short": UByte(7),
    "real": Float(1.5),
    "id": Uuid(bytes(16)),
    "moment": Datetime(1 << 63),
    "several": [ULong(1 << 63), Float(0.5)],
    "alike": Array(0x32, (ULong(1 << 63),)),
    "table": {"x-wide": ULong(1 << 63)},
}


def test_arguments_of_every_type_are_kept() -> None:
    """Compiled, `int(value)` leaves what is beyond 2^62 in its own class, which cannot be stored."""
    bench = DiskBench(Cut.WHOLE)
    peer = Peer(bench)
    peer.open()
    session = peer.session()
    session.call(
        ExchangeDeclare("e", "headers", durable=True, arguments={f"x-{name}": VALUES[name] for name in VALUES})
    )
    session.call(QueueDeclare("q", durable=True, arguments={f"x-{name}": VALUES[name] for name in VALUES}))
    session.call(ExchangeBind("q", "e", "k", {"x-match": "all", **VALUES}))
    before = _shown(bench)
    bench.restart("kill")
    assert _shown(bench) == before


def _shown(bench: DiskBench) -> object:
    host = bench.node.virtual_hosts["/"]
    bindings = [binding.arguments for binding in host.exchanges["e"].bindings.values()]
    return host.exchanges["e"].arguments, host.queues["q"].arguments, bindings
