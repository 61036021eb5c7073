"""What the broker writes into the headers of a message on its way."""

from datetime import UTC, datetime

from waybill.engine.amqp091.message_format import AMQP091
from waybill.wire.amqp091.field_table import EncodedField, encoded_fields
from waybill.wire.amqp091.frames import header_frame
from waybill.wire.amqp091.properties import BasicProperties

TYPED: dict[str, object] = {
    "octet": EncodedField(ord("b"), b"\x05"),
    "short": EncodedField(ord("u"), b"\x00\x05"),
    "long": EncodedField(ord("l"), (5).to_bytes(8, "big")),
    "float": EncodedField(ord("f"), b"\x3f\x80\x00\x00"),
    "array": EncodedField(ord("A"), b"\x00\x00\x00\x02b\x05", count=2),
}


def fields_of(content: bytes) -> dict[str, EncodedField]:
    return encoded_fields(content, 7 + 12 + 2)


def test_headers_of_the_publisher_keep_their_types() -> None:
    content = header_frame(1, 0, BasicProperties(headers=TYPED))
    changed = AMQP091.with_headers(content, {"added": "text"}, ["octet"], keep_expiration=True)
    expected = {name: field for name, field in TYPED.items() if name != "octet"}
    assert fields_of(changed) == expected | {"added": EncodedField(ord("S"), b"\x00\x00\x00\x04text")}


def test_deaths_are_counted_in_64_bits() -> None:
    content = header_frame(1, 0, BasicProperties())
    deaths = [{"count": count, "queue": "q", "time": datetime.fromtimestamp(0, UTC)} for count in (3, 4)]
    changed = AMQP091.with_headers(content, {"x-death": deaths}, [], keep_expiration=True)
    octets = fields_of(changed)["x-death"].octets
    assert [b"\x05countl" + count.to_bytes(8, "big") in octets for count in (3, 4, 5)] == [True, True, False]
    assert AMQP091.headers(changed)["x-death"] == deaths
