from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import TYPE_OF_KIND, annotated, declared, methods, methods_of
from waybill.wire.amqp091.errors import DecodeError, EncodeError, UnknownMethod
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import METHODS, decode_method
from waybill.wire.amqp091.methods_basic import BasicAck, BasicDeliver, BasicGetEmpty, BasicNack, BasicPublish, BasicQos
from waybill.wire.amqp091.methods_channel import ChannelOpenOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
)
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare, ExchangeUnbindOk
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDeclareOk
from waybill.wire.amqp091.methods_tx import TxSelect

VECTORS: list[tuple[Method, str]] = [
    (
        ConnectionStart(0, 9, {"p": "W"}, "PLAIN", "en_US"),
        "000a000a 00 09 00000008 0170 53 00000001 57 00000005 504c41494e 00000005 656e5f5553",
    ),
    (
        ConnectionStartOk({}, "PLAIN", b"\0a\0b", "en_US"),
        "000a000b 00000000 05504c41494e 00000004 00610062 05656e5f5553",
    ),
    (ConnectionTuneOk(2047, 131072, 60), "000a001f 07ff 00020000 003c"),
    (ConnectionOpen("/"), "000a0028 012f 00 00"),
    (ConnectionClose(320, "bye", 60, 40), "000a0032 0140 03627965 003c 0028"),
    (ConnectionBlocked("low"), "000a003c 036c6f77"),
    (ConnectionUpdateSecret("s", "r"), "000a0046 00000001 73 0172"),
    (ChannelOpenOk(), "0014000b 00000000"),
    (
        ExchangeDeclare("e", "topic", durable=True, no_wait=True, arguments={}),
        "0028000a 0000 0165 05746f706963 12 00000000",
    ),
    (ExchangeDeclare("e", "direct", True, True, True, True, True), "0028000a 0000 0165 06646972656374 1f 00000000"),
    (ExchangeUnbindOk(), "00280033"),
    (
        QueueDeclare("q", durable=True, auto_delete=True, arguments={"x-max-length": 10}),
        "0032000a 0000 0171 0a 00000012 0c782d6d61782d6c656e677468 49 0000000a",
    ),
    (QueueDeclareOk("q", 2**32 - 1, 3), "0032000b 0171 ffffffff 00000003"),
    (QueueBind("q", "e", "k", no_wait=True), "00320014 0000 0171 0165 016b 01 00000000"),
    (BasicQos(0, 100, global_=True), "003c000a 00000000 0064 01"),
    (BasicPublish("e", "k", mandatory=True, immediate=True), "003c0028 0000 0165 016b 03"),
    (BasicDeliver("c", 2**64 - 1, True, "e", "k"), "003c003c 0163 ffffffffffffffff 01 0165 016b"),
    (BasicGetEmpty(), "003c0048 00"),
    (BasicAck(1, multiple=True), "003c0050 0000000000000001 01"),
    (BasicNack(2, multiple=False, requeue=True), "003c0078 0000000000000002 02"),
    (ConfirmSelect(nowait=True), "0055000a 01"),
    (TxSelect(), "005a000a"),
]

ALL_IDS = {
    10: [10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, 70, 71],
    20: [10, 11, 20, 21, 40, 41],
    40: [10, 11, 20, 21, 30, 31, 40, 51],
    50: [10, 11, 20, 21, 30, 31, 40, 41, 50, 51],
    60: [10, 11, 20, 21, 30, 31, 40, 50, 60, 70, 71, 72, 80, 90, 100, 110, 111, 120],
    85: [10, 11],
    90: [10, 11, 20, 21, 30, 31],
}


@pytest.mark.parametrize(("method", "octets"), VECTORS, ids=lambda value: getattr(value, "NAME", ""))
def test_known_octets(method: Method, octets: str) -> None:
    payload = bytes.fromhex(octets)
    assert method.encode() == payload
    assert decode_method(payload) == method


def test_all_methods_are_there() -> None:
    expected = {(class_id, method_id) for class_id, ids in ALL_IDS.items() for method_id in ids}
    assert {(method.CLASS_ID, method.METHOD_ID) for method in METHODS} == expected
    assert len({method.NAME for method in METHODS}) == len(METHODS) == len(expected)


def test_four_methods_carry_content() -> None:
    carriers = {method.NAME for method in METHODS if method.HAS_CONTENT}
    assert carriers == {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.NAME)
def test_declared_arguments_are_the_attributes(method: type[Method]) -> None:
    assert is_dataclass(method)
    assert [field.name for field in fields(method)] == list(declared(method))
    assert annotated(method) == {name: TYPE_OF_KIND[kind] for name, kind in declared(method).items()}
    class_name, _, method_name = method.NAME.partition(".")
    assert method.__name__ == class_name.capitalize() + "".join(part.capitalize() for part in method_name.split("-"))


@given(methods)
def test_round_trip(method: Method) -> None:
    payload = method.encode()
    decoded = decode_method(payload)
    assert decoded == method
    assert type(decoded) is type(method)
    assert decoded.encode() == payload


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.NAME)
@given(data=st.data())
def test_every_truncation_and_every_excess_is_refused(method: type[Method], data: st.DataObject) -> None:
    payload = data.draw(methods_of(method)).encode()
    for size in range(len(payload)):
        with pytest.raises(DecodeError):
            decode_method(payload[:size])
    for excess in (b"\0", b"\xff" * 9):
        with pytest.raises(DecodeError):
            decode_method(payload + excess)


@pytest.mark.parametrize(
    ("class_id", "method_id"), [(0, 0), (10, 9), (10, 0xFFFF), (40, 41), (60, 22), (100, 10), (0xFFFF, 0xFFFF)]
)
def test_unknown_methods_are_named(class_id: int, method_id: int) -> None:
    with pytest.raises(UnknownMethod) as caught:
        decode_method(class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + b"anything")
    assert (caught.value.class_id, caught.value.method_id) == (class_id, method_id)


def test_bits_beyond_the_declared_ones_are_ignored() -> None:
    assert decode_method(bytes.fromhex("0055000a ff")) == ConfirmSelect(nowait=True)


def test_reserved_arguments_are_read_over() -> None:
    assert decode_method(bytes.fromhex("000a0028 012f 03616263 01")) == ConnectionOpen("/")
    assert decode_method(bytes.fromhex("003c0048 03616263")) == BasicGetEmpty()


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (QueueDeclare, {"queue": "q" * 256}),
        (QueueDeclare, {"queue": "é" * 128}),
        (QueueDeclare, {"queue": "\ud800"}),
        (QueueDeclare, {"queue": None}),
        (QueueDeclare, {"queue": 5}),
        (QueueDeclare, {"arguments": None}),
        (QueueDeclare, {"arguments": {"k": object()}}),
        (BasicAck, {"delivery_tag": -1}),
        (BasicAck, {"delivery_tag": 2**64}),
        (BasicAck, {"delivery_tag": "1"}),
        (BasicQos, {"prefetch_count": 2**16}),
        (BasicQos, {"prefetch_size": 2**32}),
        (BasicQos, {"prefetch_count": 1.0}),
        (ConnectionStart, {"version_major": 256}),
        (ConnectionStartOk, {"response": None}),
    ],
)
def test_what_has_no_encoding_is_refused_by_name(method: type[Method], changes: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match=next(iter(changes))):
        method(**changes).encode()


def test_255_octets_are_a_short_string() -> None:
    longest = QueueDeclare("é" * 127 + "q")
    assert decode_method(longest.encode()) == longest


def test_names_need_not_be_utf8() -> None:
    bound = decode_method(bytes.fromhex("00320014 0000 0171 0165 02ff80 00 00000000"))
    assert isinstance(bound, QueueBind)
    assert bound.routing_key == "\udcff\udc80"
    assert bound.encode() == bytes.fromhex("00320014 0000 0171 0165 02ff80 00 00000000")


def test_methods_are_frozen() -> None:
    ack = BasicAck(1)
    with pytest.raises(FrozenInstanceError):
        ack.delivery_tag = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "named"), [((1, True, 2), {}), ((), {"tag": 1}), ((1,), {"delivery_tag": 1}), ((), {"NAME": "x"})]
)
def test_arguments_that_a_method_has_not_are_refused(values: tuple[object, ...], named: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"basic\.ack takes delivery_tag, multiple"):
        BasicAck(*values, **named)  # type: ignore[arg-type]


def test_methods_are_values() -> None:
    one, same = BasicAck(1, multiple=True), BasicAck(multiple=True, delivery_tag=1)
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same, BasicAck(1), BasicNack(1, multiple=True)}) == 3
    assert repr(one) == "BasicAck(delivery_tag=1, multiple=True)"
    assert QueueDeclare().arguments is not QueueDeclare().arguments


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.NAME)
def test_no_code_is_made_for_a_method_when_it_is_imported(method: type[Method]) -> None:
    assert not vars(method).keys() & {"__init__", "__eq__", "__repr__", "__setattr__", "__delattr__"}


def test_secrets_stay_out_of_logs() -> None:
    assert "hunter2" not in repr(ConnectionStartOk(response=b"\0me\0hunter2"))
    assert "hunter2" not in repr(ConnectionUpdateSecret("hunter2", "rotation"))


@given(st.sampled_from(METHODS), st.binary(max_size=120))
def test_garbage_raises_decode_error_only(method: type[Method], octets: bytes) -> None:
    for payload in (octets, method.CLASS_ID.to_bytes(2, "big") + method.METHOD_ID.to_bytes(2, "big") + octets):
        try:
            decoded = decode_method(payload)
        except DecodeError:
            continue
        assert decode_method(decoded.encode()) == decoded or "nan" in repr(decoded)


@given(methods, st.data())
def test_damage_raises_decode_error_only(method: Method, data: st.DataObject) -> None:
    octets = bytearray(method.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_method(bytes(octets))
    except DecodeError:
        return
