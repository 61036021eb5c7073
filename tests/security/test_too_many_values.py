"""Messages with millions of small values, which take fifty times their size as objects: they are refused as text."""

import tracemalloc
from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from waybill.ojs.celery.message import Refused, read_arguments
from waybill.ojs.errors import InvalidJob
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.push.publisher import encode_all
from waybill.ojs.spec.control_message import read_request
from waybill.ojs.spec.envelope import MAX_ERRORS, Envelope, ErrorRecord, edit_envelope, read_envelope
from waybill.ojs.spec.event_pieces import event_pieces
from waybill.ojs.spec.events import read_events
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.nesting import MAX_CARRIED_WEIGHT
from waybill.ojs.worker.delivered_job import named_in

MOST_BYTES: Final = 8 << 20
"""Beside the text, for all that a refusal takes."""
MILLIONS: Final = {
    "numbers": b"[" + b"7777," * 4_000_000 + b"7]",
    "objects": b"[" + b"{}," * 4_000_000 + b"0]",
    "members": b"{" + b",".join(b'"%x":1' % number for number in range(600_000)) + b"}",
}
JOB: Final = b'{"specversion":"1.0","id":"019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6","type":"a.b","queue":"q","args":[%b]}'
EVENT: Final = (
    b'{"specversion":"1.0","id":"evt_1","type":"job.completed","source":"/t","time":"2026-01-01T00:00:00Z",'
    b'"subject":"j","data":{"job_type":"a","queue":"q","result":%b}}'
)


def read_job(body: bytes) -> None:
    with pytest.raises(InvalidJob) as refused:
        read_envelope(JOB % body)
    assert refused.value.code == "PAYLOAD_TOO_LARGE"


def read_one_event(body: bytes) -> None:
    assert [read_events(piece) for piece in event_pieces(EVENT % body)] == [([], 1)]


def read_event_among_others(body: bytes) -> None:
    assert [read_events(piece) for piece in event_pieces(b"[%b]" % (EVENT % body))] == [([], 1)]


def name_a_job(body: bytes) -> None:
    assert named_in(b'{"id":%b,"type":"a.b"}' % body) == (None, "a.b")
    assert named_in(b'{"id":"1","type":%b}' % body) == (None, None)


def ask(body: bytes) -> None:
    with pytest.raises(ValueError, match="too many values"):
        read_request(b'{"action":"cancel","job_id":"1","x":%b}' % body)


def read_celery_task(body: bytes) -> None:
    with pytest.raises(Refused, match="too many values"):
        read_arguments(b"[[%b],{},null]" % body)


@pytest.mark.parametrize("shape", MILLIONS)
@pytest.mark.parametrize("read", [read_job, read_one_event, read_event_among_others, name_a_job, ask, read_celery_task])
def test_what_has_too_many_values_is_never_held_as_objects(read: Callable[[bytes], None], shape: str) -> None:
    body = MILLIONS[shape]
    tracemalloc.start()
    try:
        read(body)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body) + MOST_BYTES
    finally:
        tracemalloc.stop()


def test_no_job_is_pushed_that_no_worker_would_take() -> None:
    job = Envelope(id=new_id(), type="a.b", args=[[0] * MAX_CARRIED_WEIGHT])
    with pytest.raises(InvalidJob) as refused:
        encode_all([Outgoing(job, {})])
    assert refused.value.code == "PAYLOAD_TOO_LARGE"


def test_a_job_with_many_values_may_still_fail_as_often_as_it_may() -> None:
    job = Envelope(id=new_id(), type="a.b", args=[[0] * (MAX_CARRIED_WEIGHT - 100)])
    encode_all([one := Outgoing(job, {})])
    error = ErrorRecord(backtrace=["frame"] * 50, details={"data": [0] * 1000})
    body = edit_envelope(one.body, {"errors": msgspec.to_builtins([error] * MAX_ERRORS), "attempt": MAX_ERRORS})
    assert len(read_envelope(body).errors) == MAX_ERRORS
