"""What a push may say of a job: pending, unique, priorities, limits; and lists of jobs (levels 3 and 4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.backend.conftest import Client
from waybill.backend.enqueue import envelope_of
from waybill.backend.errors import RequestRefused
from waybill.ojs import Jobs

JOBS = "/ojs/v1/jobs"


async def push(client: Client, status: int = 201, args: object = None, **options: object) -> Any:
    body = {"type": "email.send", "args": args or [], "options": {"queue": "email", **options}}
    return await client.ask("POST", JOBS, body, status)


# --- timeouts ---


async def test_no_attempt_follows_after_the_total_timeout(client: Client) -> None:
    """ojs-timeouts section 5.2."""
    early = await client.push(total_timeout=3600, retry={"max_attempts": 9})
    await client.fetch()
    assert (await client.nack(early))["state"] == "retryable"
    waiting = await client.push(total_timeout=1)
    job = await client.job(waiting)
    assert datetime.fromisoformat(job["expires_at"]) - datetime.fromisoformat(job["created_at"]) <= timedelta(seconds=2)


@pytest.mark.parametrize(
    "options",
    [
        {"total_timeout": 0},
        {"total_timeout": "1h"},
        {"total_timeout": 5, "timeout": 6},
        {"total_timeout": 5, "timeout_ms": 5001},
        {"grace_period": -1},
        {"enqueue_ttl": 0},
        {"heartbeat_timeout": True},
    ],
)
async def test_timeouts_are_seconds(client: Client, options: dict[str, object]) -> None:
    await client.ask("POST", JOBS, {"type": "a.b", "args": [], **options}, 400)


# --- retries ---

GIVEN_RETRY = {"max_attempts": 3, "initial_interval": "PT0.5M", "max_interval": "PT5M", "on_exhaustion": "discard"}


async def test_a_retry_policy_is_shown_as_it_was_given(client: Client) -> None:
    """ojs-json-format section 3.3. The second push takes the quick way, and values that are the default remain."""
    for _ in range(2):
        made = (await push(client, retry=GIVEN_RETRY))["job"]
        (fetched,) = await client.fetch()
        admin = await client.ask("GET", f"/ojs/v1/admin/jobs/{made['id']}")
        for shown in (made, fetched, await client.job(made["id"]), admin):
            assert shown["retry"] == GIVEN_RETRY
        assert admin["retry_policy"].items() >= GIVEN_RETRY.items()
        await client.ack(made["id"])
    batch = await client.ask(
        "POST", f"{JOBS}/batch", {"jobs": [{"type": "a.b", "args": [], "retry": GIVEN_RETRY}]}, 201
    )
    assert batch["jobs"][0]["retry"] == GIVEN_RETRY


# --- pending ---


async def test_a_pending_job_waits_to_be_activated(client: Client) -> None:
    made = (await push(client, args=[1], pending=True))["job"]
    assert (made["state"], made["args"], made["attempt"]) == ("pending", [1], 0)
    job_id = made["id"]
    assert (await client.job(job_id))["state"] == "pending"
    assert await client.fetch() == []
    found = await client.ask("POST", f"{JOBS}/{job_id}/activate")
    assert (found["job"]["state"], found["job"]["previous_state"]) == ("available", "pending")
    assert found["activated_at"]
    assert [(one["id"], one["args"]) for one in await client.fetch()] == [(job_id, [1])]
    refused = await client.ask("POST", f"{JOBS}/{job_id}/activate", status=409)
    assert refused["error"]["details"]["current_state"] == "active"
    await client.ack(job_id)


async def test_a_pending_job_can_be_cancelled(client: Client) -> None:
    job_id = (await push(client, pending=True))["id"]
    assert (await client.ask("DELETE", f"{JOBS}/{job_id}"))["job"]["state"] == "cancelled"
    await client.ask("POST", f"{JOBS}/{job_id}/activate", status=409)
    assert await client.fetch() == []


async def test_only_one_activation_counts(client: Client) -> None:
    job_id = (await push(client, pending=True))["id"]
    first = client.send("POST", f"{JOBS}/{job_id}/activate")
    second = client.send("POST", f"{JOBS}/{job_id}/activate")
    statuses = sorted([(await first).status, (await second).status])
    assert statuses == [200, 409]
    assert len(await client.fetch(count=5)) == 1


async def test_pending_jobs_of_a_batch(client: Client) -> None:
    jobs = [{"type": "a", "args": [n], "options": {"queue": "email", "pending": n == 1}} for n in range(3)]
    made = await client.ask("POST", f"{JOBS}/batch", {"jobs": jobs}, 201)
    assert [(one["args"], one["state"]) for one in made["jobs"]] == [
        ([0], "available"),
        ([1], "pending"),
        ([2], "available"),
    ]
    assert len(await client.fetch(count=5)) == 2


async def test_pending_is_true_or_false(client: Client) -> None:
    await push(client, 400, pending="yes")
    await client.ask("POST", f"{JOBS}/019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f/activate", status=404)


# --- unique ---


async def test_the_key_may_name_fields_of_the_arguments(client: Client) -> None:
    policy = {"key": ["report_id"], "period": "PT1H"}
    await push(client, args=[{"report_id": 42, "format": "pdf"}], unique=policy)
    await push(client, 409, args=[{"report_id": 42, "format": "csv"}], unique=policy)
    await push(client, args=[{"report_id": 43, "format": "pdf"}], unique=policy)
    await push(client, args=["a@example.com", "welcome"], unique=policy)
    await push(client, 409, args=["a@example.com", "welcome"], unique=policy)
    await push(client, args=["b@example.com", "welcome"], unique=policy)
    await push(client, 409, args=["b@example.com", "welcome"], unique={"key": ["args", "type", "report_id"]})
    await push(client, 400, args=[1], unique={"key": [{}, 1]})


async def test_reject(client: Client) -> None:
    policy = {"keys": ["type", "args"], "period": "PT1M", "on_conflict": "reject"}
    first = (await push(client, args=[1], unique=policy))["job"]
    assert first["args"] == [1]
    details = (await push(client, 409, args=[1], unique=policy))["error"]["details"]
    assert (details["existing_job_id"], details["existing_job_state"]) == (first["id"], "available")
    await push(client, args=[2], unique=policy)
    assert (await client.job(first["id"]))["args"] == [1]


@pytest.mark.parametrize("conflict", ["ignore", "use_existing"])
async def test_ignore(client: Client, conflict: str) -> None:
    first = await push(client, args=[1], unique={"keys": ["type"], "on_conflict": conflict})
    second = await push(client, 200, args=[2], unique={"keys": ["type"], "on_conflict": conflict})
    assert (second["id"], second["deduplicated"], second["args"]) == (first["id"], True, [1])


async def test_replace(client: Client) -> None:
    policy = {"keys": ["type"], "on_conflict": "replace"}
    first = await push(client, args=[1], unique=policy)
    second = await push(client, args=[2], unique=policy)
    assert (await client.job(first["id"]))["state"] == "cancelled"
    assert [one["id"] for one in await client.fetch(count=5)] == [second["id"]]


async def test_the_end_of_a_job_frees_its_place(client: Client) -> None:
    policy = {"keys": ["type"], "states": ["available", "active"]}
    await push(client, unique=policy)
    (job,) = await client.fetch()
    await push(client, 409, unique=policy)
    await client.ack(job["id"])
    await push(client, unique=policy)


async def test_a_policy_that_makes_no_sense_is_refused(client: Client) -> None:
    cases: list[object] = [
        {"keys": ["argz"]},
        {"keys": ["meta"]},
        {"keys": ["args"], "args_keys": ["missing"]},
        {"on_conflict": "sometimes"},
        {"period": "soon"},
        {"key": 3},
        {"states": ["asleep"]},
    ]
    for unique in cases:
        await push(client, 400, args=[{}], unique=unique)


async def test_a_batch_says_which_of_its_jobs_are_there_already(client: Client) -> None:
    policy = {"keys": ["type", "args"]}
    await push(client, args=[1], unique=policy)
    jobs = [{"type": "email.send", "args": [n], "options": {"queue": "email", "unique": policy}} for n in range(3)]
    made = await client.ask("POST", f"{JOBS}/batch", {"jobs": jobs}, 201)
    assert (made["count"], [one["args"] for one in made["jobs"]]) == (2, [[0], [2]])
    assert [(one["index"], one["error"]["code"]) for one in made["errors"]] == [(1, "duplicate")]
    refused = await client.ask("POST", f"{JOBS}/batch", {"jobs": jobs}, 409)
    assert refused["error"]["code"] == "duplicate"


# --- priorities ---


async def test_higher_priorities_are_fetched_first(client: Client) -> None:
    for priority in (1, "LOW", 50, "high", -5, 100):
        await push(client, args=[priority], priority=priority)
    fetched = await client.fetch(count=10)
    assert [one["priority"] for one in fetched] == [100, 50, 3, 1, 1, -5]


async def test_other_priorities_are_refused(client: Client) -> None:
    cases: list[object] = [101, 1.5, True, "urgent", [1]]
    for priority in cases:
        await push(client, 400, priority=priority)


# --- forms ---


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_per_second": 5}, {"key": "queue:default", "rate": {"limit": 5, "period": "PT1S"}}),
        ({"key": "k", "concurrency": 2, "on_limit": "drop"}, {"key": "k", "concurrency": 2, "on_limit": "drop"}),
        ({"key": "k", "max_concurrent": 2}, {"key": "k", "concurrency": 2}),
        ({"key": "k", "concurrency": {"limit": 3}}, {"key": "k", "concurrency": 3}),
        ({"key": "k", "limit": 10, "period": "PT1M"}, {"key": "k", "rate": {"limit": 10, "period": "PT1M"}}),
        ({"key": "k", "limit": 10, "window_ms": 500}, {"key": "k", "rate": {"limit": 10, "period": "PT0.5S"}}),
        ({"key": "k", "requests": 4, "per": "minute"}, {"key": "k", "rate": {"limit": 4, "period": "PT1M"}}),
        ({"key": "k", "limit": 10}, {"key": "k", "concurrency": 10}),
        (
            {"key": "k", "throttle": {"limit": 1, "period": "PT1S"}},
            {"key": "k", "throttle": {"limit": 1, "period": "PT1S"}},
        ),
    ],
)
def test_limits_in_other_forms(given: object, expected: object) -> None:
    assert envelope_of({"type": "a", "args": [], "rate_limit": given})["rate_limit"] == expected


def test_options_in_other_forms() -> None:
    job = envelope_of(
        {
            "type": "a",
            "args": [],
            "options": {
                "retry_policy": {"backoff_type": "constant", "initial_interval_ms": 500},
                "visibility_timeout": "PT30S",
                "metadata": {"a": 1},
                "unique": {"key": [], "period": 60, "conflict": "use_existing"},
            },
        }
    )
    assert job["retry"] == {
        "backoff_strategy": "none",
        "initial_interval": "PT0.5S",
        # What the client wrote, and may read again.
        "backoff_type": "constant",
        "initial_interval_ms": 500,
    }
    assert (job["visibility_timeout_ms"], job["meta"]) == (30_000, {"a": 1})
    assert job["unique"] == {"period": "PT60S", "on_conflict": "ignore"}


@pytest.mark.parametrize("given", ["5", [], True, {"key": "k", "limit": 1, "period": [1]}])
def test_limits_that_make_no_sense(given: object) -> None:
    with pytest.raises(RequestRefused):
        envelope_of({"type": "a", "args": [], "rate_limit": given})


async def test_limits_that_break_a_rule(client: Client) -> None:
    cases: list[object] = [
        {"key": "k", "concurrency": 0},
        {"key": "a b", "concurrency": 1},
        {"key": "k", "rate": {"limit": "x"}},
    ]
    for given in cases:
        await push(client, 400, rate_limit=given)


# --- lists ---


async def test_pages_stay_what_they_were(client: Client) -> None:
    ids = [(await push(client, args=[n]))["id"] for n in range(6)]
    newest = ids[::-1]
    page = await client.ask("GET", f"{JOBS}?limit=2")
    assert [one["id"] for one in page["jobs"]] == newest[:2]
    assert (page["pagination"]["total"], page["pagination"]["has_more"]) == (6, True)
    await push(client, args=[7])
    for job in await client.fetch(count=3):
        await client.ack(job["id"])
    page = await client.ask("GET", f"{JOBS}?limit=3&cursor={page['pagination']['next_cursor']}")
    assert [one["id"] for one in page["jobs"]] == newest[2:5]
    page = await client.ask("GET", f"{JOBS}?limit=3&cursor={page['pagination']['next_cursor']}")
    assert [one["id"] for one in page["jobs"]] == newest[5:]
    assert not page["pagination"]["has_more"]
    page = await client.ask("GET", f"{JOBS}?limit=2&offset=1")
    assert [one["id"] for one in page["jobs"]] == newest[:2]


async def test_filters(client: Client) -> None:
    done = await push(client)
    (job,) = await client.fetch(worker="w9")
    await client.ask("POST", JOBS, {"type": "other", "args": [], "options": {"queue": "more"}}, 201)
    later = await push(client, scheduled_at="+PT1H")
    assert [one["id"] for one in (await client.ask("GET", f"{JOBS}?worker_id=w9"))["jobs"]] == [job["id"]]
    await client.ack(done["id"])
    for query, expected in (
        ("state=completed", [done["id"]]),
        ("state=scheduled", [later["id"]]),
        ("state=completed,scheduled", [later["id"], done["id"]]),
        ("queue=email", [later["id"], done["id"]]),
        ("queue=email&type=other", []),
        ("state=available&queue=email", []),
    ):
        assert [one["id"] for one in (await client.ask("GET", f"{JOBS}?{query}"))["jobs"]] == expected
    assert len((await client.ask("GET", f"{JOBS}?type=other"))["jobs"]) == 1


async def test_questions_that_make_no_sense(client: Client) -> None:
    cases: list[str] = ["state=asleep", "limit=x", "offset=-1", "cursor=%FF"]
    for query in cases:
        await client.ask("GET", f"{JOBS}?{query}", status=400)


async def test_the_result_and_the_failures_of_a_job(client: Client) -> None:
    job_id = (await push(client, retry={"max_attempts": 2, "initial_interval": "PT1S", "jitter": False}))["id"]
    (job,) = await client.fetch()
    await client.nack(job["id"], requeue=False)
    found = await client.ask("GET", f"{JOBS}/{job_id}/retries")
    assert (found["state"], len(found["retries"])) == ("retryable", 1)
    assert (await client.ask("GET", f"{JOBS}/{job_id}/result"))["result"] is None


async def test_arguments_pushed_over_amqp_are_known_if_the_program_says_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = client.backend.jobs.uri

    async def pushed(pusher: Jobs) -> Any:
        async with pusher:
            return await client.job((await pusher.push("a", [{"to": "ada"}], queue="email")).id)

    assert (await pushed(Jobs(uri, create_queues=True, describe_jobs=True)))["args"] == [{"to": "ada"}]
    monkeypatch.setenv("WAYBILL_DESCRIBE_JOBS", "true")
    found = await pushed(Jobs(uri, create_queues=True))
    assert (found["args"], found.get("args_known")) == ([{"to": "ada"}], None)
    assert (await pushed(Jobs(uri, create_queues=True, describe_jobs=False)))["args_known"] is False


async def test_what_was_pushed_over_amqp_is_shown_as_far_as_it_is_known(client: Client) -> None:
    jobs = client.backend.jobs
    async with Jobs(jobs.uri, results=False, create_queues=True) as pusher:
        job_id = (await pusher.push("a", [7], queue="email")).id
    found = await client.job(job_id)
    assert (found["args"], found["args_known"], found["state"]) == ([], False, "available")
    (job,) = await client.fetch()
    found = await client.job(job_id)
    assert (found["args"], found["state"], found["attempt"]) == ([7], "active", 1)
    assert "args_known" not in found
    await client.nack(job["id"], error={"message": "no", "retryable": False})
    while not (dead := (await client.ask("GET", "/ojs/v1/dead-letter"))["jobs"]):
        pass
    assert dead[0]["args"] == [7]


async def test_metadata_that_is_too_large_is_measured(client: Client) -> None:
    """ojs-payload-limits section 9.2."""
    body = {"type": "email.send", "args": [], "meta": {"a": "x" * 70_000}}
    error = (await client.ask("POST", "/ojs/v1/jobs", body, 413))["error"]
    assert error["details"] == {"field": "meta", "actual_bytes": 70_008, "max_bytes": 65_536}
