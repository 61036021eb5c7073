import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from tests.conformance.requirement import requirement
from tests.wire.amqp010.frame_parser import Assembled, FrameParser
from tests.wire.amqp010.strategies import commands, controls
from waybill.wire.amqp010 import frames
from waybill.wire.amqp010.assembly import INCOMPLETE, MAX_OPERATION_SIZE, Assembler
from waybill.wire.amqp010.class_connection import ConnectionHeartbeat
from waybill.wire.amqp010.class_execution import ExecutionSync
from waybill.wire.amqp010.class_message import MessageTransfer
from waybill.wire.amqp010.class_queue import QueueDeclare
from waybill.wire.amqp010.class_session import SessionFlush
from waybill.wire.amqp010.codec import decode_command, decode_control, encode_command, encode_control
from waybill.wire.amqp010.errors import EncodeError, FrameError
from waybill.wire.amqp010.frames import HEARTBEAT_FRAME, write_frame, write_segment
from waybill.wire.amqp010.struct import Command, Control

SEGMENT_FLAGS = frames.FIRST_SEGMENT | frames.LAST_SEGMENT


def frame(flags: int, kind: int, channel: int = 0, payload: bytes = b"") -> bytes:
    out = BytesWriter()
    write_frame(out, flags, kind, channel, payload)
    return out.getvalue()


def segment(flags: int, kind: int, payload: bytes, max_frame_size: int, channel: int = 0) -> bytes:
    out = BytesWriter()
    write_segment(out, flags, kind, channel, payload, max_frame_size)
    return out.getvalue()


def parse(pieces: list[bytes]) -> list[Assembled]:
    parser = FrameParser()
    found = []
    for piece in pieces:
        parser.receive(piece)
        while (one := parser.next()) is not None:
            found.append(one)
    assert parser.waiting == 0
    return found


def cut(data: bytes, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    pieces = []
    while data:
        size = chance.randint(1, 30)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def facts(found: list[Assembled]) -> list[tuple[int, bool, bytes, bytes | None, bytes | None]]:
    return [(one.channel, one.is_control, one.payload, one.header, one.body) for one in found]


def refused(data: bytes, **limits: int) -> str:
    with pytest.raises(FrameError) as error:
        take_all(Assembler(**limits), data)
    return str(error.value)


def take_all(assembler: Assembler, data: bytes) -> None:
    offset = 0
    while offset != INCOMPLETE:
        offset = assembler.take_frame(data, offset)


TRANSFER = encode_command(3, MessageTransfer("d"), 40, header=b"h" * 70, body=b"b" * 100)


@requirement("M010-012", "X010-003")
@given(st.lists(st.tuples(st.integers(0, 3), controls | commands), max_size=5), st.integers(12 + 1, 90), st.integers())
def test_operations_survive_frames_of_any_size_and_any_cuts(
    sent: list[tuple[int, Control | Command]], max_frame_size: int, seed: int
) -> None:
    data = b""
    for channel, one in sent:
        if isinstance(one, Control):
            data += encode_control(channel, one, max_frame_size)
        else:
            content = {"header": b"head" * 9, "body": b"body" * 30} if one.HAS_CONTENT else {}
            data += encode_command(channel, one, max_frame_size, **content)  # type: ignore[arg-type]
    whole = parse([data])
    assert facts(parse(cut(data, seed))) == facts(whole)
    for (channel, one), got in zip(sent, whole, strict=True):
        assert got.channel == channel
        assert got.is_control is isinstance(one, Control)
        assert (decode_control(got.payload) if got.is_control else decode_command(got.payload)[0]) == one
        assert got.body == (b"body" * 30 if isinstance(one, Command) and one.HAS_CONTENT else None)


@requirement("X010-003")
def test_frames_of_two_channels_and_controls_interleave() -> None:
    one = encode_command(1, MessageTransfer("a"), 30, header=b"1" * 40, body=b"A" * 40)
    two = encode_command(2, MessageTransfer("b"), 30, header=b"2" * 40, body=b"B" * 40)
    heartbeat = encode_control(0, ConnectionHeartbeat())
    flush = encode_control(1, SessionFlush(completed=True))
    mixed = b""
    while one or two:
        for data in (one, two):
            if data:
                size = int.from_bytes(data[2:4], "big")
                mixed += data[:size] + heartbeat + flush
        one = one[int.from_bytes(one[2:4], "big") :] if one else one
        two = two[int.from_bytes(two[2:4], "big") :] if two else two
    found = parse([mixed])
    transfers = [item for item in found if not item.is_control]
    assert [(item.channel, item.header, item.body) for item in transfers] == [
        (1, b"1" * 40, b"A" * 40),
        (2, b"2" * 40, b"B" * 40),
    ]
    assert len(found) - 2 == 2 * mixed.count(heartbeat)


def test_a_frame_has_these_octets() -> None:
    assert encode_command(1, ExecutionSync(), sync=True) == bytes.fromhex(
        "0f 01 00 12 00 01 00 01 00 00 00 00 03 01 01 01 00 00"
    )
    assert encode_control(0, ConnectionHeartbeat()) == HEARTBEAT_FRAME
    assert TRANSFER[:12] == bytes.fromhex("0b 01 00 16 00 01 00 03 00 00 00 00")


def test_segments_that_are_missing_are_none_and_empty_ones_are_empty() -> None:
    sent = (None, b"")
    for header in sent:
        for body in sent:
            found = parse([encode_command(0, MessageTransfer("d"), header=header, body=body)])
            assert facts(found) == [(0, False, found[0].payload, header, body)]


def test_reserved_bits_are_read_over() -> None:
    data = bytearray(encode_command(1, ExecutionSync()))
    data[0] |= 0x30
    data[4] = 0xFF
    data[5] |= 0xF0
    data[8:12] = b"\xff" * 4
    assert facts(parse([bytes(data)])) == facts(parse([encode_command(1, ExecutionSync())]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x4f\x00\x00\x10", "version"),
        (b"\x8f", "version"),
        (b"AMQP\1\1\0\x0a", "version"),
        (b"\x0f\x04\x00\x10", "type"),
        (b"\x0f\x00\x00\x0b", "octets"),
        (b"\x0f\x01\x00\x10\x00\x02" + bytes(10), "track"),
        (b"\x0f\x01\x00\x10\x00\x00" + bytes(10), "track"),
        (b"\x0f\x00\x00\x10\x00\x01" + bytes(10), "track"),
        (frame(SEGMENT_FLAGS | frames.LAST_FRAME, frames.COMMAND), "first frame"),
        (frame(frames.WHOLE, frames.HEADER), "begins"),
        (frame(frames.FIRST_SEGMENT | 3, frames.BODY), "begins"),
        (frame(frames.FIRST_SEGMENT | 3, frames.CONTROL), "one segment"),
        (frame(3, frames.HEADER), "cannot come"),
        (frame(7, frames.COMMAND), "cannot come"),
        (frame(11, frames.COMMAND) * 2, "ended"),
        (frame(11, frames.COMMAND) + frame(15, frames.COMMAND), "ended"),
        (frame(11, frames.COMMAND) + frame(3, frames.COMMAND), "cannot come"),
        (frame(11, frames.COMMAND) + frame(3, frames.HEADER) * 2, "cannot come"),
        (frame(11, frames.COMMAND) + frame(3, frames.BODY), "last segment"),
        (frame(10, frames.COMMAND) + frame(11, frames.COMMAND), "another segment"),
        (frame(10, frames.COMMAND) + frame(3, frames.HEADER), "another segment"),
        (frame(10, frames.COMMAND) + frame(5, frames.COMMAND), "another segment"),
        (frame(10, frames.COMMAND) + frame(13, frames.COMMAND), "another segment"),
    ],
)
def test_malformed_frames_are_refused(data: bytes, why: str) -> None:
    assert why in refused(data)


def test_limits_hold() -> None:
    assert "100 are allowed" not in refused(b"\x8f")
    whole = encode_command(0, QueueDeclare("q" * 90))
    assert "octets where" in refused(whole, max_frame_size=100)
    assert "channel 9" in refused(encode_command(9, ExecutionSync()), channel_max=8)
    body = encode_command(0, MessageTransfer(), body=b"b" * 101)
    assert "more than 100" in refused(body, max_body_size=100)
    split = encode_command(0, MessageTransfer(), 60, body=b"b" * 101)
    assert "more than 100" in refused(split, max_body_size=100)
    large = segment(SEGMENT_FLAGS, frames.COMMAND, bytes(MAX_OPERATION_SIZE + 1), 60_000)
    assert str(MAX_OPERATION_SIZE) in refused(large)


def test_unfinished_commands_of_all_channels_count_together() -> None:
    start = [frame(10, frames.COMMAND, channel, bytes(60)) for channel in range(4)]
    assert "unfinished" in refused(b"".join(start), max_assembly_size=200)
    assembler = Assembler(max_assembly_size=200)
    for one in start[:3]:
        assembler.take_frame(one, 0)
    assert assembler.size == 180
    assembler.drop(1)
    assert assembler.size == 120
    assembler.take_frame(start[3], 0)
    assembler.take_frame(start[1], 0) if assembler.size < 140 else None
    assembler.drop(3)
    assembler.take_frame(frame(9, frames.COMMAND, 0, b"."), 0)
    assert assembler.size == 121
    assembler.take_frame(frame(7, frames.BODY, 0, b"."), 0)
    assert assembler.is_complete
    assert (len(assembler.payload), assembler.body) == (61, b".")
    assert assembler.size == 60


def test_a_frame_that_has_not_arrived_is_waited_for() -> None:
    for size in range(len(HEARTBEAT_FRAME)):
        assembler = Assembler()
        assert assembler.take_frame(HEARTBEAT_FRAME[:size], 0) == INCOMPLETE
        assert not assembler.is_complete


@given(st.binary(max_size=80), st.integers(0, 60))
def test_noise_raises_nothing_else(noise: bytes, start: int) -> None:
    data = TRANSFER[:start] + noise
    with suppress(FrameError):
        take_all(Assembler(), data)


def test_what_does_not_fit_a_frame_is_refused() -> None:
    with pytest.raises(EncodeError):
        frame(15, frames.COMMAND, 0, bytes(65_536))
    with pytest.raises(EncodeError):
        segment(SEGMENT_FLAGS, frames.COMMAND, b"1", 12)
    with pytest.raises(EncodeError, match="no header"):
        encode_command(0, ExecutionSync(), body=b"")
