"""The moves of a 0-10 peer: controls and commands of valid sessions, in amounts up to what one read can hold.

Ids of commands count themselves; those of deliveries are not known here, so ranges are guessed, from 0 on.
"""

from collections.abc import Iterator
from typing import Any, Final

from tests.search.amqp091_moves import Move, checked, fitting
from tests.search.choices import Choices
from tests.search.values import EXCHANGES, INTEGERS, KEYS, QUEUES, TEXTS, amqp_value, name
from waybill.wire.amqp010 import codes, struct
from waybill.wire.amqp010.class_dtx import (
    DtxCommit,
    DtxEnd,
    DtxForget,
    DtxGetTimeout,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSelect,
    DtxSetTimeout,
    DtxStart,
    Xid,
)
from waybill.wire.amqp010.class_exchange import (
    ExchangeBind,
    ExchangeBound,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeQuery,
    ExchangeUnbind,
)
from waybill.wire.amqp010.class_execution import ExecutionSync
from waybill.wire.amqp010.class_message import (
    DeliveryProperties,
    MessageAccept,
    MessageAcquire,
    MessageCancel,
    MessageFlow,
    MessageFlush,
    MessageProperties,
    MessageReject,
    MessageRelease,
    MessageSetFlowMode,
    MessageStop,
    MessageSubscribe,
    MessageTransfer,
    ReplyTo,
)
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueDelete, QueuePurge, QueueQuery
from waybill.wire.amqp010.class_session import (
    SessionAttach,
    SessionCommandPoint,
    SessionCompleted,
    SessionConfirmed,
    SessionDetach,
    SessionDetached,
    SessionExpected,
    SessionFlush,
    SessionGap,
    SessionKnownCompleted,
    SessionRequestTimeout,
)
from waybill.wire.amqp010.class_tx import TxCommit, TxRollback, TxSelect
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.frames import HEARTBEAT_FRAME
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp010.operations import COMMANDS, CONTROLS
from waybill.wire.amqp010.struct import Command, Control, Struct
from waybill.wire.amqp010.types import Array, Ranges
from waybill.wire.amqp10.types import UByte, UInt, ULong, Uuid

LAST: Final = (1 << 32) - 1
RANGES_MAX: Final = 8191
DESTINATIONS: Final = ("d0", "d1", "d2", "", "x" * 255)
SESSION_NAMES: Final = (b"s", b"s0", b"s1", b"", b"n" * 4096)
XIDS: Final = tuple(Xid(number, b"g" * 64, b"b%d" % number) for number in range(3))


def ranges(choices: Choices, count: int) -> Ranges:
    """Ids: one range, or many of them: scattered, of everything, over each other, backwards, around the end."""
    start = choices.pick((0, 0, 0, 1, 100, LAST - 50, 1 << 31))
    count = min(count, RANGES_MAX)
    shape = choices.number(0, 6)
    if shape == 0:
        return ((start, start),)
    if shape == 1:
        return ((0, choices.pick((100, 20_000, (1 << 31) - 1, LAST))),)
    if shape == 2:
        return ((0, (1 << 31) - 1),) * count
    step = choices.pick((1, 2, 3))
    found = [((start + step * index) & LAST, (start + step * index) & LAST) for index in range(count)]
    if shape == 3:
        found.reverse()
    elif shape == 4:
        found = [(first, (first + 7 * count) & LAST) for first, _ in found]
    return tuple(found)


def value(choices: Choices, depth: int = 0) -> object:
    """A value of a map."""
    kind = choices.number(0, 9)
    if kind == 0 and depth < 4:
        return mapping(choices, depth + 1)
    if kind == 1 and depth < 4:
        return [value(choices, depth + 1) for _ in range(choices.number(0, 6))]
    if kind == 2:
        nest: object = None
        for _ in range(choices.number(1, 28)):
            nest = [nest] if choices.chance(2) else {"n": nest}
        return nest
    if kind == 3:
        return Array(codes.UINT32, tuple([UInt(index) for index in range(choices.amount(500))]))
    if kind == 4:
        return amqp_value(choices, depth + 1)
    simple = (None, True, UByte(255), ULong((1 << 64) - 1), -(1 << 63), Uuid(bytes(16)), "t" * 300, b"\xff" * 300, 1.5)
    return choices.pick(simple)


def mapping(choices: Choices, depth: int = 0) -> dict[str, object]:
    shape = choices.number(0, 4)
    if shape == 0:
        return {f"k{index}": index for index in range(choices.amount(2000))}
    keys = ("a", "h1", "x-match", "qpid.subject", "x-death", "x-delay", "CC", "k" * 255)
    return {choices.pick(keys): value(choices, depth) for _ in range(shape)}


def header(choices: Choices) -> bytes:
    """The header segment of a message."""
    kind = choices.number(0, 9)
    if kind == 0:
        return choices.octets(choices.amount(200))
    if kind == 1:
        return b""
    number = choices.pick((0, 1, (1 << 63) - 1, (1 << 64) - 1))
    delivery = DeliveryProperties(
        discard_unroutable=choices.chance(3),
        immediate=choices.chance(6),
        priority=choices.number(0, 9),
        delivery_mode=choices.pick((None, 1, 2)),
        ttl=choices.pick((None, None, 0, 1, number)),
        expiration=choices.pick((None, None, None, number)),
        exchange=choices.pick(EXCHANGES),
        routing_key=choices.pick(KEYS),
        resume_id="r" if choices.chance(9) else None,
    )
    if kind < 6:
        return encode_header(delivery)
    properties = MessageProperties(
        content_length=choices.pick((None, 0, number)),
        message_id=choices.pick((None, Uuid(bytes(16)))),
        correlation_id=choices.pick((None, b"c" * choices.amount(300))),
        reply_to=choices.pick((None, ReplyTo(choices.pick(EXCHANGES), choices.pick(KEYS)))),
        user_id=choices.pick((None, None, b"nobody")),
        content_type=choices.pick((None, "text/plain", "c" * 255)),
        application_headers=mapping(choices),
    )
    return encode_header(delivery, properties) * choices.pick((1, 1, 1, 1, 1, 2))


def transfer(choices: Choices, channel: int) -> list[bytes]:
    """Messages: many alike, or each with a body of its own, whose completion may be asked for."""
    command = MessageTransfer(choices.pick(EXCHANGES), choices.pick((0, 1)), choices.pick((0, 0, 1)))
    octets = header(choices)
    body = choices.pick((None, b"", b"b", b"b" * choices.amount(2000)))
    sync = choices.chance(4)
    spread = choices.chance(4)
    return fitting(
        encode_command(
            channel, command, sync=sync, header=octets, body=b"%d" % index if spread or body is None else body
        )
        for index in range(choices.amount(8000))
    )


def traffic(choices: Choices, channel: int) -> list[bytes]:
    """Messages to a queue, and a subscription that gets them, or copies of them."""
    queue = choices.pick(QUEUES)
    destination = choices.pick(DESTINATIONS)
    octets = encode_header(DeliveryProperties(routing_key=queue, delivery_mode=choices.pick((None, 2))))
    send = encode_command(channel, MessageTransfer("", choices.pick((0, 1))), header=octets, body=b"body")
    frames = fitting([send] * choices.amount(4000))
    subscribe = MessageSubscribe(queue, destination, choices.pick((0, 1)), choices.pick((0, 0, 1)))
    flows = [
        MessageSetFlowMode(destination, choices.pick((0, 1))),
        MessageFlow(destination, 1, choices.pick((10, 10_000, LAST))),
        MessageFlow(destination, 0, choices.pick((10, 4000, LAST))),
    ]
    return frames + [encode_command(channel, one) for one in (subscribe, *flows)]


def subscribe(choices: Choices, channel: int) -> list[bytes]:
    queue = name(choices, QUEUES)
    known: tuple[dict[str, object] | None, ...] = (None, None, {"x-priority": 5}, {"x-stream-offset": "first"})
    arguments = choices.pick((*known, mapping(choices)))
    gives = choices.chance(2)

    def pieces() -> Iterator[bytes]:
        for index in range(choices.amount(3000)):
            one = MessageSubscribe(
                queue,
                f"m{index}",
                index & 1,
                choices.pick((0, 1)),
                exclusive=choices.chance(20),
                arguments=arguments,
            )
            yield encode_command(channel, one)
            if gives:
                yield encode_command(channel, MessageFlow(f"m{index}", 0, LAST))
                yield encode_command(channel, MessageFlow(f"m{index}", 1, choices.pick((1, 100, LAST))))

    return fitting(pieces())


def credit(choices: Choices, channel: int) -> list[bytes]:
    """Everything that can be said of a subscription, again and again."""
    where = choices.pick(DESTINATIONS)
    number = choices.pick((0, 1, 10, 10_000, LAST))
    kinds: tuple[Command, ...] = (
        MessageFlow(where, 0, number),
        MessageFlow(where, 1, number),
        MessageFlush(where),
        MessageStop(where),
        MessageSetFlowMode(where, choices.pick((0, 1))),
        MessageCancel(where),
        MessageSubscribe(choices.pick(QUEUES), where, 0, choices.pick((0, 1))),
    )
    chosen = [encode_command(channel, choices.pick(kinds)) for _ in range(choices.number(1, 3))]
    return fitting(chosen * choices.amount(6000))


def settle(choices: Choices, channel: int) -> list[bytes]:
    """Outcomes and acquisitions: huge ranges, a great many of them, or one command each."""
    kind: Any = choices.pick((MessageAccept, MessageAccept, MessageRelease, MessageReject, MessageAcquire))
    if choices.chance(2):
        order = range(choices.amount(6000))
        return fitting(encode_command(channel, kind(((index, index),))) for index in order)
    command = kind(ranges(choices, choices.amount(RANGES_MAX)))
    return fitting([encode_command(channel, command, sync=choices.chance(2))] * choices.number(1, 5))


def complete(choices: Choices, channel: int) -> list[bytes]:
    """What a peer has, knows, expects and leaves out."""
    kinds: Any = (SessionCompleted, SessionCompleted, SessionKnownCompleted, SessionConfirmed, SessionGap)
    kind = choices.pick((*kinds, SessionExpected))
    if choices.chance(2):
        return fitting(encode_control(channel, kind(((index, index),))) for index in range(choices.amount(8000)))
    control = kind(ranges(choices, choices.amount(RANGES_MAX)))
    return fitting([encode_control(channel, control)] * choices.number(1, 5))


def ask(choices: Choices, channel: int) -> list[bytes]:
    """Controls of a session, in any order, some of which are answered."""
    timeout = choices.pick((None, 0, 1, 60, LAST))
    kinds: tuple[Control, ...] = (
        SessionFlush(expected=True, confirmed=True, completed=True),
        SessionFlush(completed=True),
        SessionRequestTimeout(timeout),
        SessionRequestTimeout(60),
        SessionCommandPoint(choices.pick((0, 1, 70, LAST, 1 << 31)), choices.pick((0, 0, 1))),
    )
    chosen = [encode_control(channel, choices.pick(kinds)) for _ in range(choices.number(1, 3))]
    return fitting(chosen * choices.amount(6000))


def declare(choices: Choices, channel: int) -> list[bytes]:
    """Queues, exchanges and bindings that come, go, and are asked for."""
    known: tuple[dict[str, object] | None, ...] = (
        None,
        {"x-max-length": 3},
        {"qpid.priorities": 10},
        {"x-queue-type": "stream"},
    )
    arguments = choices.pick(known)
    alternate = choices.pick((None, None, "fanout", "topic"))
    matched = {"x-match": "all", "n": 1}
    kind = choices.number(0, 8)

    def one(index: int) -> tuple[Command, ...]:
        new = f"n{index}"
        if kind == 0:
            return (QueueDeclare(new, alternate, auto_delete=index % 2 == 0, arguments=arguments),)
        if kind == 1:
            return QueueDeclare(new, alternate, exclusive=True), QueueDelete(new)
        if kind == 2:
            return (ExchangeDeclare(new, choices.pick(("topic", "headers", "direct")), alternate),)
        if kind == 3:
            return ExchangeDeclare(new, "fanout"), ExchangeDelete(new)
        if kind == 4:
            return (ExchangeBind("q0", "topic", f"{index}.#.{index}", {}),)
        if kind == 5:
            return (ExchangeBind("q0", "headers", new, matched), ExchangeBound("headers", "q0", new, matched))
        if kind == 6:
            return ExchangeBound("topic", "", new), ExchangeBound("fanout", "q0", "a"), ExchangeUnbind("q0", "topic")
        if kind == 7:
            return QueueQuery(choices.pick(QUEUES)), ExchangeQuery(choices.pick(EXCHANGES)), ExecutionSync()
        return QueuePurge(choices.pick(QUEUES)), QueueDelete(choices.pick((*QUEUES, new)), if_empty=choices.chance(2))

    return fitting(encode_command(channel, each) for index in range(choices.amount(3000)) for each in one(index))


def transact(choices: Choices, channel: int) -> list[bytes]:
    """Messages and outcomes in a transaction, and its end."""
    octets = encode_header(DeliveryProperties(routing_key=choices.pick(QUEUES)))
    send = encode_command(channel, MessageTransfer(choices.pick(("", "fanout"))), header=octets, body=b"b")
    ends: tuple[Command, ...] = (TxCommit(), TxRollback(), TxCommit(), TxSelect())
    frames = [encode_command(channel, TxSelect())] if choices.chance(2) else []
    for _ in range(choices.number(1, 4)):
        frames += fitting([send] * choices.amount(3000))
        if choices.chance(2):
            frames.append(encode_command(channel, MessageAccept(ranges(choices, choices.amount(2000)))))
        frames += [encode_command(channel, choices.pick(ends))] * choices.pick((1, 1, choices.amount(2000)))
    return fitting(frames)


def distribute(choices: Choices, channel: int) -> list[bytes]:
    """Branches: with work in them, without an end, or by the thousand."""
    frames = [encode_command(channel, DtxSelect())] if choices.chance(2) else []
    if choices.chance(3):
        many = (Xid(number, b"g", b"b") for number in range(choices.amount(3000)))
        ends = choices.chance(3)
        frames += [
            encode_command(channel, one)
            for xid in many
            for one in ((DtxStart(xid), DtxEnd(xid)) if not ends else (DtxStart(xid), DtxEnd(xid), DtxPrepare(xid)))
        ]
        return fitting([*frames, encode_command(channel, DtxRecover())])
    octets = encode_header(DeliveryProperties(routing_key=choices.pick(QUEUES), delivery_mode=2))
    send = encode_command(channel, MessageTransfer(), header=octets, body=b"b")
    for _ in range(choices.number(1, 8)):
        xid = choices.pick(XIDS)
        commands: tuple[Command, ...] = (
            DtxStart(xid),
            DtxStart(xid, join=True),
            DtxStart(xid, resume=True),
            DtxEnd(xid),
            DtxEnd(xid, fail=True),
            DtxEnd(xid, suspend=True),
            DtxPrepare(xid),
            DtxCommit(xid, one_phase=choices.chance(2)),
            DtxRollback(xid),
            DtxForget(xid),
            DtxGetTimeout(xid),
            DtxSetTimeout(xid, choices.pick((0, 1, 3600, LAST))),
            DtxRecover(),
            MessageAccept(ranges(choices, choices.amount(1000))),
        )
        frames.append(encode_command(channel, choices.pick(commands)))
        if choices.chance(2):
            frames += fitting([send] * choices.amount(2000))
    return fitting(frames)


def sessions(choices: Choices, channel: int) -> list[bytes]:
    """Attached, kept, left, attached again, and stolen from each other."""
    known = choices.pick(SESSION_NAMES)
    force = choices.chance(2)
    timeout = choices.pick((0, 60, 60, LAST))
    shape = choices.number(0, 4)

    def one(index: int) -> tuple[tuple[int, Control], ...]:
        if shape == 0:
            new = known[:100] + b"%d" % index
            return (9, SessionAttach(new)), (9, SessionRequestTimeout(timeout)), (9, SessionDetach(new))
        if shape == 1:
            return ((index % 2047, SessionAttach(b"%d" % index, force=force)),)
        if shape == 2:
            return (channel, SessionDetach(known)), (channel, SessionAttach(known, force=force))
        if shape == 3:
            return (channel, SessionDetached(known)), (channel, SessionFlush(expected=True))
        return (channel, SessionAttach(b"s%d" % channel, force=True)), (channel, SessionExpected(((0, 0),)))

    return fitting(encode_control(where, each) for index in range(choices.amount(4000)) for where, each in one(index))


def resume(choices: Choices, channel: int) -> list[bytes]:
    """A session that is kept, left with deliveries on their way, and attached again by who knows little of it."""
    known = b"s%d" % channel
    controls: tuple[Control, ...] = (
        SessionRequestTimeout(60),
        SessionDetach(known),
        SessionAttach(known),
        SessionExpected(choices.pick(((), ((0, 0),), ((5, 9),), ((LAST, LAST),), ranges(choices, 3)))),
        SessionCommandPoint(choices.pick((0, 1, 5, 1000)), 0),
    )
    once = [encode_control(channel, control) for control in controls]
    return fitting(once * choices.amount(1000) + traffic(choices, channel))


def pieces(choices: Choices, channel: int) -> list[bytes]:
    """A command in a great many frames, perhaps without its end, or of segments that cannot follow each other."""
    size = choices.pick((13, 20, 100, 4096))
    octets = encode_header(DeliveryProperties(routing_key="q0"))
    command = MessageTransfer("", 1)
    whole = encode_command(channel, command, size, header=octets, body=b"b" * choices.amount(100_000))
    frames = []
    while whole:
        end = int.from_bytes(whole[2:4], "big")
        frames.append(whole[:end])
        whole = whole[end:]
    if choices.chance(2):
        del frames[choices.random.randrange(1, len(frames)) :]
    if choices.chance(4):
        frames = frames[:2] + [frames[-1][:2] + b"\0\x0c" + frames[-1][4:12]] * choices.amount(20_000)
    return fitting(frames)


def beat(choices: Choices, channel: int) -> list[bytes]:
    return fitting([HEARTBEAT_FRAME] * choices.amount(16_000))


def any_operation(choices: Choices, channel: int) -> list[bytes]:
    """Any control or command, with fields of the right types at their limits."""
    cls = choices.pick((*CONTROLS, *COMMANDS, *COMMANDS))
    if issubclass(cls, Control) and cls.NAME.startswith("connection.close"):
        return []
    operation = filled(choices, cls)
    if isinstance(operation, Control):
        octets = encode_control(choices.pick((0, channel)), operation)
    else:
        assert isinstance(operation, Command)
        has_content = operation.HAS_CONTENT and choices.chance(2)
        octets = encode_command(channel, operation, header=header(choices) if has_content else None)
    return fitting([octets] * (choices.amount(2000) if choices.chance(4) else 1))


def filled(choices: Choices, cls: type[Struct]) -> Struct:
    fields = cls.FIELDS
    arguments = {
        name_: field(choices, kind)
        for name_, kind in zip(fields.names, fields.kinds, strict=True)
        if choices.number(0, 3)
    }
    return cls(**arguments)


WIDTHS: Final = {struct.UINT8: 8, struct.UINT16: 16, struct.UINT32: 32, struct.UINT64: 64}
OCTETS: Final = frozenset({struct.VBIN8, struct.VBIN16, struct.VBIN32, struct.ARRAY, struct.BYTE_RANGES})


def field(choices: Choices, kind: int) -> object:
    if kind == struct.BIT:
        return choices.chance(2)
    if kind in WIDTHS:
        return choices.pick(INTEGERS) % (1 << WIDTHS[kind])
    if kind in {struct.STR8, struct.STR16}:
        return choices.pick((*QUEUES, *EXCHANGES, *KEYS, *TEXTS, *DESTINATIONS, "n1"))
    if kind in OCTETS:
        return choices.pick((b"", b"s", b"s0", b"\xff" * 255, choices.octets(8)))
    if kind == struct.MAP:
        return mapping(choices)
    if kind == struct.RANGES:
        return ranges(choices, choices.amount(2000))
    if kind == struct.STRINGS:
        return tuple([choices.pick(KEYS)] * choices.number(0, 4))
    if kind == struct.STRUCT_ARRAY:
        return XIDS
    return Uuid(bytes(16)) if kind == struct.UUID else choices.pick(XIDS)


def attach(choices: Choices, channel: int) -> list[bytes]:
    """The session of a channel, if it is not there any more."""
    controls = (SessionAttach(b"s%d" % channel, force=choices.chance(3)), SessionCommandPoint(0, 0))
    return [encode_control(channel, control) for control in controls[: choices.pick((1, 2))]]


ATTACH: Final = checked(attach)
TRAFFIC: Final = checked(traffic)
AFTER_TRAFFIC: Final = tuple(checked(move) for move in (settle, settle, complete, credit, transact, resume, sessions))
MOVES: Final[tuple[Move, ...]] = (
    *AFTER_TRAFFIC * 2,
    *(TRAFFIC,) * 4,
    *(
        checked(move)
        for move in (
            transfer,
            transfer,
            transfer,
            subscribe,
            declare,
            declare,
            ask,
            distribute,
            distribute,
            pieces,
            any_operation,
            any_operation,
            beat,
        )
    ),
)
