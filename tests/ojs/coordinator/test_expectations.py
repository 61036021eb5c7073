"""Who waits for an event is told once it is folded."""

from __future__ import annotations

import logging

import pytest

from waybill.ojs.coordinator.expectations import Expectations
from waybill.ojs.coordinator.job_record import JobRecord

KEY = "job.started", "x"


async def test_all_who_wait_are_told_once() -> None:
    expectations = Expectations()
    told: list[object] = []
    expectations.tell(KEY, told.append)
    expectations.tell(KEY, told.append)
    future = expectations.expect(KEY)
    assert expectations.expect(KEY) is future
    expectations.arrived(("job.started", "y"))
    assert not told
    job = JobRecord(id="x")
    expectations.arrived(KEY, job)
    expectations.arrived(KEY, job)
    assert told == [job, job]
    assert future.done()
    assert not future.cancelled()
    assert not expectations.waiting
    assert not expectations.expect(KEY).done()


async def test_who_waits_no_more_is_not_told() -> None:
    expectations = Expectations()
    told: list[object] = []
    expectations.tell(KEY, told.append)
    future = expectations.expect(KEY)
    expectations.forget(KEY)
    assert future.cancelled()
    assert KEY in expectations.waiting
    expectations.tell_no_more(KEY, told.append)
    expectations.tell_no_more(KEY, told.append)
    assert not expectations.waiting
    expectations.forget(KEY)
    expectations.arrived(KEY)
    assert not told


async def test_one_who_fails_keeps_nobody_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    expectations = Expectations()
    told: list[object] = []

    def fail(_job: object) -> None:
        raise ValueError

    expectations.tell(KEY, fail)
    expectations.tell(KEY, told.append)
    with caplog.at_level(logging.ERROR):
        expectations.arrived(KEY)
    assert told == [None]
    assert "job.started" in caplog.text
