"""Converts options in the forms of clients to those of the envelope: limits, uniqueness, named priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from waybill.backend.errors import RequestRefused, invalid

Json = dict[str, object]

PRIORITIES: Final = range(-100, 101)
"""L0-ENV-017 of the public suites, against PRI-006 of ojs-priority: 101 and -101 are refused."""
NAMED: Final = {"high": 3, "normal": 2, "low": 1}
"""L4-PRI-003 of the conformance text."""

MOST_PERMITS: Final = 100_000
"""The broker stores one message for each."""

_CONCURRENCY: Final = ("concurrency", "max_concurrency", "max_concurrent", "concurrency_limit")
_COUNTS: Final = ("limit", "max", "count", "requests", "max_requests")
_PERIODS: Final = ("period", "window", "interval", "per", "duration")
_UNITS: Final = {"second": "PT1S", "minute": "PT1M", "hour": "PT1H", "day": "P1D"}
_ON_LIMIT: Final = {"queue": "wait", "delay": "reschedule", "skip": "wait", "reject": "drop", "discard": "drop"}
_DIMENSIONS: Final = ("type", "queue", "args", "meta")
_ON_CONFLICT: Final = {"use_existing": "ignore", "skip": "ignore"}


def priority_of(value: object) -> int:
    """Return a priority that is a number or has a name. Raises RequestRefused."""
    if isinstance(value, str) and value.lower() in NAMED:
        return NAMED[value.lower()]
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITIES:
        raise invalid("priority", "must be an integer from -100 to 100")
    return value


def unique_of(job: Json, given: Mapping[str, object]) -> Json:
    """Return the unique policy of a job; a client's own key becomes a part of the job's metadata."""
    unique = dict(given)
    milliseconds = unique.pop("period_ms", None)
    if "period" not in unique and milliseconds is not None:
        unique["period"] = duration_of(milliseconds, "unique.period_ms")
    elif isinstance(unique.get("period"), int | float):
        unique["period"] = duration_of(unique["period"], "unique.period", 1.0)
    conflict = unique.pop("conflict", None)
    conflict = unique.get("on_conflict", conflict)
    if isinstance(conflict, str):
        unique["on_conflict"] = _ON_CONFLICT.get(conflict, conflict)
    key = unique.pop("key", None)
    if isinstance(key, list):
        if key:
            unique = _keys_of(key, job.get("args")) | unique
    elif key is not None:
        if not isinstance(key, str):
            raise invalid("unique.key", "must be a string")
        meta = job.get("meta")
        job["meta"] = {**(meta if isinstance(meta, dict) else {}), "unique_key": key}
        unique |= {"keys": ["type", "meta"], "meta_keys": ["unique_key"]}
    return {name: value for name, value in unique.items() if value is not None}


def _keys_of(names: list[object], args: object) -> Json:
    """Return the keys for a list of them, or of fields of the arguments (ojs-json-format section 3.5)."""
    fields = [name for name in names if name not in _DIMENSIONS]
    if not fields or not all(isinstance(name, str) for name in names):
        return {"keys": names}
    found: Json = {"keys": list(dict.fromkeys(["type", "args", *(name for name in names if name in _DIMENSIONS)]))}
    only = args[0] if isinstance(args, list) and len(args) == 1 else None
    if isinstance(only, dict) and all(name in only for name in fields):
        # Without names, all arguments count.
        found["args_keys"] = fields
    return found


def rate_limit_of(given: object, queue: object) -> Json:
    """Convert a limit from any form of clients to that of the envelope. Raises RequestRefused.

    Without a key, all jobs of the queue with the same limit share it.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        given = {"max_per_second": given}
    if not isinstance(given, dict):
        raise invalid("rate_limit", "must be an object")
    found: Json = {"key": given.get("key") or f"queue:{queue}"}
    for name in _CONCURRENCY:
        value = given.get(name)
        if isinstance(value, dict):
            value = next((value[one] for one in ("limit", "max") if one in value), None)
        if value is not None:
            found["concurrency"] = value
    for name in ("rate", "throttle"):
        value = given.get(name)
        if isinstance(value, dict):
            found[name] = _window(value, f"rate_limit.{name}")
        elif value is not None:
            found[name] = {"limit": value, "period": "PT1S"}
    for unit, period in _UNITS.items():
        value = given.get(f"max_per_{unit}")
        if value is not None:
            found["rate"] = {"limit": value, "period": period}
    if "rate" not in found and any(name in given for name in _COUNTS):
        if any(name in given or f"{name}_ms" in given or f"{name}_seconds" in given for name in _PERIODS):
            found["rate"] = _window(given, "rate_limit")
        else:
            found.setdefault("concurrency", next(given[name] for name in _COUNTS if name in given))
    _check_permits(found)
    action = given.get("on_limit")
    if action is not None:
        found["on_limit"] = _ON_LIMIT.get(action, action) if isinstance(action, str) else action
    return found


def _check_permits(limit: Json) -> None:
    windows = [one for one in (limit.get("rate"), limit.get("throttle")) if isinstance(one, dict)]
    for count in (limit.get("concurrency"), *(one["limit"] for one in windows)):
        if isinstance(count, int) and count > MOST_PERMITS:
            raise invalid("rate_limit", f"must not allow more than {MOST_PERMITS}")


def _window(given: Mapping[str, object], field: str) -> Json:
    count = next((given[name] for name in _COUNTS if given.get(name) is not None), None)
    for name in _PERIODS:
        for suffix, unit in (("", 1.0), ("_ms", 0.001), ("_seconds", 1.0)):
            value = given.get(name + suffix)
            if isinstance(value, str):
                return {"limit": count, "period": _UNITS.get(value.lower(), value)}
            if value is not None:
                return {"limit": count, "period": duration_of(value, f"{field}.{name}{suffix}", unit)}
    return {"limit": count, "period": "PT1S"}


def duration_of(value: object, field: str, unit: float = 0.001) -> str:
    """Return a number of milliseconds, or of another unit, as an ISO 8601 duration. Raises RequestRefused."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e15:
        raise RequestRefused("validation_error", f"{field}: must be a number.", details={"field": field})
    return f"PT{f'{value * unit:.3f}'.rstrip('0').rstrip('.')}S"
