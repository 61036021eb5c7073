"""What attackers do to a real broker. Each takes how many to do it with: few in the suite, 100,000 in `make siege`.

An attack returns when all is sent, or the broker takes no more; what it holds is held until the siege ends.
"""

import ssl
from collections.abc import Callable, Iterator
from typing import Final

from tests.security import sieges_of_0_10, sieges_of_leavers, sieges_of_many
from tests.security.siege import Siege, login, login10, methods
from waybill.wire.amqp091.frames import FRAME_HEADER, PROTOCOL_HEADER, content_frames, frame
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicGet, BasicPublish, BasicQos
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.methods_connection import ConnectionStartOk, ConnectionTuneOk
from waybill.wire.amqp091.methods_exchange import ExchangeBind, ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDelete
from waybill.wire.amqp091.methods_tx import TxSelect
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.descriptors import PROPERTIES
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER
from waybill.wire.amqp10.frames import frame as amqp10_frame
from waybill.wire.amqp10.messaging import Accepted, Source, Target
from waybill.wire.amqp10.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Detach,
    Flow,
    Open,
    Transfer,
)
from waybill.wire.amqp10.sections import encode_amqp_value, encode_data
from waybill.wire.amqp10.transactions import Coordinator, Declare
from waybill.wire.amqp10.types import Described, Symbol, ULong

Attack = Callable[[Siege, int], None]

WINDOW: Final = 0x7FFFFFFF
CHANNELS: Final = 2047
LONG: Final = "x" * 240


def publish(channel: int, key: str, body: bytes, headers: dict[str, object] | None = None, exchange: str = "") -> bytes:
    properties = BasicProperties(headers=headers)
    return methods(channel, BasicPublish(exchange, key)) + content_frames(channel, properties, body, 131_072)


def groups(count: int, size: int) -> list[range]:
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def channels(count: int) -> bytes:
    """Channels from 2 on."""
    return b"".join(methods(number + 2, ChannelOpen()) for number in range(min(count, CHANNELS - 1)))


# --- what is declared ---


def queues(siege: Siege, count: int) -> None:
    siege.connect(login()).send_all(methods(1, QueueDeclare(f"q{n}", no_wait=True)) for n in range(count))


def durable_queues(siege: Siege, count: int) -> None:
    siege.connect(login()).send_all(methods(1, QueueDeclare(f"d{n}", durable=True, no_wait=True)) for n in range(count))


def exclusive_queues(siege: Siege, count: int) -> None:
    siege.connect(login()).send_all(
        methods(1, QueueDeclare(f"e{n}", exclusive=True, no_wait=True)) for n in range(count)
    )


def queues_with_priorities(siege: Siege, count: int) -> None:
    """255 priority levels each, of which some are used."""
    arguments: dict[str, object] = {"x-max-priority": 255}

    def pieces() -> Iterator[bytes]:
        for n in range(count):
            yield methods(1, QueueDeclare(f"p{n}", no_wait=True, arguments=arguments))
            for priority in range(0, 255, 5):
                yield methods(1, BasicPublish("", f"p{n}"))
                yield content_frames(1, BasicProperties(priority=priority), b"", 0)

    siege.connect(login()).send_all(pieces())


def queues_of_long_names(siege: Siege, count: int) -> None:
    siege.connect(login()).send_all(methods(1, QueueDeclare(f"{LONG}{n}", no_wait=True)) for n in range(count))


def queues_of_large_arguments(siege: Siege, count: int) -> None:
    arguments: dict[str, object] = {f"x-{n}": "y" * 100 for n in range(120)}
    siege.connect(login()).send_all(
        methods(1, QueueDeclare(f"a{n}", no_wait=True, arguments=arguments)) for n in range(count)
    )


def queues_that_expire(siege: Siege, count: int) -> None:
    """Each is touched again and again."""
    arguments: dict[str, object] = {"x-expires": 3_600_000}
    siege.connect(login()).send_all(
        methods(1, QueueDeclare(f"t{n % 100}", no_wait=True, arguments=arguments)) for n in range(count)
    )


def queues_that_come_and_go(siege: Siege, count: int) -> None:
    arguments: dict[str, object] = {"x-expires": 3_600_000}
    siege.connect(login()).send_all(
        methods(1, QueueDeclare("go", no_wait=True, arguments=arguments), QueueDelete("go", no_wait=True))
        for _ in range(count)
    )


def exchanges(siege: Siege, count: int) -> None:
    siege.connect(login()).send_all(
        methods(1, ExchangeDeclare(f"x{n}", ("topic", "headers", "fanout", "direct")[n % 4], no_wait=True))
        for n in range(count)
    )


def hash_exchanges(siege: Siege, count: int) -> None:
    siege.connect(login()).send_all(
        methods(1, ExchangeDeclare(f"h{n}", "x-consistent-hash", no_wait=True))
        + methods(1, QueueDeclare("hq", no_wait=True), QueueBind("hq", f"h{n}", "10000", no_wait=True))
        for n in range(count)
    )


def delayed_exchanges(siege: Siege, count: int) -> None:
    arguments: dict[str, object] = {"x-delayed-type": "topic"}
    siege.connect(login()).send_all(
        methods(1, ExchangeDeclare(f"dx{n}", "x-delayed-message", no_wait=True, arguments=arguments))
        for n in range(count)
    )


def bindings(siege: Siege, count: int) -> None:
    attacker = siege.connect(login() + methods(1, QueueDeclare("b", no_wait=True)))
    attacker.send_all(methods(1, QueueBind("b", "amq.direct", f"key{n}", no_wait=True)) for n in range(count))


def topic_bindings(siege: Siege, count: int) -> None:
    attacker = siege.connect(login() + methods(1, QueueDeclare("b", no_wait=True)))
    words = ".".join("ab" * 40)
    attacker.send_all(methods(1, QueueBind("b", "amq.topic", f"{n}.{words}", no_wait=True)) for n in range(count))


def header_bindings(siege: Siege, count: int) -> None:
    attacker = siege.connect(login() + methods(1, QueueDeclare("b", no_wait=True)))
    attacker.send_all(
        methods(1, QueueBind("b", "amq.headers", "", no_wait=True, arguments={"n": n, "x": LONG})) for n in range(count)
    )


def exchange_bindings(siege: Siege, count: int) -> None:
    attacker = siege.connect(login())
    attacker.send_all(
        methods(1, ExchangeBind("amq.fanout", "amq.topic", f"{n}.#.{n}", no_wait=True)) for n in range(count)
    )


# --- what a connection has ---


def consumers(siege: Siege, count: int) -> None:
    attacker = siege.connect(login() + methods(1, QueueDeclare("c", no_wait=True)) + channels(count // 60_000 + 1))
    attacker.send_all(
        methods(n // 60_000 + 1, BasicConsume("c", f"{LONG}{n}"[-250:], no_wait=True)) for n in range(count)
    )


def open_channels(siege: Siege, count: int) -> None:
    for _ in range(count // CHANNELS + 1):
        siege.connect(login() + channels(min(count, CHANNELS)))


def transactions(siege: Siege, count: int) -> None:
    """On every channel, with messages that are never committed."""
    for _ in range(count // CHANNELS + 1):
        attacker = siege.connect(login() + channels(min(count, CHANNELS)))
        attacker.send_all(
            methods(number + 1, TxSelect()) + publish(number + 1, "bystanders", b"x" * 100_000)
            for number in range(min(count, CHANNELS))
        )


def transactions_beside_queues(siege: Siege, count: int) -> None:
    """Declarations have taken all that they may when the transactions begin."""
    queues(siege, count * 25)
    transactions(siege, count)


def queues_beside_transactions(siege: Siege, count: int) -> None:
    transactions(siege, count)
    queues(siege, count * 25)


def unfinished_bodies(siege: Siege, count: int) -> None:
    """Two of three octets on every channel."""
    for _ in range(count // CHANNELS + 1):
        attacker = siege.connect(login() + channels(min(count, CHANNELS)))
        attacker.send_all(
            methods(number + 1, BasicPublish("", "q"))
            + content_frames(number + 1, BasicProperties(), b"x" * 150_000, 100_000)[:100_050]
            for number in range(min(count, CHANNELS))
        )


def bodies_of_crumbs(siege: Siege, count: int) -> None:
    """Body frames of one octet each."""
    header = frame(FRAME_HEADER, 1, b"\x00\x3c\x00\x00" + (30 << 20).to_bytes(8, "big") + b"\0\0")
    crumb = frame(3, 1, b"x")
    siege.connect(login() + methods(1, BasicPublish("", "q")) + header).send_all(crumb for _ in range(count))


def direct_reply_consumers(siege: Siege, count: int) -> None:
    """They ask and are gone."""
    for _ in range(count):
        attacker = siege.connect(
            login()
            + methods(1, BasicConsume("amq.rabbitmq.reply-to", no_ack=True, no_wait=True))
            + methods(1, BasicPublish("", "nowhere"))
            + content_frames(1, BasicProperties(reply_to="amq.rabbitmq.reply-to"), b"", 0)
        )
        attacker.hang_up()


# --- who does not listen ---


def slow_reader(siege: Siege, count: int) -> None:
    """Of a large backlog, without prefetch, and another with no_ack."""
    body = b"x" * 10_000
    siege.connect(login() + methods(1, QueueDeclare("backlog", durable=True, no_wait=True))).send_all(
        publish(1, "backlog", body) for _ in range(count)
    )
    siege.connect(login() + methods(1, BasicConsume("backlog", no_wait=True)), is_deaf=True)
    siege.connect(login() + methods(1, BasicConsume("backlog", no_ack=True, no_wait=True)), is_deaf=True)


def many_slow_readers(siege: Siege, count: int) -> None:
    """Each gets what its transport takes, and no more."""
    siege.connect(login() + methods(1, QueueDeclare("backlog", durable=True, no_wait=True))).send_all(
        publish(1, "backlog", b"x" * 50_000) for _ in range(count * 20)
    )
    for _ in range(count):
        siege.connect(login() + methods(1, BasicConsume("backlog", no_wait=True)), is_deaf=True)


def hoarders(siege: Siege, count: int) -> None:
    """They read all that they get, and settle nothing."""
    _backlog(siege, count)
    for _ in range(4):
        siege.connect(login() + methods(1, BasicQos(0, 60_000), BasicConsume("backlog", no_wait=True)))


def hoarding_links(siege: Siege, count: int) -> None:
    """The same by 1.0, with a selector and with copies."""
    _backlog(siege, count)
    chosen: dict[Symbol, object] = {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a IS NULL")}
    sources: tuple[dict[str, object], ...] = ({}, {"filter": chosen}, {"distribution_mode": "copy"}, {"durable": 2})
    for number, fields in enumerate(sources):
        siege.connect(login10(f"h{number}")).send(
            amqp10_frame(0, receiver("hoarder", 0, "/queues/backlog", **fields)),
            amqp10_frame(0, credit(0, WINDOW)),
        )


def _backlog(siege: Siege, count: int) -> None:
    """Large messages, half of them durable."""
    one = [
        methods(1, BasicPublish("", "backlog"))
        + content_frames(1, BasicProperties(delivery_mode=mode), b"x" * 50_000, 131_072)
        for mode in (1, 2)
    ]
    siege.connect(login() + methods(1, QueueDeclare("backlog", durable=True, no_wait=True))).send_all(
        one[n % 2] for n in range(count)
    )


def getter(siege: Siege, count: int) -> None:
    """Asks, and reads none of the answers."""
    siege.connect(login() + methods(1, QueueDeclare("backlog", no_wait=True))).send_all(
        publish(1, "backlog", b"x" * 1000) for _ in range(count)
    )
    siege.connect(login(), is_deaf=True).send_all(methods(1, BasicGet("backlog")) for _ in range(count))


def unread_returns(siege: Siege, count: int) -> None:
    one = methods(1, BasicPublish("", "nowhere", mandatory=True)) + content_frames(1, BasicProperties(), b"x" * 1000, 0)
    siege.connect(login(), is_deaf=True).send_all(one for _ in range(count))


def unread_confirms(siege: Siege, count: int) -> None:
    attacker = siege.connect(login() + methods(1, ConfirmSelect(), QueueDeclare("c", no_wait=True)), is_deaf=True)
    attacker.send_all(publish(1, "c" if n % 2 else "nowhere", b"") for n in range(count))


def unread_answers(siege: Siege, count: int) -> None:
    siege.connect(login(), is_deaf=True).send_all(methods(1, BasicQos(0, 1)) for _ in range(count))


def stream_readers(siege: Siege, count: int) -> None:
    arguments: dict[str, object] = {"x-queue-type": "stream"}
    attacker = siege.connect(
        login()
        + methods(1, QueueDeclare("s", durable=True, no_wait=True, arguments=arguments), BasicQos(0, 100))
        + b"".join(publish(1, "s", b"x" * 20_000) for _ in range(200))
    )
    attacker.send_all(
        methods(1, BasicConsume("s", f"r{n}", no_wait=True, arguments={"x-stream-offset": "first"}))
        for n in range(count)
    )


# --- messages that go round ---


def dead_letters(siege: Siege, count: int) -> None:
    """Round and round without a client, through a cycle of queues with a time to live."""
    size = 20
    siege.connect(
        login()
        + b"".join(
            methods(
                1,
                QueueDeclare(
                    f"r{n}",
                    no_wait=True,
                    arguments={
                        "x-message-ttl": 0,
                        "x-dead-letter-exchange": "",
                        "x-dead-letter-routing-key": f"r{(n + 1) % size}",
                    },
                ),
            )
            for n in range(size)
        )
    ).send_all(publish(1, f"r{n % size}", b"x") for n in range(count))


def delayed_messages(siege: Siege, count: int) -> None:
    arguments: dict[str, object] = {"x-delayed-type": "fanout"}
    attacker = siege.connect(
        login() + methods(1, ExchangeDeclare("later", "x-delayed-message", no_wait=True, arguments=arguments))
    )
    attacker.send_all(publish(1, "", b"", {"x-delay": 86_400_000 + n}, "later") for n in range(count))


def tiny_messages(siege: Siege, count: int) -> None:
    siege.connect(login() + methods(1, QueueDeclare("tiny", no_wait=True))).send_all(
        publish(1, "tiny", b"") for _ in range(count)
    )


def heads_of_many_queues(siege: Siege, count: int) -> None:
    """A little in each of many queues."""
    siege.connect(login()).send_all(
        methods(1, QueueDeclare(f"head{n}", no_wait=True)) + publish(1, f"head{n}", b"x" * 100_000)
        for n in range(count)
    )


def heads_beside_declarations(siege: Siege, count: int) -> None:
    """Messages that nobody consumes fill the memory, and then declarations do."""
    attacker = siege.connect(login())
    for number in range(20):
        attacker.send(methods(1, QueueDeclare(f"full{number}", no_wait=True)))
    attacker.send_all(publish(1, f"full{n % 20}", b"x" * 30_000) for n in range(count))
    siege.connect(login()).send_all(methods(1, QueueDeclare(f"beside{n}", no_wait=True)) for n in range(count * 4))


def deduplication(siege: Siege, count: int) -> None:
    arguments: dict[str, object] = {"x-message-deduplication": True}
    siege.connect(login() + methods(1, QueueDeclare("once", no_wait=True, arguments=arguments))).send_all(
        publish(1, "once", b"", {"x-deduplication-header": f"{LONG}{n}"}) for n in range(count)
    )


# --- AMQP 1.0 ---


def performatives(channel: int, *values: object) -> bytes:
    return b"".join(amqp10_frame(channel, value.encode()) for value in values)  # type: ignore[attr-defined]


def sender(name: str, handle: int, address: str | None, **fields: object) -> bytes:
    target = Target(address, **fields)  # type: ignore[arg-type]
    return Attach(name, handle, ROLE_SENDER, source=Source(), target=target, initial_delivery_count=0).encode()


def receiver(name: str, handle: int, address: str, **fields: object) -> bytes:
    source = Source(address, **fields)  # type: ignore[arg-type]
    return Attach(name, handle, ROLE_RECEIVER, source=source, target=Target()).encode()


def credit(handle: int, count: int) -> bytes:
    return Flow(
        next_incoming_id=0,
        incoming_window=WINDOW,
        next_outgoing_id=0,
        outgoing_window=WINDOW,
        handle=handle,
        delivery_count=0,
        link_credit=count,
    ).encode()


def sessions(siege: Siege, count: int) -> None:
    """As many in one connection as there are channels."""
    for numbers in groups(count, 2_000):
        siege.connect(login10(f"s{numbers[0]}", len(numbers)))


def links(siege: Siege, count: int) -> None:
    declare(siege, "links")
    for numbers in groups(count, 4_000):
        siege.connect(login10(f"l{numbers[0]}")).send_all(
            amqp10_frame(0, (receiver if n % 2 else sender)(f"{LONG}{n}", n - numbers[0], "/queues/links"))
            for n in numbers
        )


def detached_links(siege: Siege, count: int) -> None:
    """They promise to live for ever."""
    declare(siege, "links")
    attacker = siege.connect(login10())
    attacker.send_all(
        amqp10_frame(0, receiver(f"{LONG}{n}", 0, "/queues/links", expiry_policy="never")) + performatives(0, Detach(0))
        for n in range(count)
    )


def unsettled_maps(siege: Siege, count: int) -> None:
    declare(siege, "links")
    unsettled = {n.to_bytes(32, "big"): Accepted() for n in range(2000)}
    attacker = siege.connect(login10())
    attacker.send_all(
        amqp10_frame(
            0,
            Attach(
                f"u{n}",
                n,
                ROLE_SENDER,
                source=Source(),
                target=Target("/queues/links"),
                initial_delivery_count=0,
                unsettled=dict(unsettled),
                incomplete_unsettled=n % 2 == 1,
            ).encode(),
        )
        for n in range(count)
    )


def partial_deliveries(siege: Siege, count: int) -> None:
    """The first half of a delivery on each of many links."""
    declare(siege, "links")
    half = encode_data(b"x" * 60_000)
    for numbers in groups(count, 4_000):
        siege.connect(login10(f"p{numbers[0]}")).send_all(
            amqp10_frame(0, sender(f"p{n}", n - numbers[0], "/queues/links"))
            + amqp10_frame(0, Transfer(n - numbers[0], n - numbers[0], b"t", 0, more=True).encode(), half)
            for n in numbers
        )


def settling_deliveries(siege: Siege, count: int) -> None:
    """Second settles, and never does: the broker keeps each outcome until the sender has settled."""
    declare(siege, "settling")
    attacker = siege.connect(login10())
    attacker.send(amqp10_frame(0, sender("out", 0, "/queues/settling")))
    for start in range(0, count, 100):
        attacker.send_all(
            amqp10_frame(0, Transfer(0, n, n.to_bytes(32, "big"), 0).encode(), encode_data(b""))
            for n in range(start, min(start + 100, count))
        )


def unsettled_deliveries(siege: Siege, count: int) -> None:
    """A receiver that never settles."""
    tiny_messages(siege, count)
    siege.connect(login10()).send(
        amqp10_frame(0, receiver("in", 0, "/queues/tiny")), amqp10_frame(0, credit(0, WINDOW))
    )


def coordinators(siege: Siege, count: int) -> None:
    """Transactions that are declared and never discharged."""
    attacker = siege.connect(login10())
    attach = Attach("control", 0, ROLE_SENDER, source=Source(), target=Coordinator(), initial_delivery_count=0)
    attacker.send(performatives(0, attach))
    attacker.send_all(
        amqp10_frame(0, Transfer(0, n, n.to_bytes(4, "big"), 0).encode(), encode_amqp_value(Declare()))
        for n in range(count)
    )


def management(siege: Siege, count: int) -> None:
    """Requests without end; the answers are read."""
    attacker = siege.connect(login10())
    attacker.send(
        amqp10_frame(0, sender("requests", 0, "/management")),
        amqp10_frame(0, receiver("answers", 1, "/management")),
        amqp10_frame(0, credit(1, WINDOW)),
    )
    attacker.send_all(_request(n, "PUT", f"/queues/m{n}", {"durable": False}) for n in range(count))


def unread_management(siege: Siege, count: int) -> None:
    """The answers are not read."""
    attacker = siege.connect(login10(), is_deaf=True)
    attacker.send(
        amqp10_frame(0, sender("requests", 0, "/management")),
        amqp10_frame(0, receiver("answers", 1, "/management")),
        amqp10_frame(0, credit(1, WINDOW)),
    )
    attacker.send_all(_request(n, "GET", "/queues/bystander", None) for n in range(count))


def _request(number: int, method: str, path: str, body: object) -> bytes:
    properties = Described(ULong(PROPERTIES), [ULong(number), None, path, method, "$me"])
    payload = encode_value(properties) + encode_amqp_value(body)
    return amqp10_frame(0, Transfer(0, number, number.to_bytes(4, "big"), 0, settled=True).encode(), payload)


def dynamic_nodes(siege: Siege, count: int) -> None:
    for numbers in groups(count, 4_000):
        siege.connect(login10(f"dyn{numbers[0]}")).send_all(
            performatives(
                0,
                Attach(f"d{n}", n - numbers[0], ROLE_RECEIVER, source=Source(dynamic=True), target=Target()),
            )
            for n in numbers
        )


# --- at the door ---


def flood(siege: Siege, count: int) -> None:
    for _ in range(count):
        siege.connect()


def flood_of_logins(siege: Siege, count: int) -> None:
    for _ in range(count):
        siege.connect(login())


def flood_of_wrong_logins(siege: Siege, count: int) -> None:
    hello = PROTOCOL_HEADER + methods(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0wrong"))
    for _ in range(count):
        siege.connect(hello)


def heartbeats(siege: Siege, count: int) -> None:
    """Each connection wants one each half a second."""
    for _ in range(count):
        siege.connect(login(1))


def half_way_in(siege: Siege, count: int) -> None:
    """Every state of a handshake, and then silence."""
    whole = [
        login(),
        login10(),
        SASL_HEADER + bytes.fromhex("0000001a02010000") + b"\x00\x53\x41\xd0" + bytes(4),
        PROTOCOL_HEADER + methods(0, ConnectionStartOk({}, "SCRAM-SHA-256", b"n,,n=guest,r=abc")),
        PROTOCOL_HEADER + methods(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"), ConnectionTuneOk(0, 0, 0)),
        AMQP_HEADER + amqp10_frame(0, Open("x").encode()),
    ]
    for n in range(count):
        hello = whole[n % len(whole)]
        siege.connect(hello[: 1 + n * 7 % len(hello)])


def large_opens(siege: Siege, count: int) -> None:
    """Frames of the largest size before anybody has logged in."""
    properties: dict[str, object] = {f"k{n}": LONG for n in range(250)}
    started = PROTOCOL_HEADER + methods(0, ConnectionStartOk(properties, "SCRAM-SHA-256", b"n,,n=guest,r=abc"))
    for _ in range(count):
        siege.connect(started)


def tls_that_stops(siege: Siege, count: int) -> None:
    """A client hello cut anywhere, to the plain port."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        hello = outgoing.read()
    for n in range(count):
        siege.connect(hello[: n * 11 % len(hello)])


def declare(siege: Siege, queue: str) -> None:
    siege.connect(login() + methods(1, QueueDeclare(queue, no_wait=True)))
    siege.serve(2)


# How many of each: in the suite, and in a siege of its own.
ATTACKS: Final[tuple[tuple[Attack, int, int], ...]] = (
    (queues, 300, 100_000),
    (durable_queues, 300, 100_000),
    (exclusive_queues, 300, 100_000),
    (queues_with_priorities, 5, 2_000),
    (queues_of_long_names, 100, 100_000),
    (queues_of_large_arguments, 20, 20_000),
    (queues_that_expire, 500, 100_000),
    (queues_that_come_and_go, 300, 50_000),
    (exchanges, 300, 100_000),
    (hash_exchanges, 10, 2_000),
    (delayed_exchanges, 100, 50_000),
    (bindings, 500, 200_000),
    (topic_bindings, 50, 30_000),
    (header_bindings, 200, 100_000),
    (exchange_bindings, 200, 100_000),
    (consumers, 300, 120_000),
    (open_channels, 500, 100_000),
    (transactions, 100, 4_000),
    (transactions_beside_queues, 100, 4_000),
    (queues_beside_transactions, 100, 4_000),
    (unfinished_bodies, 50, 8_000),
    (bodies_of_crumbs, 2_000, 500_000),
    (direct_reply_consumers, 20, 2_000),
    (slow_reader, 100, 60_000),
    (many_slow_readers, 10, 400),
    (hoarders, 100, 12_000),
    (hoarding_links, 100, 12_000),
    (getter, 300, 100_000),
    (unread_returns, 300, 200_000),
    (unread_confirms, 500, 300_000),
    (unread_answers, 500, 500_000),
    (stream_readers, 20, 5_000),
    (dead_letters, 100, 20_000),
    (delayed_messages, 300, 300_000),
    (tiny_messages, 1_000, 500_000),
    (heads_of_many_queues, 20, 5_000),
    (heads_beside_declarations, 50, 5_000),
    (deduplication, 300, 200_000),
    (sessions, 300, 100_000),
    (links, 300, 100_000),
    (detached_links, 200, 100_000),
    (unsettled_maps, 3, 2_000),
    (partial_deliveries, 50, 8_000),
    (settling_deliveries, 500, 200_000),
    (unsettled_deliveries, 500, 300_000),
    (coordinators, 100, 20_000),
    (management, 100, 50_000),
    (unread_management, 200, 100_000),
    (dynamic_nodes, 50, 50_000),
    (flood, 50, 4_000),
    (flood_of_logins, 20, 2_000),
    (flood_of_wrong_logins, 10, 1_000),
    (heartbeats, 20, 3_000),
    (half_way_in, 50, 3_000),
    (large_opens, 10, 2_000),
    (tls_that_stops, 20, 2_000),
    *sieges_of_0_10.ATTACKS,
    *sieges_of_leavers.ATTACKS,
    *sieges_of_many.ATTACKS,
)
