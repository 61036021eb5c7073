"""What attackers do to a real broker over AMQP 0-10: see `sieges`."""

from collections.abc import Callable, Iterator
from typing import Final

from tests.security.siege import Siege, login010
from waybill.wire.amqp010.class_dtx import DtxEnd, DtxPrepare, DtxSelect, DtxStart, Xid
from waybill.wire.amqp010.class_exchange import ExchangeBind, ExchangeBound, ExchangeDeclare
from waybill.wire.amqp010.class_execution import ExecutionSync
from waybill.wire.amqp010.class_message import (
    DeliveryProperties,
    MessageAccept,
    MessageFlow,
    MessageProperties,
    MessageRelease,
    MessageSubscribe,
    MessageTransfer,
)
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueQuery
from waybill.wire.amqp010.class_session import (
    SessionAttach,
    SessionCompleted,
    SessionDetach,
    SessionExpected,
    SessionFlush,
    SessionKnownCompleted,
    SessionRequestTimeout,
)
from waybill.wire.amqp010.class_tx import TxSelect
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.frames import HEARTBEAT_FRAME
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp010.struct import Command, Control

Attack = Callable[[Siege, int], None]
SESSIONS: Final = 2000
ALL: Final = 0xFFFFFFFF
DAY_S: Final = 86_400
RANGES: Final = 8000
HOLES: Final = 500
LONG: Final = "x" * 240


def commands(channel: int, *values: Command) -> bytes:
    return b"".join(encode_command(channel, value) for value in values)


def controls(channel: int, *values: Control) -> bytes:
    return b"".join(encode_control(channel, value) for value in values)


def publish(channel: int, key: str, body: bytes, accept_mode: int = 1, **delivery: object) -> bytes:
    header = encode_header(DeliveryProperties(routing_key=key, **delivery))  # type: ignore[arg-type]
    return encode_command(channel, MessageTransfer("", accept_mode, 0), header=header, body=body)


def subscribe(channel: int, queue: str, destination: str, accept_mode: int = 0, acquire_mode: int = 0) -> bytes:
    return commands(
        channel,
        MessageSubscribe(queue, destination, accept_mode, acquire_mode),
        MessageFlow(destination, 0, ALL),
        MessageFlow(destination, 1, ALL),
    )


def filled(siege: Siege, queue: str, count: int, body: bytes) -> None:
    """A queue with messages."""
    siege.connect(login010() + commands(0, QueueDeclare(queue))).send_all(publish(0, queue, body) for _ in range(count))
    siege.serve(1)


def sessions_010(siege: Siege, count: int) -> None:
    """As many in one connection as there are channels."""
    for start in range(0, count, SESSIONS):
        siege.connect(login010(min(SESSIONS, count - start), 0, f"{start}-"))


def kept_sessions(siege: Siege, count: int) -> None:
    """They are to be kept for a day, each with subscriptions."""
    attacker = siege.connect(login010() + commands(0, QueueDeclare("kept")))

    def pieces() -> Iterator[bytes]:
        for number in range(count):
            name = f"{LONG}{number}".encode()
            yield controls(1, SessionAttach(name), SessionRequestTimeout(DAY_S))
            yield commands(1, *[MessageSubscribe("kept", f"{LONG[:200]}{index}") for index in range(5)])
            yield controls(1, SessionDetach(name))

    attacker.send_all(pieces())


def stolen_sessions(siege: Siege, count: int) -> None:
    """Two connections take one session from each other."""
    pair = [siege.connect(login010(0)) for _ in range(2)]
    for number in range(count // 50 + 1):
        pair[number % 2].send(controls(0, SessionAttach(b"one", force=True), SessionRequestTimeout(60)) * 50)


def attached_again(siege: Siege, count: int) -> None:
    """Each time all that it got is to be sent again, and it confirms nothing."""
    filled(siege, "again", 2000, b"x" * 500)
    attacker = siege.connect(login010(1, DAY_S) + subscribe(0, "again", "d", accept_mode=1))
    siege.serve(1)
    once = controls(0, SessionDetach(b"attacker0"), SessionAttach(b"attacker0"), SessionExpected(()))
    attacker.send_all(once for _ in range(count))


def unconfirmed_answers(siege: Siege, count: int) -> None:
    """Of a session that may have to send them again."""
    siege.connect(login010(1, DAY_S)).send_all(commands(0, QueueQuery("nowhere")) for _ in range(count))


def unconfirmed_deliveries(siege: Siege, count: int) -> None:
    """By many sessions, which are then left."""
    filled(siege, "unconfirmed", count, b"x" * 1000)
    for number in range(10):
        hello = login010(20, DAY_S, f"u{number}-")
        attacker = siege.connect(hello)
        attacker.send_all(subscribe(channel, "unconfirmed", "d", 1, 1) for channel in range(20))
        siege.serve(1)
        attacker.hang_up()


def holes(siege: Siege, count: int) -> None:
    """Every second completion is said to be known, as many as one may."""
    scattered = tuple([(2 * number, 2 * number) for number in range(HOLES)])
    attacker = siege.connect(login010())
    attacker.send_all(commands(0, ExecutionSync()) for _ in range(count))
    attacker.send_all(controls(0, SessionKnownCompleted(scattered)) for _ in range(3))
    attacker.send_all(controls(0, SessionFlush(completed=True, confirmed=True)) for _ in range(count))


def huge_ranges(siege: Siege, count: int) -> None:
    """Of everything, thousands of times over, in outcomes and completions."""
    filled(siege, "ranges", 2000, b"")
    everything = ((0, (1 << 31) - 1),) * RANGES
    attacker = siege.connect(login010() + subscribe(0, "ranges", "d"))
    kinds = (MessageRelease(everything), MessageAccept(everything))
    attacker.send_all(
        commands(0, kinds[number % 7 == 6]) + controls(0, SessionCompleted(((0, 0),) * RANGES))
        for number in range(count)
    )


def windows(siege: Siege, count: int) -> None:
    """Messages that need no acceptance are delivered, gone, and never said to be completed."""
    attacker = siege.connect(login010(20) + commands(0, QueueDeclare("window")))
    attacker.send_all(subscribe(channel, "window", "d", accept_mode=1) for channel in range(20))
    siege.connect(login010()).send_all(publish(0, "window", b"x" * (number & 1)) for number in range(count))


def looks(siege: Siege, count: int) -> None:
    """Copies of the same messages for many subscriptions."""
    filled(siege, "looks", 2000, b"x" * 100)
    attacker = siege.connect(login010(5))
    attacker.send_all(
        subscribe(number % 5, "looks", f"d{number}", number & 1, acquire_mode=1) for number in range(count)
    )


def subscriptions(siege: Siege, count: int) -> None:
    attacker = siege.connect(login010() + commands(0, QueueDeclare("s")))
    attacker.send_all(commands(0, MessageSubscribe("s", f"{LONG}{number}")) for number in range(count))


def branches(siege: Siege, count: int) -> None:
    """Begun, with messages, prepared, and forgotten by who began them."""
    attacker = siege.connect(login010() + commands(0, DtxSelect(), QueueDeclare("branches", durable=True)))

    def pieces() -> Iterator[bytes]:
        for number in range(count):
            xid = Xid(number, b"g" * 64, b"b" * 64)
            yield commands(0, DtxStart(xid)) + publish(0, "branches", b"x" * 10_000, delivery_mode=2)
            yield commands(0, DtxEnd(xid), *([DtxPrepare(xid)] if number % 2 else []))

    attacker.send_all(pieces())


def transactions_010(siege: Siege, count: int) -> None:
    """In every session, with messages that are never committed."""
    for start in range(0, count, SESSIONS):
        few = min(SESSIONS, count - start)
        attacker = siege.connect(login010(few, 0, f"{start}-"))
        attacker.send_all(
            commands(number, TxSelect()) + publish(number, "bystander", b"x" * 60_000) for number in range(few)
        )


def crumbs(siege: Siege, count: int) -> None:
    """Frames of one octet, of commands that never end, on many channels."""
    header = encode_header(DeliveryProperties(routing_key="q"))
    attacker = siege.connect(login010(100))
    for number in range(100):
        whole = encode_command(number, MessageTransfer(), 13, header=header, body=b"x" * max(count // 100, 1))
        attacker.send(whole[:-13])


def large_headers(siege: Siege, count: int) -> None:
    """To many exchanges, so that none of them is like the one before."""
    properties = MessageProperties(application_headers={"h": "x" * 60_000})
    exchanges = [ExchangeDeclare(f"large{number}", "fanout") for number in range(64)]
    attacker = siege.connect(login010() + commands(0, *exchanges))
    header = encode_header(DeliveryProperties(routing_key="k"), properties)
    attacker.send_all(
        encode_command(0, MessageTransfer(f"large{number % 64}", 1, 0), header=header, body=b"")
        for number in range(count)
    )


def nests(siege: Siege, count: int) -> None:
    """Maps as deep as they may be, to an exchange that looks at them."""
    nest: object = "x"
    for _ in range(28):
        nest = [nest]
    properties = MessageProperties(application_headers={f"n{number}": nest for number in range(50)})
    header = encode_header(DeliveryProperties(routing_key="k"), properties)
    attacker = siege.connect(login010() + commands(0, QueueDeclare("n"), QueueDeclare("m")))
    attacker.send(commands(0, ExchangeBind("n", "amq.match", "k", {"x-match": "all", "n0": "x"})))
    attacker.send_all(
        encode_command(0, MessageTransfer("amq.match", 1, 0), header=header, body=b"") for _ in range(count)
    )


def questions(siege: Siege, count: int) -> None:
    """Whether there is a binding, of an exchange that has thousands."""
    attacker = siege.connect(login010() + commands(0, QueueDeclare("b"), ExchangeDeclare("many", "headers")))
    attacker.send_all(
        commands(0, ExchangeBind("b", "many", f"k{number}", {"x-match": "all", "n": number}))
        for number in range(min(count, 5000))
    )
    asked = ExchangeBound("many", "b", "nowhere", {"x-match": "any", "n": -1})
    attacker.send_all(commands(0, asked) for _ in range(count))


def unread_answers_010(siege: Siege, count: int) -> None:
    siege.connect(login010(), is_deaf=True).send_all(commands(0, QueueQuery("bystander")) for _ in range(count))


def heartbeats_010(siege: Siege, count: int) -> None:
    siege.connect(login010()).send_all(HEARTBEAT_FRAME for _ in range(count))


ATTACKS: Final[tuple[tuple[Attack, int, int], ...]] = (
    (sessions_010, 300, 100_000),
    (kept_sessions, 50, 50_000),
    (stolen_sessions, 500, 100_000),
    (attached_again, 20, 20_000),
    (unconfirmed_answers, 1_000, 500_000),
    (unconfirmed_deliveries, 50, 10_000),
    (holes, 2_000, 200_000),
    (huge_ranges, 3, 300),
    (windows, 2_000, 1_000_000),
    (looks, 5, 500),
    (subscriptions, 300, 120_000),
    (branches, 50, 20_000),
    (transactions_010, 50, 4_000),
    (crumbs, 2_000, 500_000),
    (large_headers, 30, 5_000),
    (nests, 50, 20_000),
    (questions, 50, 20_000),
    (unread_answers_010, 500, 500_000),
    (heartbeats_010, 1_000, 500_000),
)
