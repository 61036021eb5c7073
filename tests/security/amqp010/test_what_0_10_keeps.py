"""AMQP 0-10 lets a peer make the broker remember: what was sent, what is on its way, who knows what, who comes back."""

from time import process_time

import pytest

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import EngineWire, NodeBench
from tests.security.amqp010.attached import attached, held
from waybill.engine.amqp010 import sessions
from waybill.engine.amqp010.server import command_session
from waybill.engine.amqp010.server.connection import Connection
from waybill.model.footprint import consumer_size
from waybill.wire.amqp010.class_exchange import ExchangeBind
from waybill.wire.amqp010.class_execution import ExecutionSync
from waybill.wire.amqp010.class_message import (
    DeliveryProperties,
    MessageFlow,
    MessageProperties,
    MessageSetFlowMode,
    MessageSubscribe,
    MessageTransfer,
)
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueQuery
from waybill.wire.amqp010.class_session import (
    SessionAttach,
    SessionConfirmed,
    SessionDetach,
    SessionExpected,
    SessionKnownCompleted,
    SessionRequestTimeout,
)
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.constants import ERROR_RESOURCE_LIMIT_EXCEEDED, FLOW_WINDOW, UNIT_BYTE, UNIT_MESSAGE
from waybill.wire.amqp010.message_header import encode_header

UNLIMITED = 0xFFFFFFFF


def write_raw(session: Session, octets: bytes, count: int) -> None:
    """Commands that the strict client does not know of."""
    session.sent |= set(range(session.next_id, session.next_id + count))
    session.next_id += count
    session.peer.wire.write(octets * count)


def engine_of(session: Session) -> Connection:
    wire = session.peer.wire
    assert isinstance(wire, EngineWire)
    assert isinstance(wire.engine, Connection)
    return wire.engine


def fill(bench: NodeBench, count: int, queue: str = "q") -> None:
    publisher = attached(bench, b"publisher")
    publisher.call(QueueDeclare(queue))
    header = encode_header(DeliveryProperties(routing_key=queue))
    # No two in a row are alike: what is on its way to a window is kept as runs.
    both = [encode_command(1, MessageTransfer("", 1, 0), header=header, body=body) for body in (b"x", b"xx")]
    publisher.sent |= set(range(publisher.next_id, publisher.next_id + count))
    publisher.next_id += count
    publisher.peer.wire.write(b"".join(both) * (count // 2))
    publisher.peer.pump()


@pytest.mark.plain_source
def test_answers_that_nobody_confirms_end_their_session(
    bench: NodeBench, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was without a limit: only deliveries waited for what is kept to be sent again."""
    monkeypatch.setattr(command_session, "UNCONFIRMED_BYTES_MAX", 1 << 20)
    session.control(SessionRequestTimeout(60))
    session.peer.pump()
    session.completes_by_itself = False
    question = encode_command(1, QueueQuery("nowhere"))
    for _ in range(6):
        write_raw(session, question, 1000)
        assert held(bench) < 2 << 20
    session.peer.pump()
    assert session.exceptions[0].error_code == ERROR_RESOURCE_LIMIT_EXCEEDED
    assert held(bench) == 0


def test_what_is_sent_again_is_charged_each_time(bench: NodeBench, session: Session) -> None:
    """One read asked for it a thousand times: 60 MB of output, and two seconds for others to wait."""
    session.control(SessionRequestTimeout(60))
    fill(bench, 3000)
    session.subscribe("q", accept_mode=1)
    session.peer.pump()
    once = (SessionDetach(b"session"), SessionAttach(b"session"), SessionExpected(()))
    octets = b"".join(encode_control(1, control) for control in once) * 300
    engine = engine_of(session)
    engine.receive_data(octets, bench.now)
    assert bench.node.runtime.work_left <= 0
    assert len(engine.data_to_send()) < 1 << 20
    session.peer.cut()


def test_confirmations_here_and_there_cost_what_they_name(bench: NodeBench, session: Session) -> None:
    """Each range had all that is kept looked through."""
    session.control(SessionRequestTimeout(60))
    session.peer.pump()
    session.completes_by_itself = False
    write_raw(session, encode_command(1, QueueQuery("nowhere")), 8000)
    began = process_time()
    session.control(SessionConfirmed(tuple([(number, number) for number in range(1, 8000, 2)])))
    assert process_time() - began < 2.0
    assert 0 < held(bench) < 2 << 20


def test_holes_in_what_a_peer_knows_are_limited(bench: NodeBench, session: Session) -> None:
    for start in range(0, 24_000, 8000):
        write_raw(session, encode_command(1, ExecutionSync()), 8000)
        scattered = tuple([(start + number, start + number) for number in range(0, 8000, 2)])
        session.peer.wire.write(encode_control(1, SessionKnownCompleted(scattered)))
    assert b"session" not in {key[2] for key in bench.node.sessions._by_key}


def test_a_session_that_is_kept_counts_with_all_that_it_has(bench: NodeBench, session: Session) -> None:
    """Its subscriptions were given back when it was detached, and stayed."""
    session.call(QueueDeclare("q"))
    session.control(SessionRequestTimeout(60))
    before = bench.node.runtime.footprint_bytes
    for number in range(300):
        session.send(MessageSubscribe("q", f"destination {number}"))
    session.sync()
    with_all = bench.node.runtime.footprint_bytes
    assert with_all - before >= 300 * consumer_size("destination 0")
    session.detach()
    assert bench.node.runtime.footprint_bytes == with_all
    bench.advance(61)
    assert bench.node.runtime.footprint_bytes < before


@pytest.mark.plain_source
def test_the_node_keeps_a_limited_number_of_sessions(bench: NodeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "KEPT_MAX", 3)
    peer = Peer(bench)
    peer.open()
    for number in range(9):
        one = peer.session(b"%d" % number, number)
        one.control(SessionRequestTimeout(60))
        one.detach()
    assert sum(session.wait.is_on for session in bench.node.sessions._by_key.values()) == 3


@pytest.mark.parametrize("acquire_mode", [0, 1], ids=["window", "browse"])
def test_what_is_on_its_way_counts_and_is_given_back(bench: NodeBench, session: Session, acquire_mode: int) -> None:
    """Transfers without acceptance are in no queue any more, and copies never were."""
    fill(bench, 4000)
    session.call(MessageSubscribe("q", "d", 1, acquire_mode))
    session.call(MessageSetFlowMode("d", FLOW_WINDOW))
    session.call(MessageFlow("d", UNIT_BYTE, UNLIMITED))
    session.call(MessageFlow("d", UNIT_MESSAGE, UNLIMITED))
    came = session.take_all()
    assert len(came) == 4000
    assert held(bench) > 4000 * 100
    session.complete(*[one.id for one in came])
    session.detach()
    assert held(bench) == 0


@pytest.mark.parametrize(("acquire_mode", "most"), [(0, 256), (1, 16)], ids=["window", "browse"])
def test_while_the_node_holds_much_little_is_on_its_way(
    bench: NodeBench, session: Session, acquire_mode: int, most: int
) -> None:
    """And it goes on, as the peer completes what it has."""
    fill(bench, 600)
    bench.node.runtime.held_max_bytes = 1000
    session.call(MessageSubscribe("q", "d", 1, acquire_mode))
    session.call(MessageFlow("d", UNIT_BYTE, UNLIMITED))
    session.call(MessageFlow("d", UNIT_MESSAGE, UNLIMITED))
    bodies = 0
    for _ in range(300):
        came = session.take_all()
        assert len(came) <= most
        bodies += len(came)
        if not came:
            break
        session.complete(*[one.id for one in came])
    assert bodies == 600
    assert held(bench) == 0


def test_headers_that_are_matched_are_charged_for_each_message(bench: NodeBench, session: Session) -> None:
    """That they are the same as those of the message before saved the charge, and not the work."""
    session.call(QueueDeclare("q"))
    session.call(ExchangeBind("q", "amq.match", "k", {"x-match": "all", "h1": 1}))
    properties = MessageProperties(application_headers={f"h{number}": number for number in range(2000)})
    header = encode_header(DeliveryProperties(routing_key="k"), properties)
    octets = encode_command(1, MessageTransfer("amq.match", 1, 0), header=header, body=b"") * 50
    engine = engine_of(session)
    engine.receive_data(octets, bench.now)
    assert bench.node.virtual_hosts["/"].queues["q"].message_count < 5
    session.peer.cut()
    bench.settle()


def test_large_headers_are_not_kept_for_the_next_message(session: Session) -> None:
    """For each exchange that a peer publishes to, the last header was: megabytes that nobody counts."""
    properties = MessageProperties(application_headers={"h": "x" * 60_000})
    for number in range(20):
        for _ in range(2):
            session.publish(b"", exchange="amq.direct", key=f"{number}", properties=properties)
    session.sync()
    routes = engine_of(session)._routes.values()
    assert sum(len(route._header) + len(route._prefix) for route in routes) < 10_000
