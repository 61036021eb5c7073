"""Finds the region of a job, and forwards requests about the job to it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from waybill.backend.errors import RequestRefused, not_found
from waybill.backend.message import Request, Response
from waybill.federation.connection import RegionFailed
from waybill.federation.homes import Homes
from waybill.federation.pushes import REGION_HEADER
from waybill.federation.region import Region
from waybill.federation.regions import Regions
from waybill.http.answer import Answer

JOBS: Final = "/ojs/v1/jobs"
MISSING: Final = 404
MOST_WAIT_SECONDS: Final = 60
"""How long a region waits for the result of a job."""


class Lookups:
    """The lookups of one federation."""

    def __init__(self, regions: Regions, homes: Homes) -> None:
        self._regions = regions
        self._homes = homes

    async def forward(self, request: Request, base: str, rest: str = "") -> Response:
        """Forward a request to the region of the job or dead letter in its path. Raises RequestRefused."""
        job_id = request.parameters["id"]
        query = f"?{urlencode(request.query)}" if request.query else ""
        path = f"{base}/{quote(job_id, safe='')}{rest}{query}"
        method = "GET" if request.method == "HEAD" else request.method
        wait_seconds = MOST_WAIT_SECONDS if "wait" in request.query else 0
        return await self.send(job_id, "", method, path, request.body or None, base=base, wait_seconds=wait_seconds)

    async def send(
        self,
        job_id: str,
        worker_id: str,
        method: str,
        path: str,
        body: bytes | None,
        *,
        base: str = JOBS,
        wait_seconds: float = 0,
    ) -> Response:
        """Send a request to the region of a job. Raises RequestRefused if it is unknown or does not answer."""
        home = self._regions.get(self._homes.find(job_id, worker_id))
        if home is not None:
            found = await _ask(home, method, path, body, wait_seconds)
            if found.status != MISSING:
                return passed_on(home, found)
            self._homes.forget(job_id, worker_id)
        region, seen = await self.locate(job_id, base)
        if method == "GET" and path == _path_of(base, job_id):
            return passed_on(region, seen)
        return passed_on(region, await _ask(region, method, path, body, wait_seconds))

    async def locate(self, job_id: str, base: str = JOBS) -> tuple[Region, Answer]:
        """Return the region of a job, and its answer. Raises RequestRefused.

        A job that is in no region that answers may be in one that does not.
        """
        path = _path_of(base, job_id)
        found, failures = await ask_all(list(self._regions), "GET", path)
        for region, answer in found.items():
            if answer.status == 200:
                self._homes.note(job_id, region.id)
                return region, answer
        if failures:
            details: dict[str, object] = {"job_id": job_id[:300], "regions": failures}
            text = f"The job may be in a region that does not answer: {', '.join(failures)}."
            raise RequestRefused("backend_unavailable", text, details=details)
        raise not_found("job", job_id)


async def ask_all(
    regions: Sequence[Region], method: str, path: str, body: bytes | None = None
) -> tuple[dict[Region, Answer], Mapping[str, str]]:
    """Ask regions at the same time; return their answers, and the reasons of regions without an answer."""
    answers: dict[Region, Answer] = {}
    failures: dict[str, str] = {}

    async def ask(region: Region) -> None:
        try:
            answers[region] = await region.request(method, path, body)
        except RegionFailed as error:
            failures[region.id] = error.reason

    await asyncio.gather(*(ask(region) for region in regions))
    return {region: answers[region] for region in regions if region in answers}, failures


def passed_on(region: Region, found: Answer) -> Response:
    """Convert the answer of a region to a response."""
    headers = [(REGION_HEADER, region.id)]
    if found.retry_after is not None:
        headers.append(("Retry-After", f"{math.ceil(found.retry_after)}"))
    return Response(found.status, found.body, headers)


async def _ask(region: Region, method: str, path: str, body: bytes | None, wait_seconds: float) -> Answer:
    """Raises RequestRefused if the region does not answer."""
    try:
        return await region.request(method, path, body, wait_seconds=wait_seconds)
    except RegionFailed as error:
        code = "backend_timeout" if error.may_have_arrived else "backend_unavailable"
        text = f"The region {region.id!r} does not answer: {error.reason}."
        raise RequestRefused(code, text, details={"region": region.id}) from None


def _path_of(base: str, job_id: str) -> str:
    return f"{base}/{quote(job_id, safe='')}"
