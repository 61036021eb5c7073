"""Requests to all regions: counts of queues, dead letters, lists of jobs, pauses of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from waybill.backend.errors import RequestRefused, not_found
from waybill.backend.message import Request, Response, answer
from waybill.federation.lookups import ask_all, passed_on
from waybill.federation.region import Region
from waybill.federation.regions import Regions
from waybill.federation.wanted import Form
from waybill.http.answer import Answer

QUEUES: Final = "/ojs/v1/queues"
MOST_QUEUES: Final = 1000
LIMIT: Final = 50
MOST: Final = 1000
COUNTED: Final = (
    *("available", "active", "scheduled", "retryable", "pending", "completed", "cancelled", "discarded"),
    *("dead_letter", "total", "completed_last_hour", "failed_last_hour", "throughput_per_second"),
)
"""The figures of a queue that can be added; mean times cannot."""


class Overview:
    """The overview of one federation."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    async def stats(self) -> Form:
        """Sum up the queues of all regions (ojs-federation section 3.3)."""
        available = [one for one in self._regions if one.is_available]
        found = await asyncio.gather(*(self._of_region(one) for one in available))
        per_region = {one.id: queues for one, queues in zip(available, found, strict=True) if queues is not None}
        queues: Form = {}
        for name in sorted({name for known in per_region.values() for name in known}):
            parts = {region: known[name] for region, known in per_region.items() if name in known}
            queues[name] = {**_sum(list(parts.values())), "regions": parts}
        return {
            "federation_id": self._regions.federation.federation_id,
            "queues": queues,
            "totals": _sum([_numbers(one) for one in queues.values()]),
            "regions": {name: {"queues": known} for name, known in per_region.items()},
            "unanswered": [one.id for one in self._regions if one.id not in per_region],
        }

    async def queue(self, name: str) -> Response:
        """Sum up one queue. Raises RequestRefused if no region knows it."""
        path = f"{QUEUES}/{quote(name, safe='')}/stats"
        found, failures = await ask_all(self._serving(name), "GET", path)
        forms = {region: form for region, form in _objects(found).items() if found[region].status == 200}
        if not forms:
            if failures:
                raise _unanswered(failures)
            raise not_found("queue", name)
        stats = _sum([_numbers(form.get("stats")) for form in forms.values()])
        is_paused = all(form.get("paused") is True or form.get("status") == "paused" for form in forms.values())
        status = "paused" if is_paused else "active"
        return answer(
            {
                "queue": name,
                "name": name,
                "status": status,
                "state": status,
                "paused": is_paused,
                "depth": stats.get("available", 0),
                "stats": stats,
                "regions": {region.id: form.get("stats") for region, form in forms.items()},
                "unanswered": list(failures),
            }
        )

    async def switch(self, name: str, action: str, body: bytes) -> Response:
        """Pause or resume a queue in all regions that serve it. Raises RequestRefused unless all succeed."""
        found, failures = await ask_all(self._serving(name), "POST", f"{QUEUES}/{quote(name, safe='')}/{action}", body)
        for region, one in found.items():
            if one.status >= 400:
                return passed_on(region, one)
        if failures:
            done = [region.id for region in found]
            details: dict[str, object] = {"regions": dict(failures), "done": done}
            text = f"The queue was not changed in all regions: {', '.join(failures)} did not answer."
            raise RequestRefused("backend_unavailable", text, details=details)
        is_paused = action == "pause"
        status = "paused" if is_paused else "active"
        return answer(
            {"name": name, "queue": name, "status": status, "paused": is_paused, "regions": [one.id for one in found]}
        )

    async def merged(self, request: Request, path: str, order: str) -> Response:
        """Merge the jobs of all regions, newest first; each job has its region. Raises RequestRefused.

        Cursors are not supported: ask a region for more.
        """
        if "cursor" in request.query:
            text = "cursor is not supported by a federation."
            hint = "Ask for the first page with a larger limit, or ask the region."
            raise RequestRefused("unsupported", text, details={"field": "cursor"}, hint=hint)
        limit = request.number("limit", LIMIT, 1, MOST)
        query = urlencode({**request.query, "limit": str(limit)})
        found, failures = await ask_all(list(self._regions), "GET", f"{path}?{query}")
        if not found:
            raise _unanswered(failures)
        refused = [region for region, one in found.items() if one.status != 200]
        if len(refused) == len(found) and found[refused[0]].status >= 400:
            return passed_on(refused[0], found[refused[0]])
        jobs: list[Form] = []
        for region, form in _objects(found).items():
            if region in refused:
                continue
            told = form.get("jobs", form.get("items"))
            jobs += (
                [{**one, "region": region.id} for one in told if isinstance(one, dict)]
                if isinstance(told, list)
                else []
            )
        jobs.sort(key=lambda one: str(one.get(order) or one.get("created_at") or ""), reverse=True)
        page = jobs[:limit]
        unanswered = [*failures, *(region.id for region in refused)]
        pagination = {"limit": limit, "has_more": len(jobs) > limit}
        return answer(
            {"jobs": page, "items": page, "count": len(page), "pagination": pagination, "unanswered": unanswered}
        )

    def _serving(self, queue: str) -> list[Region]:
        return [one for one in self._regions if one.serves(queue)]

    async def _of_region(self, region: Region) -> Form | None:
        """Return the counts of a region's queues; None if it does not answer."""
        found, _ = await ask_all([region], "GET", f"{QUEUES}?limit={MOST_QUEUES}")
        listed = _objects(found).get(region, {}).get("queues")
        if not isinstance(listed, list):
            return None
        names = [
            one["name"] for one in listed[:MOST_QUEUES] if isinstance(one, dict) and isinstance(one.get("name"), str)
        ]
        queues: Form = {}
        for name in names:
            stats, failures = await ask_all([region], "GET", f"{QUEUES}/{quote(name, safe='')}/stats")
            if failures:
                return None
            queues[name] = _numbers(_objects(stats).get(region, {}).get("stats"))
        return queues


def _objects(found: Mapping[Region, Answer]) -> dict[Region, Form]:
    return {region: msgspec.json.decode(one.body, type=Form) for region, one in found.items()}


def _numbers(stats: Any) -> Form:  # noqa: ANN401 - a region may answer anything
    if not isinstance(stats, dict):
        return {}
    return {name: stats[name] for name in COUNTED if isinstance(stats.get(name), int | float)}


def _sum(parts: Sequence[Form]) -> Form:
    return {name: sum(one.get(name, 0) for one in parts) for name in COUNTED if any(name in one for one in parts)}


def _unanswered(failures: Mapping[str, str]) -> RequestRefused:
    text = f"No region has answered: {', '.join(failures)}."
    return RequestRefused("backend_unavailable", text, details={"regions": dict(failures)})
