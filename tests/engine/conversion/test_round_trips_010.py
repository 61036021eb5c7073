"""0-10 to 0-9-1 or 1.0 and back, and these to 0-10 and back: nothing is lost that could be kept."""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.engine.conversion.test_round_trips import (
    EMPTY,
    annotations,
    application_properties,
    assert_same,
    basic_properties,
    bodies,
    fields_of_091,
    footers,
    has_long_message_id,
    message_of,
    own_names,
    typed_table,
)
from tests.wire.amqp010.strategies import maps, reply_to, scalars, texts, uuids
from tests.wire.amqp10.strategies import properties as properties_10
from tests.wire.amqp10.strategies import strings
from waybill.engine.amqp010.message_format import AMQP010, packed
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.conversion.amqp010 import PRESERVED_HEADER, read_amqp010
from waybill.engine.conversion.amqp10 import read_amqp10
from waybill.engine.conversion.convert import (
    Inconvertible,
    amqp010_content,
    amqp091_content,
    amqp10_content,
    conversion_units,
)
from waybill.engine.conversion.fields import field_of
from waybill.engine.conversion.fields010 import canonical_value, shown_value
from waybill.wire.amqp010.class_message import DeliveryProperties, MessageProperties, ReplyTo
from waybill.wire.amqp010.message_header import decode_header, encode_header
from waybill.wire.amqp010.types import Array, Datetime, Typed
from waybill.wire.amqp091.content import body_of, properties_of
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import encode_annotations, encode_application_properties, encode_data
from waybill.wire.amqp10.types import Symbol, Timestamp, UInt, ULong, Uuid

octets = st.binary(max_size=20)


def _has_a_counterpart(value: object) -> bool:
    """Whether 1.0 has the type, and a timestamp, in milliseconds, has the range."""
    return type(value) is not Typed and not (isinstance(value, Datetime) and value * 1000 >= 2**63)


kept_as_they_are = scalars.filter(_has_a_counterpart) | st.lists(scalars.filter(_has_a_counterpart), max_size=3)
headers = st.dictionaries(texts | st.sampled_from(["x-custom", "CC", "x-death", "plain"]), kept_as_they_are, max_size=4)
message_properties = st.builds(
    MessageProperties,
    st.none(),
    st.none() | uuids,
    st.none() | octets | texts.map(str.encode),
    st.none() | reply_to,
    st.none() | texts,
    st.none() | texts,
    st.none() | octets,
    st.none() | octets,
    st.none() | headers,
)
times = st.none() | st.integers(0, 2**34) | st.integers(0, 2**63 - 1)


def content_of(content: bytes) -> tuple[MessageProperties, DeliveryProperties | None, bytes]:
    size = 4 + int.from_bytes(content[:4], "big")
    header = decode_header(content[4:size])
    assert header.properties is not None
    return header.properties, header.delivery, content[size:]


def over_and_back(content: bytes, by: str) -> bytes:
    if by == "1.0":
        there = message_of(AMQP10, amqp10_content(message_of(AMQP010, content)))
    else:
        there = message_of(AMQP091, amqp091_content(message_of(AMQP010, content)))
    return amqp010_content(there)


@pytest.mark.parametrize("by", ["1.0", "0-9-1"])
@settings(max_examples=15, deadline=None)
@given(message_properties, octets, st.none() | st.integers(0, 2**34))
def test_a_message_of_010_comes_back_as_it_was(
    by: str, sent: MessageProperties, body: bytes, timestamp: int | None
) -> None:
    structs = [sent] if timestamp is None else [DeliveryProperties(timestamp=timestamp), sent]
    back, delivery, octets_back = content_of(over_and_back(packed(encode_header(*structs), body), by))
    assert octets_back == body
    assert back.content_length == len(body)
    assert (None if delivery is None else delivery.timestamp) == timestamp
    for name in MessageProperties.FIELDS.names:
        mine, theirs = getattr(sent, name), getattr(back, name)
        if name == "application_headers":
            got = dict(theirs or {})
            for own in ("x-basic-type", PRESERVED_HEADER, "x-amqp-0-9-1"):
                got.pop(own, None)
            assert got == (mine or {}), by
            assert {key: type(value) for key, value in got.items()} == {k: type(v) for k, v in (mine or {}).items()}
        elif name == "reply_to":
            assert _place(theirs) == _place(mine)
        elif name != "content_length":
            assert theirs == mine, (name, by)


def _place(one: ReplyTo | None) -> tuple[str, str | None] | None:
    """An exchange without a name is the default one; it needs a routing key."""
    if one is None or not (one.exchange or one.routing_key):
        return None
    return (one.exchange or "", one.routing_key if one.exchange else one.routing_key or "")


@settings(max_examples=15, deadline=None)
@given(annotations, properties_10, application_properties, bodies, footers)
def test_a_message_of_10_comes_back_from_010_as_it_was(
    annotation_map: dict[object, object],
    property_section: Properties,
    application: dict[str, object],
    body: bytes,
    footer: bytes,
) -> None:
    content = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotation_map) if annotation_map else b""
    content += encode_value(property_section)
    content += encode_application_properties(application) + body + footer
    if content == EMPTY:
        return
    over = message_of(AMQP010, amqp010_content(message_of(AMQP10, content)))
    assert_same(read_amqp10(amqp10_content(over)), read_amqp10(content))


@settings(max_examples=15, deadline=None)
@given(
    basic_properties,
    st.dictionaries(strings.filter(lambda text: len(text.encode()) < 256) | own_names, fields_of_091, max_size=5),
    octets,
)
@example(BasicProperties(), {"x-message-id-type": "ulong"}, b"")
def test_a_message_of_091_comes_back_from_010_as_it_was(
    property_list: BasicProperties, header_map: dict[str, object], body: bytes
) -> None:
    assume(not has_long_message_id(property_list, header_map))
    property_list.headers = {name: field_of(value)[0] for name, value in header_map.items()} or None
    property_list.delivery_mode = 1
    property_list.priority = 4
    content = content_frames(1, property_list, body, 0)
    over = message_of(AMQP010, amqp010_content(message_of(AMQP091, content)))
    back = amqp091_content(over)
    there, here = properties_of(content), properties_of(back)
    there.headers = here.headers = None
    assert here == there
    assert body_of(back) == body
    assert typed_table(back) == typed_table(content)


def test_every_field_has_its_place_in_the_other_protocols() -> None:
    identity = Uuid(b"0123456789abcdef")
    sent = MessageProperties(
        message_id=identity,
        correlation_id=b"question",
        reply_to=ReplyTo("amq.direct", "answers"),
        content_type="text/plain",
        content_encoding="gzip",
        user_id=b"guest",
        app_id=b"shop",
        application_headers={"qpid.subject": "news", "n": UInt(3), "x-trace": "t", "when": Datetime(7)},
    )
    content = packed(encode_header(DeliveryProperties(timestamp=5, expiration=9), sent), b"body")
    canonical = read_amqp010(content)
    assert canonical.message_id == identity
    assert canonical.correlation_id == "question"
    assert canonical.reply_to == "/exchanges/amq.direct/answers"
    assert (canonical.content_type, canonical.content_encoding) == ("text/plain", "gzip")
    assert (canonical.user_id, canonical.group_id, canonical.subject) == (b"guest", "shop", "news")
    assert (canonical.creation_time, canonical.absolute_expiry_time) == (5000, 9000)
    assert canonical.application_properties == {"n": UInt(3), "qpid.subject": "news", "when": Timestamp(7000)}
    assert canonical.annotations == {Symbol("x-trace"): "t"}
    properties = properties_of(amqp091_content(message_of(AMQP010, content, priority=7, ttl_ms=1500)))
    assert (properties.priority, properties.expiration, properties.app_id) == (7, "1500", "shop")
    assert properties.message_id == f"urn:uuid:{identity}"
    assert properties.headers is not None
    assert properties.headers["n"] == 3


def test_a_queue_to_reply_to_is_a_routing_key() -> None:
    content = content_frames(1, BasicProperties(reply_to="answers"), b"", 0)
    properties, _, _ = content_of(amqp010_content(message_of(AMQP091, content)))
    assert properties.reply_to == ReplyTo("", "answers")
    content = encode_value(Properties(reply_to="somewhere:else", subject="s", message_id=ULong(7))) + encode_data(b"")
    properties, _, _ = content_of(amqp010_content(message_of(AMQP10, content)))
    assert properties.reply_to == ReplyTo("", "somewhere:else")
    assert properties.application_headers is not None
    assert properties.application_headers["qpid.subject"] == "s"
    assert properties.application_headers["x-message-id"] == ULong(7)


@settings(max_examples=15, deadline=None)
@given(maps)
def test_any_headers_reach_the_other_protocols(header_map: dict[str, object]) -> None:
    content = packed(encode_header(MessageProperties(application_headers=header_map)), b"b")
    for by in ("1.0", "0-9-1"):
        properties, _, body = content_of(over_and_back(content, by))
        assert body == b"b"
        for name in properties.application_headers or {}:
            assert name in header_map or name in {"x-basic-type", PRESERVED_HEADER, "x-amqp-0-9-1"}


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        (Array(0x02, (1, 2)), [1, 2]),
        (Typed(0xC8, b"12345"), b"12345"),
        (Datetime(2**63), ULong(2**63)),
        (ReplyTo("e", None), {"exchange": "e"}),
        ({"a": [Datetime(1)]}, {"a": [Timestamp(1000)]}),
    ],
)
def test_what_the_others_have_no_type_for_becomes_the_nearest(value: object, canonical: object) -> None:
    found = canonical_value(value)
    assert found == canonical
    assert type(found) is type(canonical)


def test_a_value_that_changes_says_so() -> None:
    assert shown_value(Timestamp(1500)) == (Datetime(1), False)
    assert shown_value(Timestamp(-1)) == (-1, False)
    assert shown_value(Symbol("s")) == ("s", False)
    assert shown_value("x" * 65536) == (b"x" * 65536, False)
    assert shown_value({1: "a"}) == ({"1": "a"}, False)
    assert shown_value([UInt(1), {"a": None}]) == ([UInt(1), {"a": None}], True)


def test_the_same_protocol_gets_the_very_octets() -> None:
    message = message_of(AMQP010, packed(b"", b"body"))
    assert amqp010_content(message) is message.content


def test_a_header_that_cannot_be_read_is_reported() -> None:
    message = message_of(AMQP010, packed(b"\0\0\0\1", b"body"))
    for convert in (amqp10_content, amqp091_content):
        with pytest.raises(Inconvertible):
            convert(message)


def test_a_conversion_is_paid_for_by_headers_and_once() -> None:
    small = message_of(AMQP010, packed(b"", b"b"))
    large = message_of(
        AMQP010, packed(encode_header(MessageProperties(application_headers={"k": "v" * 32_000})), b"b" * 100)
    )
    assert conversion_units(large, AMQP091) > 900 > conversion_units(small, AMQP091) > 0
    amqp091_content(large)
    assert conversion_units(large, AMQP091) == 0
    assert conversion_units(large, AMQP10) > 900
