import json
import re
from datetime import UTC, datetime

import pytest

from tests.pipeline.histories import START, Event, event, history, rows_of
from waybill.ojs.spec.event_data import ErrorSummary
from waybill.ojs.spec.events import JobDiscarded, encode_events, make_event
from waybill.pipeline.schemas import EVENT

NAMES = EVENT.fieldNames()


def read(*bodies: bytes) -> list[dict[str, object]]:
    return [dict(zip(NAMES, row, strict=True)) for row in rows_of(list(bodies), first_offset=7)]


def encoded(*events: Event) -> bytes:
    return json.dumps(events[0] if len(events) == 1 else events).encode()


def test_one_event_becomes_one_row() -> None:
    retry = {"attempt": 1, "max_attempts": 3, "next_retry_at": "2026-03-02T01:00:00+01:00"}
    error = {"code": "handler_error", "type": "OSError", "message": "no", "retryable": True}
    (row,) = read(encoded(event("job.retrying", START, "j1", 1, **retry, error=error)))
    assert row["malformed"] is None
    assert (row["stream"], row["offset"], row["position"]) == ("ojs.events", 7, 0)
    assert (row["type"], row["subject"], row["time"]) == ("job.retrying", "j1", START)
    assert row["next_retry_at"] == datetime(2026, 3, 2, tzinfo=UTC)
    assert (row["error_type"], row["error_message"], row["error_retryable"]) == ("OSError", "no", True)


def test_an_array_becomes_a_row_for_each_event() -> None:
    one, two = event("job.enqueued", START, "j1", 1), event("job.enqueued", START, "j2", 1)
    assert [(row["position"], row["subject"]) for row in read(encoded(one, two))] == [(0, "j1"), (1, "j2")]


def test_what_the_workers_write_is_read() -> None:
    data = JobDiscarded(
        job_type="t", queue="q", total_attempts=3, last_error=ErrorSummary("handler_error", "no", type="KeyError")
    )
    _, body = encode_events([make_event("ojs://waybill/workers/w", "2026-03-01T00:00:00Z", "job", data)])
    (row,) = read(body)
    assert row["malformed"] is None
    assert (row["attempt"], row["error_type"], row["subject"]) == (3, "KeyError", "job")


def test_an_error_without_a_type_is_named_by_its_code() -> None:
    error = {"code": "timeout", "message": "too long", "retryable": True}
    (row,) = read(encoded(event("job.failed", START, "j1", 1, attempt=1, error=error)))
    assert row["error_type"] == "timeout"


def test_an_error_may_have_any_length() -> None:
    error = {"type": "t" * 5000, "message": "\U0001f600" * 50_000}
    (row,) = read(encoded(event("job.failed", START, "j1", 1, attempt=1, error=error)))
    assert (row["malformed"], row["error_type"], row["error_message"]) == (None, "t" * 1000, "\U0001f600" * 10_000)


def test_events_that_are_not_of_jobs_need_no_subject() -> None:
    started = event("worker.started", START, "w1", 1, worker_id="w1", queues=["q"], concurrency=2)
    del started["subject"]
    (row,) = read(encoded(started))
    assert row["malformed"] is None
    assert row["worker_id"] == "w1"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1, 2", "not JSON"),
        (b"[]", "a batch without events"),
        (b"17", "Expected `object`"),
        (b'{"id": "e"}', "missing required field"),
        (b"[" * 100_000, "not JSON"),
        (encoded(event("job.enqueued", START, "j1", 1))[:-1] + b', "unknown": "\xff"}', "not JSON: 'utf-8' codec"),
        (encoded(event("job.started", START, "j1", 1)), "job.started without attempt"),
        (encoded(event("job.enqueued", START, "", 1)), "job.enqueued without subject"),
        (encoded(event("job.started", START, "j1", 1, attempt="x")), r"\$.data.attempt"),
        (encoded(event("job.started", START, "j1", 1, attempt=2**40)), r"\$.data.attempt"),
        (encoded(event("job.enqueued", START, "j1", 1) | {"subject": "j" * 1001}), r"length <= 1000 - at `\$.subject`"),
        (
            encoded(event("job.enqueued", START, "j1", 1, job_type="t" * 1001)),
            r"length <= 1000 - at `\$.data.job_type`",
        ),
        (encoded({**event("job.enqueued", START, "j1", 1), "time": "2026-03-01T00:00:00"}), r"\$.time"),
    ],
)
def test_what_cannot_be_used_says_why_and_keeps_its_text(body: bytes, reason: str) -> None:
    (row,) = read(body)
    assert row["malformed"] is not None
    assert row["type"] is None
    assert row["event"] == body.decode(errors="replace")
    assert re.search(reason, str(row["malformed"]))


def test_a_bad_event_does_not_spoil_its_neighbours() -> None:
    good = json.dumps(event("job.enqueued", START, "j1", 1))
    rows = read(f'[{good}, {{"id": 1}}, {good}]'.encode())
    assert [row["malformed"] is None for row in rows] == [True, False, True]


def test_a_bad_message_does_not_spoil_its_neighbours() -> None:
    good = encoded(event("job.enqueued", START, "j1", 1))
    started = encoded(event("job.started", START, "j1", 1))
    rows = read(good, b"junk", good, started, b"[" + good + b"," + good + b"]", b'{"a": "\xff"}', good)
    assert [(row["offset"], row["position"]) for row in rows] == [
        *((7, 0), (8, 0), (9, 0), (10, 0)),
        *((11, 0), (11, 1), (12, 0), (13, 0)),
    ]
    assert [row["malformed"] is None for row in rows] == [True, False, True, False, True, True, False, True]


def test_an_event_is_read_alike_whatever_else_its_block_holds() -> None:
    """Blocks of single usable events are decoded in one go, the others one by one."""
    events = history(5, 30)
    texts = [encoded(one) for one in events]
    texts[3] = texts[3].replace(b'Z"', b'+00:00"')
    alone = [row for offset, text in enumerate(texts, start=7) for row in rows_of([text], first_offset=offset)]
    assert rows_of(texts, first_offset=7) == alone
    assert rows_of([*texts, b"junk"], first_offset=7)[:-1] == alone
