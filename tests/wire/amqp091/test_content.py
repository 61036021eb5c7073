from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import properties, tables
from waybill.wire.amqp091.content import (
    PROPERTIES_OFFSET,
    ContentFacts,
    body_of,
    channel_of,
    joined,
    properties_of,
    refragment,
    rewrite_channel,
    scan,
    with_properties,
)
from waybill.wire.amqp091.errors import DecodeError, EncodeError
from waybill.wire.amqp091.field_table import decode_table, encode_table
from waybill.wire.amqp091.frames import HEARTBEAT_FRAME, content_frames, method_frame, parse_frame
from waybill.wire.amqp091.methods_basic import BasicAck
from waybill.wire.amqp091.properties import BasicProperties

bodies = st.binary(max_size=60)
frame_maxima = st.sampled_from([0, 9, 12, 30, 4096])


def frame_sizes(content: bytes) -> list[int]:
    sizes = []
    offset = 0
    while (cut := parse_frame(content, offset, 0)) is not None:
        sizes.append(cut[1] - offset)
        offset = cut[1]
    assert offset == len(content)
    return sizes


@given(properties, bodies, frame_maxima, st.binary(max_size=9))
def test_scan_finds_what_decoding_finds(
    given_properties: BasicProperties, body: bytes, frame_max: int, before: bytes
) -> None:
    content = content_frames(5, given_properties, body, frame_max)
    data = before + content + b"beyond"
    facts = ContentFacts()
    facts.delivery_mode = facts.priority = facts.expiration_size = facts.headers_size = 77
    scan(data, len(before), facts)
    assert facts.body_size == len(body)
    assert facts.end == len(before) + frame_sizes(content)[0]
    assert facts.delivery_mode == (-1 if given_properties.delivery_mode is None else given_properties.delivery_mode)
    assert facts.priority == (-1 if given_properties.priority is None else given_properties.priority)
    assert facts.expiration(data).decode("utf-8", "surrogateescape") == (given_properties.expiration or "")
    assert (facts.expiration_size == -1) == (given_properties.expiration is None)
    if given_properties.headers is None:
        assert facts.headers_size == -1
    else:
        end = facts.headers_offset + facts.headers_size
        assert data[facts.headers_offset : end] == encode_table(given_properties.headers)
        assert decode_table(data, facts.headers_offset) == (given_properties.headers, end)
    assert BasicProperties.decode(data, len(before) + PROPERTIES_OFFSET, facts.end - 1) == given_properties


def test_the_cluster_id_is_scanned_over() -> None:
    scan(content_frames(1, b"\x00\x04\x02id", b"", 0), 0, ContentFacts())


@given(properties, bodies, frame_maxima, st.integers(0, 65535))
def test_content_moves_to_another_channel(
    given_properties: BasicProperties, body: bytes, frame_max: int, channel: int
) -> None:
    content = content_frames(1, given_properties, body, frame_max)
    moved = rewrite_channel(content, channel)
    assert moved == content_frames(channel, given_properties, body, frame_max)
    assert channel_of(moved) == channel
    assert channel_of(content) == 1


@given(properties, bodies, frame_maxima)
def test_content_gives_back_what_it_was_made_of(given_properties: BasicProperties, body: bytes, frame_max: int) -> None:
    content = content_frames(1, given_properties, body, frame_max)
    assert body_of(content) == body
    assert properties_of(content) == given_properties


@given(bodies, frame_maxima, frame_maxima)
def test_bodies_are_cut_anew_only_if_they_must(body: bytes, before: int, after: int) -> None:
    content = content_frames(3, b"\0\0", body, before)
    refragmented = refragment(content, after)
    assert body_of(refragmented) == body
    if after == 0 or all(size <= after for size in frame_sizes(content)[1:]):
        assert refragmented is content
    else:
        assert refragmented == content_frames(3, b"\0\0", body, after)


@given(bodies, frame_maxima, frame_maxima)
def test_a_body_is_joined(body: bytes, before: int, after: int) -> None:
    assert joined(content_frames(3, b"\0\0", body, before), after) == content_frames(3, b"\0\0", body, after)


@given(properties, properties, bodies, frame_maxima)
def test_properties_are_exchanged(first: BasicProperties, second: BasicProperties, body: bytes, frame_max: int) -> None:
    content = content_frames(3, first, body, frame_max)
    assert with_properties(content, second) == content_frames(3, second, body, frame_max)
    assert with_properties(content, second.encode()) == with_properties(content, second)


def test_properties_that_have_no_encoding_are_refused() -> None:
    content = content_frames(3, b"\0\0", b"body", 0)
    with pytest.raises(EncodeError):
        with_properties(content, replace(BasicProperties(), priority=300))


def reads_of(content: bytes) -> None:
    """All that reads content; each of them must refuse what is none."""
    scan(content, 0, ContentFacts())
    rewrite_channel(content, 2)
    body_of(content)
    properties_of(content)
    refragment(content, 12)
    with_properties(content, b"\0\0")


@given(properties)
def test_every_truncation_is_refused(given_properties: BasicProperties) -> None:
    content = content_frames(1, given_properties, b"body", 0)
    header_size = frame_sizes(content)[0]
    facts = ContentFacts()
    for size in range(header_size):
        with pytest.raises(DecodeError):
            scan(content[:size], 0, facts)
    for size in range(len(content)):
        if size != header_size:
            for function in (body_of, lambda cut: rewrite_channel(cut, 5), lambda cut: refragment(cut, 99)):
                with pytest.raises(DecodeError):
                    function(content[: size or 1])


@given(properties)
def test_a_property_list_that_does_not_end_with_its_frame_is_refused(given_properties: BasicProperties) -> None:
    octets = given_properties.encode()
    for size in range(len(octets)):
        content = content_frames(1, octets[:size], b"body", 0)
        with pytest.raises(DecodeError):
            scan(content, 0, ContentFacts())
        with pytest.raises(DecodeError):
            properties_of(content)
    with pytest.raises(DecodeError):
        scan(content_frames(1, octets + b"\0", b"body", 0), 0, ContentFacts())


@pytest.mark.parametrize(
    "list_octets",
    [
        b"\x20\x00\xff\xff\xff\xff",  # a header table of -1 octets
        b"\x20\x00\x7f\xff\xff\xff",
        b"\x20\x00\x00\x00\x00\x01",
        b"\x80\x00\x05abc",
        b"\x01\x00",
        b"\x00\x40\x00\x00\x00\x00",
        b"\x10\x00",
        b"\x08\x00",
        b"\x00\x01",
        b"\x00\x02",
    ],
)
def test_malformed_lists_are_refused(list_octets: bytes) -> None:
    # What follows the frame could pass for its missing octets.
    data = content_frames(1, list_octets, bytes(40), 0)
    with pytest.raises(DecodeError):
        scan(data, 0, ContentFacts())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        HEARTBEAT_FRAME,
        method_frame(1, BasicAck(1)),
        b"\x02\0\1\xff\xff\xff\xff" + bytes(40),
        bytes.fromhex("02 0001 00000000 ce"),
        bytes.fromhex("02 0001 0000000d 003c 0000 0000000000000000 00 ce"),  # no room for the flags
        bytes.fromhex("02 0001 0000000e 0032 0000 0000000000000000 0000 ce"),  # class queue
        bytes.fromhex("02 0001 0000000e 003c 0000 0000000000000000 0000 cd"),
        bytes.fromhex("03 0001 0000000e 003c 0000 0000000000000000 0000 ce"),
    ],
)
def test_what_is_no_content_is_refused_by_everything(content: bytes) -> None:
    with pytest.raises(DecodeError):
        scan(content, 0, ContentFacts())
    for function in (body_of, properties_of, channel_of):
        with pytest.raises(DecodeError):
            function(content)
    with pytest.raises(DecodeError):
        refragment(content, 0)
    with pytest.raises(DecodeError):
        with_properties(content, b"\0\0")


def test_only_body_frames_follow_a_header() -> None:
    content = content_frames(1, b"\0\0", b"", 0) + method_frame(1, BasicAck(1))
    with pytest.raises(DecodeError):
        body_of(content)
    with pytest.raises(DecodeError):
        refragment(content, 0)


@pytest.mark.parametrize("offset", [-1, -(2**62), 1, 2**62])
def test_offsets_outside_are_refused(offset: int) -> None:
    with pytest.raises(DecodeError):
        scan(content_frames(1, b"\0\0", b"", 0), offset, ContentFacts())


def test_a_body_size_with_the_sign_bit_is_refused() -> None:
    content = content_frames(1, b"\0\0", b"", 0)[:11] + b"\x80" + bytes(7) + b"\0\0\xce"
    with pytest.raises(DecodeError):
        scan(content, 0, ContentFacts())
    with pytest.raises(DecodeError):
        with_properties(content, b"\0\0")


@given(properties, st.data())
def test_damage_raises_decode_error_only(given_properties: BasicProperties, data: st.DataObject) -> None:
    content = bytearray(content_frames(1, given_properties, b"some body", 12))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        reads_of(bytes(content))
    except DecodeError:
        return


@given(st.binary(max_size=80))
def test_garbage_raises_decode_error_only(octets: bytes) -> None:
    for list_octets in (octets, b"\xff\xfc" + octets):
        try:
            reads_of(content_frames(1, list_octets, b"some body", 12))
        except DecodeError:
            continue


@given(tables, st.data())
def test_what_was_scanned_can_be_decoded(headers: dict[str, object], data: st.DataObject) -> None:
    octets = bytearray(BasicProperties(headers=headers, priority=1).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        octets[data.draw(st.integers(6, len(octets) - 1))] = data.draw(st.integers(0, 255))
    content = content_frames(1, bytes(octets), b"", 0)
    try:
        scan(content, 0, ContentFacts())
    except DecodeError:
        with pytest.raises(DecodeError):
            properties_of(content)
    else:
        properties_of(content)


def test_offsets_are_those_of_the_specification() -> None:
    assert content_frames(1, b"\xff\xff", b"", 0)[PROPERTIES_OFFSET:][:2] == b"\xff\xff"
