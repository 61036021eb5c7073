"""Patterns on which a backtracking matcher takes for ever, and names made for them."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.amqp091.peer import Channel, NodeBench
from waybill.model.errors import InvalidArgument
from waybill.model.pattern import Pattern
from waybill.wire.amqp091.methods_queue import QueueDeclare

CATASTROPHES = [
    r"^(a+)+$",
    r"^(a|aa)+$",
    r"^(a|a?)+$",
    r"^(.*)*x$",
    r"^(.*a){20}$",
    r"^(\w+\s?)*$",
    r"^.*.*.*.*.*.*.*x$",
    r"^(a?){100}a{100}$",
    r"^(?=(a+)+$).*b",
]
LONGEST_NAME = "a" * 254 + "!"
ENOUGH_S = 1.0

ATOMS = ["a", "b", "c", ".", "[ab]", "[^a]", r"\d", r"\W", "^", "$", r"\b", "(a|b)", "(?:ab|c)", "(a*b)", "[a-c]", "()"]
QUANTIFIERS = ["", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "+?"]
PIECES = st.tuples(st.sampled_from(ATOMS), st.sampled_from(QUANTIFIERS)).map(
    lambda pair: pair[0] if pair[0] in {"^", "$", r"\b"} else "".join(pair)
)
PATTERNS = st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=3).map("|".join)


@pytest.mark.parametrize("pattern", CATASTROPHES)
def test_the_longest_name_is_matched_in_linear_time(pattern: str) -> None:
    compiled = Pattern(pattern)
    started = time.process_time()
    compiled.matches(LONGEST_NAME)
    assert time.process_time() - started < ENOUGH_S


def test_a_permission_that_would_backtrack_holds_nobody_up(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.administration.set_permission("guest", "/", "^((a+)+|bystander)$", ".*", ".*")
    channel = node_bench.connect().open_channel(1)
    started = time.process_time()
    channel.refuses(QueueDeclare(LONGEST_NAME), 403)
    assert time.process_time() - started < ENOUGH_S


@pytest.mark.parametrize(
    "pattern",
    [r"(a)\1", "(?<=a)b", "a++", "(?>a)", "(?P<n>a)", "a{2000}", "(a{100}){100}", "a**", "[a", "(a", "a)", "*"],
)
def test_what_needs_backtracking_or_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(" * 2000 + ")" * 2000, "(" * 400 + "a" + ")" * 400, "a" * 2000])
def test_a_pattern_has_limits_itself(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        Pattern(pattern)


@settings(max_examples=2000, deadline=None)
@given(PATTERNS, st.text("abc1 ", max_size=8))
def test_it_finds_what_python_finds(pattern: str, name: str) -> None:
    expected = re.search(pattern.replace("$", r"\Z"), name, re.ASCII) is not None
    assert Pattern(pattern).matches(name) == expected


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        (r"^(?!amq\.).*", "amq.gen-1", False),
        (r"^(?!amq\.).*", "orders", True),
        (r"^(?=o).*s$", "orders", True),
        (r"(?i)^ORDERS[x-z]$", "ordersY", True),
        (r"^ojs\.(queue|retry)\.[^.]+$", "ojs.queue.email", True),
        (r"^ojs\.(queue|retry)\.[^.]+$", "ojs.queue.email.high", False),
        (r"^\x61$", "a", True),
        (r"^a$", "a\n", False),
        ("", "anything", True),
        ("é", "café", True),
    ],
)
def test_the_dialect(pattern: str, name: str, is_match: bool) -> None:
    assert Pattern(pattern).matches(name) == is_match


@pytest.mark.parametrize("pattern", ["^(?!a)b|c", "a(?!b)", "(?i)^(?!a)"])
def test_a_look_ahead_elsewhere_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        Pattern(pattern)
