"""The configuration of queues (ojs-queue-config section 6), which operators set over HTTP.

`max_size` and `overflow_policy` are the queue's bound, `concurrency` and `rate_limit` its limits: these are settings of
their own. Defaults and allowed types apply to jobs pushed over HTTP. The configuration of the queue `_default` applies
to all queues, as far as they do not set a field themselves.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import TERMINAL, Form
from waybill.backend.settings import Settings
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.timestamps import format_timestamp, parse_duration

DEFAULT: Final = "_default"
"""The name under which the defaults of all queues are set."""
MOST_SECONDS: Final = 7 * 86_400
MOST_TYPES: Final = 100
MAX_TYPE: Final = 255
MOST_DEAD: Final = 10_000_000
_LONGEST: Final = timedelta(days=3650)


class QueueConfig(msgspec.Struct, omit_defaults=True):
    """What is set for a queue; None for what is not. Times are seconds, and durations ISO 8601."""

    visibility_timeout: int | None = None
    default_timeout: int | None = None
    default_retry: dict[str, object] | None = None
    retention: dict[str, str] | None = None
    allowed_job_types: list[str] | None = None
    dead_letter_ttl: str | None = None
    dead_letter_max_size: int | None = None
    dead_letter_queue: str | None = None
    dead_letter_since: str | None = None
    """When `dead_letter_queue` was set: earlier dead letters stay."""
    producers: list[str] | None = None


class QueueMove(msgspec.Struct):
    """The queue to which the jobs of a deleted queue move."""

    target: str


FIELDS: Final = tuple(name for name in QueueConfig.__struct_fields__ if name != "dead_letter_since")


class QueueConfigs:
    """The configurations of one server."""

    def __init__(self, settings: Settings) -> None:
        self.table = settings.table("queue-config", QueueConfig)

    def __len__(self) -> int:
        return len(self.table)

    def of(self, queue: str) -> QueueConfig:
        """Return what applies to a queue."""
        found = self.table.get(queue)
        default = self.table.get(DEFAULT) or QueueConfig()
        if found is None:
            return default
        given = {name: value for name in QueueConfig.__struct_fields__ if (value := getattr(found, name)) is not None}
        return msgspec.structs.replace(default, **given)

    def apply_to(self, job: Form, queue: str, producer: str) -> bool:
        """Add missing options to a job of a request; returns whether any was added. Raises RequestRefused.

        `producer` is the name of the client's API key; a server without keys knows no producers.
        """
        found = self.of(queue)
        if producer and found.producers is not None and not any(_fits(producer, one) for one in found.producers):
            text = f"The key {producer!r} may not push to the queue {queue!r}."
            raise RequestRefused("permission_denied", text, details={"queue": queue, "field": "producers"})
        kind = str(job.get("type", "")).partition("@")[0]
        if found.allowed_job_types is not None and not any(_fits(kind, one) for one in found.allowed_job_types):
            details: Form = {"queue": queue, "type": kind[:MAX_TYPE], "allowed_job_types": found.allowed_job_types}
            text = f"Queue {queue!r} does not accept jobs of the type {kind[:MAX_TYPE]!r}."
            raise RequestRefused("JOB_TYPE_NOT_ALLOWED", text, details=details)
        options = job.get("options")
        told = {**job, **(options if isinstance(options, dict) else {})}
        before = len(job)
        if found.default_retry is not None and not _is_any(told, "retry", "retry_policy", "max_attempts"):
            job["retry"] = found.default_retry
        if found.default_timeout is not None and not _is_any(told, "timeout", "timeout_ms"):
            job["timeout_ms"] = found.default_timeout * 1000
        if found.visibility_timeout is not None and not _is_any(told, "visibility_timeout", "visibility_timeout_ms"):
            job["visibility_timeout_ms"] = found.visibility_timeout * 1000
        return len(job) > before


def check_name(queue: str) -> None:
    """Raise InvalidJob unless a queue of this name can be configured."""
    if queue != DEFAULT:
        check_queue(queue)


def read_config(given: Form, before: QueueConfig | None) -> QueueConfig:
    """Return a configuration with the given fields changed; null removes one. Raises RequestRefused and InvalidJob."""
    changes: Form = {}
    given = {**given, **_nested(given.get("dead_letter"))}
    for name in FIELDS:
        if name in given:
            value = given[name]
            changes[name] = None if value is None else _READERS[name](value, name)
    if "dead_letter_queue" in changes and changes["dead_letter_queue"] != (before or QueueConfig()).dead_letter_queue:
        is_set = changes["dead_letter_queue"] is not None
        changes["dead_letter_since"] = format_timestamp(datetime.now(UTC)) if is_set else None
    return msgspec.structs.replace(before or QueueConfig(), **changes)


def _nested(given: object) -> Form:
    """Return the fields that ojs-dead-letter nests: `dead_letter.retention.max_age` and `max_count`."""
    retention = given.get("retention") if isinstance(given, dict) else None
    if not isinstance(retention, dict):
        return {}
    names = {"max_age": "dead_letter_ttl", "max_count": "dead_letter_max_size"}
    return {name: retention[one] for one, name in names.items() if one in retention}


def retention_of(config: QueueConfig) -> dict[str, timedelta]:
    """Return how long jobs are kept after their end, by state."""
    return {state: parse_duration(text, "retention") for state, text in (config.retention or {}).items()}


def _seconds(value: object, name: str) -> int:
    if isinstance(value, str):
        value = int(parse_duration(value, name).total_seconds())
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_SECONDS:
        raise invalid(name, f"must be a number of seconds from 1 to {MOST_SECONDS}")
    return value


def _retry(value: object, name: str) -> Form:
    if not isinstance(value, dict):
        raise invalid(name, "must be an object")
    return value


def _age(value: object, name: str) -> str:
    text = value if isinstance(value, str) else ""
    if not timedelta(0) <= parse_duration(text, name) <= _LONGEST:
        raise InvalidJob(name, "must be at most ten years")
    return text


def _size(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_DEAD:
        raise invalid(name, f"must be an integer from 0 to {MOST_DEAD}")
    return value


def _retention(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise invalid(name, "must be an object")
    for state, text in value.items():
        if state not in TERMINAL:
            raise invalid(f"{name}.{state}", f"must be one of {', '.join(sorted(TERMINAL))}")
        _age(text, f"{name}.{state}")
    return dict(value)


def _patterns(value: object, name: str) -> list[str]:
    if (
        not isinstance(value, list)
        or len(value) > MOST_TYPES
        or not all(isinstance(one, str) and 0 < len(one) <= MAX_TYPE for one in value)
    ):
        raise invalid(name, f"must be an array of at most {MOST_TYPES} strings, which may end in *")
    return value


def _queue(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise invalid(name, "must be a string")
    check_queue(value)
    return value


_READERS: Final = {
    "visibility_timeout": _seconds,
    "default_timeout": _seconds,
    "default_retry": _retry,
    "retention": _retention,
    "allowed_job_types": _patterns,
    "producers": _patterns,
    "dead_letter_queue": _queue,
    "dead_letter_ttl": _age,
    "dead_letter_max_size": _size,
}


def _fits(kind: str, pattern: str) -> bool:
    return kind.startswith(pattern[:-1]) if pattern.endswith("*") else kind == pattern


def _is_any(job: Form, *names: str) -> bool:
    return any(job.get(name) is not None for name in names)
