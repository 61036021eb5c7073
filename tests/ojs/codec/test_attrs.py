"""Classes of attrs as arguments: their validators count too."""

from datetime import date
from typing import Any

import pytest

from waybill.ojs import InvalidJob
from waybill.ojs.codec.arguments import Arguments
from waybill.ojs.codec.forms import CustomTypes

attrs = pytest.importorskip("attrs", reason="pip install attrs")


def test_objects_arrive_and_validators_are_asked() -> None:
    line: Any = attrs.make_class("Line", {"count": attrs.field(type=int, validator=attrs.validators.ge(1))})
    order = attrs.make_class(
        "Order", {"due": attrs.field(type=date), "lines": attrs.field(type=list.__class_getitem__(line))}
    )

    def work(it: object) -> None: ...

    codec = Arguments("a.b", work, {"it": order}, CustomTypes())
    value = order(due=date(2026, 1, 2), lines=[line(count=1)])
    assert codec.encode([value], {}) == [{"due": "2026-01-02", "lines": [{"count": 1}]}]
    assert codec.decode([{"due": "2026-01-02", "lines": [{"count": 1}]}]) == ([value], {})
    odds: list[dict[str, object]] = [
        {"due": "2026-01-02", "lines": [{"count": 0}]},
        {"due": "2026-01-02", "lines": [{}]},
        {"lines": []},
    ]
    for odd in odds:
        with pytest.raises(InvalidJob, match=r"^it"):
            codec.decode([odd])
    with pytest.raises(InvalidJob, match=r"^it"):
        codec.encode([{"due": "2026-01-02", "lines": []}], {})
