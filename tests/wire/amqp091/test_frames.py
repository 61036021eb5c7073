import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import methods, properties
from waybill.wire.amqp091.errors import EncodeError, FrameError
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    Frame,
    content_frames,
    header_frame,
    method_frame,
    parse_frame,
)
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_basic import BasicAck
from waybill.wire.amqp091.properties import BasicProperties

FRAME_MAX = 131_072


def cut_all(data: bytes, frame_max: int = FRAME_MAX) -> list[Frame]:
    frames = []
    offset = 0
    while (cut := parse_frame(data, offset, frame_max)) is not None:
        frame, offset = cut
        frames.append(frame)
    assert offset == len(data)
    return frames


def feed(pieces: list[bytes]) -> list[Frame]:
    """What a connection does: keep the rest, add what arrives, cut what is whole."""
    frames = []
    rest = b""
    for piece in pieces:
        data = rest + piece
        offset = 0
        while (cut := parse_frame(data, offset, FRAME_MAX)) is not None:
            frame, offset = cut
            frames.append(frame)
        rest = data[offset:]
    assert rest == b""
    return frames


def test_known_octets() -> None:
    assert PROTOCOL_HEADER == b"AMQP\0\0\x09\x01"
    assert parse_frame(HEARTBEAT_FRAME, 0, FRAME_MAX) == (Frame(FRAME_HEARTBEAT, 0, b""), 8)
    frame = bytes.fromhex("01 0203 0000000d 003c0050000000000000000701 ce")
    assert method_frame(0x0203, BasicAck(7, multiple=True)) == frame
    assert parse_frame(b"xx" + frame + b"yy", 2, FRAME_MAX) == (
        Frame(FRAME_METHOD, 0x0203, frame[7:-1]),
        2 + len(frame),
    )
    assert header_frame(1, 5, BasicProperties(priority=3)) == bytes.fromhex(
        "02 0001 0000000f 003c 0000 0000000000000005 0800 03 ce"
    )


def test_content_is_cut_into_frames_of_the_agreed_size() -> None:
    content = content_frames(7, b"\0\0", bytes(range(20)), 16)
    frames = cut_all(content, 0)
    assert [frame.type for frame in frames] == [FRAME_HEADER, FRAME_BODY, FRAME_BODY, FRAME_BODY]
    assert [len(frame.payload) + 8 for frame in frames[1:]] == [16, 16, 12]
    assert b"".join(frame.payload for frame in frames[1:]) == bytes(range(20))
    assert {frame.channel for frame in frames} == {7}


def test_an_empty_body_has_no_frame() -> None:
    assert [frame.type for frame in cut_all(content_frames(1, BasicProperties(), b"", FRAME_MAX))] == [FRAME_HEADER]


def test_without_limit_the_body_is_one_frame() -> None:
    assert len(cut_all(content_frames(1, BasicProperties(), bytes(300_000), 0), 0)) == 2


@given(
    st.lists(st.tuples(st.integers(0, 65535), methods), max_size=4), properties, st.binary(max_size=90), st.randoms()
)
def test_frames_come_out_however_they_arrive(
    sent: list[tuple[int, Method]], given_properties: BasicProperties, body: bytes, rng: random.Random
) -> None:
    data = b"".join(method_frame(channel, method) for channel, method in sent)
    data += content_frames(9, given_properties, body, 30) + HEARTBEAT_FRAME
    whole = cut_all(data)
    received = [(frame.channel, decode_method(frame.payload)) for frame in whole if frame.type == FRAME_METHOD]
    assert received == sent
    assert feed([data[index : index + 1] for index in range(len(data))]) == whole
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(5))
    assert feed([data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]) == whole


def test_a_frame_that_has_not_arrived_is_none() -> None:
    frame = method_frame(1, BasicAck(1))
    for size in range(len(frame)):
        assert parse_frame(frame[:size], 0, FRAME_MAX) is None


@pytest.mark.parametrize("kind", sorted(set(range(256)) - {1, 2, 3, 8}))
def test_unknown_types_are_refused_at_once(kind: int) -> None:
    with pytest.raises(FrameError):
        parse_frame(bytes([kind]), 0, FRAME_MAX)


def test_frames_above_the_limit_are_refused_before_they_arrive() -> None:
    assert parse_frame(b"\3\0\1" + (FRAME_MAX - 8).to_bytes(4, "big"), 0, FRAME_MAX) is None
    for size in (FRAME_MAX - 7, 2**31, 2**32 - 1):
        with pytest.raises(FrameError):
            parse_frame(b"\3\0\1" + size.to_bytes(4, "big"), 0, FRAME_MAX)
    assert parse_frame(b"\3\0\1" + (2**32 - 1).to_bytes(4, "big"), 0, 0) is None


@pytest.mark.parametrize("end", [0x00, 0xCD, 0xCF, 0xFF])
def test_frames_without_their_end_octet_are_refused(end: int) -> None:
    with pytest.raises(FrameError):
        parse_frame(HEARTBEAT_FRAME[:-1] + bytes([end]), 0, FRAME_MAX)


def test_channels_have_16_bits() -> None:
    assert parse_frame(method_frame(65535, BasicAck(1)), 0, FRAME_MAX) == (
        Frame(FRAME_METHOD, 65535, BasicAck(1).encode()),
        21,
    )
    for channel in (-1, 65536):
        with pytest.raises(EncodeError):
            method_frame(channel, BasicAck(1))


@pytest.mark.parametrize("frame_max", [-5, 1, 8])
def test_a_limit_without_room_for_a_body_is_refused(frame_max: int) -> None:
    with pytest.raises(EncodeError):
        content_frames(1, b"\0\0", b"body", frame_max)


@given(st.binary(max_size=60), st.integers(0, 70))
def test_garbage_raises_frame_error_only(octets: bytes, offset: int) -> None:
    try:
        parse_frame(octets, offset, FRAME_MAX)
    except FrameError:
        return
