"""The filters of a source: which are in force, which messages pass, what is refused."""

from datetime import UTC, datetime

import pytest

from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.filters import EXCHANGE, QUEUE, STREAM, FilterError, read_filters
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.conversion.convert import amqp10_content
from waybill.model.message import NO_TTL, Address, Message
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import encode_annotations, encode_application_properties, encode_data
from waybill.wire.amqp10.types import Described, Int, Symbol, Timestamp, UByte, ULong

SELECTOR = "apache.org:selector-filter:string"
DIRECT = "apache.org:legacy-amqp-direct-binding:string"
TOPIC = "apache.org:legacy-amqp-topic-binding:string"
HEADERS = "apache.org:legacy-amqp-headers-binding:map"
PROPERTY = "amqp:properties-filter"
APPLICATION = "amqp:application-properties-filter"


def message(*, subject: str | None = "usd.stock", stream_filter: str | None = None) -> Message:
    content = b""
    if stream_filter is not None:
        content = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, {"x-stream-filter-value": stream_filter})
    content += encode_value(Properties(subject=subject, message_id="m-1", content_type="text/plain", group_sequence=3))
    content += encode_application_properties({"color": "red", "size": UByte(5), "sold": False}) + encode_data(b"")
    return Message(AMQP10, content, Address("x", "key"), False, 4, NO_TTL, 0.0)


def passes(name: str, value: object, shown: Message | None = None, kind: str = QUEUE) -> bool:
    filter_set = read_filters({"f": Described(Symbol(name), value)}, kind)
    assert list(filter_set.in_force) == ["f"]
    shown = shown or message()
    return filter_set.matches(shown, amqp10_content(shown))


def test_no_filters_let_everything_pass() -> None:
    nothing: list[dict[str, object] | None] = [None, {}, {"f": None}]
    for requested in nothing:
        filter_set = read_filters(requested, QUEUE)
        assert filter_set.in_force == {}
        assert filter_set.matches(message(), message().content)


def test_only_what_is_known_is_in_force() -> None:
    known = Described(Symbol(SELECTOR), "color = 'red'")
    requested: dict[str, object] = {
        "mine": known,
        "xquery": Described(Symbol("apache.org:xquery-filter:string"), "//x"),
        "number": Described(ULong(77), "x"),
        "text": Described("apache.org:selector-filter:string", "x"),
        "offset": Described(Symbol("rabbitmq:stream-offset-spec"), "first"),
    }
    filter_set = read_filters(requested, QUEUE)
    assert filter_set.in_force == {"mine": known}


def test_a_filter_may_be_named_by_its_number() -> None:
    filter_set = read_filters({"f": Described(ULong(0x0000468C_00000004), "color = 'blue'")}, QUEUE)
    assert not filter_set.matches(message(), message().content)


def test_a_message_passes_all_filters() -> None:
    red = Described(Symbol(SELECTOR), "color = 'red'")
    both = read_filters({"a": red, "b": Described(Symbol(DIRECT), "usd.stock")}, QUEUE)
    assert both.matches(message(), message().content)
    assert not both.matches(message(subject="x"), message(subject="x").content)


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("*.stock.#", "usd.stock", True),
        ("*.stock.#", "eur.stock.db", True),
        ("*.stock.#", "stock.nasdaq", False),
        ("#", None, True),
        ("*", None, False),
        ("#.#", "a", True),
        ("", "", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a.x", False),
        ("*", "a.b", False),
        (".".join(["#"] * 100), ".".join(["a"] * 200), True),
    ],
)
def test_topic_patterns_fit_subjects(pattern: str, subject: str | None, fits: bool) -> None:
    assert passes(TOPIC, pattern, message(subject=subject)) is fits


@pytest.mark.parametrize(
    ("pairs", "fits"),
    [
        ({"x-match": Symbol("all"), "color": "red", "size": Int(5)}, True),
        ({"x-match": "all", "color": "red", "size": Int(6)}, False),
        ({"x-match": "any", "color": "blue", "size": Int(5)}, True),
        ({"x-match": "any", "color": "blue"}, False),
        ({"color": None, "x-ignored": "y"}, True),
        ({"absent": None}, False),
        ({"sold": Int(0)}, False),
    ],
)
def test_header_bindings_compare_application_properties(pairs: dict[str, object], fits: bool) -> None:
    assert passes(HEADERS, pairs) is fits


@pytest.mark.parametrize(
    ("name", "pairs", "fits"),
    [
        (PROPERTY, {Symbol("subject"): "usd.stock", Symbol("message-id"): "m-1"}, True),
        (PROPERTY, {Symbol("subject"): "&p:usd.", Symbol("group-sequence"): 3}, True),
        (PROPERTY, {Symbol("subject"): "&s:.stock"}, True),
        (PROPERTY, {Symbol("subject"): "&s:.bond"}, False),
        (PROPERTY, {Symbol("reply-to"): None}, True),
        (PROPERTY, {Symbol("content-type"): Symbol("text/plain")}, True),
        (APPLICATION, {"color": "red", "size": 5}, True),
        (APPLICATION, {"color": "&p:r", "sold": False}, True),
        (APPLICATION, {"color": "&&p:r"}, False),
        (APPLICATION, {"sold": 0}, False),
        (APPLICATION, {"absent": "x"}, False),
    ],
)
def test_property_filters_compare_values(name: str, pairs: dict[object, object], fits: bool) -> None:
    assert passes(name, pairs) is fits


def test_a_property_that_does_not_exist_cannot_be_filtered_by() -> None:
    assert read_filters({"f": Described(Symbol(PROPERTY), {Symbol("colour"): "x"})}, QUEUE).in_force == {}


def test_bindings_of_an_exchange_are_no_tests_of_messages() -> None:
    requested: dict[str, object] = {
        "a": Described(Symbol(TOPIC), "*.stock"),
        "b": Described(Symbol(HEADERS), {"x-match": Symbol("any"), "n": Int(1)}),
    }
    filter_set = read_filters(requested, EXCHANGE)
    assert filter_set.bindings == [("*.stock", {}), ("", {"x-match": "any", "n": 1})]
    assert not filter_set.filters
    assert filter_set.in_force == requested


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        ("first", "first"),
        (Symbol("next"), "next"),
        ("5m", "5m"),
        (ULong(12), 12),
        (Timestamp(1_700_000_000_000), datetime.fromtimestamp(1_700_000_000, UTC)),
    ],
)
def test_streams_start_where_the_filter_says(value: object, offset: object) -> None:
    filter_set = read_filters({"f": Described(Symbol("rabbitmq:stream-offset-spec"), value)}, STREAM)
    assert filter_set.stream_offset == offset


@pytest.mark.parametrize(
    ("value", "unfiltered", "fits"), [("eu", None, True), ("us", True, False), (None, True, True), (None, None, False)]
)
def test_stream_filters_look_at_the_annotation(value: str | None, unfiltered: bool | None, fits: bool) -> None:
    requested: dict[str, object] = {"f": Described(Symbol("rabbitmq:stream-filter"), ["eu", "asia"])}
    if unfiltered is not None:
        requested["u"] = Described(Symbol("rabbitmq:stream-match-unfiltered"), unfiltered)
    shown = message(stream_filter=value)
    assert read_filters(requested, STREAM).matches(shown, shown.content) is fits


def test_messages_of_091_pass_by_headers_and_routing_key() -> None:
    content = content_frames(1, BasicProperties(headers={"color": "red", "n": 3}, priority=5), b"", 0)
    shown = Message(AMQP091, content, Address("x", "usd.stock"), False, 5, NO_TTL, 0.0)
    assert passes(SELECTOR, "color = 'red' AND n = 3 AND amqp.priority = 5", shown)
    assert passes(TOPIC, "usd.*", shown)


def test_no_local_is_not_promised() -> None:
    assert read_filters({"f": Described(Symbol("apache.org:no-local-filter:list"), [])}, QUEUE).in_force == {}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("bare", QUEUE),
        (Described(Symbol(SELECTOR), 5), QUEUE),
        (Described(Symbol(SELECTOR), "color ="), QUEUE),
        (Described(Symbol("amqp:sql-filter"), "p.nonsense = 1"), QUEUE),
        (Described(Symbol(DIRECT), None), QUEUE),
        (Described(Symbol(HEADERS), {"x-match": "none"}), QUEUE),
        (Described(Symbol(HEADERS), {"x-match": ["all"]}), QUEUE),
        (Described(Symbol(HEADERS), {5: "x"}), QUEUE),
        (Described(Symbol(APPLICATION), {"a": [1]}), QUEUE),
        (Described(Symbol(APPLICATION), {"a": "&x"}), QUEUE),
        (Described(Symbol(APPLICATION), {str(n): n for n in range(300)}), QUEUE),
        (Described(Symbol("rabbitmq:stream-offset-spec"), "yesterday"), STREAM),
        (Described(Symbol("rabbitmq:stream-offset-spec"), -1), STREAM),
        (Described(Symbol("rabbitmq:stream-filter"), [1]), STREAM),
        (Described(Symbol("rabbitmq:stream-match-unfiltered"), "yes"), STREAM),
    ],
)
def test_malformed_filters_are_refused(value: object, kind: str) -> None:
    with pytest.raises(FilterError) as refused:
        read_filters({"f": value}, kind)
    assert refused.value.condition == "amqp:invalid-field"
