"""Messages in and out, credit, and links that are refused (1.0, 2.6)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import MEMORY_LIMIT_BYTES, NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from waybill.model.alternate_queue import AlternateQueue
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Released, Source, Target
from waybill.wire.amqp10.performatives import Attach, Detach, Disposition, Flow, Transfer
from waybill.wire.amqp10.sections import encode_data
from waybill.wire.amqp10.types import Described, Symbol

# Properties and a data section with long descriptors and long forms throughout.
ODD: bytes = (
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73\xd0\x00\x00\x00\x0b\x00\x00\x00\x01\xb1\x00\x00\x00\x02id"
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x03abc"
)


def test_a_message_goes_in_and_comes_out(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    disposition = sender.send(message(b"hello"))
    assert disposition.settled
    assert disposition.state == Accepted()
    receiver = session.receiver("/queues/q", credit=10)
    delivery = receiver.delivery()
    assert delivery.payload.endswith(encode_data(b"hello"))
    assert delivery.transfer.settled is False
    receiver.settle(delivery)
    receiver.expect_nothing()
    assert bench.node.virtual_hosts["/"].queues["q"].unsettled_count == 0


@requirement("M10-001", "M10-002", "M10-003", "BB-009")
def test_the_bare_message_stays_as_it_is_octet_by_octet(bench: NodeBench, session: Session) -> None:
    declare(bench)
    session.sender("/queues/q").send(Header(durable=True, ttl=60_000).encode() + ODD)
    assert session.receiver("/queues/q", credit=1).delivery().bare == ODD


@requirement("M10-007", "M10-017", "M10-018")
def test_a_message_without_a_header_has_the_defaults(bench: NodeBench, session: Session) -> None:
    declare(bench)
    session.sender("/queues/q").send(message())
    header = session.receiver("/queues/q", credit=1).delivery().header
    assert header == Header(first_acquirer=True)


@requirement("BB-057", "M10-048")
def test_no_more_messages_than_credit(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    for _ in range(5):
        sender.send(message())
    receiver = session.receiver("/queues/q", credit=3)
    for _ in range(3):
        receiver.delivery()
    receiver.expect_nothing()
    receiver.flow(1)
    receiver.delivery()
    receiver.expect_nothing()


def test_credit_counts_from_the_deliveries_that_the_receiver_knows_of(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    for _ in range(5):
        sender.send(message())
    receiver = session.receiver("/queues/q", credit=3)
    for _ in range(3):
        receiver.delivery()
    # Sent before it knew of these three: two of the five are left.
    receiver.flow(5, delivery_count=0)
    receiver.delivery()
    receiver.delivery()
    receiver.expect_nothing()


@requirement("BB-095")
def test_drain_uses_up_the_credit(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    sender.send(message())
    receiver = session.receiver("/queues/q")
    receiver.flow(10, drain=True)
    receiver.delivery()
    flow = session.expect(Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit, flow.drain) == (receiver.handle, 10, 0, True)
    sender.send(message())
    receiver.expect_nothing()


def test_echo_is_answered(bench: NodeBench, session: Session) -> None:
    declare(bench)
    receiver = session.receiver("/queues/q")
    receiver.flow(7, echo=True)
    flow = session.expect(Flow)
    assert (flow.handle, flow.link_credit, flow.delivery_count, flow.available) == (receiver.handle, 7, 0, 0)
    session.flow(echo=True)
    assert session.expect(Flow).handle is None


@pytest.mark.parametrize("size", [500, 5000, 20_000])
def test_a_message_in_many_frames(bench: NodeBench, size: int) -> None:
    declare(bench)
    peer = Peer(bench)
    peer.open(max_frame_size=512)
    session = peer.begin()
    sender = session.sender("/queues/q")
    payload = message(bytes(index % 251 for index in range(size)))
    step = max(size // 3, 200)
    sender.transfer(payload[:step], more=True)
    for start in range(step, len(payload), step):
        sender.more(payload[start : start + step], more=start + step < len(payload))
    assert session.expect(Disposition).state == Accepted()
    receiver = session.receiver("/queues/q", credit=1)
    assert receiver.delivery().payload.endswith(payload)
    assert max(peer.frame_sizes) <= 512


def test_a_delivery_waits_for_the_session_window(bench: NodeBench, peer: Peer) -> None:
    declare(bench)
    other = Peer(bench)
    other.open(max_frame_size=512)
    other.begin().sender("/queues/q").send(message(b"x" * 2000))
    session = other.begin(1, incoming_window=2)
    receiver = session.receiver("/queues/q")
    session.flow(handle=receiver.handle, link_credit=5, delivery_count=0, incoming_window=2)
    assert [session.expect(Transfer).more for _ in range(2)] == [True, True]
    session.expect_nothing()
    session.flow(incoming_window=100, next_incoming_id=2)
    mores: list[bool] = []
    while not mores or mores[-1]:
        mores.append(session.expect(Transfer).more)
    assert mores == [True, True, False]


@pytest.mark.parametrize("window", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("has_alternate", [False, True])
def test_a_run_ends_where_the_window_does(bench: NodeBench, window: int, *, has_alternate: bool) -> None:
    """A message that needs several transfers uses up the window of those behind it, which stay in the queue."""
    queue = declare(bench, x_alternate_exchange="amq.fanout") if has_alternate else declare(bench)
    other = Peer(bench)
    other.open(max_frame_size=512)
    sender = other.begin().sender("/queues/q")
    sent = [bytes([number]) * (1200 if number % 3 == 2 else 10) for number in range(12)]
    for body in sent:
        sender.send(message(body))
    session = other.begin(1, incoming_window=window)
    receiver = session.receiver("/queues/q")
    session.flow(handle=receiver.handle, link_credit=20, delivery_count=0, incoming_window=window)
    received: list[bytes] = []
    transfers = 0
    while len(received) < len(sent):
        payload = b""
        more = True
        while more:
            if transfers and transfers % window == 0:
                session.expect_nothing()
                started = len(received) + bool(payload)
                assert started <= queue.unsettled_count <= started + 1
                assert queue.message_count == len(sent) - queue.unsettled_count
                session.flow(incoming_window=window, next_incoming_id=transfers)
            transfer, octets = other.next_frame(1)
            assert isinstance(transfer, Transfer)
            more = bool(transfer.more)
            payload += octets
            transfers += 1
        received.append(payload)
    assert [body[-len(own) :] for body, own in zip(received, sent, strict=True)] == sent
    assert (queue.message_count, queue.unsettled_count) == (0, len(sent))
    session.send(Disposition(role=True, first=0, last=len(sent) - 1, settled=True, state=Accepted()))
    assert queue.unsettled_count == 0


def test_what_a_short_window_left_in_a_queue_goes_to_its_alternate_exchange_once(bench: NodeBench) -> None:
    queue = declare(bench, x_alternate_exchange="amq.fanout")
    others = declare(bench, "others")
    channel = bench.channel()
    channel.bind("amq.fanout", "others")
    other = Peer(bench)
    other.open(max_frame_size=512)
    session = other.begin(1, incoming_window=3)
    sender = session.sender("/queues/q")
    for number in range(9):
        sender.send(message(bytes([number]) * (1200 if number == 1 else 10)))
    receiver = session.receiver("/queues/q")
    session.flow(handle=receiver.handle, link_credit=20, delivery_count=0, incoming_window=3)
    assert (queue.message_count, queue.unsettled_count) == (7, 2)
    assert isinstance(queue, AlternateQueue)
    assert len(queue.out) == 2
    channel.call(QueueDelete("q"), QueueDeleteOk)
    assert others.message_count == 9


def test_an_aborted_delivery_never_was(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    sender.transfer(b"\x00\x53\x75\xa0\x05ab", more=True)
    sender.more(b"", aborted=True)
    assert sender.send(message(b"whole")).state == Accepted()
    receiver = session.receiver("/queues/q", credit=2)
    assert receiver.delivery().payload.endswith(encode_data(b"whole"))
    receiver.expect_nothing()


@requirement("BB-050")
def test_settled_deliveries_are_not_answered(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    sender.transfer(message(), settled=True)
    session.expect_nothing()
    assert queue.message_count == 1


@requirement("BB-037", "BB-047")
def test_one_disposition_for_many_deliveries(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    frames = [frame(0, Transfer(sender.handle, number, b"%d" % number).encode(), message()) for number in range(10)]
    session.peer.write(b"".join(frames))
    covered: set[int] = set()
    while len(covered) < 10:
        disposition = session.expect(Disposition)
        assert disposition.state == Accepted()
        last = disposition.first if disposition.last is None else disposition.last
        covered.update(range(disposition.first, last + 1))
    assert covered == set(range(10))
    session.expect_nothing()


def test_dispositions_in_every_form_mean_what_they_say(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    forms = [
        (b"\x52\x00\x40\x41\x00\x53\x24\x45", 0),
        (b"\x52\x01\x40\x41\x00\x53\x24\x45", 0),
        (b"\x52\x02\x40\x41\x00\x53\x26\x45", 1),
        (b"\x52\x03\x52\x03\x41\x00\x53\x24\x45", 1),
        (b"\x70\x00\x00\x00\x04\x40\x41\x00\x53\x24\x45\x42", 1),
        (b"\x70\x00\x00\x00\x05\x40\x41\x00\x53\x24\x45\x41", 1),
        (b"\x70\x00\x00\x00\x06\x40\x41\x00\x53\x26\x45\x41", 2),
        (b"\x52\x07\x40\x41\x00\x53\x24\xc0\x01\x00\x42", 2),
        (b"\x52\x08\x40\x41\x00\xa3\x12amqp:accepted:list\x45", 2),
        (b"\x52\x09\x40\x41\x00\xa3\x12amqp:accepted:list\x45", 2),
        (b"\x52\x0a\x40\x56\x01\x00\x80\x00\x00\x00\x00\x00\x00\x00\x26\x45", 3),
        (b"\x52\x0b\x40\x41\x00\x53\x24\x45", 3),
    ]
    sender = session.sender("/queues/q")
    for _ in forms:
        sender.send(message())
    receiver = session.receiver("/queues/q", credit=len(forms))
    assert [receiver.delivery().number for _ in forms] == list(range(len(forms)))
    for unsettled, (fields, released) in zip(reversed(range(len(forms))), forms, strict=True):
        count = 6 if fields[-1:] in {b"\x41", b"\x42"} else 5
        body = b"\x00\x53\x15\xc0" + bytes([len(fields) + 2, count]) + b"\x41" + fields
        session.peer.write((len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body)
        assert queue.message_count == released, fields
        assert queue.unsettled_count == unsettled, fields


@requirement("BB-055")
def test_credit_is_topped_up(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    assert sender.credit > 0
    for _ in range(sender.credit // 2 + 1):
        sender.transfer(message(), settled=True)
    flow = sender.take_credit()
    assert flow.delivery_count is not None
    assert flow.delivery_count + sender.credit > 1024


@requirement("BB-055")
def test_senders_get_no_credit_while_memory_is_full(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    bench.node.runtime.memory_bytes += 2 * MEMORY_LIMIT_BYTES
    bench.settle()
    assert sender.take_credit().link_credit == 0
    bench.node.runtime.memory_bytes -= 2 * MEMORY_LIMIT_BYTES
    bench.settle()
    assert sender.take_credit().link_credit != 0


def test_more_deliveries_than_credit_detach_the_link(bench: NodeBench, session: Session) -> None:
    bench.node.runtime.memory_bytes += 2 * MEMORY_LIMIT_BYTES
    bench.settle()
    declare(bench)
    attach = session.sender_attach("/queues/q")
    session.attach(attach)
    session.peer.write(frame(0, Transfer(attach.handle, 0, b"t").encode(), message()))
    detach = session.expect(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:transfer-limit-exceeded"


@requirement("BB-027")
def test_a_message_above_the_maximum_detaches_the_link(bench: NodeBench, session: Session) -> None:
    declare(bench)
    bench.node.limits.message_size_max = 1000
    sender = session.sender("/queues/q")
    assert sender.answer is not None
    assert sender.answer.max_message_size == 1000
    sender.transfer(message(b"x" * 2000))
    sender.expect_detached("amqp:link:message-size-exceeded")
    other = session.sender("/queues/q")
    other.transfer(b"x" * 600, more=True)
    other.more(b"x" * 600, more=True)
    other.expect_detached("amqp:link:message-size-exceeded")


# --- refusals ---


@requirement("BB-021", "M10-086", "BB-004")
def test_unknown_nodes_are_refused(session: Session) -> None:
    session.expect_refused(session.sender_attach("/queues/none"), "amqp:not-found")
    session.expect_refused(session.receiver_attach("/queues/none"), "amqp:not-found")
    session.expect_refused(session.sender_attach("/exchanges/none/key"), "amqp:not-found")
    session.expect_refused(session.sender_attach("plain"), "amqp:not-found")
    session.expect_refused(session.sender_attach("/nonsense"), "amqp:invalid-field")


@requirement("M10-104", "BB-073")
def test_unknown_outcomes_are_refused(bench: NodeBench, session: Session) -> None:
    declare(bench)
    attach = session.receiver_attach(None, source=Source("/queues/q", outcomes=("amqp:accepted:list", "foo")))
    session.expect_refused(attach, "amqp:invalid-field")
    attach = session.receiver_attach(None, source=Source("/queues/q", outcomes=("amqp:accepted:list",)))
    answer = session.attach(attach)
    assert isinstance(answer.source, Source)
    assert answer.source.outcomes == ("amqp:accepted:list",)


@requirement("BB-072", "BB-026", "BB-043")
def test_the_answer_says_what_is_in_force(bench: NodeBench, session: Session) -> None:
    declare(bench)
    answer = session.attach(session.receiver_attach("/queues/q"))
    source = answer.source
    assert isinstance(source, Source)
    assert set(source.outcomes) == {
        "amqp:accepted:list",
        "amqp:rejected:list",
        "amqp:released:list",
        "amqp:modified:list",
    }
    assert source.default_outcome == Released()
    assert (source.durable, source.expiry_policy, source.timeout) == (0, "session-end", 0)
    assert source.distribution_mode == "move"


@requirement("BB-074")
def test_an_outcome_outside_of_the_agreed_ones_detaches(bench: NodeBench, session: Session) -> None:
    declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver(None, source=Source("/queues/q", outcomes=("amqp:accepted:list",)), credit=1)
    receiver.settle(receiver.delivery(), Released())
    receiver.expect_detached("amqp:not-allowed")


# --- outcomes ---


@requirement("M10-051", "M10-057", "BB-068")
def test_accepted_messages_are_gone(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1)
    receiver.settle(receiver.delivery())
    assert (queue.message_count, queue.unsettled_count) == (0, 0)


@requirement("M10-061", "BB-069", "M10-051")
def test_released_messages_come_again_as_they_were(bench: NodeBench, session: Session) -> None:
    declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=2)
    receiver.settle(receiver.delivery(), Released())
    header = receiver.delivery().header
    assert (header.delivery_count, header.first_acquirer) == (0, False)


@requirement("M10-063", "M10-064", "BB-071")
@pytest.mark.parametrize("failed", [True, False])
def test_modified_counts_failed_deliveries(bench: NodeBench, session: Session, *, failed: bool) -> None:
    declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=2)
    receiver.settle(receiver.delivery(), Modified(delivery_failed=failed))
    assert receiver.delivery().header.delivery_count == int(failed)


@requirement("M10-066")
def test_modified_merges_annotations(bench: NodeBench, session: Session) -> None:
    declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=3)
    receiver.settle(receiver.delivery(), Modified(message_annotations={"x-opt-a": 1, "x-opt-b": "b"}))
    again = receiver.delivery()
    assert again.annotations.items() >= {"x-opt-a": 1, "x-opt-b": "b"}.items()
    receiver.settle(again, Modified(message_annotations={"x-opt-a": 2}))
    last = receiver.delivery()
    assert last.annotations.items() >= {"x-opt-a": 2, "x-opt-b": "b"}.items()
    assert last.bare == message()


@requirement("BB-070", "M10-051")
def test_rejected_messages_are_dead_lettered(bench: NodeBench, session: Session) -> None:
    declare(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    declare(bench, "dead")
    session.sender("/queues/q").send(message(b"bad"))
    receiver = session.receiver("/queues/q", credit=2)
    receiver.settle(receiver.delivery(), Rejected())
    receiver.expect_nothing()
    dead = session.receiver("/queues/dead", credit=1).delivery()
    assert dead.bare == message(b"bad")
    assert "x-opt-deaths" in dead.annotations


@requirement("M10-049", "M10-050", "M10-101", "BB-044")
@pytest.mark.parametrize(
    ("state", "waiting", "count"), [(None, 1, 0), (Modified(delivery_failed=True), 1, 1), (Accepted(), 0, 0)]
)
def test_a_lost_link_leaves_the_default_outcome(
    bench: NodeBench, peer: Peer, state: Modified | Accepted | None, waiting: int, count: int
) -> None:
    queue = declare(bench)
    session = peer.begin()
    session.sender("/queues/q").send(message())
    receiver = session.receiver(None, source=Source("/queues/q", default_outcome=state), credit=1)
    receiver.delivery()
    peer.wire.cut()
    assert (queue.message_count, queue.unsettled_count) == (waiting, 0)
    if waiting:
        other = Peer(bench)
        other.open()
        assert other.begin().receiver("/queues/q", credit=1).delivery().header.delivery_count == count


def test_an_outcome_that_is_not_settled_is_settled_by_us(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver("/queues/q", credit=1, rcv_settle_mode=1)
    delivery = receiver.delivery()
    receiver.settle(delivery, settled=False)
    answer = session.expect(Disposition)
    assert (answer.role, answer.first, answer.settled, answer.state) == (False, delivery.number, True, Accepted())
    assert queue.unsettled_count == 0


@requirement("BB-031")
def test_a_deleted_queue_detaches_its_links(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    receiver = session.receiver("/queues/q", credit=1)
    bench.node.virtual_hosts["/"].remove_queue(queue)
    bench.settle()
    receiver.expect_detached("amqp:resource-deleted")


@requirement("BB-029", "BB-045")
def test_attach_transfer_and_detach_in_one_write(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    attach = session.sender_attach("/queues/q")
    session.peer.write(
        frame(0, attach.encode())
        + frame(0, Transfer(attach.handle, 0, b"t").encode(), message(header=Header(durable=True)))
        + frame(0, Detach(attach.handle, closed=True).encode())
    )
    session.expect(Attach)
    assert session.expect(Disposition).state == Accepted()
    assert session.expect(Detach).error is None
    assert queue.message_count == 1


@requirement("M10-031")
def test_the_anonymous_terminus_takes_the_address_from_the_message(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    sender = session.sender(None, target=Target())
    assert sender.send(Properties(to="/queues/q").encode() + message()).state == Accepted()
    sender.send(Properties(to="/queues/q").encode() + message(), settled=None)
    assert queue.message_count == 2


NOWHERE = [
    (Properties(to="/queues/none").encode(), "amqp:not-found"),
    (Properties(to="/queue/old").encode(), "amqp:invalid-field"),
    (b"", "amqp:precondition-failed"),
]


@pytest.mark.parametrize(("head", "condition"), NOWHERE)
@pytest.mark.parametrize(
    ("outcomes", "settled"),
    [(("amqp:rejected:list",), None), (("amqp:rejected:list",), True), (("amqp:accepted:list",), None), ((), None)],
)
def test_the_anonymous_terminus_tells_which_message_went_nowhere(
    session: Session, head: bytes, condition: str, outcomes: tuple[str, ...], *, settled: bool | None
) -> None:
    """Anonymous terminus, 2.2.2: rejected if the source lists that and hears of it, a detach otherwise."""
    sender = session.sender(None, target=Target(), source=Source(outcomes=outcomes))
    sender.transfer(head + message(), delivery_tag=b"which", settled=settled)
    if "amqp:rejected:list" in outcomes and not settled:
        state = session.expect(Disposition).state
        assert isinstance(state, Rejected)
        error = state.error
    else:
        error = session.expect(Detach).error
    assert error is not None
    assert (error.condition, error.info) == (condition, {"delivery-tag": b"which"})


@requirement("M10-032")
def test_the_subject_is_the_routing_key(bench: NodeBench, session: Session) -> None:
    virtual_host = bench.node.virtual_hosts["/"]
    queue = declare(bench)
    virtual_host.bind_queue(queue, "amq.direct", "key", {})
    sender = session.sender("/exchanges/amq.direct")
    assert sender.send(Properties(subject="key").encode() + message()).state == Accepted()
    assert sender.send(Properties(subject="other").encode() + message()).state == Released()
    assert queue.message_count == 1


@pytest.mark.parametrize("state", [Accepted(), Rejected(), Released(), Modified(delivery_failed=True)])
def test_streams_keep_what_is_settled_in_whatever_way(bench: NodeBench, session: Session, state: Composite) -> None:
    declare(bench, x_queue_type="stream")
    sender = session.sender("/queues/q")
    receiver = session.receiver("/queues/q", credit=2)
    sender.send(message(b"1"))
    receiver.settle(receiver.delivery(), state)
    sender.send(message(b"2"))
    assert receiver.delivery().bare == message(b"2")
    again = session.receiver("/queues/q", source=from_first(), credit=2)
    assert [again.delivery().bare for _ in range(2)] == [message(b"1"), message(b"2")]


def from_first() -> Source:
    return Source("/queues/q", filter={Symbol("offset"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")})
