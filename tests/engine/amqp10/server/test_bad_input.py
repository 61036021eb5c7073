"""Damaged octets: whatever comes, the node answers with an error or not at all, and others do not notice."""

from random import Random

import pytest

from tests.engine.amqp091.peer import Cut, NodeBench
from tests.engine.amqp10.peer import Peer, declare, message
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER, frame, sasl_frame
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import Accepted, Modified, Received, Source, Target
from waybill.wire.amqp10.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from waybill.wire.amqp10.sections import encode_amqp_value
from waybill.wire.amqp10.security import SaslInit
from waybill.wire.amqp10.transactions import Coordinator, Declare, Discharge, TransactionalState
from waybill.wire.amqp10.types import Described, Symbol

ROUNDS = 150
MUTATIONS = 3


def conversation() -> list[bytes]:
    """Frames of all kinds, as one peer might send them."""
    selector: dict[str, object] = {"s": Described(Symbol("apache.org:selector-filter:string"), "a = 1")}
    payload = Header(durable=True, ttl=5000).encode() + Properties(message_id="m", to="/queues/q").encode() + message()
    plain = [
        Open("fuzz", max_frame_size=4096, idle_time_out=9000),
        Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100),
        Attach("in", 0, role=False, source=Source(), target=Target("/queues/q"), initial_delivery_count=0),
        Attach("out", 1, role=True, source=Source("/queues/q", filter=selector), target=Target()),
        Attach("copy", 2, role=True, source=Source("/queues/q", distribution_mode="copy"), target=Target()),
        Attach("tx", 3, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0),
        Attach("dynamic", 4, role=True, source=Source(dynamic=True), target=Target(), unsettled={b"t": Received(0, 1)}),
        Flow(
            next_incoming_id=0,
            incoming_window=100,
            next_outgoing_id=0,
            outgoing_window=100,
            handle=1,
            delivery_count=0,
            link_credit=10,
        ),
    ]
    frames = [frame(0, performative.encode()) for performative in plain]
    frames += [
        frame(0, Transfer(0, 0, b"a", 0).encode(), payload),
        frame(0, Transfer(0, 1, b"b", 0).encode(), payload),
        frame(0, Transfer(0, 2, b"c", 0, more=True).encode(), payload[:9]),
        frame(0, Transfer(0, more=False).encode(), payload[9:]),
        frame(0, Transfer(3, 3, b"d", 0).encode(), encode_amqp_value(Declare())),
        frame(0, Transfer(0, 4, b"e", 0, state=TransactionalState(b"1")).encode(), payload),
        frame(0, Disposition(role=True, first=0, settled=True, state=Accepted()).encode()),
        frame(0, Disposition(role=True, first=1, last=1, settled=True, state=Modified(delivery_failed=True)).encode()),
        frame(0, Disposition(role=True, first=2, state=TransactionalState(b"1", Accepted())).encode()),
        frame(0, Transfer(3, 5, b"f", 0).encode(), encode_amqp_value(Discharge(b"1"))),
        frame(0, Transfer(0, 6, b"g", 0, resume=True, state=Received(0, 0)).encode(), payload),
        frame(0, Detach(1, closed=True).encode()),
        frame(0, End().encode()),
        frame(0, Close().encode()),
    ]
    return [
        SASL_HEADER,
        sasl_frame(SaslInit("PLAIN", b"\0guest\0guest").encode()),
        AMQP_HEADER,
        *frames,
    ]


def damaged(frames: list[bytes], random: Random) -> bytes:
    """The frames with some octets changed, left out or put in; sizes of frames mostly stay right."""
    parts = [bytearray(part) for part in frames]
    for _ in range(random.randint(1, MUTATIONS)):
        part = random.choice(parts[3:])
        start = 8 if random.random() < 0.9 and len(part) > 8 else 0
        position = random.randrange(start, len(part))
        kind = random.random()
        if kind < 0.7:
            part[position] = random.choice(
                [0, 0x40, 0x45, 0x53, 0x70, 0x80, 0xA0, 0xC0, 0xD0, 0xFF, random.randrange(256)]
            )
        elif kind < 0.85:
            del part[position:]
        else:
            part[position:position] = random.randbytes(random.randint(1, 4))
        if start == 8 and kind >= 0.7:
            part[0:4] = len(part).to_bytes(4, "big")
    if random.random() < 0.3:
        random.shuffle(parts[4:])
        index = random.randrange(4, len(parts))
        parts.insert(index, parts[random.randrange(4, len(parts))])
    return b"".join(bytes(part) for part in parts)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_frames_hurt_nobody_else(seed: int) -> None:
    random = Random(seed)
    frames = conversation()
    bench = NodeBench(Cut.RANDOM if seed % 2 else Cut.WHOLE, seed)
    declare(bench)
    declare(bench, "bystander")
    bystander = Peer(bench)
    bystander.open(container_id="bystander")
    session = bystander.begin()
    sender = session.sender("/queues/bystander")
    receiver = session.receiver("/queues/bystander", credit=ROUNDS)
    for _ in range(ROUNDS):
        peer = Peer(bench)
        peer.write(damaged(frames, random))
        peer.wire.cut()
        bench.wires.remove(peer.wire)
        assert sender.send(message(b"still here")).state == Accepted()
        delivery = receiver.delivery()
        receiver.settle(delivery)
    queues = bench.node.virtual_hosts["/"].queues
    assert queues["q"].unsettled_count == 0
    assert set(queues) == {"q", "bystander"}
    bench.close()


def test_the_conversation_itself_is_sound() -> None:
    bench = NodeBench(Cut.WHOLE)
    declare(bench)
    peer = Peer(bench)
    peer.write(b"".join(conversation()))
    assert peer.wire.is_closed
    assert bench.node.virtual_hosts["/"].queues["q"].message_count >= 2
