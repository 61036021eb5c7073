"""Heartbeats: each region gets those for its own jobs, and the worker gets one answer."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused
from waybill.backend.message import Response, answer
from waybill.federation.connection import RegionFailed
from waybill.federation.homes import Homes
from waybill.federation.region import Region
from waybill.federation.regions import Regions
from waybill.federation.wanted import Form
from waybill.http.answer import Answer

HEARTBEAT: Final = "/ojs/v1/workers/heartbeat"
DIRECTIVES: Final = ("running", "quiet", "terminate")
"""In order of precedence, the highest last."""


class Heartbeats:
    """The heartbeats of one federation."""

    def __init__(self, regions: Regions, homes: Homes) -> None:
        self._regions = regions
        self._homes = homes

    async def beat(self, body: Form) -> Response:
        """Send a heartbeat to all regions, also to those without jobs of the worker. Raises RequestRefused.

        If a region with jobs of the worker does not answer, the heartbeat fails: the jobs must not seem lost.
        """
        worker_id = body.get("worker_id")
        worker = worker_id if isinstance(worker_id, str) else ""
        named = body.get("active_job_ids", body.get("active_jobs"))
        ids = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
        if isinstance(body.get("job_id"), str):
            ids.append(body["job_id"])
        homes = {job_id: self._homes.find(job_id, worker) for job_id in ids}
        regions = [one for one in self._regions if one.is_available or one.id in homes.values()]
        answers: dict[str, Form] = {}
        failures: dict[str, str] = {}
        refusals: list[Answer] = []

        async def tell(region: Region) -> None:
            own = [job_id for job_id, home in homes.items() if home in {None, region.id}]
            form = {**body, "active_jobs": own, "active_job_ids": own}
            form.pop("job_id", None)
            try:
                found = await region.request("POST", HEARTBEAT, msgspec.json.encode(form))
                if found.status == 200:
                    answers[region.id] = msgspec.json.decode(found.body, type=Form)
                else:
                    refusals.append(found)
            except RegionFailed as error:
                failures[region.id] = error.reason

        await asyncio.gather(*(tell(region) for region in regions))
        unheard = [job_id for job_id, home in homes.items() if home in failures or (home is None and failures)]
        if unheard or not answers:
            if refusals and not answers:
                return Response(refusals[0].status, refusals[0].body)
            details: dict[str, object] = {"regions": failures, "job_ids": unheard[:100]}
            raise RequestRefused(
                "backend_unavailable", "A region with jobs of this worker does not answer.", details=details
            )
        return answer(_merged(answers))


def _merged(answers: dict[str, Form]) -> Form:
    extended: list[str] = []
    strength = 0
    for form in answers.values():
        told = form.get("jobs_extended")
        extended += [one for one in told if isinstance(one, str)] if isinstance(told, list) else []
        directive = form.get("directive", form.get("state"))
        if directive in DIRECTIVES:
            strength = max(strength, DIRECTIVES.index(directive))
    found = next(iter(answers.values()))
    directive = DIRECTIVES[strength]
    return {**found, "state": directive, "directive": directive, "jobs_extended": extended}
