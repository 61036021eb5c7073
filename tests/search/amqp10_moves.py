"""The moves of a 1.0 peer: frames of valid sessions, in amounts up to what one read can hold."""

import dataclasses
from typing import Any, Final

from tests.search.amqp091_moves import Move, checked, fitting
from tests.search.choices import Choices
from tests.search.values import EXCHANGES, INTEGERS, KEYS, QUEUES, TEXTS, amqp_value, name
from waybill.wire.amqp10 import filters
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import EMPTY_FRAME, frame
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import (
    Accepted,
    DeleteOnClose,
    DeleteOnNoLinksOrMessages,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
)
from waybill.wire.amqp10.performatives import (
    PERFORMATIVES,
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Transfer,
)
from waybill.wire.amqp10.transactions import Coordinator, Declare, Discharge, TransactionalState
from waybill.wire.amqp10.types import Described, Symbol, Timestamp, UInt, ULong

SECTIONS: Final = (0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78)
TAIL: Final = "'%a%b%c%d%e%f%g%h%"
SELECTORS: Final = (
    "TRUE",
    "a = 1",
    "p LIKE '" + "%_" * 40 + "z'",
    "p LIKE '%a%a%a%a%a%a%b'",
    "p IN (" + ",".join(f"'{index}'" for index in range(500)) + ")",
    " AND ".join(["a > 1"] * 200),
    "(" * 200 + "a = 1" + ")" * 200,
    "NOT " * 300 + "TRUE",
    "a" + "+ 1" * 300 + " > 0",
    "p BETWEEN 'a' AND 'b' OR p IS NOT NULL",
    "1e999999 > 0 OR 99999999999999999999999999999 = a",
    "a / 0 = 1",
)


def states(choices: Choices) -> Composite | None:
    return choices.pick(
        (
            None,
            Accepted(),
            Accepted(),
            Released(),
            Rejected(),
            Modified(),
            Modified(delivery_failed=True, undeliverable_here=choices.chance(2)),
            Modified(message_annotations={f"x-{index}": index for index in range(choices.amount(50))}),
            Received(choices.pick((0, 1 << 31)), choices.pick((0, 1 << 63))),
            TransactionalState(b"%d" % choices.number(0, 4), choices.pick((None, Accepted(), Released(), Rejected()))),
        )
    )


def address(choices: Choices) -> str | None:
    kind = choices.number(0, 9)
    if kind < 6:
        return "/queues/" + name(choices, QUEUES)
    if kind < 8:
        return f"/exchanges/{name(choices, EXCHANGES[1:])}/{choices.pick(KEYS)}"
    return choices.pick(
        (None, "/management", "q0", "/queue/q0", "/exchanges/topic", "", "/queues/%", "/exchanges/amq.topic")
    )


def described(choices: Choices, filter_name: str) -> Described:
    value: object
    if filter_name in {filters.SELECTOR, filters.SQL}:
        value = choices.pick(SELECTORS)
    elif filter_name in {filters.PROPERTIES, filters.APPLICATION_PROPERTIES, filters.HEADERS_BINDING}:
        value = {
            Symbol("subject") if filter_name == filters.PROPERTIES else f"p{index}": choices.pick(("&p:a", "a", None))
            for index in range(choices.amount(200))
        }
    elif filter_name == filters.STREAM_OFFSET:
        value = choices.pick(("first", "last", ULong(0), Timestamp(0), "1D", ULong((1 << 64) - 1), "9" * 200 + "Y"))
    else:
        value = choices.pick(("a", "#.#.#.#", True, amqp_value(choices), ["a"] * choices.amount(500)))
    return Described(Symbol(filter_name), value)


FILTERS: Final = (
    filters.SELECTOR,
    filters.SQL,
    filters.SELECTOR,
    filters.PROPERTIES,
    filters.APPLICATION_PROPERTIES,
    filters.HEADERS_BINDING,
    filters.TOPIC_BINDING,
    filters.DIRECT_BINDING,
    filters.STREAM_OFFSET,
    filters.STREAM_FILTER,
    filters.STREAM_MATCH_UNFILTERED,
    "unknown:filter",
)


def source(choices: Choices) -> Source:
    kind = choices.number(0, 7)
    where = address(choices)
    if kind < 3:
        return Source(where)
    if kind == 3:
        policy = choices.pick((DeleteOnClose(), DeleteOnNoLinksOrMessages(), 5))
        return Source(None, dynamic=True, dynamic_node_properties={"lifetime-policy": policy})
    chosen: dict[str, object] = {
        name_: described(choices, name_) for name_ in (choices.pick(FILTERS) for _ in range(choices.number(1, 3)))
    }
    return Source(
        where,
        durable=choices.number(0, 3),
        expiry_policy=choices.pick(("session-end", "never", "link-detach", "connection-close", "x")),
        timeout=choices.pick((0, 1, 0xFFFFFFFF)),
        distribution_mode=choices.pick((None, "move", "copy", "x")),
        filter=chosen,
        default_outcome=choices.pick((None, Released(), Modified(delivery_failed=True))),
        outcomes=choices.pick(((), ("amqp:accepted:list",), ("amqp:accepted:list", "amqp:rejected:list"), ("x",))),
    )


def section(choices: Choices) -> bytes:
    """One section: right in most cases, and of any type, shape or count in others."""
    code = choices.pick(SECTIONS)
    kind = choices.number(0, 11)
    if kind == 0:
        return encode_value(Described(ULong(code), amqp_value(choices)))
    if kind == 1:
        return b"\0\x53" + bytes([code]) + choices.octets(choices.number(0, 20))
    if kind == 2:
        return b"\0\x53" + bytes([code]) + b"\xd0" + (4 + choices.number(0, 3)).to_bytes(4, "big") + b"\xff" * 7
    if code == 0x70:
        return Header(
            choices.chance(2), choices.number(0, 255), choices.pick((None, 0, 1, 0xFFFFFFFF)), False, 0
        ).encode()
    if code == 0x73:
        return Properties(
            choices.pick((None, ULong(1), "m", b"m")),
            choices.pick((None, None, b"nobody")),
            address(choices),
            choices.pick(KEYS),
            choices.pick((None, "/queues/q0")),
            absolute_expiry_time=choices.pick((None, 0, (1 << 63) - 1)),
            creation_time=choices.pick((None, -1, 0)),
            group_sequence=choices.pick((None, 0xFFFFFFFF)),
        ).encode()
    if code in {0x71, 0x72, 0x78}:
        annotations = {
            Symbol(key): amqp_value(choices)
            for key in (
                "x-routing-key",
                "x-exchange",
                "x-delay",
                "x-cc",
                "x-stream-filter-value",
                "x-deduplication-header",
            )
            if choices.chance(3)
        }
        if choices.chance(4):
            annotations[Symbol("x-cc")] = [choices.pick(KEYS) for _ in range(choices.amount(500))]
        return encode_value(Described(ULong(code), annotations))
    if code == 0x74:
        text = choices.pick(("a" * choices.amount(4000), "ab" * choices.amount(2000), "1"))
        return encode_value(Described(ULong(code), {"p": text, "a": choices.pick((1, 1.5, True)), "p0": "a"}))
    value = choices.pick((b"d" * choices.amount(2000), b"", [1] * choices.amount(500), amqp_value(choices)))
    return encode_value(Described(ULong(code), value))


def message(choices: Choices) -> bytes:
    kind = choices.number(0, 5)
    if kind < 3:
        return encode_value(Described(ULong(0x75), b"b" * choices.amount(2000)))
    found = [section(choices) for _ in range(choices.number(0, 7))]
    if kind != 3:
        found.sort(key=lambda each: each[2:3])
        if kind == 4:
            found.append(encode_value(Described(ULong(0x75), b"b")))
    return b"".join(found)


def begin(choices: Choices, channel: int) -> list[bytes]:
    window = choices.pick((0, 1, 2048, 0x7FFFFFFF, 0xFFFFFFFF))
    performative = Begin(next_outgoing_id=choices.pick((0, 0xFFFFFFFF)), incoming_window=window, outgoing_window=window)
    ends = choices.chance(3)
    return fitting(
        frame(number, performative.encode()) + (frame(number, End().encode()) if ends else b"")
        for number in range(choices.amount(2047))
    )


def end(choices: Choices, channel: int) -> list[bytes]:
    return fitting(frame(number, End().encode()) for number in range(choices.amount(2047)))


def attach(choices: Choices, channel: int) -> list[bytes]:
    """Links by the thousand, or one of any kind."""
    count = choices.amount(2500) if choices.chance(3) else choices.number(1, 4)
    first = choices.pick((10, 10, 20, 20, 0, 1000, 0xFFFFFFFF - count))
    role = choices.chance(2)
    unsettled = None
    if choices.chance(4):
        unsettled = {b"%d" % index: states(choices) for index in range(choices.amount(2000))}
    fields: dict[str, Any] = {
        "snd_settle_mode": choices.pick((0, 1, 2, 2)),
        "rcv_settle_mode": choices.pick((0, 0, 1)),
        "source": source(choices) if role else Source(choices.pick((None, "s")), outcomes=("amqp:rejected:list",)),
        "target": Target(choices.pick((None, "t"))) if role else target(choices),
        "unsettled": unsettled,
        "incomplete_unsettled": choices.chance(8),
        "initial_delivery_count": choices.pick((0, 0xFFFFFFFF)),
        "max_message_size": choices.pick((None, 0, 100)),
    }
    prefix = choices.pick(("l", "m"))
    closes = choices.chance(4)
    tail = b"" if not closes else frame(channel, Detach(first, closed=choices.chance(2)).encode())
    return fitting(
        frame(channel, Attach(f"{prefix}{index}", first + (0 if closes else index), role, **fields).encode()) + tail
        for index in range(count)
    )


def target(choices: Choices) -> Target | Coordinator:
    if choices.chance(5):
        return Coordinator()
    if choices.chance(6):
        return Target(None, dynamic=True)
    return Target(address(choices), durable=choices.number(0, 2), expiry_policy=choices.pick(("session-end", "never")))


def transfer(choices: Choices, channel: int) -> list[bytes]:
    """Messages, mostly many alike on one link."""
    count = choices.amount(5000)
    handle = choices.pick((0, 0, 0, 0, 0, 0, 1, 4))
    payload = message(choices)
    settled = choices.pick((None, True, False))
    first = choices.sent if not choices.chance(12) else choices.pick((count, 0xFFFFFFFF))
    state = choices.pick((None, None, TransactionalState(b"1")))
    mode = choices.pick((None, None, 0, 1))
    return fitting(
        frame(
            channel,
            Transfer(
                handle,
                (first + index) & 0xFFFFFFFF,
                b"%d" % index,
                0,
                settled,
                rcv_settle_mode=mode,
                state=state,
                resume=False,
            ).encode(),
            payload,
        )
        for index in range(count)
    )


def pieces(choices: Choices, channel: int) -> list[bytes]:
    """One message in many transfers, perhaps never ended, perhaps aborted."""
    handle = choices.pick((0, 0, 0, 0, 4))
    payload = choices.pick((b"", b"\0", message(choices)[:200]))
    first = Transfer(handle, choices.sent, b"p", choices.pick((0, 1)), settled=choices.pick((None, True)), more=True)
    following = frame(channel, Transfer(handle, more=True, resume=choices.chance(9)).encode(), payload)
    last = Transfer(handle, more=choices.chance(3), aborted=choices.chance(3))
    frames = fitting([frame(channel, first.encode(), payload)] + [following] * choices.amount(20_000))
    return [*frames, frame(channel, last.encode(), payload)]


def flow(choices: Choices, channel: int) -> list[bytes]:
    credit = choices.pick((0, 1, 10, 1000, 0x7FFFFFFF, 0xFFFFFFFF))
    handle = choices.pick((None, 0, 1, 1, 1, 1, 10))
    count = choices.amount(8000) if choices.chance(2) else choices.number(1, 3)
    spread = choices.chance(3)
    fields: dict[str, Any] = {
        "next_incoming_id": choices.pick((0, 0, None, 0xFFFFFFFF)),
        "incoming_window": choices.pick((0, 1, 2048, 0xFFFFFFFF)),
        "next_outgoing_id": choices.pick((choices.sent,) * 6 + (0, 0xFFFFFFFF)),
        "outgoing_window": choices.pick((0, 2048)),
        "delivery_count": None if handle is None else choices.pick((0, 0, None, 0xFFFFFFFF)),
        "link_credit": None if handle is None else credit,
        "drain": choices.chance(3),
        "echo": choices.chance(3),
    }
    if choices.chance(8):
        fields["properties"] = {"txn-id": b"1"}
    return fitting(
        frame(channel, Flow(handle=handle if handle is None or not spread else index, **fields).encode())
        for index in range(count)
    )


def disposition(choices: Choices, channel: int) -> list[bytes]:
    state = states(choices)
    settled = choices.chance(2)
    role = ROLE_RECEIVER if not choices.chance(4) else ROLE_SENDER
    count = choices.amount(8000)
    shape = choices.number(0, 3)
    if shape == 0:
        last = choices.pick((0, 10, 60_000, 0xFFFFFFFF))
        return fitting([frame(channel, Disposition(role, 0, last, settled, state).encode())] * choices.amount(50))
    order = range(count) if shape == 1 else range(count - 1, -1, -1)
    step = 2 if shape == 3 else 1
    return fitting(frame(channel, Disposition(role, index * step, None, settled, state).encode()) for index in order)


def detach(choices: Choices, channel: int) -> list[bytes]:
    closed = choices.chance(2)
    return fitting(frame(channel, Detach(index, closed).encode()) for index in range(choices.amount(2500)))


def transact(choices: Choices, channel: int) -> list[bytes]:
    """A coordinator's link on handle 3, and what it does."""
    frames: list[bytes] = []
    if choices.chance(2):
        link = Attach("txn", 3, ROLE_SENDER, source=Source(), target=Coordinator(), initial_delivery_count=0)
        frames.append(frame(channel, link.encode()))
    discharges = choices.chance(2)
    bodies = (
        Discharge(b"%d" % (index + 1), fail=choices.chance(2)) if discharges else Declare()
        for index in range(choices.amount(2000))
    )
    frames += [
        frame(
            channel,
            Transfer(3, index, b"x%d" % index, 0).encode(),
            encode_value(Described(ULong(0x77), body)),
        )
        for index, body in enumerate(bodies)
    ]
    return fitting(frames)


def manage(choices: Choices, channel: int) -> list[bytes]:
    """Requests to the management node over links 4 and 5."""
    frames: list[bytes] = []
    if choices.chance(2):
        pair: dict[str, object] = {"paired": True}
        frames = [
            frame(
                channel,
                Attach(
                    "mgmt",
                    4,
                    ROLE_SENDER,
                    1,
                    source=Source("/management"),
                    target=Target("/management"),
                    initial_delivery_count=0,
                    properties=pair,
                ).encode(),
            ),
            frame(
                channel,
                Attach(
                    "mgmt",
                    5,
                    ROLE_RECEIVER,
                    1,
                    source=Source("/management"),
                    target=Target("/management"),
                    properties=pair,
                ).encode(),
            ),
            frame(
                channel,
                Flow(
                    next_incoming_id=0,
                    incoming_window=2048,
                    next_outgoing_id=0,
                    outgoing_window=2048,
                    handle=5,
                    delivery_count=0,
                    link_credit=choices.pick((0, 1, 10_000)),
                ).encode(),
            ),
        ]
    method = choices.pick(("PUT", "GET", "DELETE", "POST", "x"))
    body = choices.pick(
        (
            None,
            {"durable": True, "arguments": {"x-max-priority": UInt(255)}},
            {"source": "fanout", "destination_queue": "q0", "binding_key": "a", "arguments": {}},
            {"type": "headers"},
            amqp_value(choices),
        )
    )
    path = choices.pick(
        (
            "/queues/n{}",
            "/queues/q0/messages",
            "/bindings",
            "/exchanges/e{}",
            "/bindings?src=fanout&dstq=q0&key=",
            "/bindings/src=fanout;dstq=q0;key=;args=",
            "/",
            "/queues/%zz",
            "/queues/q0",
        )
    )
    encoded = encode_value(Described(ULong(0x77), body))
    for index in range(choices.amount(2000)):
        request = Properties(ULong(index), None, path.format(index), method, "$me").encode()
        frames.append(frame(channel, Transfer(4, index, b"g%d" % index, 0, True).encode(), request + encoded))
    return fitting(frames)


def empty(choices: Choices, channel: int) -> list[bytes]:
    return fitting([EMPTY_FRAME] * choices.amount(32_000))


def any_performative(choices: Choices, channel: int) -> list[bytes]:
    """Any performative with fields of any type, or of the right ones at their limits."""
    cls = choices.pick(PERFORMATIVES)
    code = int(cls.CODE)  # type: ignore[attr-defined] # their common base is `type`
    if choices.chance(2):
        values: list[object] = [odd_field(choices) for _ in range(choices.number(0, len(dataclasses.fields(cls)) + 1))]
        body = encode_value(Described(ULong(code), values))
    else:
        number = choices.pick([value for value in INTEGERS if value >= 0])
        values = [
            choices.pick((UInt(number & 0xFFFFFFFF), None, True, ULong(number & ((1 << 64) - 1)))) for _ in range(6)
        ]
        body = encode_value(Described(ULong(code), values))
    return fitting(
        [frame(channel, body, message(choices) if choices.chance(2) else b"")]
        * (choices.amount(500) if choices.chance(4) else 1)
    )


def odd_field(choices: Choices) -> object:
    kind = choices.number(0, 5)
    if kind == 0:
        return amqp_value(choices)
    if kind == 1:
        return states(choices)
    if kind == 2:
        return source(choices)
    return choices.pick((None, UInt(0), UInt(1), True, False, "l0", b"t", Symbol("x"), *TEXTS[2:4]))


def open_links(choices: Choices, channel: int) -> list[bytes]:
    """What most sessions begin with: a sender on handle 0, a receiver on 1, with credit."""
    number = choices.number(0, 99)
    where = "/queues/" + choices.pick(QUEUES)
    return [
        frame(
            channel,
            Attach(
                f"s{number}", 0, ROLE_SENDER, source=Source(), target=Target(where), initial_delivery_count=0
            ).encode(),
        ),
        frame(
            channel,
            Attach(
                f"r{number}",
                1,
                ROLE_RECEIVER,
                source=source(choices) if choices.chance(3) else Source(where),
                target=Target(),
            ).encode(),
        ),
        frame(
            channel,
            Flow(
                next_incoming_id=0,
                incoming_window=0x7FFFFFFF,
                next_outgoing_id=0,
                outgoing_window=2048,
                handle=1,
                delivery_count=0,
                link_credit=choices.pick((1, 1000, 100_000)),
            ).encode(),
        ),
    ]


TRANSFER: Final = checked(transfer)
OPEN_LINKS: Final = checked(open_links)
MOVES: Final[tuple[Move, ...]] = (TRANSFER,) * 5 + tuple(
    checked(move)
    for move in (
        open_links,
        attach,
        attach,
        attach,
        flow,
        flow,
        disposition,
        disposition,
        disposition,
        any_performative,
        any_performative,
        transact,
        transact,
        manage,
        pieces,
        begin,
        end,
        detach,
        empty,
    )
)
