"""A fault in handling one control message leaves it for another try, and never unsettled."""

import logging

import pytest

from tests.ojs.eye import until
from waybill.broker import Broker
from waybill.ojs import Coordinator, Jobs

UNKNOWN = "018f0000-0000-7000-8000-000000000000"


async def test_a_cancel_that_waits_for_its_job_is_tried_again_after_a_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.coordinator.RETRY_PAUSES_SECONDS", (0.001,))
    settled: list[str] = []

    async def fail(job_id: str, _condition: object) -> None:
        settled.append(job_id)
        raise OSError("the database is gone")

    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=["q"]) as coordinator:
        monkeypatch.setattr(coordinator._known, "settled", fail)
        await jobs.cancel(UNKNOWN, "q")
        await until(lambda: coordinator.skipped_requests["failed"] == 1)
    tracebacks = [record for record in caplog.records if record.levelno == logging.ERROR and record.exc_info]
    assert len(tracebacks) == 1
    assert settled == [UNKNOWN] * 2
