"""Rules of the transport that a client of a strict type system sees at once (1.0, 1.4, 2.4 to 2.7)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.composite import CLASSES
from waybill.wire.amqp10.decode import Decoder
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.field_kinds import KINDS
from waybill.wire.amqp10.frames import AMQP_HEADER, frame, sasl_frame
from waybill.wire.amqp10.messaging import Accepted, DeleteOnClose, Source, Target
from waybill.wire.amqp10.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from waybill.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from waybill.wire.amqp10.transactions import Coordinator
from waybill.wire.amqp10.types import Array, Described, Symbol, ULong

DECODE_ERROR = "amqp:decode-error"
INVALID_FIELD = "amqp:invalid-field"
COMPLETE = (
    Open("me"),
    Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1),
    Attach("link", 0, role=True, source=Source("/queues/q"), target=Target()),
    Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1),
    Transfer(0, 0, b"t"),
    Disposition(role=True, first=0),
    Detach(0),
)
MISSING = [
    (performative, name)
    for performative in COMPLETE
    for name, is_mandatory in zip(performative.FIELDS.names, performative.FIELDS.mandatory, strict=True)
    if is_mandatory
]


def without(performative: object, name: str) -> bytes:
    """The encoded performative with one field null."""
    encoded = performative.encode()  # type: ignore[attr-defined] # it is one of COMPLETE
    described = Decoder(encoded, 0, len(encoded)).value(1)
    assert isinstance(described, Described)
    assert isinstance(described.value, list)
    fields = list(described.value)
    fields[performative.FIELDS.names.index(name)] = None  # type: ignore[attr-defined]
    return encode_value(Described(described.descriptor, fields))


def test_which_fields_are_mandatory() -> None:
    assert {(value.NAME, name) for value, name in MISSING} == {
        ("amqp:open:list", "container_id"),
        ("amqp:begin:list", "next_outgoing_id"),
        ("amqp:begin:list", "incoming_window"),
        ("amqp:begin:list", "outgoing_window"),
        ("amqp:attach:list", "name"),
        ("amqp:attach:list", "handle"),
        ("amqp:attach:list", "role"),
        ("amqp:flow:list", "incoming_window"),
        ("amqp:flow:list", "next_outgoing_id"),
        ("amqp:flow:list", "outgoing_window"),
        ("amqp:transfer:list", "handle"),
        ("amqp:disposition:list", "role"),
        ("amqp:disposition:list", "first"),
        ("amqp:detach:list", "handle"),
    }


@requirement("BB-033", "BB-034", "BB-035")
@pytest.mark.parametrize(("performative", "name"), MISSING, ids=lambda value: getattr(value, "NAME", value))
def test_a_mandatory_field_that_is_missing(bench: NodeBench, performative: object, name: str) -> None:
    declare(bench)
    peer = Peer(bench)
    if isinstance(performative, Open):
        peer.write(AMQP_HEADER + frame(0, without(performative, name)))
        peer.take_header(AMQP_HEADER)
        peer.expect(Open)
        peer.expect_closed(DECODE_ERROR)
        return
    peer.open()
    if isinstance(performative, Begin):
        peer.write(frame(0, without(performative, name)))
        peer.expect_closed(DECODE_ERROR)
        return
    session = peer.begin()
    peer.write(frame(0, without(performative, name)))
    session.expect_ended(DECODE_ERROR)


# --- fields of several values ---

SYMBOLS = KINDS["symbol[]"]
SEVERAL = sorted((cls.NAME, name) for cls in CLASSES.values() for name, kind in zip(cls.FIELDS.names, cls.FIELDS.kinds, strict=True) if kind == SYMBOLS)  # fmt: skip # noqa: E501


def test_which_fields_have_several_values() -> None:
    assert SEVERAL == [
        ("amqp:attach:list", "desired_capabilities"),
        ("amqp:attach:list", "offered_capabilities"),
        ("amqp:begin:list", "desired_capabilities"),
        ("amqp:begin:list", "offered_capabilities"),
        ("amqp:coordinator:list", "capabilities"),
        ("amqp:open:list", "desired_capabilities"),
        ("amqp:open:list", "incoming_locales"),
        ("amqp:open:list", "offered_capabilities"),
        ("amqp:open:list", "outgoing_locales"),
        ("amqp:sasl-mechanisms:list", "sasl_server_mechanisms"),
        ("amqp:source:list", "capabilities"),
        ("amqp:source:list", "outcomes"),
        ("amqp:target:list", "capabilities"),
    ]


def arrays_in(value: object, found: list[object]) -> None:
    """All values that are lists of symbols in some form."""
    if isinstance(value, Array):
        found.append(value)
    elif isinstance(value, Described):
        arrays_in(value.value, found)
    elif isinstance(value, dict):
        for item in value.values():
            arrays_in(item, found)
    elif isinstance(value, list):
        assert not value or not all(isinstance(item, Symbol) for item in value), value
        for item in value:
            arrays_in(item, found)


def test_several_values_leave_as_arrays_of_symbols(bench: NodeBench) -> None:
    """What Java's decoders insist on (1.4): an array, even of one."""
    declare(bench)
    peer = Peer(bench)
    properties: dict[str, object] = {"lifetime-policy": DeleteOnClose(), "supported-dist-modes": Symbol("move")}
    peer.write(
        AMQP_HEADER
        + frame(0, Open("me").encode())
        + frame(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9).encode())
        + frame(0, Attach("q", 0, role=True, source=Source("/queues/q"), target=Target()).encode())
        + frame(
            0,
            Attach(
                "dynamic",
                1,
                role=True,
                source=Source(dynamic=True, dynamic_node_properties=properties),
                target=Target(),
            ).encode(),
        )
        + frame(
            0,
            Attach(
                "dynamic", 2, role=False, source=Source(), target=Target(dynamic=True), initial_delivery_count=0
            ).encode(),
        )
        + frame(
            0, Attach("txn", 3, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0).encode()
        )
    )
    peer.pull()
    octets = peer.raw[8:]
    found: list[object] = []
    while octets:
        size = int.from_bytes(octets[:4], "big")
        arrays_in(Decoder(octets, 8, size).value(1), found)
        octets = octets[size:]
    assert len(found) >= 6
    assert all(isinstance(array, Array) and array.code == codes.SYMBOL_8 for array in found)


@pytest.mark.parametrize("is_array", [True, False])
def test_several_values_come_as_one_or_as_an_array(bench: NodeBench, *, is_array: bool) -> None:
    declare(bench)

    def values(*symbols: str) -> object:
        return Array(codes.SYMBOL_8, tuple(Symbol(symbol) for symbol in symbols)) if is_array else Symbol(symbols[0])

    peer = Peer(bench)
    fields = ["me", None, None, None, None, *[values("en-US")] * 2, *[values("a")] * 2]
    peer.write(AMQP_HEADER + frame(0, encode_value(Described(ULong(descriptors.OPEN), fields))))
    peer.take_header(AMQP_HEADER)
    peer.expect(Open)
    session = peer.begin()
    modes = {Symbol("supported-dist-modes"): values("move")}
    source = Described(ULong(descriptors.SOURCE), [None, None, None, None, True, modes, None, None, None, None, None])
    session.send(Attach("dynamic", 0, role=True, source=source, target=Target()))
    answer = session.expect(Attach)
    assert isinstance(answer.source, Source)
    source = Described(
        ULong(descriptors.SOURCE), ["/queues/q", *[None] * 8, values("amqp:accepted:list"), values("queue")]
    )
    session.send(Attach("q", 1, role=True, source=source, target=Target()))
    answer = session.expect(Attach)
    assert isinstance(answer.source, Source)
    assert answer.source.outcomes == ("amqp:accepted:list",)


# --- the connection ---


def test_open_comes_on_channel_0(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.write(AMQP_HEADER + frame(1, Open("me").encode()))
    peer.take_header(AMQP_HEADER)
    peer.expect(Open)
    peer.expect_closed("amqp:connection:framing-error")


@pytest.mark.parametrize("size", [0, 1, 511])
def test_a_max_frame_size_below_the_least(bench: NodeBench, size: int) -> None:
    peer = Peer(bench)
    peer.write(AMQP_HEADER + frame(0, Open("me", max_frame_size=size).encode()))
    peer.take_header(AMQP_HEADER)
    peer.expect(Open)
    peer.expect_closed("amqp:connection:framing-error")


def test_sasl_frames_have_what_they_must(bench: NodeBench) -> None:
    from waybill.wire.amqp10.frames import SASL_HEADER

    peer = Peer(bench)
    peer.write(SASL_HEADER)
    peer.take_header(SASL_HEADER)
    peer.expect(SaslMechanisms)
    peer.write(sasl_frame(without(SaslInit("PLAIN"), "mechanism")))
    peer.receive()
    assert not any(isinstance(value, SaslOutcome) and value.code == 0 for _, value, _ in peer.received)
    assert peer.wire.is_closed


# --- the session ---


def test_a_flow_whose_next_outgoing_id_went_back(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    sender.send(message())
    sender.send(message())
    session.flow(next_outgoing_id=2)
    session.expect_nothing()
    session.flow(next_outgoing_id=1)
    session.expect_ended("amqp:session:window-violation")


def test_next_outgoing_ids_wrap_around(bench: NodeBench, peer: Peer) -> None:
    declare(bench)
    session = Session(peer, 0)
    session.next_outgoing_id = 0xFFFFFFFF
    session.send(Begin(next_outgoing_id=0xFFFFFFFF, incoming_window=9, outgoing_window=9))
    session.expect(Begin)
    session.sender("/queues/q").send(message())
    session.flow(next_outgoing_id=0, echo=True)
    session.expect_nothing()
    session.flow(next_outgoing_id=0xFFFFFFFF)
    session.expect_ended("amqp:session:window-violation")


# --- transfers ---


@pytest.mark.parametrize(
    "fields",
    [
        {"delivery_id": 7},
        {"delivery_tag": b"another"},
        {"message_format": 1},
        {"rcv_settle_mode": 1},
        {"rcv_settle_mode": 2},
    ],
    ids=repr,
)
def test_a_continuation_that_differs(bench: NodeBench, session: Session, fields: dict[str, object]) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    whole = message(b"x" * 100)
    sender.transfer(whole[:50], more=True)
    sender.more(whole[50:], **fields)
    sender.expect_detached(INVALID_FIELD)
    assert queue.message_count == 0


def test_a_continuation_that_says_the_same_again(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q", rcv_settle_mode=1)
    whole = message(b"x" * 100)
    number = sender.transfer(whole[:50], more=True, rcv_settle_mode=1, delivery_tag=b"tag")
    sender.more(whole[50:80], more=True, delivery_id=number, delivery_tag=b"tag", message_format=0, rcv_settle_mode=1)
    # Settled on one transfer is settled (2.7.5).
    sender.more(whole[80:], settled=True)
    session.expect_nothing()
    assert queue.message_count == 1


@pytest.mark.parametrize("fields", [{"delivery_id": None}, {"delivery_tag": None}, {"delivery_tag": b"x" * 33}])
def test_a_first_transfer_has_an_id_and_a_tag(bench: NodeBench, session: Session, fields: dict[str, object]) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    transfer = {"delivery_id": 0, "delivery_tag": b"t"} | fields
    session.peer.write(frame(0, Transfer(sender.handle, **transfer).encode(), message()))  # type: ignore[arg-type] # by name
    sender.expect_detached(INVALID_FIELD)


@pytest.mark.parametrize("place", [1, 3, 1000])
def test_a_transfer_that_asks_for_second_on_a_link_of_first(bench: NodeBench, session: Session, place: int) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q")
    octets = b"".join(
        frame(0, Transfer(sender.handle, number, b"%d" % number, 0).encode(), message()) for number in range(place - 1)
    )
    # What this test sees does not depend on cuts.
    session.peer.wire.engine.receive_data(octets, bench.now)
    bench.settle()
    transfer = Transfer(sender.handle, place - 1, b"t", 0, rcv_settle_mode=1)
    session.peer.wire.engine.receive_data(frame(0, transfer.encode(), message()), bench.now)
    bench.settle()
    session.peer.receive()
    errors = [value.error for _, value, _ in session.peer.received if isinstance(value, Detach)]
    assert [error and error.condition for error in errors] == [INVALID_FIELD]
    assert queue.message_count == place - 1


def test_a_transfer_that_asks_for_first_on_a_link_of_second(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q", rcv_settle_mode=1)
    assert not sender.send(message()).settled
    disposition = sender.send(message(), rcv_settle_mode=0)
    assert (disposition.state, disposition.settled) == (Accepted(), True)


@pytest.mark.parametrize(
    ("mode", "settled", "condition"),
    [(0, None, ""), (0, False, ""), (0, True, INVALID_FIELD), (1, True, ""), (1, False, INVALID_FIELD),
     (1, None, INVALID_FIELD), (2, True, ""), (2, None, "")],
)  # fmt: skip
def test_the_senders_settle_mode(
    bench: NodeBench, session: Session, mode: int, condition: str, *, settled: bool | None
) -> None:
    queue = declare(bench)
    sender = session.sender("/queues/q", snd_settle_mode=mode)
    sender.transfer(message(), settled=settled)
    if condition:
        sender.expect_detached(condition)
    assert queue.message_count == int(not condition)


def test_the_last_of_several_transfers_may_settle(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    whole = message(b"x" * 100)
    sender = session.sender("/queues/q", snd_settle_mode=1)
    for first, last in ((True, None), (None, True)):
        sender.transfer(whole[:50], more=True, settled=first)
        sender.more(whole[50:], settled=last)
    assert queue.message_count == 2
    sender.transfer(whole[:50], more=True)
    sender.more(whole[50:])
    sender.expect_detached(INVALID_FIELD)


@pytest.mark.parametrize("mode", [(3, 0), (0, 2), (255, 255)])
def test_settle_modes_that_nobody_knows(bench: NodeBench, session: Session, mode: tuple[int, int]) -> None:
    declare(bench)
    for attach in (session.sender_attach, session.receiver_attach):
        asked = attach("/queues/q", snd_settle_mode=mode[0], rcv_settle_mode=mode[1])
        session.expect_refused(asked, INVALID_FIELD)


def test_a_close_may_come_on_any_channel(peer: Peer) -> None:
    peer.send(3, Close())
    peer.expect(Close)
    assert peer.wire.is_closed


def test_an_end_without_a_session_closes_the_connection(peer: Peer) -> None:
    peer.send(3, End())
    peer.expect_closed("amqp:not-allowed")
