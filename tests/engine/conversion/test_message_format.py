"""What the model may ask of a message of 1.0: headers, the size of its body, a copy with other headers."""

from datetime import UTC, datetime

import pytest

from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.conversion.convert import amqp091_content, amqp10_content
from waybill.model.death_headers import DEATHS, record_death
from waybill.model.message import NO_TTL, Address, Message
from waybill.wire.amqp091.content import body_of, properties_of
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import (
    MessageFacts,
    decode_annotations,
    encode_annotations,
    encode_application_properties,
    encode_data,
    scan_message,
)
from waybill.wire.amqp10.types import Array, Symbol, UByte, ULong

ANNOTATIONS = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, {"x-opt-mine": UByte(7), "x-cc": ["a", "b"], 5: "n"})
# Legal and odd: a symbolic descriptor, and a list of 32 bits where 8 would do.
ODD_PROPERTIES = b"\x00\xa3\x14amqp:properties:list\xd0\x00\x00\x00\x07\x00\x00\x00\x01\xa1\x01i"
BARE = (
    ODD_PROPERTIES + encode_application_properties({"color": "red", "CC": "text", "x-opt-mine": 1}) + encode_data(b"hi")
)
FOOTER = encode_annotations(descriptors.FOOTER, {"x-opt-sum": b"\x01"})
CONTENT = ANNOTATIONS + BARE + FOOTER


def annotations_of(content: bytes) -> dict[object, object]:
    facts = MessageFacts()
    scan_message(content, 0, len(content), facts)
    return decode_annotations(content, facts.message_annotations, facts.message_annotations_end)


def message_of(content: bytes) -> Message:
    return Message(AMQP10, content, Address("exchange", "key"), True, 4, NO_TTL, 0.0)


def test_headers_are_application_properties_and_annotations() -> None:
    headers = AMQP10.headers(CONTENT)
    assert headers == {"color": "red", "x-opt-mine": 7, "CC": ["a", "b"]}


def test_headers_of_a_message_whose_sections_hold_nonsense_are_none() -> None:
    nonsense = b"\x00\x53\x74\xc1\x03\x02\xff\xff"
    assert AMQP10.headers(nonsense + encode_data(b"")) == {}


def test_dead_letters_keep_bare_message_annotations_and_footer() -> None:
    headers = AMQP10.headers(CONTENT)
    changes = record_death(headers, message_of(CONTENT), "q1", "rejected", 1_700_000_000.5)
    dead = AMQP10.with_headers(CONTENT, changes, ["CC", "BCC"], keep_expiration=False)
    assert dead.endswith(BARE + FOOTER)
    annotations = annotations_of(dead)
    assert annotations["x-opt-mine"] == 7
    assert annotations[ULong(5)] == "n"
    assert "x-cc" not in annotations
    assert annotations["x-first-death-queue"] == "q1"
    deaths = annotations["x-opt-deaths"]
    assert isinstance(deaths, Array)
    (death,) = deaths.items
    assert isinstance(death, dict)
    assert death["queue"] == "q1"
    assert death["reason"] == Symbol("rejected")
    assert death["count"] == 1
    assert death["first-time"] == 1_700_000_000_000
    assert death["routing-keys"].items == ("key", "a", "b")


def test_deaths_are_counted_and_told_to_091() -> None:
    content = CONTENT
    for _ in range(2):
        changes = record_death(AMQP10.headers(content), message_of(content), "q1", "expired", 1_700_000_000)
        content = AMQP10.with_headers(content, changes, [], keep_expiration=False)
    headers = properties_of(amqp091_content(message_of(content))).headers
    assert headers is not None
    assert headers[DEATHS] == [
        {
            "count": 2,
            "reason": "expired",
            "queue": "q1",
            "time": datetime.fromtimestamp(1_700_000_000, UTC),
            "exchange": "exchange",
            "routing-keys": ["key", "a", "b"],
        }
    ]
    assert headers["x-last-death-reason"] == "expired"


def test_a_claimed_record_of_deaths_does_not_stop_the_real_one() -> None:
    lie = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, {"x-opt-deaths": "many", "x-death": [{"queue": 1}]})
    content = lie + encode_data(b"")
    changes = record_death(AMQP10.headers(content), message_of(content), "q1", "expired", 1_700_000_000)
    dead = AMQP10.with_headers(content, changes, [], keep_expiration=False)
    assert AMQP10.headers(dead)["x-last-death-queue"] == "q1"


@pytest.mark.parametrize(
    ("content", "size"),
    [(CONTENT, 2), (encode_data(b"ab") + encode_data(b"c"), 3), (encode_value(Properties(to="q")), 0)],
)
def test_body_size_counts_octets_of_data(content: bytes, size: int) -> None:
    assert AMQP10.body_size(content) == size


@pytest.mark.parametrize(
    ("levels", "lowest", "distinct", "highest"),
    [
        (2, (0, 4), (), (5, 9)),
        (3, (0, 3), (4,), (5, 200)),
        (10, (0, 0), tuple(range(1, 9)), (9, 200)),
        (1, (0, 9), (), ()),
    ],
)
def test_priorities_fall_into_equivalence_classes(
    levels: int, lowest: tuple[int, int], distinct: tuple[int, ...], highest: tuple[int, ...]
) -> None:
    assert {AMQP10.level(priority, levels) for priority in lowest} == {0}
    assert [AMQP10.level(priority, levels) for priority in distinct] == list(range(1, len(distinct) + 1))
    assert {AMQP10.level(priority, levels) for priority in highest} <= {levels - 1}


def test_headers_that_would_not_fit_a_frame_are_dropped_largest_first() -> None:
    properties = encode_application_properties({"small": "kept", "huge": "x" * 200_000, "large": "y" * 100_000})
    headers = properties_of(amqp091_content(message_of(properties + encode_data(b"")))).headers
    assert headers is not None
    assert set(headers) == {"small", "large"}


def test_more_headers_than_a_table_may_have_do_not_stop_a_message() -> None:
    many = {f"{number:x}": number for number in range(32_000)}
    content = amqp091_content(message_of(encode_application_properties(many) + encode_data(b"body")))
    assert body_of(content) == b"body"


def test_a_message_that_says_nothing_of_itself_is_its_body() -> None:
    plain = Message(AMQP091, content_frames(1, BasicProperties(), b"body", 0), Address("", "q"), False, 0, NO_TTL, 0.0)
    assert amqp10_content(plain) == encode_data(b"body")
