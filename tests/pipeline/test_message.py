from datetime import UTC, datetime
from decimal import Decimal

from waybill.pipeline.message import NO_METADATA, MessageBlock, Metadata, Properties, utc_seconds
from waybill.pipeline.message_columns import MessageColumns, MessageColumnsWithoutHeaders, header_entries
from waybill.pipeline.schemas import MESSAGE, PROPERTIES


def read(*sent: Metadata, columns: type[MessageColumns] = MessageColumns) -> list[dict[str, object]]:
    made = columns("s")
    for offset, one in enumerate(sent):
        made.add(MessageBlock("s", [offset], [b"body"], [one]))
    return list(made.record_batch().to_pylist())


def test_a_row_has_the_columns_of_the_schema() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    typed, nothing = Metadata(at, Properties(type="t"), {"a": "x"}), NO_METADATA
    rows = read(typed, nothing, typed)
    assert [list(row) for row in rows] == [MESSAGE.fieldNames()] * 3
    assert [(row["body"], row["stream"], row["offset"]) for row in rows] == [(b"body", "s", at) for at in range(3)]
    assert [row["timestamp"] for row in rows] == [at, None, at]
    assert [list(row["properties"]) for row in rows] == [PROPERTIES.fieldNames()] * 3  # type: ignore[call-overload]
    assert [row["properties"]["type"] for row in rows] == ["t", None, "t"]  # type: ignore[index]
    assert [row["headers"] for row in rows] == [[("a", "x")], [], [("a", "x")]]
    assert list(read(typed, columns=MessageColumnsWithoutHeaders)[0]) == MESSAGE.fieldNames()[:-1]


def test_headers_that_are_no_text_are_json() -> None:
    headers: dict[str, object] = {
        "n": 1,
        "none": None,
        "list": [True, b"x"],
        "at": datetime(2026, 3, 1, tzinfo=UTC),
        "d": Decimal("1.5"),
    }
    assert header_entries(Metadata(None, Properties(), headers)) == [
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
