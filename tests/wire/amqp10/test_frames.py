import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from waybill.wire.amqp10.errors import DecodeError, EncodeError, FrameError
from waybill.wire.amqp10.frames import (
    EMPTY_FRAME,
    FRAME_AMQP,
    FRAME_SASL,
    MIN_MAX_FRAME_SIZE,
    Frame,
    FrameFacts,
    close_frame,
    frame,
    parse_frame,
    sasl_frame,
    scan_frame,
    write_frame_head,
)


def test_frames_are_cut() -> None:
    octets = b"??" + frame(0x0102, b"performative", b"payload") + EMPTY_FRAME + sasl_frame(b"body")
    first = parse_frame(octets, 2, 512)
    assert first is not None
    assert first[0] == Frame(FRAME_AMQP, 0x0102, b"performativepayload")
    second = parse_frame(octets, first[1], 512)
    assert second is not None
    assert second[0] == Frame(FRAME_AMQP, 0, b"")
    third = parse_frame(octets, second[1], 512)
    assert third == (Frame(FRAME_SASL, 0, b"body"), len(octets))
    assert parse_frame(octets, len(octets), 512) is None


def test_an_extended_header_is_read_over() -> None:
    octets = b"\x00\x00\x00\x12\x04\x00\x00\x07extended" + b"ok"
    assert parse_frame(octets, 0, 512) == (Frame(FRAME_AMQP, 7, b"ok"), len(octets))


def test_a_frame_arrives_byte_by_byte() -> None:
    octets = frame(1, b"performative", b"payload")
    for size in range(len(octets)):
        assert parse_frame(octets[:size], 0, 512) is None


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00\x00\x00\x07",  # smaller than its head
        b"\x00\x00\x02\x01",  # bigger than 512
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x08\x01\x00\x00\x00",  # data within the head
        b"\x00\x00\x00\x08\x03\x00\x00\x00",  # data beyond the frame
        b"\x00\x00\x00\x08\x02\x02\x00\x00",  # an unknown type
        b"\x00\x00\x00\x08\x02\x01\x00\x00",  # a SASL frame without a body
    ],
)
def test_damaged_frames_are_refused_at_once(octets: bytes) -> None:
    with pytest.raises(FrameError):
        parse_frame(octets, 0, 512)


def test_a_frame_may_have_exactly_the_size_allowed() -> None:
    octets = frame(0, bytes(504))
    assert len(octets) == 512
    assert parse_frame(octets, 0, 512) is not None
    with pytest.raises(FrameError):
        parse_frame(octets, 0, 511)


def test_frames_that_cannot_be_are_not_built() -> None:
    with pytest.raises(EncodeError):
        frame(65_536, b"")
    with pytest.raises(EncodeError):
        sasl_frame(bytes(MIN_MAX_FRAME_SIZE - 7))
    assert len(sasl_frame(bytes(MIN_MAX_FRAME_SIZE - 8))) == MIN_MAX_FRAME_SIZE


def test_a_frame_is_written_before_its_size_is_known() -> None:
    out = BytesWriter()
    out.write(b"before")
    start = write_frame_head(out, 0xABCD)
    out.write(b"performative")
    close_frame(out, start, 7)
    out.write(b"payload")
    assert out.getvalue() == b"before" + frame(0xABCD, b"performative", b"payload")


@given(st.binary(max_size=40))
def test_any_octets_give_a_frame_nothing_or_a_decode_error(octets: bytes) -> None:
    facts = FrameFacts()
    try:
        whole = scan_frame(octets, 0, 512, facts)
    except DecodeError:
        return
    assert not whole or 8 <= facts.body <= facts.end <= len(octets)
