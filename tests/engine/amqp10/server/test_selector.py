"""Selectors: their grammar, three-valued logic, and that no text takes them long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.selector.like import LikePattern
from waybill.engine.amqp10.selector.parser import DEPTH_MAX, LENGTH_MAX, parse_selector, parse_sql
from waybill.engine.amqp10.selector.tokens import SelectorError
from waybill.engine.amqp10.view import MessageView
from waybill.model.message import NO_TTL, Address, Message
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import encode_annotations, encode_application_properties, encode_data
from waybill.wire.amqp10.types import Float, Symbol, Timestamp, UInt, ULong, Uuid

PROPERTIES = {
    "color": "red",
    "weight": UInt(2500),
    "price": 9.5,
    "third": Float(0.25),
    "isNew": True,
    "old": False,
    "nothing": None,
    "it": "it's",
    "percent": "100%_sure",
    "when": Timestamp(1_700_000_000_000),
    "octets": b"ab",
    "symbol": Symbol("red"),
    "huge": ULong(2**64 - 1),
    "$odd_name.part": 1,
    "a b": "quoted",
}
CONTENT = (
    encode_annotations(descriptors.MESSAGE_ANNOTATIONS, {"x-opt-region": "eu"})
    + encode_value(
        Properties(
            message_id=Uuid(b"\x01" * 16), subject="news.eu", correlation_id="c-1", group_sequence=7, to="/queues/q"
        )
    )
    + encode_application_properties(PROPERTIES)
    + encode_data(b"")
)


def view() -> MessageView:
    shown = MessageView()
    shown.show(Message(AMQP10, CONTENT, Address("x", "key"), True, 6, NO_TTL, 0.0), CONTENT)
    return shown


@pytest.mark.parametrize(
    ("selector", "value"),
    [
        ("color = 'red'", True),
        ("color <> 'red'", False),
        ("symbol = color", True),
        ("color = 'red' AND weight > 2400", True),
        ("color = 'blue' OR (weight >= 2500 and not old)", True),
        ("isNew", True),
        ("isNew = TRUE", True),
        ("not isNew", False),
        ("NOT NOT isNew", True),
        ("weight = 2500.0", True),
        ("weight BETWEEN 2000 AND 2500", True),
        ("weight NOT BETWEEN 2000 AND 2500", False),
        ("color IN ('blue', 'red')", True),
        ("color NOT IN ('blue', 'red')", False),
        ("color LIKE 'r_d'", True),
        ("color LIKE '%d'", True),
        ("color NOT LIKE '%x%'", True),
        ("percent LIKE '100!%!_%' ESCAPE '!'", True),
        ("it = 'it''s'", True),
        ("nothing IS NULL", True),
        ("absent IS NULL", True),
        ("color IS NOT NULL", True),
        ("1 + 2 * 3 = 7", True),
        ("(1 + 2) * 3 = 9", True),
        ("-weight = -2500", True),
        ("+1 - -1 = 2", True),
        ("7 / 2 = 3", True),
        ("-7 / 2 = -3", True),
        ("-7 % 3 = -1", True),
        ("7.0 / 2 = 3.5", True),
        ("0x1F = 31 AND 017 = 15 AND 5L = 5 AND 7E3 = 7000 AND .5 = 0.5 AND 3d = 3.0 AND 1f=1", True),
        ("third = 0.25", True),
        ("when > 1699999999999", True),
        ("huge > 18446744073709551614", True),
        ("$odd_name.part = 1", True),
        ("\"a b\" = 'quoted'", True),
        ("amqp.subject LIKE 'news.%' AND amqp.priority = 6 AND amqp.durable", True),
        ("JMSPriority > 5 AND JMSCorrelationID = 'c-1' AND JMSDeliveryMode = 'PERSISTENT'", True),
        ("amqp.message_id = '01010101-0101-0101-0101-010101010101'", True),
        # Unknown is neither true nor false, and NOT does not change that.
        ("absent = 1", None),
        ("NOT absent = 1", None),
        ("absent = 1 OR TRUE", True),
        ("absent = 1 AND FALSE", False),
        ("absent = 1 AND TRUE", None),
        ("absent LIKE '%'", None),
        ("absent IN ('a')", None),
        ("absent NOT BETWEEN 1 AND 2", None),
        ("weight / 0 = 1", None),
        ("weight % 0 = 1", None),
        ("color + 1 = 2", None),
        ("nothing = NULL", None),
        # What is not alike is not equal, and has no order.
        ("color = 1", False),
        ("isNew = 1", False),
        ("octets = 'ab'", False),
        ("isNew > FALSE", False),
        ("weight", None),
    ],
)
def test_a_condition_has_one_of_three_values(selector: str, value: bool | None) -> None:
    result = parse_selector(selector).evaluate(view())
    assert (result if isinstance(result, bool) else None) is value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("properties.subject = 'news.eu' AND p.group_sequence = 7", True),
        ("header.priority >= 6 AND h.durable = TRUE", True),
        ('application_properties.color = "red"', True),
        ("color != 'blue'", True),
        ("message_annotations.x IS NULL AND [m.x-opt-region] = 'eu'", True),
        ("[a b] = 'quoted'", True),
        ("'a' < 'b'", True),
    ],
)
def test_sql_filter_expressions_name_sections(expression: str, value: bool) -> None:
    assert parse_sql(expression).evaluate(view()) is value


@pytest.mark.parametrize(
    "selector",
    [
        "",
        "color =",
        "= 1",
        "color = 'red",
        "color == 'red'",
        "(a = 1",
        "a = 1)",
        "a NOT",
        "a NOT = 1",
        "a LIKE 5",
        "a LIKE 'x' ESCAPE 'ab'",
        "a LIKE 'x!y' ESCAPE '!'",
        "a IN ()",
        "a IN ('x'",
        "a BETWEEN 1",
        "a IS 5",
        "a b",
        "1a = 1",
        "089 = 1",
        "1e = 1",
        "0x = 1",
        "f(a)",
        "amqp.nonsense = 1",
        "a ; b",
        "\x00",
        "(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1),
        "NOT " * (DEPTH_MAX + 1) + "a",
        "-" * (DEPTH_MAX + 1) + "1 = 1",
        "1" + " = 1" * (DEPTH_MAX + 1),
        "a = 1 OR " * LENGTH_MAX + "a = 1",
        "1" * 500 + " = 1",
    ],
)
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(selector)


def test_long_chains_are_no_deep_ones() -> None:
    assert parse_selector("+".join(["1"] * 2000) + " = 2000").evaluate(view()) is True
    assert parse_selector(" OR ".join(["a=1"] * 500)).evaluate(view()) is None


def test_numbers_may_grow_beyond_any_float() -> None:
    assert parse_selector("*".join(["huge"] * 60) + " > 1.5").evaluate(view()) is True
    assert parse_selector("*".join(["huge"] * 60) + " * 1.5 > 1").evaluate(view()) is None


@given(st.text(st.sampled_from("ab%_!"), max_size=8), st.text(st.sampled_from("ab%_"), max_size=10))
def test_like_is_what_a_simple_definition_says(pattern: str, text: str) -> None:
    def fits(rest: str, left: str) -> bool:
        if not rest:
            return not left
        if rest[0] == "%":
            return any(fits(rest[1:], left[n:]) for n in range(len(left) + 1))
        return bool(left) and (rest[0] == "_" or rest[0] == left[0]) and fits(rest[1:], left[1:])

    assert LikePattern(pattern, None).matches(text) is fits(pattern, text)


def test_like_takes_no_longer_for_a_pattern_made_to_backtrack() -> None:
    # A backtracking matcher would not come back within the age of the universe.
    assert not LikePattern("%a" * 500 + "b", None).matches("a" * 5000)


WORDS = "a b 1 'x' ( ) AND OR NOT IN LIKE BETWEEN IS NULL , = < + -"


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS.split()), max_size=12).map(" ".join))
def test_any_text_is_a_selector_or_is_refused(text: str) -> None:
    try:
        expression = parse_selector(text)
    except SelectorError:
        return
    expression.evaluate(view())
