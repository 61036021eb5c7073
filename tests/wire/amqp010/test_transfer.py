import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from tests.conformance.requirement import requirement
from tests.wire.amqp010.frame_parser import FrameParser
from tests.wire.amqp010.strategies import ranges, texts, u32
from waybill.wire.amqp010.class_message import MessageTransfer
from waybill.wire.amqp010.class_session import SessionCompleted
from waybill.wire.amqp010.codec import command_payload, decode_command, decode_control
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.sequence import MASK, serial_distance, serial_less
from waybill.wire.amqp010.transfer import (
    TransferFacts,
    scan_transfer,
    transfer_payload,
    write_completed,
    write_transfer,
)
from waybill.wire.amqp010.types import Ranges


@given(st.none() | texts, st.integers(0, 255), st.integers(0, 255), st.booleans())
def test_the_fast_way_reads_and_writes_what_the_slow_one_does(
    destination: str | None, accept_mode: int, acquire_mode: int, sync: bool
) -> None:
    payload = command_payload(MessageTransfer(destination, accept_mode, acquire_mode), sync=sync)
    facts = TransferFacts()
    scan_transfer(payload, facts)
    assert (facts.destination, facts.accept_mode, facts.acquire_mode) == (destination or "", accept_mode, acquire_mode)
    assert facts.sync is sync
    if destination is not None:
        assert transfer_payload(destination, accept_mode, acquire_mode, sync=sync) == payload


@given(st.binary(max_size=16))
def test_the_fast_way_refuses_what_the_slow_one_does(noise: bytes) -> None:
    payload = b"\x04\x01" + noise
    try:
        slow, sync = decode_command(payload)
    except DecodeError:
        with pytest.raises(DecodeError):
            scan_transfer(payload, TransferFacts())
        return
    facts = TransferFacts()
    scan_transfer(payload, facts)
    assert isinstance(slow, MessageTransfer)
    assert ((slow.destination or ""), slow.accept_mode, slow.acquire_mode, sync) == (
        facts.destination,
        facts.accept_mode,
        facts.acquire_mode,
        facts.sync,
    )


@given(ranges, st.booleans())
def test_completions_are_those_of_the_slow_way(commands: Ranges, timely: bool) -> None:
    out = BytesWriter()
    write_completed(out, 5, commands, timely_reply=timely)
    parser = FrameParser()
    parser.receive(out.getvalue())
    found = parser.next()
    assert found is not None
    assert found.channel == 5
    assert decode_control(found.payload) == SessionCompleted(commands, timely_reply=timely)


@given(st.integers(0, 200), st.integers(30, 60))
def test_a_body_is_cut_as_the_frames_need_it(size: int, max_frame_size: int) -> None:
    out = BytesWriter()
    write_transfer(out, 1, transfer_payload("d", 0, 0), b"h" * 40, b"b" * size, max_frame_size)
    parser = FrameParser(max_frame_size)
    parser.receive(out.getvalue())
    found = parser.next()
    assert found is not None
    assert (found.header, found.body) == (b"h" * 40, b"b" * size)
    assert parser.waiting == 0


@requirement("X010-015")
@given(u32, st.integers(1, 2**31 - 1))
def test_sequence_numbers_wrap(number: int, count: int) -> None:
    later = (number + count) & MASK
    assert serial_less(number, later)
    assert not serial_less(later, number)
    assert serial_distance(number, later) == count
    assert serial_distance(later, number) == -count
    assert not serial_less(number, number)


def test_the_numbers_of_the_document() -> None:
    assert serial_less(0xFFFFFFFF, 0)
    assert not serial_less(0, 0x80000000)
