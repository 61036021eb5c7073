"""Events written from forms are what the encoder would have written."""

import msgspec
import pytest

from waybill.ojs.observe import event_forms
from waybill.ojs.observe.event_forms import EventForms, is_plain
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import JobCompleted, JobEnqueued, JobStarted, encode_event, make_event

SOURCE = "ojs://waybill/workers/w1"
TIME = "2026-02-15T10:30:00.000Z"
JOB = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"


def encoded(data: EventData) -> str:
    return encode_event(make_event(SOURCE, TIME, JOB, data, "evt_1"))


@pytest.mark.parametrize("repetitions", [1, 2])
def test_they_are_equal_to_the_octet(repetitions: int) -> None:
    forms = EventForms(SOURCE)
    for _ in range(repetitions):
        text = forms.enqueued("evt_1", TIME, JOB, "email.send", "email", -3)
        assert text == encoded(JobEnqueued(job_type="email.send", queue="email", priority=-3))
        text = forms.enqueued("evt_1", TIME, JOB, "email.send", "email", -3, "order-1")
        assert text == encoded(JobEnqueued(job_type="email.send", queue="email", priority=-3, unique_key="order-1"))
        text = forms.started("evt_1", TIME, JOB, "email.send", "email", 2, "w1")
        assert text == encoded(JobStarted(job_type="email.send", queue="email", worker_id="w1", attempt=2))
        text = forms.completed("evt_1", TIME, JOB, ("email.send", "email", 2), 1234)
        completed = encoded(JobCompleted(job_type="email.send", queue="email", attempt=2, duration_ms=1234))
        assert text == completed
        text = forms.completed("evt_1", TIME, JOB, ("email.send", "email", 2), 1234, '{"n":1}')
        data = JobCompleted(
            job_type="email.send", queue="email", attempt=2, duration_ms=1234, result=msgspec.Raw(b'{"n":1}')
        )
        assert text == encoded(data)
        started = encoded(JobStarted(job_type="email.send", queue="email", worker_id="w1", attempt=2))
        text = forms.attempt(("email.send", "email", 2, "w1"), JOB, ("evt_1", TIME), ("evt_1", TIME), 1234)
        assert text == f"{started},{completed}"


def test_forms_are_not_kept_without_limit() -> None:
    forms = EventForms(SOURCE)
    for attempt in range(event_forms.MAX_FORMS + 10):
        forms.started("evt_1", TIME, JOB, "a", "q", attempt, "w1")
    assert len(forms._started) <= event_forms.MAX_FORMS


@pytest.mark.parametrize("job_id", [JOB, "Job 1", "gänse", "", 'quo"te', "back\\slash", "tab\t", "line\u2028", "\x00"])
def test_only_what_json_has_as_it_is_counts_as_plain(job_id: str) -> None:
    if is_plain(job_id):
        assert msgspec.json.encode(job_id).decode() == f'"{job_id}"'
    else:
        assert not job_id.isprintable() or set('"\\') & set(job_id)
