"""The execution history and the lineage of jobs (ojs-execution-history section 7)."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import invalid
from waybill.backend.history_purge import HistoryPurge
from waybill.backend.job_form import Form, form_of
from waybill.backend.job_history import MOST_EVENTS, PURGED, JobEvent, Purged, entries_of, event_of, job_entries, kept
from waybill.backend.job_search import SearchFilter, is_within, search, time_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_by_place
from waybill.backend.router import ADMIN, OPERATE, READ, Route
from waybill.ojs.spec.timestamps import format_timestamp

BASE: Final = "/ojs/v1/history"
MOST: Final = 1000
MOST_CHILDREN: Final = 1000
MOST_DEPTH: Final = 10
MOST_SEARCHES: Final = 50
RETENTION: Final = timedelta(days=30)
GROUPS: Final = {"minute": 16, "hour": 13, "day": 10}
"""The number of characters of a time that jobs of one bucket share."""
_REST: Final = "0000-00-00T00:00:00Z"


class JobHistoryRoutes:
    """The routes for histories."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/jobs/{id}/history", self._get, READ),
            Route("DELETE", "/ojs/v1/jobs/{id}/history", self._purge, ADMIN),
            Route("GET", "/ojs/v1/jobs/{id}/lineage", self._lineage, READ),
            Route("GET", BASE, self._search, READ, is_large=True),
            Route("DELETE", BASE, self._purge_all, ADMIN),
            Route("GET", f"{BASE}/stats", self._stats, READ),
            Route("POST", f"{BASE}/rebuild", self._rebuild, OPERATE),
        ]

    # --- one job ---

    async def _get(self, request: Request) -> Response:
        entries = await job_entries(self._backend, await self._backend.known(request.parameters["id"]))
        return _page(request, entries, {"total": len(entries)})

    async def _purge(self, request: Request) -> Response:
        detail = await self._backend.known(request.parameters["id"])
        now, entries = datetime.now(UTC), await job_entries(self._backend, detail)
        purged = Purged(format_timestamp(now))
        expires_at = format_timestamp(now + RETENTION)
        await self._backend.extensions.records.put(PURGED + detail.info.id, purged, expires_at=expires_at)
        return answer({"deleted": True, "job_id": detail.info.id, "events_deleted": len(entries)})

    async def _rebuild(self, request: Request) -> Response:
        """Tell which entries are reconstructed: a history is always complete, so nothing is stored."""
        job_id = request.query.get("job_id") or request.json().get("job_id")
        if not isinstance(job_id, str) or not job_id:
            raise invalid("job_id", "is required")
        detail = await self._backend.known(job_id)
        made = [one for one in await job_entries(self._backend, detail) if "metadata" in one]
        missing = detail.info.attempt - 1
        gaps = [f"the starts of the first {missing} attempts are not known"] if made and missing > 0 else []
        return answer({"job_id": job_id, "events_reconstructed": len(made), "approximate": bool(gaps), "gaps": gaps})

    # --- lineage ---

    async def _lineage(self, request: Request) -> Response:
        detail = await self._backend.known(request.parameters["id"])
        form = form_of(detail, datetime.now(UTC))
        job_id = detail.info.id
        return answer(
            {
                "job_id": job_id,
                "parent_id": _parent_of(form),
                "workflow_id": form.get("workflow_id"),
                "root_id": await self._root_of(form),
                "children": await _Family(self._backend, job_id).children(job_id, 0),
            }
        )

    async def _root_of(self, form: Form) -> str:
        """Return the root that a job or one of its ancestors names, or the last known ancestor."""
        for _ in range(MOST_DEPTH):
            root, parent = form.get("root_id"), _parent_of(form)
            if isinstance(root, str):
                return root
            found = None if parent is None else await self._backend.detail(parent)
            if found is None:
                return parent or str(form["id"])
            form = form_of(found, datetime.now(UTC))
        return str(form["id"])

    # --- all jobs ---

    async def _search(self, request: Request) -> Response:
        """Search the entries that this server remembers, newest first."""
        began = time.monotonic()
        entries = (await self._all(request))[::-1]
        passed = int((time.monotonic() - began) * 1000)
        return _page(request, entries, {"total_estimate": len(entries), "query_time_ms": passed})

    async def _purge_all(self, request: Request) -> Response:
        """Delete the entries of all jobs before a time, of some queues and types or all."""
        before = time_of(request.query, "before")
        if before is None:
            raise invalid("before", "is required")
        queues, types = (sorted(request.listed(name)) for name in ("queues", "event_types"))
        until = format_timestamp(before)
        purge = HistoryPurge(until, queues, types)
        count = len(await self._all(replace(request, query={**request.query, "start": "", "end": until})))
        name = hashlib.sha256(msgspec.json.encode([queues, types])).hexdigest()
        known = self._backend.extensions.history_purges.get(name)
        if known is None or known.before < until:
            await self._backend.extensions.history_purges.put(name, purge)
        return answer({"purged": True, "events_purged": count, "async": False})

    async def _stats(self, request: Request) -> Response:
        """Count the entries that this server remembers, by minute, hour or day."""
        group = request.query.get("group_by", "hour")
        if group not in GROUPS:
            raise invalid("group_by", f"must be one of {', '.join(GROUPS)}")
        buckets: defaultdict[str, list[Form]] = defaultdict(list)
        for entry in await self._all(request):
            buckets[str(entry["timestamp"])[: GROUPS[group]]].append(entry)
        return answer({"buckets": [_bucket(begin, found) for begin, found in sorted(buckets.items())]})

    async def _all(self, request: Request) -> list[Form]:
        """Return the wanted entries of all jobs, oldest first. Raises RequestRefused."""
        start, end = time_of(request.query, "start"), time_of(request.query, "end")
        wanted = {name: request.listed(name) for name in ("event_types", "job_types", "queues")}
        events = await self._backend.events.newest((), wanted["queues"], None, MOST_EVENTS, request.queue_prefix)
        by_job: defaultdict[str, list[JobEvent]] = defaultdict(list)
        for one in reversed(events):
            data = one["data"]
            kind = data.get("job_type") if isinstance(data, dict) else None
            if str(one["type"]).startswith("job.") and (not wanted["job_types"] or kind in [*wanted["job_types"]]):
                by_job[str(one["subject"])].append(event_of(one))
        purges = self._backend.extensions.history_purges
        entries = [
            entry
            for job_id, own in by_job.items()
            for entry in kept(purges, entries_of(job_id, own, None), str(own[0].data.get("queue")))
        ]
        actor, text = request.query.get("actor_type", ""), request.query.get("query", "").lower()
        found = [
            entry
            for entry in entries
            if (not wanted["event_types"] or entry["event_type"] in wanted["event_types"])
            and (not actor or _actor_of(entry) == actor)
            and is_within(entry["timestamp"], start, end)
            and (not text or text in msgspec.json.encode(entry).decode().lower())
        ]
        return sorted(found, key=_key_of)


class _Family:
    """The descendants of a job: each search for children examines all jobs, so their number is limited."""

    def __init__(self, backend: Backend, root: str) -> None:
        self._backend = backend
        self._seen = {root}
        self._searches_left = MOST_SEARCHES

    async def children(self, job_id: str, depth: int) -> list[Form]:
        """Return the jobs whose parent is a job, each with its own children."""
        found: list[Form] = []
        if depth >= MOST_DEPTH or not self._searches_left:
            return found
        self._searches_left -= 1
        for form in reversed(await search(self._backend, SearchFilter(text=job_id), MOST_CHILDREN)):
            child = str(form["id"])
            if _parent_of(form) == job_id and child not in self._seen and len(self._seen) <= MOST_CHILDREN:
                self._seen.add(child)
                found.append({"job_id": child, "children": await self.children(child, depth + 1)})
        return found


def _page(request: Request, entries: Sequence[Form], also: Form) -> Response:
    """Return a page of entries, which are in order."""
    found, pagination = page_by_place(request, entries, most=MOST)
    is_clamped = request.query.get("limit", "").isdecimal() and int(request.query["limit"][:9]) > MOST
    headers = [("X-OJS-Limit-Clamped", "true")] if is_clamped else []
    form: Form = {"events": found, "items": found, "next_cursor": pagination.get("next_cursor"), **also}
    return answer({**form, "pagination": pagination}, 200, headers)


def _bucket(begin: str, entries: Sequence[Form]) -> Form:
    data = (entry["data"] for entry in entries if entry["event_type"] == "job.attempt_completed")
    given = (one.get("duration_ms") for one in data if isinstance(one, dict))
    durations = sorted(one for one in given if isinstance(one, int))
    form: Form = {"timestamp": begin + _REST[len(begin) :]}
    form["events"] = Counter(str(entry["event_type"]) for entry in entries)
    if durations:
        form["avg_duration_ms"] = round(sum(durations) / len(durations))
        form["p95_duration_ms"] = durations[min(len(durations) - 1, len(durations) * 95 // 100)]
    return form


def _parent_of(form: Form) -> str | None:
    """Return the parent that a job names, at its top or in its metadata."""
    meta = form.get("meta")
    named = form.get("parent_id") or (meta.get("parent_id") if isinstance(meta, dict) else None)
    return named if isinstance(named, str) else None


def _actor_of(entry: Form) -> object:
    actor = entry["actor"]
    return actor.get("type") if isinstance(actor, dict) else None


def _key_of(entry: Form) -> tuple[str, str]:
    return str(entry["timestamp"]), str(entry["job_id"])
