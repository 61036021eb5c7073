import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp010.strategies import maps, reply_to, texts, uuids
from waybill.wire.amqp010.class_message import DeliveryProperties, FragmentProperties, MessageProperties, ReplyTo
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.message_header import (
    ABSENT,
    HeaderFacts,
    decode_header,
    delivered_header,
    encode_header,
    scan_header,
)

u64 = st.integers(0, 2**63 - 1)
octets = st.binary(max_size=20)
deliveries = st.builds(
    DeliveryProperties,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 255),
    st.none() | st.integers(0, 255),
    st.none() | u64,
    st.none() | u64,
    st.none() | u64,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | u64,
)
properties = st.builds(
    MessageProperties,
    st.none() | u64,
    st.none() | uuids,
    st.none() | octets,
    st.none() | reply_to,
    st.none() | texts,
    st.none() | texts,
    st.none() | octets,
    st.none() | octets,
    st.none() | maps,
)
UNKNOWN = b"\0\0\0\5\x7f\x7fxyz"


def scan(data: bytes) -> HeaderFacts:
    facts = HeaderFacts()
    scan_header(data, facts)
    return facts


@given(deliveries, properties, st.permutations([0, 1, 2]))
def test_a_scan_finds_what_decoding_finds(
    delivery: DeliveryProperties, message: MessageProperties, order: list[int]
) -> None:
    parts = [encode_header(delivery), encode_header(message), UNKNOWN]
    data = b"".join(parts[index] for index in order)
    header = decode_header(data)
    assert header.delivery == delivery
    assert header.properties == message
    assert len(header.others) == 1
    facts = scan(data)
    assert facts.discard_unroutable is delivery.discard_unroutable
    assert facts.immediate is delivery.immediate
    assert facts.redelivered is delivery.redelivered
    for name, absent in (
        ("priority", ABSENT),
        ("delivery_mode", ABSENT),
        ("timestamp", ABSENT),
        ("expiration", ABSENT),
        ("exchange", ""),
        ("routing_key", ""),
    ):
        value = getattr(delivery, name)
        assert getattr(facts, name) == (absent if value is None else value)
    assert facts.ttl_ms == (ABSENT if delivery.ttl is None else delivery.ttl)
    assert facts.user_id == message.user_id
    assert data[facts.delivery : facts.delivery_end] == parts[0]
    assert data[facts.properties : facts.properties_end] == parts[1]


@given(deliveries, properties, st.booleans(), st.none() | u64)
def test_a_consumer_gets_all_that_the_publisher_said_of_the_message(
    delivery: DeliveryProperties, message: MessageProperties, redelivered: bool, ttl: int | None
) -> None:
    data = encode_header(delivery, message) + UNKNOWN
    left = ABSENT if ttl is None else ttl
    sent = delivered_header(data, scan(data), "an exchange", "a key", left, redelivered=redelivered, end=-1)
    header = decode_header(sent)
    assert header.delivery == DeliveryProperties(
        redelivered=redelivered,
        priority=delivery.priority,
        delivery_mode=delivery.delivery_mode,
        ttl=ttl,
        timestamp=delivery.timestamp,
        expiration=delivery.expiration,
        exchange="an exchange",
        routing_key="a key",
    )
    assert sent.endswith(encode_header(message) + UNKNOWN)
    scan(sent)


def test_a_message_without_header_gets_one() -> None:
    sent = delivered_header(b"", scan(b""), "", "q", ABSENT, redelivered=False, end=-1)
    assert decode_header(sent).delivery == DeliveryProperties(exchange="", routing_key="q")


def test_times_beyond_63_bits_are_the_last_ones() -> None:
    assert scan(encode_header(DeliveryProperties(ttl=2**64 - 1))).ttl_ms == 2**63 - 1


@given(deliveries, properties, st.data())
def test_the_scan_refuses_what_decoding_refuses(
    delivery: DeliveryProperties, message: MessageProperties, data: st.DataObject
) -> None:
    changed = bytearray(encode_header(delivery, message, FragmentProperties(first=True, fragment_size=1)))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        scan(bytes(changed))
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_header(bytes(changed))


@pytest.mark.parametrize(
    "data",
    [
        "00",
        "00 00 00 01 04",
        "00 00 00 09 04 01 00 00",
        "00 00 00 05 04 01 00 00 00",
        "00 00 00 04 04 01 00 10",
        "00 00 00 04 04 03 00 02",
        "00 00 00 04 04 01 00 00 00 00 00 04 04 01 00 00",
        "00 00 00 04 04 03 00 00 00 00 00 04 04 03 00 00",
        "00 00 00 04 04 02 00 00 00 00 00 04 04 02 00 00",
        "00 00 00 08 04 03 08 00 00 02 04 00",
        "00 00 00 09 04 03 08 00 00 03 00 00 00",
    ],
)
def test_malformed_headers_are_refused(data: str) -> None:
    with pytest.raises(DecodeError):
        scan(bytes.fromhex(data))


def test_reply_to_is_in_the_properties() -> None:
    data = encode_header(MessageProperties(reply_to=ReplyTo("amq.direct", "answers")))
    assert decode_header(data).properties == MessageProperties(reply_to=ReplyTo("amq.direct", "answers"))
