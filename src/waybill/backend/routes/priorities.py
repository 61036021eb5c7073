"""The priority of waiting jobs: of one, or of many by ids or a filter (ojs-priority section 8)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.bulk import Outcome, select
from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form, form_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.options import priority_of
from waybill.backend.priority_changes import change_priority
from waybill.backend.router import OPERATE, Route
from waybill.backend.scheduled_priorities import ScheduledPriorities
from waybill.ojs.spec.states import State

CHANGEABLE: Final = frozenset({State.AVAILABLE.value, State.SCHEDULED.value})


class PriorityRoutes:
    """The routes for priorities."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._scheduled = ScheduledPriorities(backend)
        backend.on_close.append(self._scheduled.close)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("PATCH", "/ojs/v1/jobs/{id}", self._change, OPERATE),
            Route("PATCH", "/ojs/v1/jobs", self._change_many, OPERATE),
        ]

    async def _change(self, request: Request) -> Response:
        priority = _priority_of(request.json(required=True), {"priority"})
        job_id = request.parameters["id"]
        form = form_of(await self._backend.known(job_id), datetime.now(UTC))
        why = _refusal_of(form)
        if not why:
            why = (await change_priority(self._backend, self._scheduled, [form], priority)).get(job_id, "")
        if why:
            details: Form = {"job_id": job_id, "current_state": form["state"]}
            raise RequestRefused("conflict", why, details=details)
        found = form_of(await self._backend.known(job_id), datetime.now(UTC))
        return answer({**found, "priority": priority, "previous_priority": form["priority"], "job": found})

    async def _change_many(self, request: Request) -> Response:
        body = request.json(required=True)
        priority = _priority_of(body, {"priority", "job_ids", "ids", "filter"})
        selection = await select(self._backend, body, "update")
        changing = [form for form in selection.jobs if not _refusal_of(form)]
        failed = await change_priority(self._backend, self._scheduled, changing, priority)
        outcomes = [_outcome_of(form, failed) for form in selection.jobs]
        outcomes += [Outcome(one, "failed", "The job does not exist.") for one in selection.missing]
        done = sum(one.status == "updated" for one in outcomes)
        status = 200 if done == len(outcomes) else 207 if done else 422
        items = [{"index": index, **msgspec.to_builtins(one)} for index, one in enumerate(outcomes)]
        found: Form = {"priority": priority, "total_matched": len(items), "updated": done, "items": items}
        return answer(found | {"has_more": selection.has_more}, status)


def _priority_of(body: Form, fields: set[str]) -> int:
    """Return the wanted priority, the only field that can be changed. Raises RequestRefused."""
    unknown = sorted(set(body) - fields)
    if unknown:
        details: Form = {"field": unknown[0]}
        raise RequestRefused("unsupported", f"{unknown[0]} cannot be changed after the push.", details=details)
    if "priority" not in body:
        raise invalid("priority", "is required")
    return priority_of(body["priority"])


def _refusal_of(form: Form) -> str:
    state = form["state"]
    return "" if state in CHANGEABLE else f"The priority of a job that is {state} cannot be changed."


def _outcome_of(form: Form, failed: dict[str, str]) -> Outcome:
    job_id, why = str(form["id"]), _refusal_of(form)
    if why:
        return Outcome(job_id, "skipped", why)
    return Outcome(job_id, "failed", failed[job_id]) if job_id in failed else Outcome(job_id, "updated")
