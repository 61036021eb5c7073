"""While a database is away, loops try again each second: the log must not grow by a trace a second."""

import logging

import pytest

from waybill.ojs.recurring_error import AGAIN_SECONDS, RecurringError


def test_an_error_has_one_trace_and_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    trouble = RecurringError(logging.getLogger("waybill.test"), "it cannot be read", lambda: now)
    for _ in range(2):
        caplog.clear()
        for _ in range(10 * int(AGAIN_SECONDS)):
            trouble.failed(ValueError("gone\nand more"))
            now += 1.0
        assert len(caplog.records) == 10
        assert [one.exc_info is not None for one in caplog.records] == [True, *[False] * 9]
        assert caplog.messages[:2] == ["it cannot be read", "it cannot be read, still: gone"]
        trouble.worked()
