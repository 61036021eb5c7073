"""There and back again by the canonical message: nothing is lost that could be kept."""

from collections.abc import Mapping
from decimal import Decimal

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import tables
from tests.wire.amqp10.strategies import binaries, properties, scalars, strings, symbols, ulongs, values
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.conversion.amqp091 import PRESERVED_HEADER, read_amqp091
from waybill.engine.conversion.amqp10 import read_amqp10
from waybill.engine.conversion.canonical import CanonicalMessage
from waybill.engine.conversion.convert import amqp091_content, amqp10_content, amqp10_priority
from waybill.engine.conversion.fields import FieldReader, field_of, read_back
from waybill.engine.conversion.preserved import PRESERVED_MAX_OCTETS
from waybill.model.message import NO_TTL, Address, Message, MessageFormat
from waybill.wire.amqp091.content import ContentFacts, body_of, properties_of, scan
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import (
    MessageFacts,
    encode_amqp_value,
    encode_annotations,
    encode_application_properties,
    encode_data,
    encode_sequence,
    scan_message,
)
from waybill.wire.amqp10.types import Array, Decimal64, OddMap, Symbol, Timestamp, ULong

ADDRESS = Address("exchange", "key")
EMPTY = encode_value(Properties()) + encode_application_properties({})
"""A message of nothing gets an empty body on its way: its sections would be none."""

deaths = st.lists(
    st.fixed_dictionaries(
        {
            Symbol("queue"): strings,
            Symbol("reason"): symbols,
            Symbol("count"): ulongs,
            Symbol("first-time"): st.integers(0, 2**40).map(Timestamp),
            Symbol("exchange"): strings,
            Symbol("routing-keys"): st.lists(strings, max_size=2).map(lambda keys: Array(codes.STRING_32, tuple(keys))),
        }
    ),
    max_size=3,
).map(lambda entries: Array(codes.MAP_32, tuple(entries)))
OWN_NAMES = (
    "x-basic-type x-opt-headers x-opt-properties x-cc x-opt-deaths x-death x-amqp-1.0 x-message-id x-message-id-type "
    "x-correlation-id-type CC BCC x-delay x-opt-é same"
)
own_names = st.sampled_from(OWN_NAMES.split())
annotation_keys = st.one_of(
    symbols, ulongs, own_names.filter(str.isascii).map(Symbol), symbols.map(lambda name: Symbol("x-opt-" + name))
)
annotations = st.dictionaries(annotation_keys, values | deaths | st.lists(strings, max_size=2), max_size=4)
application_properties = st.dictionaries(strings | own_names, scalars, max_size=4)
bodies = st.one_of(
    st.just(b""),
    st.lists(binaries, min_size=1, max_size=3).map(lambda parts: b"".join(map(encode_data, parts))),
    st.lists(st.lists(values, max_size=3), min_size=1, max_size=2).map(lambda s: b"".join(map(encode_sequence, s))),
    values.map(encode_amqp_value),
)
footers = st.just(b"") | st.dictionaries(symbols, scalars, max_size=2).map(
    lambda footer: encode_annotations(descriptors.FOOTER, footer)
)


def message_of(
    message_format: MessageFormat, content: bytes, *, durable: bool = False, priority: int = 4, ttl_ms: int = NO_TTL
) -> Message:
    return Message(message_format, content, ADDRESS, durable, priority, ttl_ms, 0.0)


def to_091(content: bytes) -> Message:
    return message_of(AMQP091, amqp091_content(message_of(AMQP10, content)))


def to_10(content: bytes) -> Message:
    return message_of(AMQP10, amqp10_content(message_of(AMQP091, content)))


def typed(mapping: Mapping[object, object]) -> dict[bytes, bytes]:
    """Maps are equal if they are so with all types, in whatever order."""
    return {encode_value(key): encode_value(value) for key, value in mapping.items()}


# Compiled objects have no __dict__ to take these from.
NAMES = (
    "message_id user_id to subject reply_to correlation_id content_type content_encoding absolute_expiry_time "
    "creation_time group_id group_sequence reply_to_group_id annotations application_properties body_kind data "
    "sections footer type headers foreign"
)


def assert_same(one: CanonicalMessage, other: CanonicalMessage) -> None:
    for name in NAMES.split():
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, dict):
            assert typed(mine) == typed(theirs), name
        else:
            assert mine == theirs, name
            assert type(mine) is type(theirs), name


@settings(max_examples=30, deadline=None)
@given(annotations, properties, application_properties, bodies, footers)
def test_a_message_of_10_comes_back_from_091_as_it_was(
    annotation_map: dict[object, object],
    property_section: Properties,
    application: dict[str, object],
    body: bytes,
    footer: bytes,
) -> None:
    content = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotation_map) if annotation_map else b""
    content += encode_value(property_section)
    content += encode_application_properties(application) + body + footer
    assume(content != EMPTY)
    over = to_091(content)
    kept = properties_of(over.content).headers or {}
    if len(encode_value(annotation_map)) + len(encode_value(application)) < PRESERVED_MAX_OCTETS // 4:
        assert len(kept.get(PRESERVED_HEADER, b"")) <= PRESERVED_MAX_OCTETS  # type: ignore[arg-type]
    back = to_10(over.content)
    assert_same(read_amqp10(back.content), read_amqp10(content))


texts = (
    st.none()
    | st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace").decode())
    | st.binary(max_size=20).map(lambda octets: octets.decode("utf-8", "surrogateescape"))
)
identifiers = texts | st.uuids().map(lambda uuid: f"urn:uuid:{uuid}") | st.sampled_from(["7", "AAEC", "/queues/a%2Fb"])
basic_properties = st.builds(
    BasicProperties,
    content_type=texts,
    content_encoding=texts,
    correlation_id=identifiers,
    reply_to=identifiers,
    message_id=identifiers,
    timestamp=st.none() | st.integers(0, 2**64 - 1) | st.integers(0, 2**33),
    type=texts | st.just("amqp-1.0"),
    user_id=texts,
    app_id=texts,
)


def natural_fields(value: object) -> bool:
    return field_of(value)[1]


fields_of_091 = (scalars | st.lists(scalars, max_size=3) | st.dictionaries(strings, scalars, max_size=3)).filter(
    natural_fields
)


@settings(max_examples=30, deadline=None)
@given(
    basic_properties,
    st.dictionaries(strings.filter(lambda text: len(text.encode()) < 256) | own_names, fields_of_091, max_size=5),
    st.binary(max_size=60) | bodies,
)
def test_a_message_of_091_comes_back_from_10_as_it_was(
    property_list: BasicProperties, headers: dict[str, object], body: bytes
) -> None:
    assume(not has_long_message_id(property_list, headers))
    property_list.headers = {name: field_of(value)[0] for name, value in headers.items()} or None
    property_list.delivery_mode = 1
    property_list.priority = 4
    content = content_frames(1, property_list, body, 0)
    over = to_10(content)
    back = to_091(over.content)
    there, here = properties_of(content), properties_of(back.content)
    there.headers = here.headers = None
    assert here == there
    assert body_of(back.content) == body
    assert typed_table(back.content) == typed_table(content)


@settings(max_examples=30, deadline=None)
@given(tables)
def test_any_table_of_091_reaches_10_and_returns(table: dict[str, object]) -> None:
    content = content_frames(1, BasicProperties(headers=table), b"body", 0)
    back = to_091(to_10(content).content)
    assert typed_table(back.content) == typed_table(content)


def has_long_message_id(properties: BasicProperties, headers: dict[str, object]) -> bool:
    """Whether a header is read as the message id, as in RabbitMQ 4. A short one becomes a property."""
    return properties.message_id is None and type(headers.get("x-message-id")) in {str, bytes}


def typed_table(content: bytes) -> dict[bytes, bytes]:
    facts = ContentFacts()
    scan(content, 0, facts)
    if facts.headers_size <= 0:
        return {}
    return typed(dict(FieldReader(content, facts.headers_offset).table()))


PROPERTY_NAMES = ["to", "subject", "reply-to", "group-id", "content-type", "user-id", "creation-time", "message-id"]
claims = st.fixed_dictionaries(
    {},
    optional={
        **{Symbol(name): annotations for name in ("annotations", "unshown-annotations")},
        **{
            Symbol(name): application_properties | annotations
            for name in ("application-properties", "unshown-application-properties")
        },
        Symbol("properties"): st.dictionaries(
            st.sampled_from(PROPERTY_NAMES).map(Symbol), st.lists(scalars | st.none(), min_size=2, max_size=2)
        )
        | st.dictionaries(st.sampled_from(PROPERTY_NAMES), scalars.map(lambda value: [value, None]), min_size=3),
        Symbol("type"): scalars,
        Symbol("data"): st.lists(st.integers(0, 9), max_size=3) | scalars,
        Symbol("footer"): binaries | footers,
    },
)


@settings(max_examples=40, deadline=None)
@given(claims)
def test_what_a_publisher_of_091_claims_to_come_from_10_does_no_harm(claimed: dict[object, object]) -> None:
    headers: dict[str, object] = {PRESERVED_HEADER: encode_value(claimed)}
    content = content_frames(1, BasicProperties(headers=headers, content_type="a"), b"body", 0)
    over = to_10(content).content
    scan_message(over, 0, len(over), MessageFacts())
    read_amqp10(over)


@given(values)
def test_a_field_that_is_exact_reads_as_its_value(value: object) -> None:
    field, is_exact = field_of(value)
    again = read_back(field)
    if is_exact:
        assert encode_value(again) == encode_value(value)
    else:
        assert encode_value(again) != encode_value(value) or isinstance(value, (Array, OddMap, list, dict))


@given(annotations, properties, application_properties, bodies, footers)
@settings(max_examples=30, deadline=None)
def test_the_same_protocol_gets_the_very_octets(
    annotation_map: dict[object, object],
    property_section: Properties,
    application: dict[str, object],
    body: bytes,
    footer: bytes,
) -> None:
    content = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotation_map) + encode_value(property_section)
    content += encode_application_properties(application) + body + footer
    message = message_of(AMQP10, content)
    assert amqp10_content(message) is message.content


def test_a_decimal_is_the_one_that_it_was() -> None:
    # IEEE 754: 3.14 is 314 by 10 to the power of -2, a biased exponent of 396.
    content = content_frames(1, BasicProperties(headers={"pi": Decimal("3.14")}), b"", 0)
    value = read_amqp091(content).application_properties["pi"]
    assert value == Decimal64((396 << 53 | 314).to_bytes(8, "big"))


def test_priority_is_absent_where_nobody_said_it() -> None:
    silent = message_of(AMQP091, content_frames(1, BasicProperties(), b"", 0), priority=0)
    urgent = message_of(AMQP091, content_frames(1, BasicProperties(priority=0), b"", 0), priority=0)
    assert (amqp10_priority(silent), amqp10_priority(urgent)) == (-1, 0)
    assert amqp10_priority(message_of(AMQP10, encode_data(b""), priority=9)) == 9


def test_a_count_beyond_64_bits_with_a_sign_stays_a_ulong() -> None:
    content = encode_application_properties({"n": ULong(2**64 - 1)}) + encode_data(b"")
    back = read_amqp10(to_10(to_091(content).content).content)
    assert type(back.application_properties["n"]) is ULong
