"""Times that tell one message of a job from another."""

from __future__ import annotations

from datetime import UTC, datetime

from waybill.ojs.spec.timestamps import time_after


def test_a_time_is_after_the_time_before_it_whatever_clock_gave_that() -> None:
    now = datetime(2026, 1, 1, 12, 0, 0, 5000, UTC)
    times = ["2026-01-01T12:00:00.004Z", "2026-01-01T12:00:00.005Z", "2026-01-01T12:00:03.006Z"]
    assert [time_after(one, now)[-7:] for one in times] == ["00.005Z", "00.006Z", "03.007Z"]
    assert {time_after(one, now)[-7:] for one in (None, "soon", "9999-12-31T23:59:59.999Z")} == {"00.005Z"}
