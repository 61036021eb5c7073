"""Retry policies and their delays."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.retry import (
    DEFAULT_RETRY,
    RETRY_BUCKETS_MS,
    Backoff,
    Retry,
    is_non_retryable,
    may_retry,
    raw_delay_seconds,
    retry_bucket_ms,
    retry_delay_seconds,
)


def test_the_defaults_are_those_of_the_specification() -> None:
    assert (
        Retry(
            max_attempts=3,
            initial_interval=timedelta(seconds=1),
            backoff_coefficient=2.0,
            max_interval=timedelta(minutes=5),
            jitter=True,
            non_retryable_errors=(),
            on_exhaustion="discard",
        )
        == DEFAULT_RETRY
    )


@pytest.mark.parametrize(
    ("strategy", "coefficient", "seconds", "expected"),
    [
        ("exponential", 2.0, 1, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]),
        ("linear", 9.0, 5, [5, 10, 15, 20]),
        ("polynomial", 4.0, 1, [1, 16, 81, 256, 300]),
        ("none", 9.0, 5, [5, 5, 5, 5]),
    ],
)
def test_delays_grow_by_the_strategy_up_to_the_cap(
    strategy: Backoff, coefficient: float, seconds: int, expected: list[float]
) -> None:
    policy = Retry(
        backoff_strategy=strategy,
        backoff_coefficient=coefficient,
        initial_interval=timedelta(seconds=seconds),
        jitter=False,
    )
    assert [retry_delay_seconds(policy, retry, 0.9) for retry in range(1, len(expected) + 1)] == expected


def test_a_very_late_retry_does_not_overflow() -> None:
    assert raw_delay_seconds(Retry(), 100_000) == float("inf")
    assert retry_delay_seconds(Retry(), 100_000, 0.0) == 150


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_its_bounds_and_below_the_cap(retry: int, random: float) -> None:
    policy = Retry(initial_interval=timedelta(seconds=10))
    exact = min(raw_delay_seconds(policy, retry), 300)
    delay = retry_delay_seconds(policy, retry, random)
    assert exact * 0.5 <= delay <= min(exact * 1.5, 300)


@given(st.floats(0, 300))
def test_a_bucket_is_never_early(delay: float) -> None:
    bucket = retry_bucket_ms(delay)
    assert bucket is not None
    assert bucket >= delay * 1000
    assert all(other < delay * 1000 for other in RETRY_BUCKETS_MS if other < bucket)


def test_there_is_no_bucket_beyond_the_last() -> None:
    assert retry_bucket_ms(300) == 300_000
    assert retry_bucket_ms(300.001) is None


@pytest.mark.parametrize(
    ("error_type", "expected"),
    [
        ("validation.payload_invalid", True),
        ("validation.schema_error", False),
        ("auth.token_expired", True),
        ("auth", False),
        ("authentic", False),
        ("external.auth.failure", False),
    ],
)
def test_error_types_match_exactly_or_by_prefix(error_type: str, expected: bool) -> None:
    policy = Retry(non_retryable_errors=["validation.payload_invalid", "auth.*"])
    assert is_non_retryable(policy, error_type) is expected


@pytest.mark.parametrize(("limit", "attempt", "expected"), [(0, 1, False), (1, 1, False), (3, 2, True), (3, 3, False)])
def test_max_attempts_is_an_exact_bound(limit: int, attempt: int, expected: bool) -> None:
    assert may_retry(Retry(max_attempts=limit), attempt, "x") is expected


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Retry(max_attempts=-1), "retry.max_attempts"),
        (lambda: Retry(initial_interval=timedelta(0)), "retry.initial_interval"),
        (lambda: Retry(backoff_coefficient=0.99), "retry.backoff_coefficient"),
        (lambda: Retry(backoff_coefficient=float("nan")), "retry.backoff_coefficient"),
        (lambda: Retry(backoff_coefficient=float("inf")), "retry.backoff_coefficient"),
        (lambda: Retry(initial_interval=timedelta(hours=1)), "retry.max_interval"),
    ],
)
def test_a_bad_policy_names_its_field(make: "type[Retry]", field: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        make()
    assert (caught.value.field, caught.value.code) == (field, "INVALID_RETRY_POLICY")


@pytest.mark.parametrize("name", ["initial_interval", "max_interval"])
def test_a_number_is_no_interval(name: str) -> None:
    with pytest.raises(TypeError, match=rf"Retry: {name} must be a timedelta such as timedelta\(seconds=5\), not 5"):
        Retry(**{name: 5})  # type: ignore[arg-type]
