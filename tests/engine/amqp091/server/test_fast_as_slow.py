"""A channel recognises what repeats itself, and answers it as the first of its kind, however odd or malformed.

Each case is sent over a channel that has sent nothing yet, as the third after well-formed messages with the same
method frame, after three of its own, and in one write with others around it. Errors, confirms, returns, and what
consumers get must be the same; so must the answers to acknowledgements that stand alone, and in a row of good ones.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench, Peer
from waybill.wire.amqp091.field_table import encode_table
from waybill.wire.amqp091.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, content_frames, frame, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicAck, BasicDeliver, BasicNack, BasicPublish, BasicReject
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk
from waybill.wire.amqp091.methods_connection import ConnectionClose
from waybill.wire.amqp091.properties import BasicProperties

FRAME_MAX: Final = 4096
QUEUES: Final = ("q", "r", "levels", "short", "dead")


@dataclass(frozen=True)
class Case:
    """The frames behind the method frame of a publish to `exchange` with `key`."""

    content: bytes
    key: str = "q"
    exchange: str = ""
    mandatory: bool = False

    @property
    def method(self) -> bytes:
        return method_frame(1, BasicPublish(self.exchange, self.key, mandatory=self.mandatory))


def header(flags: int, values: bytes, size: int = 4, class_id: int = 60, weight: int = 0, channel: int = 1) -> bytes:
    fields = class_id.to_bytes(2, "big") + weight.to_bytes(2, "big") + size.to_bytes(8, "big")
    return frame(FRAME_HEADER, channel, fields + flags.to_bytes(2, "big") + values)


BODY: Final = frame(FRAME_BODY, 1, b"body")


def good(properties: BasicProperties | None = None, body: bytes = b"body") -> bytes:
    return content_frames(1, properties or BasicProperties(), body, FRAME_MAX)


def property_cases() -> Iterator[bytes]:
    for mode in (0, 1, 2, 3, 255):
        yield good(BasicProperties(delivery_mode=mode))
        yield good(BasicProperties(priority=mode))
    for text in ("", "0", "1", "5000", "-1", "1.5", " 5", "5 ", "+5", "1" * 18, "1" * 19, "x", "\u0663"):
        yield good(BasicProperties(expiration=text))
    for name in ("content_type", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id"):
        for text in ("", "guest", "x" * 255, "amq.rabbitmq.reply-to", "\udcff"):
            properties = BasicProperties()
            setattr(properties, name, text)
            yield good(properties)
    for stamp in (0, 1, 2**63, 2**64 - 1):
        yield good(BasicProperties(timestamp=stamp))
    for bit in range(16):
        yield header(1 << bit, b"") + BODY
        yield header(1 << bit, b"\x00") + BODY
        yield header(1 << bit, b"\x02ok") + BODY
        yield header(1 << bit, b"\x05cut") + BODY
        yield header(1 << bit, b"\x00\x00\x00\x00\x00\x00\x00\x01") + BODY
    yield header(0, b"more") + BODY
    yield header(0x8000, b"\x03a/b" + b"more") + BODY


def header_table_cases() -> Iterator[bytes]:
    tables: tuple[dict[str, object], ...] = (
        {"CC": ["r"]}, {"BCC": ["r"]}, {"CC": ["r"], "BCC": ["levels"]}, {"CC": "r"}, {"CC": [1]}, {"BCC": [None]},
        {"CC": []}, {"x": "y" * 3900, "CC": ["r"]}, {"CC": ["q", "q"]}, {"x-death": [{"queue": "q"}]}, {"x-death": 5},
        {"x-delay": -1}, {"a": 1}, {"a": None}, {"": ""}, {"a": {"b": [{"c": [1, 2.5, b"x"]}]}},
    )  # fmt: skip
    for headers in tables:
        yield good(BasicProperties(headers=headers))
    table = encode_table({"a": "text"})
    for end in range(4, len(table)):
        yield header(0x2000, (end - 4).to_bytes(4, "big") + table[4:end]) + BODY
        yield header(0x2000, table[:end]) + BODY
    for kind in range(32, 127, 3):
        yield header(0x2000, b"\x00\x00\x00\x03\x01a" + bytes([kind])) + BODY
    yield header(0x2000, b"\xff\xff\xff\xff") + BODY
    yield header(0x2000, b"\x7f\xff\xff\xff\x01a") + BODY


def frame_cases() -> Iterator[bytes]:
    plain = header(0, b"")
    for size in (0, 1, 3, 5, 4097, 200 << 20, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1):
        yield header(0, b"", size) + BODY
    yield plain + frame(FRAME_BODY, 1, b"bo") + frame(FRAME_BODY, 1, b"dy")
    yield plain + frame(FRAME_BODY, 1, b"bo") + frame(FRAME_BODY, 1, b"") + frame(FRAME_BODY, 1, b"dy")
    yield plain + frame(FRAME_BODY, 1, b"bodies")
    yield plain + frame(FRAME_BODY, 2, b"body")
    yield plain + frame(FRAME_BODY, 0, b"body")
    yield plain + plain + BODY
    yield plain + BODY + BODY
    yield BODY
    yield header(0, b"", class_id=10) + BODY
    yield header(0, b"", weight=7) + BODY
    yield header(0, b"", channel=2) + BODY
    yield header(0, b"", channel=0) + BODY
    for kind in (FRAME_METHOD, 4, 8, 0, 255):
        yield frame(kind, 1, plain[7:-1]) + BODY
        yield plain + frame(kind, 1, b"body")
    yield plain[:-1] + b"\xcd" + BODY
    yield plain + BODY[:-1] + b"\x00"
    yield plain + method_frame(1, BasicPublish("", "q"))
    yield frame(FRAME_HEADER, 1, b"\x00\x3c\x00\x00")
    yield frame(FRAME_HEADER, 1, b"")
    for size in (FRAME_MAX - 8, FRAME_MAX - 7, FRAME_MAX, FRAME_MAX + 1):
        yield header(0, b"", size) + frame(FRAME_BODY, 1, b"x" * size)
    yield good(body=b"")
    yield good(body=b"x" * 3 * FRAME_MAX)
    yield good(body=b"x" * 300_000)


def cases() -> Iterator[Case]:
    for content in (*property_cases(), *header_table_cases(), *frame_cases()):
        yield Case(content)
    odd = (good(), good(BasicProperties(delivery_mode=2, priority=3)), good(BasicProperties(headers={"CC": ["q"]})))
    for content in odd:
        for exchange, key in (("", "nowhere"), ("", "levels"), ("", "short"), ("amq.fanout", ""), ("amq.headers", "q"),
                              ("absent", "q"), ("amq.topic", "a.b"), ("inside", "q"), ("", "x" * 255)):  # fmt: skip
            for mandatory in (False, True):
                yield Case(content, key, exchange, mandatory)


CASES: Final = list(cases())


class Bench:
    """A node with some queues, and a connection that is opened anew where a case has closed it."""

    def __init__(self) -> None:
        self.node = NodeBench(Cut.WHOLE)
        self.channel = self.node.channel()
        self.channel.declare("dead")
        self.channel.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        self.channel.declare("r")
        self.channel.declare("levels", {"x-max-priority": 5})
        self.channel.declare("short", {"x-max-length": 1, "x-overflow": "reject-publish"})
        self.channel.bind("amq.fanout", "q")
        self.channel.bind("amq.fanout", "r")
        self.channel.bind("amq.headers", "q", arguments={"a": 1, "x-match": "any"})
        self.channel.bind("amq.topic", "r", "#")
        self.channel.exchange("inside", internal=True)
        self.peer: Peer | None = None

    def fresh_channel(self) -> Channel:
        """A channel that nothing is known of."""
        if self.peer is None or self.peer.wire.is_closed:
            self.peer = self.node.connect(frame_max=FRAME_MAX)
        channel = self.peer.open_channel(1)
        channel.select_confirms()
        return channel

    def leave(self, channel: Channel) -> None:
        """Close a channel, or the connection that it has broken."""
        peer = channel.peer
        if self.is_whole(channel) and not peer.wire.is_closed:
            # After a channel.close of the broker this one crosses it; after that the number is free.
            channel.send(ChannelClose(200, "", 0, 0), ChannelCloseOk())
            peer.receive(0.0)
        if not self.is_whole(channel) or peer.wire.is_closed or len(peer.connection.replies):
            peer.wire.cut()
            self.peer = None
        self.empty()

    def is_whole(self, channel: Channel) -> bool:
        return not any(isinstance(arrival.method, ConnectionClose) for arrival in channel.peer.connection.replies)

    def empty(self) -> None:
        for name in QUEUES:
            self.node.node.virtual_hosts["/"].queues[name].purge()

    def stored(self) -> list[object]:
        """All that is in the queues, and in that of dead letters."""
        found: list[object] = []
        for name in QUEUES:
            while (got := self.channel.get(name, no_ack=False)) is not None:
                headers = {key: value for key, value in got.headers.items() if "death" not in key}
                found.append((name, got.method.routing_key, got.properties.delivery_mode, got.properties.priority,
                              got.properties.expiration, headers, got.body))  # fmt: skip
                self.channel.reject(got.tag, requeue=False)
        return found


def said(channel: Channel, before: int) -> list[object]:
    """What the broker answered, with confirms counted from the first of the case."""
    answers: list[object] = []
    channel.peer.receive(0.0)
    for arrival in (*channel.replies, *channel.peer.connection.replies):
        method = arrival.method
        if isinstance(method, (BasicAck, BasicNack)):
            answers.append((method.NAME, method.delivery_tag - before))
        else:
            answers.append((str(method), arrival.body))
    channel.replies.clear()
    return answers


def outcome(bench: Bench, case: Case, warm: list[bytes], *, at_once: bool = False) -> list[object]:
    """What comes of a case after well-formed messages that are alike."""
    channel = bench.fresh_channel()
    octets = b"".join(case.method + content for content in warm)
    if at_once:
        channel.peer.write(octets + case.method + case.content)
        answers = [one for one in said(channel, len(warm)) if not (isinstance(one, tuple) and one[0] == "basic.ack")]
        bench.leave(channel)
        return answers
    channel.peer.write(octets)
    said(channel, 0)
    bench.empty()
    channel.peer.write(case.method + case.content)
    answers = [*said(channel, len(warm)), *bench.stored()]
    bench.leave(channel)
    return answers


@pytest.fixture(scope="module")
def fast_bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.node.close()


def takes_anything(case: Case) -> bool:
    """Whether well-formed messages can go before it."""
    return case.exchange not in {"absent", "inside"}


@pytest.mark.parametrize("block", range(4))
def test_the_third_of_its_kind_is_answered_as_the_first(fast_bench: Bench, block: int) -> None:
    for case in CASES[block::4]:
        cold = outcome(fast_bench, case, [])
        if takes_anything(case):
            for warm in (good(), good(BasicProperties(delivery_mode=2, priority=1))):
                assert outcome(fast_bench, case, [warm] * 3) == cold, case


def test_a_case_is_answered_in_the_same_way_each_time(fast_bench: Bench) -> None:
    for case in CASES:
        cold = outcome(fast_bench, case, [])
        if any(isinstance(one, tuple) and str(one[0]).startswith("basic.ack") for one in cold) and case.key != "short":
            assert outcome(fast_bench, case, [case.content] * 3) == cold, case


def test_it_does_not_matter_what_comes_in_the_same_read(fast_bench: Bench) -> None:
    for case in CASES[::2]:
        if takes_anything(case) and case.key != "short":
            alone = outcome(fast_bench, case, [], at_once=True)
            together = outcome(fast_bench, case, [good()] * 4, at_once=True)
            # Errors say where in the read they are; what is returned before may be returned too.
            assert _errors(together) == _errors(alone), case


def _errors(answers: list[object]) -> list[str]:
    return [re.sub(r"\d+", "n", str(one)) for one in answers if "BasicReturn" not in str(one)]


def test_the_thousandth_of_its_kind_is_answered_as_the_first(fast_bench: Bench) -> None:
    for case in CASES[:: len(CASES) // 6]:
        if takes_anything(case):
            assert outcome(fast_bench, case, [good()] * 999) == outcome(fast_bench, case, []), case


# --- acknowledgements ---

SETTLEMENTS: Final[list[Method]] = [
    made
    for tag in (0, 1, 2, 3, 4, 5, 6, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    for made in (
        BasicAck(tag), BasicAck(tag, multiple=True), BasicNack(tag, requeue=False),
        BasicNack(tag, multiple=True, requeue=False), BasicReject(tag, requeue=False),
    )
]  # fmt: skip


def settled(bench: Bench, octets: bytes, before: int) -> list[object]:
    """What comes of acknowledgements behind `before` good ones, of five deliveries more than these."""
    channel = bench.fresh_channel()
    for _ in range(before + 5):
        channel.publish(b"x")
    said(channel, 0)
    channel.consume()
    count = before + 5
    assert [channel.next().method.NAME for _ in range(count)] == [BasicDeliver.NAME] * count
    channel.peer.write(b"".join(method_frame(1, BasicAck(tag)) for tag in range(1, before + 1)) + octets)
    answers = said(channel, 0)
    queue = bench.node.node.virtual_hosts["/"].queues["q"]
    counts = [queue.unsettled_count, queue.message_count]
    bench.leave(channel)
    return [*answers, *counts]


def test_an_acknowledgement_in_a_row_is_answered_as_one_alone(fast_bench: Bench) -> None:
    for made in SETTLEMENTS:
        alone = settled(fast_bench, method_frame(1, made), 0)
        tag: int = made.delivery_tag  # type: ignore[attr-defined]
        moved = type(made)(
            tag + 3 if 0 < tag < 2**31 else tag, *[getattr(made, name) for name in list(made.FIELDS)[1:]]
        )
        behind = settled(fast_bench, method_frame(1, moved), 3)
        assert str(behind).replace(f"tag {tag + 3}", f"tag {tag}") == str(alone), made


def test_a_malformed_acknowledgement_in_a_row_is_answered_as_one_alone(fast_bench: Bench) -> None:
    one = method_frame(1, BasicAck(4))
    for octets in (one[:-1] + b"\x00", one[:6] + b"\x0e" + one[7:-1] + b"\x00\xce", one[:19] + b"\xff" + one[20:],
                   frame(FRAME_METHOD, 1, one[7:-2]), b"\x02" + one[1:], one[:2] + b"\x02" + one[3:]):  # fmt: skip
        assert settled(fast_bench, octets, 3)[:-2] == settled(fast_bench, octets.replace(b"\x04", b"\x01"), 0)[:-2]
