"""Jobs that are made from a template are those that would have been made without."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict

from waybill.ojs import InvalidJob, Jobs, NewJob, Retry
from waybill.ojs.spec.envelope import parse_envelope, read_envelope

NOW = datetime(2026, 2, 15, 10, 30, tzinfo=UTC)
TIME = "2026-02-15T10:30:00.000Z"


@pytest.fixture
def jobs() -> Jobs:
    return Jobs("amqp://localhost")


def made(jobs: Jobs, job: NewJob) -> Any:
    return jobs._make(job, NOW, TIME)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "email"},
        {"priority": -7, "timeout": 2.5},
        {"retry": Retry(max_attempts=9, jitter=False), "timeout": 3},
    ],
)
def test_the_body_says_the_same(jobs: Jobs, options: Any) -> None:
    args: list[object] = ["a@example.com", 5, None, {"nested": [1.5, True]}]
    first, second, third = (made(jobs, NewJob("email.send", args, options)) for _ in range(3))
    assert first.template is None
    assert second.template is not None
    assert third.envelope.id > second.envelope.id > first.envelope.id
    plain, quick = first.envelope.encode(), second.template.body(second.envelope)
    assert quick == plain.replace(first.envelope.id.encode(), second.envelope.id.encode())
    assert second.envelope.encode() == quick
    parse_envelope(quick, NOW)
    assert asdict(read_envelope(quick)) == asdict(second.envelope)


def test_jobs_of_one_options_object_may_have_ids_and_keys_of_their_own(jobs: Jobs) -> None:
    options: Any = {"queue": "email"}
    ids = [f"019414d4-8b2e-7c3a-b5d1-{number:012x}" for number in range(3)]
    found = [made(jobs, NewJob("email.send", [1], options, job_id, f"order-{job_id}")) for job_id in ids]
    assert [one.envelope.id for one in found] == ids
    assert [one.idempotency_key for one in found] == [f"order-{job_id}" for job_id in ids]
    assert [one.template is None for one in found] == [True, False, False]
    assert jobs.make(NewJob("email.send", [1], options, ids[0], "k")).options == {"queue": "email", "unique_key": "k"}
    with pytest.raises(InvalidJob, match="not a UUIDv7"):
        made(jobs, NewJob("email.send", [1], options, "019414D4-8B2E-7C3A-B5D1-000000000000"))


def test_jobs_share_nothing_that_can_be_changed(jobs: Jobs) -> None:
    options: Any = {"queue": "email"}
    first, second, third = (made(jobs, NewJob("email.send", [], options)).envelope for _ in range(3))
    second.meta["a"] = 1
    second.tags.append("b")
    second.errors.append("c")
    assert (first.meta, first.tags, first.errors) == (third.meta, third.tags, third.errors) == ({}, [], [])


def test_options_that_were_changed_count(jobs: Jobs) -> None:
    options: Any = {"queue": "email"}
    assert made(jobs, NewJob("email.send", [], options)).envelope.queue == "email"
    options["queue"] = "other"
    assert made(jobs, NewJob("email.send", [], options)).envelope.queue == "other"


def test_a_job_with_more_of_its_own_has_no_template(jobs: Jobs) -> None:
    options: Any = {"delay": timedelta(hours=1)}
    for _ in range(2):
        new = made(jobs, NewJob("email.send", [], options))
        assert new.template is None
        assert new.envelope.state == "scheduled"


@pytest.mark.parametrize("argument", [2**53, -(2**53), float("nan"), {1: 2}, {"a": [object()]}])
def test_arguments_are_checked_all_the_same(jobs: Jobs, argument: Any) -> None:
    options: Any = {}
    made(jobs, NewJob("email.send", [], options))
    with pytest.raises(InvalidJob, match=r"args\[1\]"):
        made(jobs, NewJob("email.send", [0, argument], options))


def test_templates_are_not_kept_without_limit(jobs: Jobs) -> None:
    for number in range(1200):
        made(jobs, NewJob("email.send", [], {"priority": number % 3}))
    assert len(jobs._maker.templates._templates) <= 500


def test_the_largest_safe_integers_pass(jobs: Jobs) -> None:
    options: Any = {}
    made(jobs, NewJob("email.send", [], options))
    new = made(jobs, NewJob("email.send", [2**53 - 1, -(2**53 - 1)], options))
    assert msgspec.json.decode(new.template.body(new.envelope))["args"] == [2**53 - 1, -(2**53 - 1)]
