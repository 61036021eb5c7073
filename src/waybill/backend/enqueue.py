"""Makes envelopes from requests, in the form of the specification, with `options`, or in the flat form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.options import Json, duration_of, priority_of, rate_limit_of, unique_of
from waybill.backend.server.limits import MAX_BODY_BYTES, too_large
from waybill.backend.usual_bodies import JobTexts
from waybill.backend.versions import read_version
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.timestamps import format_timestamp, parse_duration

MAX_BATCH: Final = 1000

_texts: Final = msgspec.json.Decoder(JobTexts)
_ALIASES: Final = {"retry_policy": "retry", "delay_until": "scheduled_at"}
_TIMES: Final = ("timeout", "visibility_timeout")
_SECONDS: Final = {"total_timeout": 1, "enqueue_ttl": 1, "heartbeat_timeout": 1, "grace_period": 0}
"""The least number of each."""
LONGEST: Final = 10 * 365 * 86_400
_STRATEGIES: Final = {"constant": "none", "fixed": "none"}


def envelope_of(body: Json) -> Json:
    """Return the envelope of a job; options take precedence over fields. Raises RequestRefused."""
    options = body.get("options")
    if options is not None and not isinstance(options, dict):
        raise invalid("options", "must be an object")
    job: Json = {name: value for name, value in body.items() if name != "options" and value is not None}
    job |= {name: value for name, value in (options or {}).items() if value is not None}
    job.pop("pending", None)
    for alias, name in _ALIASES.items():
        if alias in job:
            job.setdefault(name, job.pop(alias))
    if not isinstance(job.get("type"), str):
        raise invalid("type", "must be a string")
    if not isinstance(job.get("args"), list):
        raise invalid("args", "must be an array")
    kind, at, version = str(job["type"]).partition("@")
    if at and read_version(version) is not None:
        # The alternative form (ojs-job-versioning section 5.3).
        job["type"] = kind
        job.setdefault("version", version)
    if not isinstance(job.get("version", ""), str):
        raise invalid("version", "must be a string")
    if "priority" in job:
        job["priority"] = priority_of(job["priority"])
    _read_objects(job)
    for name in _TIMES:
        time = job.get(name)
        if isinstance(time, str):
            job.pop(name)
            job.setdefault(f"{name}_ms", parse_duration(time, name) // timedelta(milliseconds=1))
    _read_timeouts(job)
    job.setdefault("id", new_id())
    # Any minor version is accepted.
    job["specversion"] = "1.0"
    return job


def _read_timeouts(job: Json) -> None:
    """Check the fields of ojs-timeouts section 6. A job has no attempts after its total timeout."""
    for name, least in _SECONDS.items():
        value = job.get(name)
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LONGEST
        ):
            raise invalid(name, f"must be a number of seconds from {least} to {LONGEST}")
    total, timeout, milliseconds = (job.get(name) for name in ("total_timeout", "timeout", "timeout_ms"))
    if not isinstance(total, int):
        return
    if (isinstance(timeout, int) and timeout > total) or (
        isinstance(milliseconds, int) and milliseconds > total * 1000
    ):
        raise invalid("total_timeout", "must not be less than the timeout of an attempt")
    job.setdefault("expires_at", format_timestamp(datetime.now(UTC) + timedelta(seconds=total)))


def is_pending(body: Json) -> bool:
    """Return whether a job must wait until it is activated. Raises RequestRefused."""
    options = body.get("options")
    found = options.get("pending") if isinstance(options, dict) else None
    found = body.get("pending") if found is None else found
    if found is not None and not isinstance(found, bool):
        raise invalid("pending", "must be true or false")
    return bool(found)


def check_sizes(body: bytes) -> None:
    """Refuse a batch with a job that is larger than one that is enqueued alone may be. Raises RequestRefused."""
    if len(body) <= MAX_BODY_BYTES:
        return
    try:
        jobs = _texts.decode(body).jobs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What is wrong with it is told elsewhere.
        return
    for index, job in enumerate(jobs):
        if (size := len(bytes(job))) > MAX_BODY_BYTES:
            details = too_large(size, MAX_BODY_BYTES) | {"index": index}
            raise RequestRefused("payload_too_large", f"The job at index {index} is too large.", details=details)


def envelopes_of(body: Json) -> list[Json]:
    """Return the envelopes of a batch. Raises RequestRefused with the index."""
    jobs = body.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise invalid("jobs", "must be an array with at least one job")
    if len(jobs) > MAX_BATCH:
        raise invalid("jobs", f"must have at most {MAX_BATCH} jobs")
    made = []
    for index, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise invalid(f"jobs[{index}]", "must be an object")
        try:
            is_pending(job)
            made.append(envelope_of(job))
        except RequestRefused as error:
            error.details |= {"index": index}
            error.message = f"The job at index {index}: {error.message}"
            raise
    ids = [job["id"] for job in made if isinstance(job["id"], str)]
    if len(set(ids)) < len(ids):
        raise invalid("jobs", "must not have the same id twice")
    return made


def _read_objects(job: Json) -> None:
    """Convert the fields of a job that are objects to the form of the envelope."""
    metadata = job.get("metadata")
    if isinstance(metadata, dict):
        meta = job.get("meta", {})
        if isinstance(meta, dict):
            job["meta"] = {**metadata, **meta}
    if isinstance(job.get("retry"), dict):
        job["retry"] = _policy(job["retry"])
    unique = job.get("unique")
    if isinstance(unique, dict):
        job["unique"] = unique_of(job, unique)
    if "rate_limit" in job:
        job["rate_limit"] = rate_limit_of(job["rate_limit"], job.get("queue", "default"))


def _policy(given: object) -> Json:
    """Return a retry policy with the durations of the envelope, and with what was given instead of them."""
    policy: Json = dict(given) if isinstance(given, dict) else {}
    for name in ("initial_interval", "max_interval"):
        milliseconds = policy.get(f"{name}_ms")
        if name not in policy and milliseconds is not None:
            policy[name] = duration_of(milliseconds, f"retry.{name}_ms")
    strategy = policy.get("backoff_strategy", policy.get("backoff_type"))
    if isinstance(strategy, str):
        policy["backoff_strategy"] = _STRATEGIES.get(strategy, strategy)
    return {name: value for name, value in policy.items() if value is not None}
