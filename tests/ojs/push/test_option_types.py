"""Options of a wrong name or type are refused where they are written, with or without a type checker."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from waybill import Jobs, Retry
from waybill.ojs import InvalidJob, NewJob, Unique, chain

jobs = Jobs("amqp://localhost/")


@jobs.handler("options.typed")
async def typed() -> None: ...


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dely": timedelta(seconds=1)}, "dely: is not an option of a job; did you mean delay?"),
    ({"zzz": 1}, "zzz: is not an option of a job"),
    ({"priority": "high"}, "priority: expects a whole number, got `str`"),
    ({"priority": 1.5}, "priority: expects a whole number, got `float`"),
    ({"priority": True}, "priority: expects a whole number, got `bool`"),
    ({"priority": None}, "priority: expects a whole number, got `NoneType`"),
    ({"timeout": "5"}, "timeout: expects a number of seconds, got `str`"),
    ({"timeout": float("nan")}, "timeout: expects a number of seconds, got nan"),
    ({"visibility_timeout": float("inf")}, "visibility_timeout: expects a number of seconds, got inf"),
    ({"result_ttl": timedelta(seconds=1)}, "result_ttl: expects a number of seconds, got `timedelta`"),
    ({"delay": 5}, "delay: expects a timedelta, a datetime or RFC 3339 text, got `int`"),
    ({"expires_at": 5.0}, "expires_at: expects a timedelta, a datetime or RFC 3339 text, got `float`"),
    ({"scheduled_at": datetime(2030, 1, 1)}, "scheduled_at: a datetime without a time zone is ambiguous"),  # noqa: DTZ001 - that is refused
    ({"retry": {"max_attempts": 3}}, "retry: expects a Retry, got `dict`"),
    ({"meta": "x"}, "meta: expects a dict, got `str`"),
    ({"tags": "abc"}, "tags: expects a list of texts, got `str`"),
    ({"tags": ["a", 1]}, "tags: expects a list of texts"),
    ({"unique": True}, "unique: expects a Unique, got `bool`"),
    ({"unique_key": 5}, "unique_key: expects text, got `int`"),
    ({"queue": 5}, "queue: expects text, got `int`"),
    ({"results": 1}, "results: expects True or False, got `int`"),
    ({"enqueue_ttl": 5}, "enqueue_ttl: expects a timedelta, got `int`"),
    ({"correlation_id": "c" * 256}, "correlation_id: is larger than 255 bytes"),
    ({"unique_key": "é" * 8193}, "unique_key: is larger than 16384 bytes"),
    ({"traceparent": "t" * 16385}, "traceparent: is larger than 16384 bytes"),
    (
        {"tracestate": "\ud800"},
        "tracestate: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[f"{one[0]}" for one in WRONG])
def test_a_wrong_option_is_refused_by_the_push(options: dict[str, Any], message: str) -> None:
    for made in (typed.options(**options).job(), NewJob("a.b", [], options)):  # type: ignore[arg-type]
        with pytest.raises(InvalidJob) as refused:
            jobs.check(made)
        assert str(refused.value) == message


def test_a_job_that_no_message_can_have_is_refused_by_the_check() -> None:
    with pytest.raises(InvalidJob, match="unique_key: is larger than 16384 bytes"):
        jobs.check(NewJob("a.b", [], {}, None, "k" * 16_385))
    with pytest.raises(InvalidJob, match=r"envelope: has 1677\d+ bytes, 16777216 are allowed"):
        jobs.check(NewJob("a.b", ["x" * (1 << 24)], {}))


def test_right_ones_are_taken_and_none_is_not_given() -> None:
    jobs.check(
        typed.options(
            priority=-3, timeout=1.5, visibility_timeout=2, delay=timedelta(seconds=1), expires_at="+PT1H",
            retry=Retry(max_attempts=2), meta={"a": 1}, tags=["a"], unique=Unique(keys=("type",)), unique_key="k",
            results=False, result_ttl=-1, result_size_limit=10, enqueue_ttl=timedelta(seconds=1), correlation_id="c",
        ).job()
    )  # fmt: skip
    nothing: Any = dict.fromkeys(("timeout", "retry", "delay", "unique_key", "result_ttl"))
    jobs.check(typed.options(**nothing).job())


@pytest.mark.parametrize(
    "options", [{"timeout": -1}, {"timeout": "1"}, {"result_ttl": -5}, {"queue": "No Queue"}, {"retry": 3}], ids=str
)
def test_a_handler_refuses_options_that_none_of_its_jobs_could_have(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=next(iter(options))):
        Jobs("amqp://localhost/").handler("a.b", **options)


def test_a_handler_is_made_of_a_function_and_a_workflow_of_jobs() -> None:
    with pytest.raises(TypeError, match=r"a handler is no function: `@jobs\.cron` goes above"):
        jobs.handler("options.again")(typed)
    with pytest.raises(InvalidJob, match=r"AsyncHandler is neither a job nor a workflow: write handler\.job"):
        chain(typed).define(jobs)  # type: ignore[call-overload]
