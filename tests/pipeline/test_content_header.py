from datetime import UTC, datetime

import pytest

from waybill.client import BasicProperties
from waybill.pipeline.content_header import ContentHeaders
from waybill.pipeline.message import OFFSET_HEADER, Properties


def test_the_offset_is_read_and_the_rest_found_again() -> None:
    headers = ContentHeaders()
    sent = [
        BasicProperties(content_type="a/b", timestamp=1_772_000_000, headers={"n": 1, OFFSET_HEADER: 2**40 + offset})
        for offset in range(3)
    ]
    read = [headers.read(properties.encode()) for properties in sent]
    assert [offset for offset, _ in read] == [2**40, 2**40 + 1, 2**40 + 2]
    assert read[0][1] is read[2][1]
    assert read[0][1].timestamp == datetime.fromtimestamp(1_772_000_000, UTC)
    assert (read[0][1].properties, read[0][1].headers) == (Properties(content_type="a/b"), {"n": 1})


@pytest.mark.parametrize(
    ("properties", "offset"),
    [
        (BasicProperties(), None),
        (BasicProperties(message_id="m"), None),
        (BasicProperties(headers={"a": "b"}), None),
        # The offset is looked for by its place, the end of the table, which no other text can take.
        (BasicProperties(message_id="\x0fx-stream-offsetl12345678"), None),
        (BasicProperties(headers={"a": "\x0fx-stream-offsetl12345678", OFFSET_HEADER: 2**33}), 2**33),
        (BasicProperties(headers={OFFSET_HEADER: 2**33, "a": "b"}), 2**33),
        (BasicProperties(headers={OFFSET_HEADER: "7"}), None),
    ],
)
def test_an_offset_is_found_nowhere_else(properties: BasicProperties, offset: int | None) -> None:
    assert ContentHeaders().read(properties.encode())[0] == offset


def test_messages_that_differ_are_kept_apart() -> None:
    headers = ContentHeaders()
    for number in range(3_000):
        offset, sent = headers.read(BasicProperties(message_id=str(number), headers={OFFSET_HEADER: 2**40}).encode())
        assert (offset, sent.properties.message_id) == (2**40, str(number))


def test_messages_of_several_publishers_take_turns() -> None:
    headers = ContentHeaders()
    kinds = [("a/b", 1, None), ("a/c", 1, None), ("a/b", 2, "x"), ("a/b", 2, "y")]
    for number in range(40):
        content_type, value, app_id = kinds[number * number % 7 % 4]
        properties = BasicProperties(
            content_type=content_type, headers={"n": value, OFFSET_HEADER: number}, app_id=app_id, delivery_mode=2
        )
        offset, sent = headers.read(properties.encode())
        found = (offset, sent.properties.content_type, sent.headers, sent.properties.app_id)
        assert found == (number, content_type, {"n": value}, app_id)


def test_many_are_read_as_each_of_them() -> None:
    alike = [BasicProperties(headers={"n": 1, OFFSET_HEADER: 2**40 + offset}).encode() for offset in range(300)]
    other = BasicProperties(message_id="m", headers={OFFSET_HEADER: 5}).encode()
    as_long = BasicProperties(headers={"m": 1, OFFSET_HEADER: 6}).encode()
    none = BasicProperties(message_id="m").encode()
    for encoded in (alike, [other, *alike], [*alike, as_long], [none], [*alike, none]):
        offsets, sent = ContentHeaders().read_all(encoded)
        one_by_one = [ContentHeaders().read(one) for one in encoded]
        assert list(offsets) == [offset for offset, _ in one_by_one]
        assert [one.headers for one in sent] == [one.headers for _, one in one_by_one]
