"""Properties and headers, without a broker."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from waybill.client import BasicProperties, Delivery, copied_delivery
from waybill.ojs.spec.envelope import Envelope, ErrorRecord
from waybill.ojs.spec.headers import (
    PushEncoder,
    as_repeated,
    attempt_number,
    is_repeated,
    kept_headers,
    max_attempts,
    push_properties,
    republish_properties,
    retry_headers,
    trace_context,
)
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.retry import Retry
from waybill.ojs.spec.timestamps import format_unix_time

ENVELOPE = Envelope(
    id="019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6",
    type="email.send",
    created_at="2026-02-15T10:30:00.999Z",
    enqueued_at="2026-02-15T10:30:00.999Z",
)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_properties_survive_the_wire() -> None:
    properties = push_properties(ENVELOPE, max_priority=10, traceparent=TRACE)
    decoded = BasicProperties.decode(properties.encode())
    assert decoded == properties
    assert decoded.timestamp == int(datetime(2026, 2, 15, 10, 30, tzinfo=UTC).timestamp())
    assert decoded.priority == 4


def test_the_attempt_is_read_from_the_header_without_decoding_the_others() -> None:
    encoded = push_properties(ENVELOPE, max_priority=10, traceparent=TRACE).encode()
    assert attempt_number(encoded, ENVELOPE) == 1
    assert attempt_number(BasicProperties(headers={"x-ojs-attempt": 70_000}).encode(), ENVELOPE) == 70_000


def test_the_attempt_is_found_in_other_integer_types_and_in_the_envelope() -> None:
    wide = BasicProperties(headers={"x-ojs-attempt": 2**40}).encode()
    assert attempt_number(wide, ENVELOPE) == 2**40
    assert attempt_number(BasicProperties().encode(), Envelope(id="1", type="a", attempt=2)) == 3
    nonsense = BasicProperties(headers={"x-ojs-attempt": "many"}).encode()
    assert attempt_number(nonsense, ENVELOPE) == 1
    assert attempt_number(BasicProperties(headers={"x-ojs-attempt": -5}).encode(), ENVELOPE) == 1


def delivered(headers: dict[str, object] | None) -> Delivery:
    return copied_delivery(BasicProperties(headers=headers).encode(), b"")


def test_the_policy_rules_over_the_header_of_the_limit() -> None:
    assert max_attempts(delivered({"x-ojs-max-attempts": 2**33}), ENVELOPE) == 2**31 - 1
    assert max_attempts(delivered({"x-ojs-max-attempts": -1}), ENVELOPE) == 3
    assert max_attempts(delivered({"x-ojs-max-attempts": 7}), ENVELOPE) == 7
    assert max_attempts(delivered(None), ENVELOPE) == 3
    with_policy = Envelope(id="1", type="a", retry=Retry(max_attempts=2))
    assert max_attempts(delivered({"x-ojs-max-attempts": 7}), with_policy) == 2


@given(st.sampled_from(["email", "a.b-c", "9876"]), st.integers(-100, 100), st.integers(0, 50), st.integers(0, 2**31))
def test_properties_encoded_in_bulk_are_the_same(queue: str, priority: int, limit: int, seconds: int) -> None:
    encoder = PushEncoder(10)
    for _ in range(2):
        envelope = Envelope(
            id=new_id(),
            type="email.send",
            queue=queue,
            priority=priority,
            retry=Retry(max_attempts=limit),
            created_at=format_unix_time(seconds),
            enqueued_at=format_unix_time(seconds),
        )
        expected = push_properties(envelope, max_priority=10, traceparent=TRACE)
        assert encoder.encode(envelope, TRACE) == expected.encode()
        for key in ("", "k", "order-1", envelope.id, "Größe", "x" * 300):
            expected = push_properties(envelope, max_priority=10, traceparent=TRACE, idempotency_key=key)
            assert encoder.encode(envelope, TRACE, key) == expected.encode()
        envelope.created_at = "2026-02-15T10:30:00+02:00"
        assert BasicProperties.decode(encoder.encode(envelope, TRACE)).timestamp == 1771144200


def test_what_brokers_write_is_not_sent_back() -> None:
    headers = {"x-death": [{"queue": "q"}], "x-first-death-reason": "expired", "x-delivery-count": 3, "mine": 1}
    assert kept_headers(headers) == {"mine": 1}


def test_a_retry_keeps_all_properties_but_the_expiration() -> None:
    original = BasicProperties(
        content_type="application/json", priority=3, correlation_id="c", reply_to="r", expiration="5000",
        message_id="m", timestamp=7, type="t", app_id="other", delivery_mode=1,
    )  # fmt: skip
    copy = republish_properties(original, {"a": 1})
    assert copy == BasicProperties(
        content_type="application/json", content_encoding="utf-8", headers={"a": 1}, delivery_mode=2, priority=3,
        correlation_id="c", reply_to="r", message_id="m", timestamp=7, type="t", app_id="other",
    )  # fmt: skip


def test_a_retry_counts_and_tells_why() -> None:
    failure = ErrorRecord(type="E", message="x" * 5000, code="HANDLER_TIMEOUT")
    headers = retry_headers({"x-ojs-queue": "other"}, queue="email", attempt=2, failure=failure)
    assert headers["x-ojs-queue"] == "other"
    assert headers["x-ojs-attempt"] == 2
    assert headers["x-ojs-error-code"] == "HANDLER_TIMEOUT"
    assert headers["x-ojs-error-message"] == "x" * 1000
    assert retry_headers(None, queue="email", attempt=2, failure=failure)["x-ojs-queue"] == "email"


def test_a_repeated_job_is_marked_until_it_is_published_once_more() -> None:
    plain = BasicProperties(message_id="m", headers={"a": 1})
    for properties in (plain, plain.encode()):
        marked = as_repeated(properties)
        assert is_repeated(marked)
        assert BasicProperties.decode(marked) == BasicProperties(
            message_id="m", headers={"a": 1, "x-ojs-repeated": True}
        )
        assert kept_headers(BasicProperties.decode(marked).headers) == {"a": 1}
    assert not is_repeated(plain.encode())
    assert is_repeated(as_repeated(BasicProperties()))


def test_either_trace_header_is_read() -> None:
    assert trace_context({"x-ojs-trace-id": TRACE, "x-ojs-trace-state": "v=1"}) == (TRACE, "v=1")
    assert trace_context({"x-ojs-traceparent": TRACE}) == (TRACE, None)
    assert trace_context(None) == (None, None)
