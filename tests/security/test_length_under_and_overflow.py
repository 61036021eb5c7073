"""Lengths that lie: below what they enclose, beyond the frame, negative when read with a sign."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel
from tests.security.attack import declare, field, header, publish, table

LIES = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x01",
    b"\x00\x00\x10\x00",
    table() + b"\x00",
    table(field("a", "S", b"\xff\xff\xff\xff")),
    table(field("a", "S", b"\x00\x00\x00\x05abcd")),
    table(field("a", "A", b"\xff\xff\xff\xf0")),
    table(field("a", "F", b"\x00\x00\x00\x09")),
    table(field("a", "l", b"\x00")),
    b"\x00\x00\x00\x03\xffab",
    b"\x00\x00\x00\x02\x01a",
]


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_in_a_table(bench: Bench, bystander: Channel, lie: bytes) -> None:
    channel = bench.channel()
    channel.peer.write(declare(lie))
    channel.peer.expect_refused(501)


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_in_the_headers_of_a_message(bench: Bench, bystander: Channel, lie: bytes) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.peer.write(publish("", "q") + header(0, lie))
    channel.peer.expect_refused(502)


@pytest.mark.parametrize("size", [0xFFFF_FFFF, 0x8000_0000, 0x7FFF_FFFF, 131_073])
def test_in_a_frame(bench: Bench, bystander: Channel, size: int) -> None:
    peer = bench.connect()
    peer.write(b"\x01\x00\x00" + size.to_bytes(4, "big") + bytes(64))
    peer.expect_refused(501)


def test_a_body_of_2_to_the_64(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.peer.write(publish("", "q") + header((1 << 64) - 1, table()))
    channel.peer.expect_refused(502)


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x32\x00"])
def test_a_method_too_short_to_have_a_name(bench: Bench, bystander: Channel, payload: bytes) -> None:
    peer = bench.connect()
    peer.write(b"\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload + b"\xce")
    peer.expect_refused(501)
