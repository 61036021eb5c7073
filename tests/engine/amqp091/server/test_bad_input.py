"""What no good client sends. Each gets the protocol's own error, and a bystander notices nothing."""

from random import Random

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    content_frames,
    frame,
    header_frame,
    method_frame,
)
from waybill.wire.amqp091.methods_basic import BasicAck, BasicPublish
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionStartOk,
)
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk
from waybill.wire.amqp091.properties import BasicProperties

pytestmark = pytest.mark.usefixtures("bystander")

PUBLISH = method_frame(1, BasicPublish("", "q"))
HEADER = header_frame(1, 5, BasicProperties())


def refused(channel: Channel, octets: bytes, code: int) -> None:
    channel.peer.write(octets)
    channel.peer.expect_refused(code)


@pytest.mark.ours
def test_a_frame_larger_than_agreed(channel: Channel) -> None:
    refused(channel, frame(FRAME_METHOD, 1, bytes(131_072 + 1)), 501)


def test_a_frame_larger_than_a_smaller_agreement(bench: Bench) -> None:
    channel = bench.connect(frame_max=4096).open_channel(1)
    channel.declare("q")
    refused(channel, PUBLISH + header_frame(1, 5000, BasicProperties()) + frame(FRAME_BODY, 1, bytes(5000)), 501)


def test_a_frame_may_be_as_large_as_agreed(bench: Bench) -> None:
    channel = bench.connect(frame_max=4096).open_channel(1)
    channel.declare("q")
    body = bytes(4096 - 8)
    channel.peer.write(PUBLISH + header_frame(1, len(body), BasicProperties()) + frame(FRAME_BODY, 1, body))
    assert channel.take().body == body


def test_a_size_that_no_memory_could_hold(channel: Channel) -> None:
    refused(channel, b"\x01\x00\x01\xff\xff\xff\xff" + bytes(100), 501)


@pytest.mark.parametrize("end", [0x00, 0xCD, 0xFF])
def test_a_wrong_frame_end(channel: Channel, end: int) -> None:
    octets = method_frame(1, QueueDeclare("q"))
    refused(channel, octets[:-1] + bytes([end]), 501)


def test_a_wrong_frame_end_within_content(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"first")
    refused(channel, PUBLISH + HEADER + frame(FRAME_BODY, 1, b"12345")[:-1] + b"\x00", 501)


@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 255])
def test_an_unknown_frame_type(channel: Channel, kind: int) -> None:
    refused(channel, frame(kind, 1, b"payload"), 501)


def test_a_heartbeat_on_a_channel(channel: Channel) -> None:
    refused(channel, frame(FRAME_HEARTBEAT, 1, b""), 505)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_method_frame_without_a_whole_method_id(channel: Channel, size: int) -> None:
    refused(channel, frame(FRAME_METHOD, 1, bytes([0, 50, 0][:size])), 501)


@pytest.mark.parametrize("missing", [1, 2, 5, 8])
def test_a_truncated_method(channel: Channel, missing: int) -> None:
    payload = QueueDeclare("queue", arguments={"x-max-length": 5}).encode()
    channel.peer.write(frame(FRAME_METHOD, 1, payload[:-missing]))
    close = channel.peer.connection.expect(ConnectionClose)
    assert (close.reply_code, close.class_id, close.method_id) == (501, 50, 10)


def test_octets_after_the_arguments_of_a_method(channel: Channel) -> None:
    refused(channel, frame(FRAME_METHOD, 1, QueueDeclare("queue").encode() + b"more"), 501)


def test_a_truncated_publish(channel: Channel) -> None:
    refused(channel, frame(FRAME_METHOD, 1, BasicPublish("", "queue").encode()[:-2]), 501)


@pytest.mark.ours
@pytest.mark.parametrize(("class_id", "method_id"), [(99, 10), (0, 0), (65535, 65535)])
def test_an_unknown_class(channel: Channel, class_id: int, method_id: int) -> None:
    payload = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big")
    refused(channel, frame(FRAME_METHOD, 1, payload), 540)


@pytest.mark.ours
def test_an_unknown_method(channel: Channel) -> None:
    refused(channel, frame(FRAME_METHOD, 1, b"\x00\x32\x03\xe7"), 540)


def test_a_method_that_only_servers_send(channel: Channel) -> None:
    refused(channel, method_frame(1, QueueDeclareOk("q", 0, 0)), 503)


@pytest.mark.ours
@pytest.mark.parametrize("size", [0, 300])
def test_an_unreadable_argument_table(channel: Channel, size: int) -> None:
    payload = QueueDeclare("queue").encode()
    assert payload.endswith(bytes(4))
    table = b"\x01k" + b"?" + bytes(size)
    refused(channel, frame(FRAME_METHOD, 1, payload[:-4] + len(table).to_bytes(4, "big") + table), 502)


@pytest.mark.ours  # RabbitMQ takes as many as it gets
def test_deeply_nested_tables(channel: Channel) -> None:
    table = b""
    for _ in range(1000):
        table = b"\x01kF" + len(table).to_bytes(4, "big") + table
    payload = QueueDeclare("queue").encode()[:-4]
    refused(channel, frame(FRAME_METHOD, 1, payload + len(table).to_bytes(4, "big") + table), 502)


@pytest.mark.ours
def test_an_array_that_grows_out_of_nothing(channel: Channel) -> None:
    array = b"V" * 100_000
    table = b"\x01kA" + len(array).to_bytes(4, "big") + array
    payload = QueueDeclare("queue").encode()[:-4]
    refused(channel, frame(FRAME_METHOD, 1, payload + len(table).to_bytes(4, "big") + table), 502)


def test_content_without_a_publish(channel: Channel) -> None:
    refused(channel, HEADER, 505)


def test_a_body_without_a_header(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + frame(FRAME_BODY, 1, b"12345"), 505)


def test_two_headers(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + HEADER + HEADER, 505)


def test_a_method_instead_of_content(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + method_frame(1, QueueDeclare("q")), 505)


def test_a_publish_instead_of_content(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + PUBLISH, 505)


def test_a_method_within_a_body(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + HEADER + frame(FRAME_BODY, 1, b"12") + method_frame(1, QueueDeclare("q")), 505)


def test_an_ack_within_a_body(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + HEADER + frame(FRAME_BODY, 1, b"12") + method_frame(1, BasicAck(1)), 505)


@pytest.mark.ours  # RabbitMQ closes with 541 or takes it
def test_a_body_longer_than_announced(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + HEADER + frame(FRAME_BODY, 1, b"123456"), 505)


@pytest.mark.ours
def test_a_body_longer_than_announced_in_its_second_frame(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + HEADER + frame(FRAME_BODY, 1, b"123") + frame(FRAME_BODY, 1, b"456"), 505)


@pytest.mark.ours
def test_a_body_for_an_empty_message(channel: Channel) -> None:
    channel.declare("q")
    refused(channel, PUBLISH + header_frame(1, 0, BasicProperties()) + frame(FRAME_BODY, 1, b"1"), 505)


def test_empty_body_frames_add_nothing(channel: Channel) -> None:
    channel.declare("q")
    channel.peer.write(PUBLISH + HEADER + frame(FRAME_BODY, 1, b"") + frame(FRAME_BODY, 1, b"12345"))
    assert channel.take().body == b"12345"


def test_a_body_shorter_than_announced_waits(channel: Channel) -> None:
    channel.declare("q")
    channel.peer.write(PUBLISH + HEADER + frame(FRAME_BODY, 1, b"123"))
    channel.expect_nothing()
    channel.peer.write(frame(FRAME_BODY, 1, b"45"))
    assert channel.take().body == b"12345"


def test_contents_of_two_channels_may_be_interleaved(bench: Bench) -> None:
    peer = bench.connect()
    one, two = peer.open_channel(1), peer.open_channel(2)
    one.declare("q")
    frames = [
        [
            method_frame(number, BasicPublish("", "q")),
            header_frame(number, 4, BasicProperties()),
            frame(FRAME_BODY, number, b"%d%d" % (number, number)),
            frame(FRAME_BODY, number, b"%d%d" % (number, number)),
        ]
        for number in (1, 2)
    ]
    peer.write(b"".join(first + second for first, second in zip(*frames, strict=True)))
    two.sync()
    assert one.take_all() == [b"1111", b"2222"]


@pytest.mark.parametrize("class_id", [50, 0])
def test_a_content_header_of_another_class(channel: Channel, class_id: int) -> None:
    channel.declare("q")
    header = bytearray(HEADER)
    header[7:9] = class_id.to_bytes(2, "big")
    channel.peer.write(PUBLISH + bytes(header) + frame(FRAME_BODY, 1, b"12345"))
    close = channel.peer.connection.expect(ConnectionClose)
    assert close.reply_code == 505


@pytest.mark.ours
@pytest.mark.parametrize("damage", [b"\xff\xff", b"\x00\x02", b"\x80\x00\xff", b"\x20\x00\x00\x00\x00\xff"], ids=repr)
def test_unreadable_properties(channel: Channel, damage: bytes) -> None:
    channel.declare("q")
    payload = HEADER[7:19] + damage
    channel.peer.write(PUBLISH + frame(FRAME_HEADER, 1, payload) + frame(FRAME_BODY, 1, b"12345"))
    close = channel.peer.connection.expect(ConnectionClose)
    assert close.reply_code in {501, 502}


@pytest.mark.ours
def test_a_negative_body_size(channel: Channel) -> None:
    channel.declare("q")
    header = bytearray(HEADER)
    header[11:19] = b"\xff" * 8
    channel.peer.write(PUBLISH + bytes(header))
    assert channel.peer.receive(0.0) or channel.peer.wire.is_closed


def test_content_on_channel_zero(channel: Channel) -> None:
    refused(channel, frame(FRAME_BODY, 0, b"12345"), 505)


@pytest.mark.parametrize(
    "octets",
    [method_frame(0, QueueDeclare("q")), method_frame(0, BasicPublish("", "q"))],
    ids=["declare", "publish"],
)
def test_a_channel_method_on_channel_zero(channel: Channel, octets: bytes) -> None:
    refused(channel, octets, 504)


@pytest.mark.ours
def test_a_connection_method_on_a_channel(channel: Channel) -> None:
    refused(channel, method_frame(1, ConnectionClose(200, "", 0, 0)), 503)


def test_a_handshake_method_when_all_is_done(channel: Channel) -> None:
    refused(channel, method_frame(0, ConnectionStartOk({}, "PLAIN", b"")), 504)


@pytest.mark.ours
def test_a_blocked_notice_from_a_client_is_ignored(channel: Channel) -> None:
    channel.peer.connection.send(ConnectionBlocked("why not"))
    channel.declare("q")


@requirement("091-connection.close.stability")
def test_nothing_is_taken_after_an_error(channel: Channel) -> None:
    channel.peer.write(frame(9, 1, b"") + method_frame(1, QueueDeclare("ghost")))
    close = channel.peer.connection.expect(ConnectionClose)
    assert close.reply_code == 501


def test_a_client_that_ignores_the_close_is_cut_off(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.peer.write(frame(FRAME_HEARTBEAT, 1, b""))
    channel.peer.connection.expect(ConnectionClose)
    channel.publish(b"still talking", "nowhere")
    node_bench.advance(10.0)
    channel.peer.expect_closed()


@pytest.mark.ours
@requirement("091-connection.close.stability")
def test_two_closes_that_cross(channel: Channel) -> None:
    channel.peer.write(frame(FRAME_METHOD, 1, b"\x00\x32\x03\xe7") + method_frame(0, ConnectionClose(200, "", 0, 0)))
    channel.peer.connection.expect(ConnectionClose)
    channel.peer.connection.expect(ConnectionCloseOk)


def test_half_a_frame_and_then_nothing(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1")
    channel.sync()
    channel.peer.write((PUBLISH + HEADER)[:-3])
    channel.peer.wire.cut()
    bench.advance(0.05)
    assert bench.channel().take_all() == [b"1"]


@requirement("M010-012")
@pytest.mark.parametrize("seed", range(20))
def test_noise_never_does_more_than_close_its_connection(node_bench: NodeBench, seed: int) -> None:
    random = Random(seed)
    good = (
        method_frame(1, QueueDeclare("q", arguments={"x-max-length": 10}))
        + PUBLISH
        + content_frames(1, BasicProperties(headers={"a": 1, "b": [1, {"c": "d"}]}), b"12345", 4096)
        + method_frame(1, QueueDeclare("", exclusive=True))
    )
    for _ in range(10):
        channel = node_bench.channel()
        octets = bytearray(good * 2)
        for _ in range(random.randint(1, 4)):
            position = random.randrange(len(octets))
            if random.random() < 0.5:
                octets[position] = random.randrange(256)
            elif random.random() < 0.5:
                del octets[position : position + random.randint(1, 4)]
            else:
                octets[position:position] = random.randbytes(random.randint(1, 4))
        channel.peer.write(bytes(octets))
        channel.peer.receive(0.0)
        channel.peer.wire.cut()
