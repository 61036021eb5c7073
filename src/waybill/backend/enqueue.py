"""Makes an envelope of what a client sends: the text's form, with `options`, or the flat form of some clients."""

from __future__ import annotations

from typing import Final

from waybill.backend.errors import RequestRefused
from waybill.ojs.spec.identifiers import new_id

MAX_BATCH: Final = 1000
PRIORITIES: Final = range(-100, 101)
_UNSUPPORTED: Final = ("pending", "rate_limit")

Json = dict[str, object]


def envelope_of(body: Json) -> Json:
    """Return the envelope of a job; options go before fields of the same name. Raises RequestRefused."""
    options = body.get("options")
    if options is not None and not isinstance(options, dict):
        raise _invalid("options", "must be an object")
    job: Json = {name: value for name, value in body.items() if name != "options" and value is not None}
    job |= {name: value for name, value in (options or {}).items() if value is not None}
    for name in _UNSUPPORTED:
        if job.get(name):
            details: Json = {"field": name}
            raise RequestRefused("unsupported", f"The option {name!r} is not supported.", details=details)
        job.pop(name, None)
    if not isinstance(job.get("type"), str):
        raise _invalid("type", "must be a string")
    if not isinstance(job.get("args"), list):
        raise _invalid("args", "must be an array")
    priority = job.get("priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool) or priority not in PRIORITIES:
        raise _invalid("priority", "must be an integer from -100 to 100")
    if isinstance(job.get("retry"), dict):
        job["retry"] = _policy(job["retry"])
    if isinstance(job.get("unique"), dict):
        _add_unique(job, dict(job["unique"]))  # type: ignore[call-overload]
    job.setdefault("id", new_id())
    # Whatever minor version a client speaks.
    job["specversion"] = "1.0"
    return job


def envelopes_of(body: Json) -> list[Json]:
    """Return the envelopes of a batch. Raises RequestRefused naming the index."""
    jobs = body.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise _invalid("jobs", "must be an array with at least one job")
    if len(jobs) > MAX_BATCH:
        raise _invalid("jobs", f"must have at most {MAX_BATCH} jobs")
    made = []
    for index, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise _invalid(f"jobs[{index}]", "must be an object")
        try:
            made.append(envelope_of(job))
        except RequestRefused as error:
            error.details |= {"index": index}
            error.message = f"The job at index {index}: {error.message}"
            raise
    ids = [job["id"] for job in made if isinstance(job["id"], str)]
    if len(set(ids)) < len(ids):
        raise _invalid("jobs", "must not have the same id twice")
    return made


def _policy(given: object) -> Json:
    """Return a retry policy with durations as the envelope has them."""
    policy: Json = dict(given) if isinstance(given, dict) else {}
    for name in ("initial_interval", "max_interval"):
        milliseconds = policy.pop(f"{name}_ms", None)
        if name not in policy and milliseconds is not None:
            policy[name] = duration_of(milliseconds, f"retry.{name}_ms")
    return {name: value for name, value in policy.items() if value is not None}


def _add_unique(job: Json, unique: Json) -> None:
    """Write the uniqueness of a job as the envelope has it."""
    milliseconds = unique.pop("period_ms", None)
    if "period" not in unique and milliseconds is not None:
        unique["period"] = duration_of(milliseconds, "unique.period_ms")
    key = unique.pop("key", None)
    if key is not None:
        # A key of the client's own: it becomes a part of the metadata, which can be compared.
        if not isinstance(key, str):
            raise _invalid("unique.key", "must be a string")
        meta = job.get("meta")
        job["meta"] = {**(meta if isinstance(meta, dict) else {}), "unique_key": key}
        unique |= {"keys": ["type", "meta"], "meta_keys": ["unique_key"]}
    job["unique"] = {name: value for name, value in unique.items() if value is not None}


def duration_of(milliseconds: object, field: str) -> str:
    """Return milliseconds as an ISO 8601 duration. Raises RequestRefused for what is no number."""
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool) or not 0 <= milliseconds < 1e15:
        raise RequestRefused(
            "validation_error", f"{field}: must be a number of milliseconds.", details={"field": field}
        )
    return f"PT{milliseconds / 1000:.3f}S"


def _invalid(field: str, what: str) -> RequestRefused:
    return RequestRefused("invalid_request", f"{field}: {what}.", details={"field": field})
