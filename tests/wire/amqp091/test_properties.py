from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import properties
from waybill.wire.amqp091.errors import DecodeError, EncodeError
from waybill.wire.amqp091.properties import BasicProperties

ALL = BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"k": 1},
    delivery_mode=2,
    priority=9,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=1_700_000_000,
    type="t",
    user_id="u",
    app_id="a",
)
ALL_OCTETS = bytes.fromhex(
    "fff8"
    "0a746578742f706c61696e 04677a6970 00000007 016b 49 00000001 02 09 0163 0172 053630303030 016d"
    "000000006553f100 0174 0175 0161"
)


def test_known_octets() -> None:
    assert ALL.encode() == ALL_OCTETS
    assert BasicProperties.decode(ALL_OCTETS) == ALL
    assert BasicProperties().encode() == b"\0\0"
    assert BasicProperties.decode(b"\0\0") == BasicProperties()


@pytest.mark.parametrize("name", [field.name for field in fields(BasicProperties)])
def test_each_property_alone(name: str) -> None:
    alone = BasicProperties(**{name: getattr(ALL, name)})
    flags = 0x8000 >> [field.name for field in fields(BasicProperties)].index(name)
    assert alone.encode()[:2] == flags.to_bytes(2, "big")
    assert BasicProperties.decode(alone.encode()) == alone


@given(properties)
def test_round_trip(given_properties: BasicProperties) -> None:
    octets = given_properties.encode()
    assert BasicProperties.decode(octets) == given_properties
    assert BasicProperties.decode(b"abc" + octets + b"de", 3, 3 + len(octets)) == given_properties


@given(properties)
def test_every_truncation_and_every_excess_is_refused(given_properties: BasicProperties) -> None:
    octets = given_properties.encode()
    for size in range(len(octets)):
        with pytest.raises(DecodeError):
            BasicProperties.decode(octets[:size])
        with pytest.raises(DecodeError):
            BasicProperties.decode(octets, 0, size)
    with pytest.raises(DecodeError):
        BasicProperties.decode(octets + b"\0")


def test_empty_values_are_not_absent_ones() -> None:
    empty = BasicProperties(content_type="", headers={}, priority=0, timestamp=0)
    assert BasicProperties.decode(empty.encode()) == empty


def test_the_cluster_id_is_read_over() -> None:
    assert BasicProperties.decode(b"\x80\x04\x01a\x02id") == BasicProperties(content_type="a")


@pytest.mark.parametrize("flags", [b"\0\1", b"\0\2", b"\xff\xff"])
def test_flags_of_no_property_are_refused(flags: bytes) -> None:
    with pytest.raises(DecodeError):
        BasicProperties.decode(flags + bytes(60))


def test_a_timestamp_may_be_given_as_a_datetime() -> None:
    moment = BasicProperties(timestamp=datetime(2023, 11, 14, 22, 13, 20, 999, tzinfo=UTC))
    assert BasicProperties.decode(moment.encode()).timestamp == 1_700_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        BasicProperties(content_type="x" * 256),
        BasicProperties(correlation_id="\ud800"),
        BasicProperties(headers={"k": object()}),
        BasicProperties(delivery_mode=256),
        BasicProperties(priority=-1),
        BasicProperties(timestamp=-1),
        BasicProperties(timestamp=2**64),
        BasicProperties(timestamp=datetime(1900, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_has_no_encoding_is_refused(wrong: BasicProperties) -> None:
    with pytest.raises(EncodeError):
        wrong.encode()


@pytest.mark.parametrize(("offset", "end"), [(-1, -1), (0, 99), (3, 2), (0, -2), (99, -1)])
def test_ranges_outside_are_refused(offset: int, end: int) -> None:
    with pytest.raises(DecodeError):
        BasicProperties.decode(b"\0\0\0\0", offset, end)


def test_a_copy_with_changes_is_made_by_replace() -> None:
    assert replace(ALL, expiration=None) == BasicProperties.decode(replace(ALL, expiration=None).encode())


@given(st.binary(max_size=200))
def test_garbage_raises_decode_error_only(octets: bytes) -> None:
    try:
        BasicProperties.decode(octets)
    except DecodeError:
        return
