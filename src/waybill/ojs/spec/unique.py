"""Unique jobs: which jobs count as duplicates, and which block another one (ojs-unique-jobs.md).

Uniqueness is strong. A reservation is an event, and the order of the event stream decides between reservations: every
coordinator that folds the stream comes to the same decision, so one that takes over does not undo it.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from datetime import timedelta
from decimal import Decimal
from typing import Final, Literal

import msgspec

from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import parse_timestamp

Dimension = Literal["type", "queue", "args", "meta"]
OnConflict = Literal["reject", "replace", "replace_except_schedule", "ignore"]
StateName = Literal[
    "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded"
]  # fmt: skip

DEFAULT_STATES: Final[tuple[StateName, ...]] = ("available", "active", "scheduled", "retryable", "pending")


class Unique(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What makes a job the same as another, and what to do if there is one already.

    `keys` are compared; `args_keys` and `meta_keys` narrow them down. A job counts while it is in one of `states`, and
    for `period` at most. A running job is never replaced: that is a conflict like any other.
    """

    keys: tuple[Dimension, ...] = ("type",)
    args_keys: tuple[str, ...] | None = None
    meta_keys: tuple[str, ...] | None = None
    period: timedelta | None = None
    states: tuple[StateName, ...] = DEFAULT_STATES
    on_conflict: OnConflict = "reject"


def read_unique(value: dict[str, object]) -> Unique:
    """Return the policy in an envelope. Raises InvalidJob naming the field."""
    try:
        policy = msgspec.convert(value, Unique)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidJob(f"unique{place.rstrip('`')}", text) from error
    for name in ("keys", "args_keys", "meta_keys", "states"):
        listed: tuple[str, ...] = getattr(policy, name) or ()
        if len(set(listed)) < len(listed):
            raise InvalidJob(f"unique.{name}", "names one twice")
    if "meta" in policy.keys and not policy.meta_keys:
        raise InvalidJob("unique.meta_keys", 'must be given when "meta" is one of the keys')
    if policy.period is not None and policy.period <= timedelta(0):
        raise InvalidJob("unique.period", "must be longer than zero")
    return policy


def unique_key(job: Envelope, policy: Unique) -> str:
    """Return the fingerprint of a job (section 4): SHA-256 of its canonical dimensions, in hexadecimal.

    Arguments are named by `args_keys` if there is one that is an object, else they are numbered from 0. Raises
    InvalidJob for keys that are not there.
    """
    dimensions: dict[str, object] = {"type": job.type}
    if "queue" in policy.keys:
        dimensions["queue"] = job.queue
    if "args" in policy.keys:
        dimensions["args"] = job.args if policy.args_keys is None else _named(job.args, policy.args_keys)
    if "meta" in policy.keys:
        dimensions["meta"] = {key: job.meta.get(key) for key in policy.meta_keys or ()}
    return hashlib.sha256(_canonical(dimensions).encode()).hexdigest()


def stands_in_the_way(existing: JobInfo, created_at: str | None, *, states: object, period: object, now: str) -> bool:
    """Return whether a job with the same fingerprint makes a new job at `now` a duplicate (section 7.4)."""
    if not isinstance(states, list) or existing.state not in states:
        return False
    if existing.state == State.PENDING.value and (existing.visible_until or "") < now:
        # It was reserved but never enqueued.
        return False
    if isinstance(period, str) and created_at is not None:
        try:
            ends = parse_timestamp(created_at, "created_at") + msgspec.convert(period, timedelta)
            return parse_timestamp(now, "time") < ends
        except (ValueError, OverflowError):
            # Without valid times, it counts as long as it exists.
            return True
    return True


def _named(args: list[object], names: tuple[str, ...]) -> dict[str, object]:
    only = args[0] if len(args) == 1 else None
    fields = only if isinstance(only, dict) else {str(index): value for index, value in enumerate(args)}
    missing = [name for name in names if name not in fields]
    if missing:
        raise InvalidJob("unique.args_keys", f"{missing[0]!r} is not in the arguments")
    return {name: fields[name] for name in names}


def _canonical(value: object) -> str:
    """Write JSON as RFC 8785 does, with texts in NFC."""
    match value:
        case dict():
            normal = {unicodedata.normalize("NFC", str(key)): element for key, element in value.items()}
            # By UTF-16 code units.
            pairs = sorted(normal.items(), key=lambda pair: pair[0].encode("utf-16-be"))
            return "{" + ",".join(f"{_text(key)}:{_canonical(element)}" for key, element in pairs) + "}"
        case list() | tuple():
            return "[" + ",".join(_canonical(element) for element in value) + "]"
        case str():
            return _text(unicodedata.normalize("NFC", value))
        case float():
            return _number(value)
        case _:
            return json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Write a number as ECMAScript does."""
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    if 1e-6 <= abs(value) < 1e21:
        return format(Decimal(repr(value)), "f")
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa}e{'+' if int(exponent) > 0 else ''}{int(exponent)}"
