"""What helps to find a fault: the state of the server, the attempts of a job, the last failures."""

from __future__ import annotations

import time
from typing import Final

from waybill import __version__
from waybill.backend.backend import Backend
from waybill.backend.errors import not_found
from waybill.backend.job_form import Form
from waybill.backend.job_history import job_entries
from waybill.backend.job_search import SearchFilter, search
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_by_place
from waybill.backend.router import READ, Route
from waybill.ojs.spec.states import State

BASE: Final = "/ojs/v1/debug"
MOST_FAILURES: Final = 1000
_FAILED: Final = frozenset({State.DISCARDED.value, State.RETRYABLE.value})
_SHOWN: Final = ("id", "type", "queue", "state", "attempt", "error", "errors", "discarded_at", "next_attempt_at")


class DebugRoutes:
    """The routes for developers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", f"{BASE}/status", self._status, READ),
            Route("GET", f"{BASE}/failures", self._failures, READ),
            Route("GET", f"{BASE}/jobs/{{id}}/traces", self._traces, READ),
            Route("GET", f"{BASE}/jobs/{{id}}/traces/{{attempt}}", self._trace, READ),
        ]

    async def _status(self, _request: Request) -> Response:
        backend = self._backend
        return answer(
            {
                "implementation": {"name": "waybill", "version": __version__},
                "backend_id": backend.id,
                "uptime_seconds": int(time.monotonic() - backend.started),
                "leases": len(backend.leases),
                "workers": len(backend.workers()),
                "listeners": len(backend.events.listeners),
                "events_seen": backend.events.seen_count,
                "events_skipped": backend.view.skipped_count,
                "event_streams": [one._asdict() for one in backend.view.lags()],
            }
        )

    async def _failures(self, request: Request) -> Response:
        """List the jobs whose last attempt failed, those pushed last first."""
        found = await search(self._backend, SearchFilter(states=_FAILED), MOST_FAILURES)
        forms = [{name: form[name] for name in _SHOWN if name in form} | {"job_id": form["id"]} for form in found]
        items, pagination = page_by_place(request, forms)
        return answer({"failures": items, "items": items, "count": len(items), "pagination": pagination})

    async def _traces(self, request: Request) -> Response:
        traces = await self._of(request)
        return answer({"job_id": request.parameters["id"], "traces": traces, "count": len(traces)})

    async def _trace(self, request: Request) -> Response:
        attempt = request.parameters["attempt"]
        found = next((one for one in await self._of(request) if str(one["attempt"]) == attempt), None)
        if found is None:
            raise not_found("attempt", attempt)
        return answer({"job_id": request.parameters["id"], **found, "trace": found})

    async def _of(self, request: Request) -> list[Form]:
        """Return the attempts of a job, with what its history has of each."""
        detail = await self._backend.known(request.parameters["id"])
        traces: dict[object, Form] = {}
        for entry in await job_entries(self._backend, detail):
            data = entry["data"]
            attempt = data.get("attempt") if isinstance(data, dict) else None
            if isinstance(attempt, int) and isinstance(data, dict):
                trace = traces.setdefault(attempt, {"attempt": attempt, "events": []})
                _note(trace, entry, data)
        return [traces[attempt] for attempt in sorted(traces, key=str)]


def _note(trace: Form, entry: Form, data: Form) -> None:
    """Add an entry of the history to an attempt."""
    events, kind = trace["events"], entry["event_type"]
    if isinstance(events, list):
        events.append(entry)
    if kind == "job.attempt_started":
        trace |= {"started_at": entry["timestamp"], "worker_id": data.get("worker_id"), "state": "active"}
    elif kind == "job.attempt_completed":
        trace |= {"ended_at": entry["timestamp"], "duration_ms": data.get("duration_ms"), "state": "completed"}
    elif kind == "job.attempt_failed":
        trace |= {"ended_at": entry["timestamp"], "error": data.get("error"), "state": "failed"}
