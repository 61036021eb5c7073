import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import tables
from tests.wire.amqp091.test_field_table import EVERY_TYPE, nested, table_of
from waybill.wire.amqp091.errors import DecodeError
from waybill.wire.amqp091.field_table import MAX_DEPTH, MAX_VALUES, decode_table, encode_table
from waybill.wire.amqp091.table_check import check_table


def passes(data: bytes) -> bool:
    """Whether the check passes; it must agree with decoding."""
    try:
        after = check_table(data, 0, len(data))
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_table(data, 0)
        return False
    assert decode_table(data, 0)[1] == after
    return True


@pytest.mark.parametrize(("octets", "value"), EVERY_TYPE)
def test_every_type_passes_whole_and_fails_cut(octets: bytes, value: object) -> None:
    assert passes(table_of(b"\x01k" + octets))
    for size in range(len(octets)):
        assert not passes(table_of(b"\x01k" + octets[:size]))


@pytest.mark.parametrize("kind", range(256))
def test_types_are_known_as_in_decoding(kind: int) -> None:
    for size in range(10):
        passes(table_of(b"\x01k" + bytes([kind]) + bytes(size)))


def test_names_cut_off_fail() -> None:
    for octets in (b"\x01", b"\x01k", b"\x05k", b"\x00", b"\xff" + bytes(255)):
        assert not passes(table_of(octets))
    assert passes(table_of(b"\x00V"))


def test_limits_are_those_of_decoding() -> None:
    assert passes(nested(MAX_DEPTH))
    assert not passes(nested(MAX_DEPTH + 1))
    assert not passes(nested(20_000))
    assert passes(encode_table({"k": [None] * (MAX_VALUES - 1)}))
    assert not passes(table_of(b"\x01kA" + MAX_VALUES.to_bytes(4, "big") + b"V" * MAX_VALUES))


@pytest.mark.parametrize(("offset", "end"), [(-1, 4), (0, 5), (1, 4), (5, 4)])
def test_ranges_outside_fail(offset: int, end: int) -> None:
    with pytest.raises(DecodeError):
        check_table(b"\0\0\0\0", offset, end)


@given(tables)
def test_tables_pass(table: dict[str, object]) -> None:
    assert passes(encode_table(table))


@given(st.binary(max_size=120))
def test_garbage_fails_as_in_decoding(octets: bytes) -> None:
    passes(octets)
    passes(table_of(octets))


@given(tables, st.data())
def test_damage_fails_as_in_decoding(table: dict[str, object], data: st.DataObject) -> None:
    octets = bytearray(encode_table(table))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    passes(bytes(octets))
