"""The rules of the envelope."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conformance.requirement import requirement
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import (
    MAX_ARGS_DEPTH,
    MAX_ERRORS,
    Envelope,
    ErrorRecord,
    check_json,
    edit_envelope,
    is_expired,
    parse_envelope,
    read_envelope,
    seconds_until_scheduled,
    with_failure,
)
from waybill.ojs.spec.identifiers import is_uuid7, new_id
from waybill.ojs.spec.rate_limit import check_key
from waybill.ojs.spec.retry import Retry

NOW = datetime(2026, 2, 15, 10, 30, tzinfo=UTC)
ID = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"


def job(**fields: object) -> dict[str, object]:
    return {"specversion": "1.0", "id": ID, "type": "email.send", "queue": "email", "args": []} | fields


def test_a_minimal_envelope_has_the_defaults_of_the_specification() -> None:
    envelope = parse_envelope({"specversion": "1.0", "id": ID, "type": "email.send", "args": []}, NOW)
    assert (envelope.queue, envelope.priority, envelope.meta, envelope.attempt) == ("default", 0, {}, 0)
    assert envelope.policy.max_attempts == 3
    assert envelope.timeout_seconds == 1800


def test_a_retry_policy_is_written_as_it_was_given() -> None:
    retry = {"max_attempts": 3, "max_interval": "PT5M", "of_a_later_version": [1]}
    envelope = parse_envelope(job(retry=retry), NOW)
    assert envelope.policy.max_interval == timedelta(minutes=5)
    assert msgspec.json.decode(envelope.encode())["retry"] == retry
    envelope.retry = Retry(max_attempts=7)
    assert msgspec.json.decode(envelope.encode())["retry"] == {"max_attempts": 7}
    envelope.retry = None
    assert "retry" not in msgspec.json.decode(envelope.encode())


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"specversion": "2.0"}, "specversion", "INVALID_PAYLOAD"),
        ({"id": ID.upper()}, "id", "INVALID_PAYLOAD"),
        ({"id": "019414d4-8b2e-4c3a-b5d1-f0e2a3b4c5d6"}, "id", "INVALID_PAYLOAD"),
        ({"id": 5}, "id", "INVALID_PAYLOAD"),
        ({"type": ""}, "type", "INVALID_JOB_TYPE"),
        ({"type": "Email.Send"}, "type", "INVALID_JOB_TYPE"),
        ({"type": "email..send"}, "type", "INVALID_JOB_TYPE"),
        ({"type": "a" * 256}, "type", "JOB_TYPE_TOO_LONG"),
        ({"queue": ""}, "queue", "INVALID_QUEUE"),
        ({"queue": "Email"}, "queue", "INVALID_QUEUE"),
        ({"queue": "-email"}, "queue", "INVALID_QUEUE"),
        ({"queue": "a" * 129}, "queue", "QUEUE_NAME_TOO_LONG"),
        ({"queue": "dlx.email"}, "queue", "INVALID_QUEUE"),
        ({"queue": "retry.email.1000"}, "queue", "INVALID_QUEUE"),
        ({"args": {}}, "args", "INVALID_PAYLOAD"),
        ({"args": [1, float("nan")]}, "args[1]", "INVALID_ARGS"),
        ({"args": [{"a": [b"bytes"]}]}, "args[0].a[0]", "INVALID_ARGS"),
        ({"args": [2**53]}, "args[0]", "INVALID_ARGS"),
        ({"args": [{1: 2}]}, "args[0]", "INVALID_ARGS"),
        ({"meta": {"a": object()}}, "meta.a", "INVALID_METADATA"),
        ({"meta": {"a": "x" * 70_000}}, "meta", "METADATA_TOO_LARGE"),
        ({"tags": ["a", ""]}, "tags[1]", "INVALID_PAYLOAD"),
        ({"tags": ["x"] * 10_000}, "tags", "INVALID_PAYLOAD"),
        ({"priority": "high"}, "priority", "INVALID_PAYLOAD"),
        ({"timeout": -1}, "timeout", "INVALID_PAYLOAD"),
        ({"scheduled_at": "2026-02-15T10:30:00"}, "scheduled_at", "INVALID_PAYLOAD"),
        ({"scheduled_at": "tomorrow"}, "scheduled_at", "INVALID_PAYLOAD"),
        ({"expires_at": "2026-02-30T10:30:00Z"}, "expires_at", "INVALID_PAYLOAD"),
        ({"expires_at": "+PTX"}, "expires_at", "INVALID_PAYLOAD"),
        ({"retry": {"max_attempts": -1}}, "retry.max_attempts", "INVALID_RETRY_POLICY"),
        ({"retry": {"initial_interval": "1s"}}, "retry.initial_interval", "INVALID_PAYLOAD"),
        ({"retry": {"backoff_coefficient": 0.5}}, "retry.backoff_coefficient", "INVALID_RETRY_POLICY"),
        ({"retry": {"max_interval": "PT0.5S"}}, "retry.max_interval", "INVALID_RETRY_POLICY"),
        ({"retry": {"on_exhaustion": "explode"}}, "retry.on_exhaustion", "INVALID_PAYLOAD"),
        ({"retry": {"jitter": "yes"}}, "retry.jitter", "INVALID_PAYLOAD"),
    ],
)
def test_an_error_names_the_field(fields: dict[str, object], field: str, code: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_envelope(job(**fields), NOW)
    assert (caught.value.field, caught.value.code) == (field, code)


@pytest.mark.parametrize("missing", ["specversion", "id", "type", "args"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = job()
    del fields[missing]
    with pytest.raises(InvalidJob) as caught:
        parse_envelope(fields, NOW)
    assert caught.value.field == missing


def test_system_managed_fields_of_a_client_are_ignored() -> None:
    envelope = parse_envelope(job(state="completed", attempt=9, created_at="x", errors=[1], result=5), NOW)
    assert (envelope.state, envelope.attempt, envelope.created_at, envelope.errors, envelope.result) == (
        None, 0, None, [], None,
    )  # fmt: skip


def test_unknown_fields_are_kept() -> None:
    envelope = parse_envelope(job(x_custom={"a": [1]}, later="field"), NOW)
    assert msgspec.json.decode(envelope.encode()) == job(x_custom={"a": [1]}, later="field", attempt=0)


def test_an_edit_keeps_what_it_does_not_name() -> None:
    body = msgspec.json.encode(job(state="available", unknown={"deep": [1, None]}, nothing=None))
    edited = msgspec.json.decode(edit_envelope(body, {"state": "retryable", "error": None, "attempt": 1}))
    assert edited == job(state="retryable", unknown={"deep": [1, None]}, nothing=None, attempt=1)


def test_the_offset_of_a_time_is_kept() -> None:
    envelope = parse_envelope(job(scheduled_at="2026-02-15T13:30:00+02:00"), NOW)
    assert envelope.scheduled_at == "2026-02-15T13:30:00+02:00"
    assert seconds_until_scheduled(envelope, NOW) == 3600


def test_relative_times_count_from_now() -> None:
    envelope = parse_envelope(job(delay_until="+PT2S", expires_at="+P1DT1H"), NOW)
    assert envelope.scheduled_at == "2026-02-15T10:30:02.000Z"
    assert envelope.expires_at == "2026-02-16T11:30:00.000Z"
    assert not is_expired(envelope, NOW)
    assert is_expired(envelope, NOW + timedelta(days=2))


def test_an_envelope_of_one_mebibyte_works() -> None:
    envelope = parse_envelope(job(args=["x" * 1_000_000]), NOW)
    assert read_envelope(envelope.encode()).args == ["x" * 1_000_000]


def test_a_type_of_255_characters_works() -> None:
    assert parse_envelope(job(type="a" * 255), NOW).type == "a" * 255


def test_a_delivered_envelope_may_lack_what_the_binding_does_not_ask_for() -> None:
    body = b'{"id": "1", "type": "email.send", "queue": "email", "args": ["a"], "created_at": "2026-02-15"}'
    assert read_envelope(body).args == ["a"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b"{", "body"),
        (b"\xff", "body"),
        (b'{"type": "a"}', "id"),
        (b'{"id": "1"}', "type"),
        (b'{"id": "", "type": "a"}', "id"),
        (b'{"id": "1", "type": "a", "args": {}}', "args"),
        (b'{"id": "1", "type": "a", "retry": {"max_attempts": -3}}', "retry.max_attempts"),
    ],
)
def test_a_delivered_body_that_is_no_job_is_refused_with_the_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_envelope(body)
    assert caught.value.field == field


@given(st.binary(max_size=200))
def test_no_body_raises_anything_but_invalid_job(body: bytes) -> None:
    with contextlib.suppress(InvalidJob):
        read_envelope(body)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@requirement("OJS-062")
@given(st.lists(JSON, max_size=5))
def test_arguments_survive_the_trip(args: list[object]) -> None:
    envelope = parse_envelope(job(args=args), NOW)
    body = envelope.encode()
    assert read_envelope(body).args == args
    assert msgspec.json.decode(body.decode("utf-8"))["args"] == args


def test_at_least_ten_errors_are_kept_and_the_oldest_go_first() -> None:
    errors: list[ErrorRecord] = []
    for attempt in range(1, 100):
        errors = with_failure(errors, ErrorRecord(message="x", attempt=attempt))
    assert len(errors) == MAX_ERRORS >= 10
    assert errors[-1].attempt == 99


def test_identifiers_are_version_7_lower_case_and_ascend() -> None:
    made = [new_id() for _ in range(10_000)]
    assert all(map(is_uuid7, made))
    assert made == sorted(set(made))


def test_a_struct_can_be_made_by_hand_and_encodes_required_fields() -> None:
    body = msgspec.json.decode(Envelope(id=ID, type="a").encode())
    assert body == {"specversion": "1.0", "id": ID, "type": "a", "queue": "default", "args": [], "attempt": 0}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**54), 2**54)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=1),
    lambda children: (
        st.lists(children, max_size=3)
        | st.tuples(children)
        | st.dictionaries(st.text(max_size=2) | st.integers(), children, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
@example(2**53)
@example(-(2**53))
@example({"a": [1.5, {"b": True}]})
def test_the_quick_look_at_json_finds_what_the_slow_one_does(value: object) -> None:
    def check(depth: int) -> str:
        try:
            # From the second level on, the slow way is taken.
            check_json(value, "x", "INVALID_ARGS", depth)
        except InvalidJob as error:
            return str(error)
        return ""

    assert check(0) == check(1)


@pytest.mark.parametrize("depth", [1, MAX_ARGS_DEPTH - 1, MAX_ARGS_DEPTH, MAX_ARGS_DEPTH + 1, MAX_ARGS_DEPTH + 2])
@pytest.mark.parametrize("leaf", [1, "x", [], {}])
def test_the_quick_look_at_json_counts_levels_as_the_slow_one_does(depth: int, leaf: object) -> None:
    value = leaf
    for _ in range(depth):
        value = [value]
    if depth > MAX_ARGS_DEPTH:
        with pytest.raises(InvalidJob, match="nested deeper"):
            check_json(value, "x", "INVALID_ARGS")
    else:
        check_json(value, "x", "INVALID_ARGS")


def test_an_error_quotes_little_of_what_is_wrong() -> None:
    with pytest.raises(InvalidJob) as caught:
        check_key("?" * 1_000_000)
    assert len(str(caught.value)) < 3000
    assert str(caught.value).startswith("rate_limit.key: '????")
    assert str(caught.value).endswith("128 at most")
