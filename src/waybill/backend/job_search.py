"""Finds jobs by queue, state, type, time, priority and metadata: for lists of the admin API and for bulk operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import invalid
from waybill.backend.job_form import Form, form_of
from waybill.backend.job_list import STATES, STORED_STATES
from waybill.backend.job_pages import pages
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.timestamps import parse_timestamp

MOST: Final = 10_000
PAGE: Final = 1000
MOST_EXAMINED: Final = 200_000
"""The number of newest jobs to search."""
_LARGE: Final = frozenset({"args", "args_known", "result", "parent_results", "parent_results_by_step"})
_FIELDS: Final = frozenset(
    {"queue", "queues", "state", "states", "type", "since", "until", "enqueued_after", "enqueued_before", "priority"}
    | {"meta", "tenant", "fingerprint", "text", "id"}
)


class SearchFilter(msgspec.Struct, frozen=True):
    """A filter of jobs. None and empty fields match all; times are RFC 3339 times of the enqueuing."""

    queues: Sequence[str] = ()
    states: frozenset[str] = frozenset()
    type: str = ""
    since: datetime | None = None
    until: datetime | None = None
    priority: int | None = None
    meta: Mapping[str, object] = {}
    fingerprint: str = ""
    text: str = ""
    id: str = ""
    ended_before: datetime | None = None
    """Jobs that have not ended do not match."""

    def matches(self, form: Form) -> bool:
        """Whether a job matches."""
        kind = str(form.get("type", ""))
        if self.queues and form.get("queue") not in self.queues:
            return False
        fits = kind.startswith(self.type[:-1]) if self.type.endswith("*") else self.type in {"", kind}
        if not fits or (self.states and form.get("state") not in self.states):
            return False
        if self.priority is not None and form.get("priority", 0) != self.priority:
            return False
        meta = form.get("meta")
        if self.meta and not (isinstance(meta, dict) and all(meta.get(name) == one for name, one in self.meta.items())):
            return False
        enqueued, ended = form.get("enqueued_at") or form.get("created_at"), end_of(form)
        return is_within(enqueued, self.since, self.until) and is_within(ended, None, self.ended_before)


def end_of(form: Form) -> object:
    """Return when a job has ended, None if it has not."""
    return form.get("completed_at") or form.get("cancelled_at") or form.get("discarded_at")


def is_within(text: object, since: datetime | None, until: datetime | None) -> bool:
    """Return whether a timestamp is at or after `since` and before `until`; None is no bound."""
    if since is None and until is None:
        return True
    try:
        moment = parse_timestamp(str(text), "time")
    except InvalidJob:
        return False
    return (since is None or moment >= since) and (until is None or moment < until)


def filter_of(given: Mapping[str, object], default_states: frozenset[str] = frozenset()) -> SearchFilter:
    """Read a filter of a query or of a body. Raises RequestRefused."""
    unknown = set(given) - _FIELDS
    if unknown:
        # A misspelt field would match more than intended.
        raise invalid(min(unknown), "is not a field of a filter")
    states = frozenset(_texts(given, "state", "states")) or default_states
    if not states <= STATES:
        raise invalid("state", f"must be one of {', '.join(sorted(STATES))}")
    priority, meta = given.get("priority"), given.get("meta", {})
    if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
        raise invalid("priority", "must be an integer")
    if not isinstance(meta, dict):
        raise invalid("meta", "must be an object")
    kind = given.get("type") or ""
    if not isinstance(kind, str):
        raise invalid("type", "must be a string")
    tenant = given.get("tenant")
    return SearchFilter(
        queues=_texts(given, "queue", "queues"),
        states=states,
        type=kind,
        since=time_of(given, "since", "enqueued_after"),
        until=time_of(given, "until", "enqueued_before"),
        priority=priority,
        meta=meta if tenant is None else {**meta, "tenant_id": tenant},
        fingerprint=_one_text(given, "fingerprint"),
        text=_one_text(given, "text"),
        id=_one_text(given, "id"),
    )


async def search(backend: Backend, wanted: SearchFilter, most: int = MOST) -> list[Form]:
    """Return up to `most` matching jobs, newest first, without their arguments and results."""
    stored = frozenset(one for state in wanted.states for one in STORED_STATES.get(state, {state}))
    kind = None if not wanted.type or wanted.type.endswith("*") else wanted.type
    queue = wanted.queues[0] if len(wanted.queues) == 1 else None
    rough = JobFilter(
        queue,
        stored or None,
        kind,
        id_prefix=wanted.id or None,
        fingerprint=wanted.fingerprint or None,
        text=wanted.text or None,
    )
    now = datetime.now(UTC)
    forms: list[Form] = []
    async with aclosing(pages(backend.view, rough, PAGE, MOST_EXAMINED)) as found:
        async for details in found:
            matching = (form for form in (form_of(detail, now) for detail in details) if wanted.matches(form))
            forms += [{name: value for name, value in form.items() if name not in _LARGE} for form in matching]
            if len(forms) >= most:
                break
    return forms[:most]


def _one_text(given: Mapping[str, object], name: str) -> str:
    value = given.get(name) or ""
    if not isinstance(value, str) or not value.isprintable():
        raise invalid(name, "must be a string")
    return value


def _texts(given: Mapping[str, object], *names: str) -> list[str]:
    found: list[str] = []
    for name in names:
        value = given.get(name)
        listed = value.split(",") if isinstance(value, str) else value if value is not None else []
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise invalid(name, "must be a string or an array of strings")
        found += [one for one in listed if one]
    return found


def time_of(given: Mapping[str, object], *names: str) -> datetime | None:
    """Return the first of these fields that is given. Raises RequestRefused."""
    for name in names:
        value = given.get(name)
        if value:
            try:
                return parse_timestamp(value if isinstance(value, str) else "", name).astimezone(UTC)
            except (InvalidJob, OverflowError):
                raise invalid(name, "must be an RFC 3339 time") from None
    return None
