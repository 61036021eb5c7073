"""Moves of a 1.0 peer that ask for as much as the protocol lets them in one read."""

from typing import Final

from tests.search.amqp091_moves import Move, checked, fitting
from tests.search.choices import Choices
from tests.search.values import QUEUES
from waybill.wire.amqp10 import filters
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.messaging import Accepted, Modified, Received, Rejected, Released, Source, Target
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach, Detach, Disposition, Flow, Transfer
from waybill.wire.amqp10.transactions import Coordinator, Declare, Discharge, TransactionalState
from waybill.wire.amqp10.types import Described, Symbol, ULong

DATA: Final = encode_value(Described(ULong(0x75), b"b"))
TRANSFER_START: Final = b"\x00\x53\x14"
PATTERNS: Final = ("p LIKE '%a%b'", "p LIKE '%'", "p LIKE '" + "_%" * 60 + "b'", "NOT p LIKE 'a%'", "p LIKE 'b%'")


def transfer_count(frames: list[bytes]) -> int:
    """How many of them are transfers."""
    return sum(each.startswith(TRANSFER_START, 8) for each in frames)


def _flow(handle: int, credit: int, sent: int) -> Flow:
    return Flow(
        next_incoming_id=0,
        incoming_window=0x7FFFFFFF,
        next_outgoing_id=sent,
        outgoing_window=2048,
        handle=handle,
        delivery_count=0,
        link_credit=credit,
    )


def patterns(choices: Choices, channel: int) -> list[bytes]:
    """Long texts, and links whose selectors look at them with as many patterns as there is room for."""
    pattern = choices.pick(PATTERNS)
    joint = choices.pick((" OR ", " AND "))
    text = joint.join([pattern] * choices.amount(240))[:4096].rpartition(joint)[0] or pattern
    where = "/queues/" + choices.pick(QUEUES)
    properties = {"p": "a" * choices.pick((1, 4000, 16_384)), "a": 1}
    payload = encode_value(Described(ULong(0x74), properties)) + DATA
    described = Described(Symbol(filters.SELECTOR), text)
    source = Source(where, filter={Symbol(filters.SELECTOR): described})
    frames = [
        frame(channel, Attach("long", 6, ROLE_SENDER, 1, target=Target(where), initial_delivery_count=0).encode())
    ]
    frames += [
        frame(channel, Transfer(6, choices.sent + index, b"%d" % index, 0, True).encode(), payload)
        for index in range(choices.amount(14))
    ]
    sent = transfer_count(frames)
    for handle in range(30, 30 + choices.amount(40)):
        link = Attach(f"look{handle}", handle, ROLE_RECEIVER, source=source, target=Target())
        frames.append(frame(channel, link.encode()) + frame(channel, _flow(handle, 1000, choices.sent + sent).encode()))
    return fitting(frames)


def resume(choices: Choices, channel: int) -> list[bytes]:
    """A link that is attached, detached and attached again with a state for each delivery that there might be."""
    states: tuple[Composite | None, ...] = (None, Accepted(), Released(), Rejected(), Modified(), Received(0, 0))
    state = choices.pick(states)
    is_receiver = choices.chance(2)
    where = choices.pick(QUEUES)
    source = Source("/queues/" + where, expiry_policy="never", durable=choices.number(0, 2))
    target = Target("/queues/" + where, expiry_policy="never", durable=choices.number(0, 2))
    count = choices.amount(9000)
    tags = [index.to_bytes(8, "big") for index in range(count)] if is_receiver else [b"%d" % i for i in range(count)]

    def attach(*, with_states: bool) -> bytes:
        return frame(
            channel,
            Attach(
                "resumed",
                7,
                ROLE_RECEIVER if is_receiver else ROLE_SENDER,
                source=source,
                target=target,
                unsettled=dict.fromkeys(tags, state) if with_states else None,
                incomplete_unsettled=choices.chance(4),
                initial_delivery_count=None if is_receiver else 0,
            ).encode(),
        )

    frames = [attach(with_states=choices.chance(2))]
    if is_receiver:
        frames.append(frame(channel, _flow(7, count, choices.sent).encode()))
    else:
        size = choices.amount(3000)
        frames += [frame(channel, Transfer(7, choices.sent + i, b"%d" % i, 0).encode(), DATA) for i in range(size)]
    frames.append(frame(channel, Detach(7).encode()))
    frames.append(attach(with_states=True))
    if is_receiver:
        frames.append(frame(channel, _flow(7, count, choices.sent).encode()))
    return fitting(frames)


def stream_readers(choices: Choices, channel: int) -> list[bytes]:
    """Readers of a stream by the hundred, each from the beginning, with filters."""
    chosen: dict[str, object] = {
        Symbol(filters.STREAM_OFFSET): Described(Symbol(filters.STREAM_OFFSET), choices.pick(("first", ULong(0)))),
        Symbol(filters.STREAM_FILTER): Described(
            Symbol(filters.STREAM_FILTER), [f"f{index}" for index in range(choices.amount(250))]
        ),
    }
    if choices.chance(2):
        unfiltered = Described(Symbol(filters.STREAM_MATCH_UNFILTERED), choices.chance(2))
        chosen[Symbol(filters.STREAM_MATCH_UNFILTERED)] = unfiltered
    source = Source("/queues/s0", filter=chosen)
    return fitting(
        frame(channel, Attach(f"read{handle}", handle, ROLE_RECEIVER, source=source, target=Target()).encode())
        + frame(channel, _flow(handle, choices.pick((1, 1000)), choices.sent).encode())
        for handle in range(100, 100 + choices.amount(1000))
    )


def give_up(choices: Choices, channel: int) -> list[bytes]:
    """A transaction that retires all that is unsettled, and then fails."""
    outcome = choices.pick((Accepted(), Accepted(), Released(), Rejected()))
    identifier = b"%d" % choices.number(1, 3)
    state = TransactionalState(identifier, outcome)
    last = choices.pick((choices.amount(16_384), 0xFFFF))
    attach = Attach("gives-up", 8, ROLE_SENDER, source=Source(), target=Coordinator(), initial_delivery_count=0)
    requests: list[object] = [Declare(), Discharge(identifier, fail=not choices.chance(4))]
    declare, discharge = (encode_value(Described(ULong(0x77), request)) for request in requests)
    return fitting(
        [
            frame(channel, attach.encode()),
            frame(channel, _flow(1, 100_000, choices.sent).encode()),
            frame(channel, Transfer(8, choices.sent, b"d", 0).encode(), declare),
            frame(channel, Disposition(True, 0, last, choices.chance(2), state).encode()),
            frame(channel, Transfer(8, choices.sent + 1, b"e", 0).encode(), discharge),
        ]
    )


HEAVY_MOVES: Final[tuple[Move, ...]] = tuple(checked(move) for move in (patterns, resume, stream_readers, give_up))
