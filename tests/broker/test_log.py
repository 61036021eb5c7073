"""What the core reports reaches `logging`, and no flood of one event does."""

import json
import logging

import pytest

from waybill.broker.log import RECORDS_PER_SECOND, BrokerLog
from waybill.ojs.middleware.json_log import JsonLogFormatter
from waybill.transport.clock import Clock


class StoppedClock(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        return self.time


def test_a_record_names_the_event_and_the_detail(caplog: pytest.LogCaptureFixture) -> None:
    broker_log = BrokerLog(StoppedClock())
    broker_log.warning("login refused", "user 'eve' from 127.0.0.1")
    assert [(record.name, record.levelno, record.getMessage()) for record in caplog.records] == [
        ("waybill.broker", logging.WARNING, "login refused: user 'eve' from 127.0.0.1")
    ]


def test_whom_a_record_is_about_is_in_fields_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    broker_log = BrokerLog(StoppedClock())
    broker_log.warning("login refused", "user 'e\nve' from 192.0.2.1:5", "e\nve", "192.0.2.1:5")
    broker_log.warning("slow sync", "1 s")
    fields = json.loads(JsonLogFormatter("server").format(caplog.records[0]))
    assert fields["attributes"] == {"event": "login refused", "user": "e\\nve", "address": "192.0.2.1:5"}
    assert not hasattr(caplog.records[-1], "user")


def test_a_flood_of_one_event_is_counted_and_hides_no_other_event(caplog: pytest.LogCaptureFixture) -> None:
    clock = StoppedClock()
    broker_log = BrokerLog(clock)
    for number in range(RECORDS_PER_SECOND + 5):
        broker_log.warning("login refused", str(number))
    broker_log.error("disk failed", "EIO")
    assert len(caplog.records) == RECORDS_PER_SECOND + 1
    broker_log.report_suppressed()
    assert len(caplog.records) == RECORDS_PER_SECOND + 1
    clock.time += 1
    broker_log.report_suppressed()
    broker_log.report_suppressed()
    assert [record.getMessage() for record in caplog.records[RECORDS_PER_SECOND:]] == [
        "disk failed: EIO",
        "login refused: 5 similar messages suppressed",
    ]
