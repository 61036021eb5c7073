"""What the broker writes into the headers of a message on its way."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from waybill.engine.amqp091.message_format import AMQP091
from waybill.wire.amqp091.field_table import EncodedField
from waybill.wire.amqp091.frames import content_frames, header_frame
from waybill.wire.amqp091.properties import BasicProperties

TYPED: dict[str, object] = {
    "octet": EncodedField(ord("b"), b"\x05"),
    "short": EncodedField(ord("u"), b"\x00\x05"),
    "long": EncodedField(ord("l"), (5).to_bytes(8, "big")),
    "float": EncodedField(ord("f"), b"\x3f\x80\x00\x00"),
    "array": EncodedField(ord("A"), b"\x00\x00\x00\x02b\x05", count=2),
}


def test_headers_of_the_publisher_keep_their_types() -> None:
    content = header_frame(1, 0, BasicProperties(headers=TYPED))
    changed = AMQP091.with_headers(content, {"added": "text"}, ["octet"], keep_expiration=True)
    expected = {name: field for name, field in TYPED.items() if name != "octet"} | {"added": "text"}
    assert changed == header_frame(1, 0, BasicProperties(headers=expected))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("headers", [None, {}, {"a": 1, "removed": {"b": [1, "x", None]}, "c": "d"}])
def test_other_properties_and_the_body_stay(headers: dict[str, object] | None, keep: bool) -> None:
    properties = BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="1000",
        message_id="m",
        timestamp=5,
        type="t",
        user_id="guest",
        app_id="a",
    )
    content = content_frames(7, properties, b"body", 1000)
    changed = AMQP091.with_headers(content, {"new": True}, ["removed"], keep_expiration=keep)
    left = {name: value for name, value in (headers or {}).items() if name != "removed"}
    expected = replace(properties, headers=left | {"new": True}, expiration="1000" if keep else None)
    assert changed == content_frames(7, expected, b"body", 1000)


def test_some_headers_are_read_without_the_others() -> None:
    content = header_frame(1, 0, BasicProperties(headers={"a": 1, "b": {"a": 2}, "c": [{"a": 3}], "é": "ü"}))
    assert AMQP091.some_headers(content, ["b", "é", "missing"]) == {"b": {"a": 2}, "é": "ü"}
    assert AMQP091.some_headers(header_frame(1, 0, BasicProperties()), ["a"]) == {}


def test_deaths_are_counted_in_64_bits() -> None:
    content = header_frame(1, 0, BasicProperties())
    deaths = [{"count": count, "queue": "q", "time": datetime.fromtimestamp(0, UTC)} for count in (3, 4)]
    changed = AMQP091.with_headers(content, {"x-death": deaths}, [], keep_expiration=True)
    assert [b"\x05countl" + count.to_bytes(8, "big") in changed for count in (3, 4, 5)] == [True, True, False]
    assert AMQP091.headers(changed)["x-death"] == deaths
