"""The moves of a 0-9-1 peer: frames of valid sessions, in amounts up to what one read can hold."""

from collections.abc import Callable, Iterable
from typing import Final

from tests.search.choices import Choices
from tests.search.values import EXCHANGES, KEYS, QUEUES, TEXTS, integer, name, table
from waybill.wire.amqp010.errors import EncodeError as Encode010Error
from waybill.wire.amqp091.errors import EncodeError as Encode091Error
from waybill.wire.amqp091.frames import FRAME_BODY, HEARTBEAT_FRAME, content_frames, frame, header_frame, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.method_arguments import BIT, LONG_OCTETS, LONG_STRING, SHORT_STRING, TABLE
from waybill.wire.amqp091.methods import METHODS
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicReject,
)
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelFlow, ChannelOpen
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.methods_exchange import ExchangeBind, ExchangeDeclare, ExchangeDelete, ExchangeUnbind
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDelete, QueuePurge, QueueUnbind
from waybill.wire.amqp091.methods_tx import TxCommit, TxRollback, TxSelect
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.errors import EncodeError as Encode10Error

Move = Callable[[Choices, int], list[bytes]]

ROOM: Final = 256 << 10
TYPES: Final = ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-delayed-message")
INTEGER_SIZES: Final = {1: 1, 2: 2, 3: 4, 4: 8}


def fitting(frames: Iterable[bytes]) -> list[bytes]:
    """As many of them as one read takes."""
    taken: list[bytes] = []
    size = 0
    for each in frames:
        size += len(each)
        if size > ROOM and taken:
            break
        taken.append(each)
    return taken


def queue_arguments(choices: Choices) -> dict[str, object]:
    """What a queue may be declared with; not all of it goes together."""
    found: dict[str, object] = {}
    for argument, values in (
        ("x-queue-type", ("classic", "quorum", "stream")),
        ("x-max-priority", (1, 2, 10, 255)),
        ("x-max-length", (0, 1, 10)),
        ("x-max-length-bytes", (0, 1, 1000)),
        ("x-overflow", ("drop-head", "reject-publish", "reject-publish-dlx")),
        ("x-message-ttl", (0, 1, 1000)),
        ("x-expires", (1, 1000)),
        ("x-max-age", ("1s", "7D", "9" * 20 + "Y")),
        ("x-dead-letter-exchange", EXCHANGES),
        ("x-delivery-limit", (0, 1)),
        ("x-single-active-consumer", (True,)),
        ("x-message-deduplication", (True,)),
    ):
        if choices.chance(4):
            found[argument] = choices.pick(values)
    return found


def bindings(choices: Choices) -> dict[str, object]:
    if choices.chance(2):
        return {}
    count = choices.amount(64)
    return {
        "x-match": choices.pick(("all", "any", "any-with-x", "all-with-x")),
        **{f"h{i}": i % 3 for i in range(count)},
    }


def properties(choices: Choices) -> BasicProperties:
    kind = choices.number(0, 11)
    if kind < 5:
        return BasicProperties(delivery_mode=choices.number(1, 2))
    headers: dict[str, object] | None = None
    if kind == 5:
        headers = {choices.pick(("CC", "BCC")): [choices.pick(KEYS) for _ in range(choices.amount(8000))]}
    elif kind == 6:
        headers = {f"h{index}": index % 3 for index in range(choices.amount(64))}
    elif kind == 7:
        headers = table(choices)
    elif kind == 8:
        headers = {"x-delay": choices.pick((0, 1, 1000, -1, 1 << 40)), "x-deduplication-header": choices.pick(TEXTS)}
    return BasicProperties(
        headers=headers,
        delivery_mode=choices.pick((None, 1, 2, 255)),
        priority=choices.pick((None, 0, 9, 255)),
        expiration=choices.pick((None, None, None, None, "0", "1", "1000", "9" * 9, "-1", "9" * 20)),
        correlation_id=choices.pick((None, "", "c" * 255)),
        reply_to=choices.pick((None, "amq.rabbitmq.reply-to", "q0")),
        user_id=choices.pick((None, None, None, None, None, None, None, "nobody")),
        message_id=choices.pick((None, "m")),
        timestamp=choices.pick((None, 0, (1 << 64) - 1)),
    )


def declare_queues(choices: Choices, channel: int) -> list[bytes]:
    count = choices.amount(3000)
    arguments = queue_arguments(choices)
    flags = choices.number(0, 15)
    prefix = "" if choices.chance(4) else "n"
    return fitting(
        method_frame(
            channel,
            QueueDeclare(
                f"{prefix}{index}" if prefix else "",
                durable=bool(flags & 1),
                exclusive=bool(flags & 2) and bool(flags & 8),
                auto_delete=bool(flags & 4),
                no_wait=True,
                arguments=arguments,
            ),
        )
        for index in range(count)
    )


def declare_exchanges(choices: Choices, channel: int) -> list[bytes]:
    """Many, alone or as a chain, a ring or a tree of bindings."""
    count = choices.amount(2500)
    kind = choices.pick(TYPES)
    arguments: dict[str, object] = {"x-delayed-type": "fanout"} if kind == TYPES[-1] else {}
    if choices.chance(3):
        arguments["alternate-exchange"] = choices.pick(("e1", "fanout", "e0"))
    shape = choices.number(0, 3)
    key = choices.pick(KEYS)

    def frames() -> Iterable[bytes]:
        for index in range(count):
            yield method_frame(channel, ExchangeDeclare(f"e{index}", kind, no_wait=True, arguments=arguments))
            if index and shape:
                source = index - 1 if shape == 1 else index // 2 if shape == 2 else 0
                yield method_frame(channel, ExchangeBind(f"e{index}", f"e{source}", key, no_wait=True))
        if shape == 1:
            yield method_frame(channel, ExchangeBind("e0", f"e{count - 1}", key, no_wait=True))
        yield method_frame(channel, QueueBind("q0", f"e{count - 1}", key, no_wait=True))

    return fitting(frames())


def bind(choices: Choices, channel: int) -> list[bytes]:
    count = choices.amount(5000)
    exchange = name(choices, EXCHANGES[1:])
    queue = name(choices, QUEUES)
    arguments = bindings(choices)
    pattern = choices.pick(("{}", "k.{}", "#.{}.#", "*.*.{}", "#.#.#.{}.#", ".".join(["#"] * 30) + ".{}", "1"))
    undo = choices.chance(4)
    descends = choices.chance(2)

    def frames() -> Iterable[bytes]:
        for number in range(count):
            index = count - 1 - number if descends else number
            own = {**arguments, "h": index} if arguments else arguments
            key = pattern.format(index)
            if undo:
                yield method_frame(channel, QueueUnbind(queue, exchange, key, own))
            else:
                yield method_frame(channel, QueueBind(queue, exchange, key, no_wait=True, arguments=own))

    return fitting(frames())


def bind_exchange(choices: Choices, channel: int) -> list[bytes]:
    kind = ExchangeUnbind if choices.chance(4) else ExchangeBind
    return fitting(
        method_frame(
            channel, kind(name(choices, EXCHANGES[1:]), name(choices, EXCHANGES[1:]), choices.pick(KEYS), no_wait=True)
        )
        for _ in range(choices.amount(200))
    )


def publish(choices: Choices, channel: int) -> list[bytes]:
    count = choices.amount(5000)
    method = method_frame(
        channel,
        BasicPublish(
            name(choices, EXCHANGES),
            choices.pick((*KEYS, "e" * 200, ".".join(["a"] * 120))),
            mandatory=choices.chance(4),
        ),
    )
    body = b"x" * choices.amount(4000)
    frame_size = choices.pick((131_072, 4096, 9, 16))
    content = content_frames(channel, properties(choices), body, frame_size)
    return fitting(method + content for _ in range(count))


def publish_keys(choices: Choices, channel: int) -> list[bytes]:
    """Each by another route."""
    exchange = name(choices, EXCHANGES)
    content = content_frames(channel, properties(choices), b"", 0)
    prefix = choices.pick(("", "k.", "a.b.", "n"))
    return fitting(
        method_frame(channel, BasicPublish(exchange, f"{prefix}{index}")) + content
        for index in range(choices.amount(5000))
    )


def consume(choices: Choices, channel: int) -> list[bytes]:
    queue = name(choices, QUEUES)
    arguments: dict[str, object] = {}
    if choices.chance(3):
        arguments = {"x-priority": choices.pick((0, -1, 10)), "x-stream-offset": choices.pick(("first", "last", 0))}
    no_ack = choices.chance(2)
    exclusive = choices.chance(8)
    rising = choices.chance(4)
    return fitting(
        method_frame(
            channel,
            BasicConsume(
                queue,
                f"c{index}",
                no_ack=no_ack,
                exclusive=exclusive,
                no_wait=True,
                arguments={"x-priority": index} if rising else arguments,
            ),
        )
        for index in range(choices.amount(6000))
    )


def cancel(choices: Choices, channel: int) -> list[bytes]:
    count = choices.amount(6000)
    order = range(count) if choices.chance(2) else range(count - 1, -1, -1)
    return fitting(method_frame(channel, BasicCancel(f"c{index}", no_wait=True)) for index in order)


def get(choices: Choices, channel: int) -> list[bytes]:
    method = method_frame(channel, BasicGet(name(choices, QUEUES), no_ack=choices.chance(3)))
    return fitting([method] * choices.amount(8000))


def settle(choices: Choices, channel: int) -> list[bytes]:
    count = choices.amount(8000)
    first = choices.pick((1, 1, 1, 2, count, (1 << 63) - 1, 1 << 63, (1 << 64) - count - 1))
    order = choices.pick((1, -1, 2, 3))
    multiple = choices.chance(4)
    requeue = choices.chance(2)
    kind = choices.number(0, 2)

    def method(tag: int) -> Method:
        if kind == 0:
            return BasicAck(tag, multiple)
        return BasicNack(tag, multiple, requeue) if kind == 1 else BasicReject(tag, requeue)

    numbers = range(count) if order > 0 else range(count - 1, -1, -1)
    return fitting(method_frame(channel, method((first + number * abs(order)) % (1 << 64))) for number in numbers)


def traffic(choices: Choices, channel: int) -> list[bytes]:
    """Messages for a queue, and somebody who takes them."""
    queue = choices.pick(QUEUES[:5])
    message = method_frame(channel, BasicPublish("", queue)) + content_frames(channel, properties(choices), b"m", 0)
    messages = [message] * choices.amount(2000)
    if choices.chance(2):
        taken = [method_frame(channel, BasicGet(queue))] * choices.amount(2000)
    else:
        no_ack = choices.chance(4)
        taken = [method_frame(channel, BasicConsume(queue, f"t{choices.number(0, 9)}", no_ack=no_ack, no_wait=True))]
    return fitting(messages + taken if choices.chance(2) else taken + messages)


def taken_back(choices: Choices, channel: int) -> list[bytes]:
    return fitting(
        [*traffic(choices, channel), *choices.pick((settle, settle_all, recover, transact))(choices, channel)]
    )


def purge_some(choices: Choices, channel: int) -> list[bytes]:
    queue = choices.pick(QUEUES[:6])
    message = method_frame(channel, BasicPublish("", queue)) + content_frames(channel, properties(choices), b"m", 0)
    last = choices.pick((QueuePurge(queue, no_wait=True), QueueDelete(queue, no_wait=True)))
    return fitting([*[message] * choices.amount(3000), method_frame(channel, last)])


def settle_all(choices: Choices, channel: int) -> list[bytes]:
    return [method_frame(channel, BasicNack(0, multiple=True, requeue=choices.chance(2)))]


def recover(choices: Choices, channel: int) -> list[bytes]:
    return fitting([method_frame(channel, BasicRecover(choices.chance(2)))] * choices.amount(8000))


def transact(choices: Choices, channel: int) -> list[bytes]:
    kind = choices.pick((TxSelect, TxCommit, TxRollback))
    return fitting([method_frame(channel, kind())] * choices.amount(100))


def transact_all(choices: Choices, channel: int) -> list[bytes]:
    """Publishes, outcomes and the end of all that, in a transaction."""
    last = choices.pick((TxCommit, TxRollback, ChannelClose))
    middle = choices.pick((traffic, taken_back, publish, settle, settle_all))(choices, channel)
    frames = fitting([method_frame(channel, TxSelect()), *traffic(choices, channel), *middle])
    return [*frames, method_frame(channel, last())]


def read_stream(choices: Choices, channel: int) -> list[bytes]:
    """Messages in a stream, and readers of it, by the thousand."""
    message = method_frame(channel, BasicPublish("", "s0")) + content_frames(channel, properties(choices), b"m", 0)
    messages = [message] * choices.amount(1000)
    offset = choices.pick(("first", "last", 0, (1 << 63) - 1, "1D", "9" * 20 + "Y"))
    consumes = [
        method_frame(channel, BasicConsume("s0", f"s{index}", no_wait=True, arguments={"x-stream-offset": offset}))
        for index in range(choices.amount(4000))
    ]
    limit = method_frame(channel, BasicQos(0, choices.pick((1, 10, 1000)), False))
    return fitting([limit, *messages, *consumes, *messages[:1]])


def confirm(choices: Choices, channel: int) -> list[bytes]:
    return [method_frame(channel, ConfirmSelect(nowait=choices.chance(2)))]


def purge(choices: Choices, channel: int) -> list[bytes]:
    return fitting([method_frame(channel, QueuePurge(name(choices, QUEUES), no_wait=True))] * choices.amount(3000))


def delete(choices: Choices, channel: int) -> list[bytes]:
    count = choices.amount(3000)
    if choices.chance(2):
        flags = choices.number(0, 3)
        return fitting(
            method_frame(channel, QueueDelete(f"n{index}", bool(flags & 1), bool(flags & 2), no_wait=True))
            for index in range(count)
        )
    if choices.chance(2):
        return [method_frame(channel, QueueDelete(choices.pick(QUEUES), no_wait=True))]
    return fitting(method_frame(channel, ExchangeDelete(f"e{index}", no_wait=True)) for index in range(count))


def channels(choices: Choices, channel: int) -> list[bytes]:
    """Opened, closed, opened again."""
    count = choices.amount(2047)
    kind = choices.number(0, 3)
    if kind == 0:
        return fitting(method_frame(number, ChannelOpen()) for number in range(2, count + 1))
    if kind == 1:
        return fitting(method_frame(number, ChannelClose()) for number in range(1, count + 1))
    if kind == 2:
        return fitting([method_frame(channel, ChannelClose()) + method_frame(channel, ChannelOpen())] * count)
    return [method_frame(channel, ChannelCloseOk()), method_frame(channel, ChannelOpen())]


def limits(choices: Choices, channel: int) -> list[bytes]:
    if choices.chance(3):
        return fitting([method_frame(channel, ChannelFlow(choices.chance(2)))] * choices.amount(5000))
    qos = BasicQos(0, choices.pick((0, 1, 2, 1000, 65535)), choices.chance(2))
    return fitting([method_frame(channel, qos)] * choices.amount(5000))


def bodies(choices: Choices, channel: int) -> list[bytes]:
    """One content, in more frames than it needs."""
    size = choices.pick((0, 1, 100, 1 << 20, (128 << 20) - 1, (1 << 63) - 1, (1 << 64) - 1))
    piece = frame(FRAME_BODY, channel, b"x" * choices.pick((0, 0, 1, 2, 100)))
    head = method_frame(channel, BasicPublish("", choices.pick(KEYS))) + header_frame(
        channel, size, properties(choices)
    )
    return fitting([head] + [piece] * choices.amount(32_000))


def beat(choices: Choices, channel: int) -> list[bytes]:
    return fitting([HEARTBEAT_FRAME] * choices.amount(32_000))


def any_method(choices: Choices, channel: int) -> list[bytes]:
    """Any of all methods, its arguments at their limits."""
    cls = choices.pick(METHODS)
    values: list[object] = []
    for argument, kind in zip(cls.ARGUMENTS.names, cls.ARGUMENTS.kinds, strict=True):
        if argument == "-":
            continue
        if kind == BIT:
            values.append(choices.chance(2))
        elif kind == SHORT_STRING:
            values.append(choices.pick((*QUEUES, *EXCHANGES, "c0", *TEXTS[:4])))
        elif kind == TABLE:
            values.append(table(choices))
        elif kind == LONG_STRING:
            values.append("x" * choices.amount(2000))
        elif kind == LONG_OCTETS:
            values.append(b"\0" * choices.amount(2000))
        else:
            values.append(integer(choices, INTEGER_SIZES[kind]))
    frames = method_frame(0 if cls.CLASS_ID == 10 and choices.chance(2) else channel, cls(*values))
    if cls.HAS_CONTENT and not choices.chance(4):
        frames += content_frames(channel, properties(choices), b"y" * choices.number(0, 20), 4096)
    return fitting([frames] * (choices.amount(3000) if choices.chance(4) else 1))


def checked(move: Move) -> Move:
    """Values that cannot be encoded are left out: octets that no encoder makes come from mutations."""

    def make(choices: Choices, channel: int) -> list[bytes]:
        try:
            return move(choices, channel)
        except (Encode091Error, Encode10Error, Encode010Error):
            return []

    return make


MOVES: Final[tuple[Move, ...]] = tuple(
    checked(move)
    for move in (
        traffic,
        traffic,
        traffic,
        taken_back,
        taken_back,
        taken_back,
        purge_some,
        publish,
        publish,
        publish_keys,
        consume,
        consume,
        get,
        settle,
        settle,
        settle_all,
        any_method,
        any_method,
        declare_queues,
        declare_exchanges,
        bind,
        bind,
        bind_exchange,
        cancel,
        recover,
        transact,
        transact_all,
        read_stream,
        confirm,
        purge,
        delete,
        channels,
        limits,
        bodies,
        beat,
    )
)
