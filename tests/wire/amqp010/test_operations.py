from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp010.strategies import coded_structs, commands, controls
from waybill.wire.amqp010.class_connection import ConnectionOpen, ConnectionStart, ConnectionStartOk
from waybill.wire.amqp010.class_dtx import DtxStart, RecoverResult, XaResult, Xid
from waybill.wire.amqp010.class_exchange import ExchangeDeclare
from waybill.wire.amqp010.class_execution import ExecutionResult, ExecutionSync
from waybill.wire.amqp010.class_message import MessageAccept, MessageProperties, MessageTransfer, ReplyTo
from waybill.wire.amqp010.class_queue import QueueQueryResult
from waybill.wire.amqp010.class_session import SessionAttach, SessionCompleted
from waybill.wire.amqp010.class_stream import StreamQos
from waybill.wire.amqp010.codec import (
    command_payload,
    control_payload,
    decode_command,
    decode_control,
    operation_code,
    wants_sync,
)
from waybill.wire.amqp010.errors import DecodeError, EncodeError, UnknownOperation
from waybill.wire.amqp010.operations import COMMANDS, CONTROLS, STRUCTS
from waybill.wire.amqp010.struct import Command, Control, Struct


@given(controls)
def test_controls_survive_a_round_trip(control: Control) -> None:
    payload = control_payload(control)
    assert decode_control(payload) == control
    assert operation_code(payload) == control.CODE


@given(commands, st.booleans())
def test_commands_survive_a_round_trip(command: Command, sync: bool) -> None:
    payload = command_payload(command, sync=sync)
    assert decode_command(payload) == (command, sync)
    assert wants_sync(payload) is sync


@given(coded_structs)
def test_structs_survive_a_round_trip_as_results(struct: Struct) -> None:
    result = ExecutionResult(7, struct)
    assert decode_command(command_payload(result))[0] == result


@given(controls | commands, st.data())
def test_cut_and_changed_payloads_raise_nothing_but_decode_errors(struct: Struct, data: st.DataObject) -> None:
    is_control = isinstance(struct, Control)
    payload = control_payload(struct) if isinstance(struct, Control) else command_payload(struct)  # type: ignore[arg-type]
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    with pytest.raises(DecodeError):
        decode_control(cut) if is_control else decode_command(cut)
    changed = bytearray(payload)
    changed[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(DecodeError):
        decode_control(bytes(changed)) if is_control else decode_command(bytes(changed))


def test_the_tables_have_what_the_specification_has() -> None:
    assert (len(CONTROLS), len(COMMANDS), len(STRUCTS)) == (25, 59, 17)
    assert len({one.CODE for one in CONTROLS}) == len(CONTROLS)
    assert len({one.CODE for one in COMMANDS}) == len(COMMANDS)
    assert sum(one.HAS_CONTENT for one in COMMANDS) == 6
    assert not any(one.TAKEN_BY_SERVER for one in CONTROLS if one.NAME in {"connection.start", "connection.open-ok"})
    assert not ExchangeDeclare.TAKEN_BY_CLIENT


@pytest.mark.parametrize(
    ("payload", "control"),
    [
        ("02 01 01 00 00 01 73", SessionAttach(b"s")),
        ("02 01 03 00 00 01 73", SessionAttach(b"s", force=True)),
        ("02 0a 01 00 00 08 00 00 00 00 00 00 00 04", SessionCompleted(((0, 4),))),
        ("02 0a 03 00 00 08 ff ff ff ff 00 00 00 01", SessionCompleted(((0xFFFFFFFF, 1),), timely_reply=True)),
        ("01 07 01 00 01 2f", ConnectionOpen("/")),
        (
            "01 01 06 00 00 00 00 0e 95 00 00 00 01 00 07 45 58 54 45 52 4e 41 00 00 00 00",
            ConnectionStart(None, ("EXTERNA",), ()),
        ),
    ],
)
def test_controls_have_these_octets(payload: str, control: Control) -> None:
    octets = bytes.fromhex(payload)
    assert control_payload(control) == octets
    assert decode_control(octets) == control


@pytest.mark.parametrize(
    ("payload", "command", "sync"),
    [
        ("03 01 01 01 00 00", ExecutionSync(), True),
        ("04 01 01 00 07 00 01 71 01 00", MessageTransfer("q", 1, 0), False),
        ("04 02 01 00 01 00 00 08 00 00 00 01 00 00 00 02", MessageAccept(((1, 2),)), False),
        ("07 01 01 00 13 00 01 65 06 64 69 72 65 63 74", ExchangeDeclare("e", "direct", durable=True), False),
        (
            "06 02 01 00 03 00 00 00 00 0c 06 04 07 00 00 00 00 09 01 67 01 62",
            DtxStart(Xid(9, b"g", b"b"), join=True),
            False,
        ),
        (
            "03 02 01 00 03 00 00 00 00 05 00 00 00 06 06 01 01 00 00 07",
            ExecutionResult(5, XaResult(7)),
            False,
        ),
    ],
)
def test_commands_have_these_octets(payload: str, command: Command, sync: bool) -> None:
    octets = bytes.fromhex(payload)
    assert command_payload(command, sync=sync) == octets
    assert decode_command(octets) == (command, sync)


def test_a_struct_inside_message_properties_has_a_size_of_two_octets() -> None:
    result = command_payload(ExecutionResult(0, MessageProperties(reply_to=ReplyTo("e", "k"))))
    assert result.endswith(bytes.fromhex("00 00 00 0c 04 03 08 00 00 06 03 00 01 65 01 6b"))


def test_transactions_in_doubt_are_an_array_of_structs() -> None:
    result = RecoverResult((Xid(1, b"a", b""), Xid(2, b"", b"b")))
    found, _ = decode_command(command_payload(ExecutionResult(0, result)))
    assert found == ExecutionResult(0, result)


def test_required_fields_that_are_missing_are_empty() -> None:
    """As other implementations send and take them."""
    command, _ = decode_command(bytes.fromhex("04 01 01 00 00 00"))
    assert command == MessageTransfer()
    assert (command.accept_mode, command.acquire_mode) == (0, 0)  # type: ignore[attr-defined]


def test_a_number_that_is_there_is_zero_and_not_absent() -> None:
    octets = command_payload(ExecutionResult(0, QueueQueryResult("q", message_count=0)))
    found = decode_command(octets)[0]
    assert found.value.message_count == 0  # type: ignore[attr-defined]
    assert found.value.alternate_exchange is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "02",
        "02 01",
        "02 01 04 00 00 01 73",
        "02 01 01 01 00 01 73",
        "02 01 01 00 00 01 73 00",
        "02 0a 01 00 00 04 00 00 00 00",
        "02 0a 01 00 00 08 00 00 00 05 00 00 00 04",
        "01 01 02 00 00 00 00 06 21 00 00 00 01 00",
    ],
)
def test_malformed_controls_are_refused(payload: str) -> None:
    with pytest.raises(DecodeError):
        decode_control(bytes.fromhex(payload))


@pytest.mark.parametrize(
    "payload",
    [
        "03 01",
        "03 01 01",
        "03 01 02 00 00 00 00",
        "03 01 01 02 00 00",
        "03 01 01 00 00 00 00",
        "06 02 01 00 01 00 00 00 00 04 06 05 00 00",
    ],
)
def test_malformed_commands_are_refused(payload: str) -> None:
    with pytest.raises(DecodeError):
        decode_command(bytes.fromhex(payload))


def test_an_unknown_operation_is_named() -> None:
    with pytest.raises(UnknownOperation) as control:
        decode_control(b"\x02\x7f\0\0")
    assert (control.value.class_code, control.value.code, control.value.error_code) == (2, 0x7F, 540)
    with pytest.raises(UnknownOperation) as command:
        decode_command(b"\x0b\x01\1\0\0\0")
    assert (command.value.class_code, command.value.code) == (11, 1)


@pytest.mark.parametrize(
    "command",
    [
        ExchangeDeclare("e" * 256),
        ExchangeDeclare(5),  # type: ignore[arg-type]
        ExchangeDeclare("e", "t", arguments=[]),  # type: ignore[arg-type]
        DtxStart(ReplyTo()),  # type: ignore[arg-type]
        MessageAccept(tuple((n, n) for n in range(8192))),
        MessageAccept(((-1, 0),)),
        StreamQos(2**32),
        ExecutionResult(0, ReplyTo()),
    ],
)
def test_what_has_no_encoding_is_refused(command: Command) -> None:
    with pytest.raises(EncodeError):
        command_payload(command)


def test_structs_are_values() -> None:
    one = SessionAttach(b"s", force=True)
    assert one == SessionAttach(name=b"s", force=True)
    assert one != SessionAttach(b"s")
    assert one != "other"
    assert hash(one) == hash(SessionAttach(b"s", force=True))
    assert repr(one) == "SessionAttach(name=b's', force=True)"
    assert "secret" not in repr(ConnectionStartOk(mechanism="PLAIN", response=b"secret"))
    with pytest.raises(AttributeError):
        one.name = b""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del one.name
    with pytest.raises(TypeError):
        SessionAttach(b"s", True, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        SessionAttach(b"s", name=b"t")  # type: ignore[misc]
