from datetime import UTC, datetime
from decimal import Decimal

from waybill.pipeline.message import OFFSET_HEADER, Properties, StreamMessage, message_row, utc_seconds
from waybill.pipeline.schemas import MESSAGE, PROPERTIES


def test_a_row_has_the_columns_of_the_schema() -> None:
    sent = datetime(2026, 3, 1, tzinfo=UTC)
    message = StreamMessage("s", 4, b"body", sent, Properties(type="t"), {OFFSET_HEADER: 4, "a": "x"})
    row = dict(zip(MESSAGE.fieldNames(), message_row(message), strict=True))
    assert (row["body"], row["stream"], row["offset"], row["timestamp"]) == (b"body", "s", 4, sent)
    assert list(row["properties"]) == PROPERTIES.fieldNames()  # type: ignore[call-overload]
    assert row["headers"] == [("a", "x")]


def test_headers_that_are_no_text_are_json() -> None:
    headers = {"n": 1, "none": None, "list": [True, b"x"], "at": datetime(2026, 3, 1, tzinfo=UTC), "d": Decimal("1.5")}
    row = message_row(StreamMessage("s", 0, b"", headers=headers))
    assert row[-1] == [
        ("n", "1"),
        ("none", None),
        ("list", '[true, "x"]'),
        ("at", '"2026-03-01T00:00:00+00:00"'),
        ("d", '"1.5"'),
    ]


def test_a_timestamp_outside_of_the_calendar_is_none() -> None:
    assert utc_seconds(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert utc_seconds(None) is None
    assert utc_seconds(2**63) is None
