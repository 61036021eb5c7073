"""The query of a page of jobs or of an operation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form, form_of, state_of
from waybill.backend.job_list import STATES, STORED_STATES
from waybill.backend.job_search import filter_of
from waybill.ojs.coordinator.job_store import JobDetail, JobFilter
from waybill.ojs.spec.timestamps import format_timestamp

NAMES: Final = frozenset({"queue", "type", "id", "fingerprint", "text", "state", "since", "until"})
_TEXTS: Final = ("queue", "type", "id", "fingerprint", "text", "state")


class JobQuery(NamedTuple):
    """`wanted` is the query for the store; `states` are current states, empty for all."""

    wanted: JobFilter
    states: frozenset[str]

    @classmethod
    def read(cls, given: Mapping[str, object], prefix: str = "") -> JobQuery:
        """Read a query. `prefix` limits it to queues whose names begin with it. Raises RequestRefused."""
        texts = {name: _text(given, name) for name in _TEXTS}
        states = frozenset(one for one in (texts["state"] or "").split(",") if one)
        if not states <= STATES:
            text = f"state: must be one of {', '.join(sorted(STATES))}."
            raise RequestRefused("invalid_request", text, details={"field": "state"})
        times = filter_of({name: given[name] for name in ("since", "until") if given.get(name)})
        stored = frozenset(one for state in states for one in STORED_STATES.get(state, {state}))
        wanted = JobFilter(
            queue=texts["queue"],
            states=stored or None,
            type=texts["type"],
            prefix=prefix,
            id_prefix=texts["id"],
            fingerprint=texts["fingerprint"],
            since=None if times.since is None else format_timestamp(times.since),
            until=None if times.until is None else format_timestamp(times.until),
            text=texts["text"],
        )
        return cls(wanted, states)

    def forms(self, found: list[JobDetail]) -> list[Form]:
        """Return the found jobs whose current state is wanted."""
        now = datetime.now(UTC)
        if self.states:
            # The state of most found jobs has not changed.
            found = [one for one in found if state_of(one.info, one.envelope or {}, now) in self.states]
        return [form_of(one, now) for one in found]


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name) or ""
    if not isinstance(value, str) or not value.isprintable():
        raise invalid(name, "is not valid text")
    return value or None
