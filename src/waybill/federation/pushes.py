"""Pushes: each job goes to one region, or to another if that fails.

A job has its id before it is sent, so a region accepts it once. If a region gives no answer, it is asked whether it has
the job. Only if it does not answer that either, the job is doubtful, and `failover.after_lost_answer` decides: the job
goes to another region, where it may run a second time (see `doubts`), or the client gets an error. For pinned jobs, the
client always gets an error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from waybill.backend.enqueue import MAX_BATCH
from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.idempotency import HEADER as IDEMPOTENCY
from waybill.backend.message import Request, Response, answer
from waybill.backend.push_checks import BLOCK_HEADER, TENANT_HEADER
from waybill.federation.connection import RegionFailed
from waybill.federation.doubts import Doubts
from waybill.federation.failovers import Failovers
from waybill.federation.homes import Homes
from waybill.federation.keyed_pushes import Added, KeyedPushes
from waybill.federation.region import Region
from waybill.federation.regions import Regions
from waybill.federation.routing import Routing
from waybill.federation.wanted import Form, Wanted, stamp, wanted_of
from waybill.http.answer import Answer
from waybill.ojs.spec.envelope import MAX_ID_LENGTH
from waybill.ojs.spec.identifiers import new_id

JOBS: Final = "/ojs/v1/jobs"
BATCH: Final = "/ojs/v1/jobs/batch"
AT_A_TIME: Final = 16
"""The number of lookups at a time for jobs without an answer."""
REGION_HEADER: Final = "OJS-Federation-Region"
FORWARDED: Final = (TENANT_HEADER, BLOCK_HEADER)


class _Item:
    """A job in progress. It is finished when one of `answer`, `refusal` and `error` is set."""

    def __init__(self, index: int, job: Form, wanted: Wanted, added: Form) -> None:
        self.index = index
        self.job = job
        self.id = str(job["id"])
        self.wanted = wanted
        self.added = added
        self.tried: dict[str, RegionFailed] = {}
        self.first: Region | None = None
        self.redirects = 0
        self.region = ""
        self.answer: Form | None = None
        self.whole: Answer | None = None
        self.refusal: Answer | Form | None = None
        self.error: RequestRefused | None = None

    @property
    def is_open(self) -> bool:
        return self.answer is None and self.refusal is None and self.error is None


class Pushes:
    """The pushes of one federation."""

    def __init__(self, regions: Regions, routing: Routing, homes: Homes, doubts: Doubts, failovers: Failovers) -> None:
        self._regions = regions
        self._routing = routing
        self._homes = homes
        self._doubts = doubts
        self._failovers = failovers
        self._keyed = KeyedPushes()

    async def push(self, request: Request) -> Response:
        """Push a job; return the answer of the region that has accepted or refused it. Raises RequestRefused."""
        job = request.json(required=True)
        key = request.headers.get(IDEMPOTENCY)
        if key is None:
            item = self._item(0, job)
        else:
            added = self._keyed.find(request.actor, key, request.body)
            item = self._item(0, job, added)
            self._keyed.note(request.actor, key, request.body, item.id, item.added)
        await self._run([item], _forwarded(request, IDEMPOTENCY, *FORWARDED), is_batch=False)
        if item.error is not None:
            raise item.error
        region = [(REGION_HEADER, item.region)]
        if isinstance(item.refusal, Answer):
            return Response(item.refusal.status, item.refusal.body, region + _retry_after(item.refusal))
        if item.whole is not None:
            location = [("Location", f"{JOBS}/{item.id}")] if item.whole.status == 201 else []
            return Response(item.whole.status, item.whole.body, region + location)
        return answer({**(item.answer or {}), "job": item.answer}, 201, [*region, ("Location", f"{JOBS}/{item.id}")])

    async def push_many(self, request: Request) -> Response:
        """Push a batch, split by region. Each part is accepted or refused as a whole. Raises RequestRefused.

        Idempotency keys are not supported for batches, as the parts may differ next time. Use ids instead.
        """
        given = request.json(required=True).get("jobs")
        if not isinstance(given, list) or not given:
            raise invalid("jobs", "must be an array with at least one job")
        if len(given) > MAX_BATCH:
            raise invalid("jobs", f"must have at most {MAX_BATCH} jobs")
        items = []
        for index, job in enumerate(given):
            try:
                if not isinstance(job, dict):
                    raise invalid("job", "must be an object")
                items.append(self._item(index, job))
            except RequestRefused as error:
                error.details |= {"index": index}
                error.message = f"The job at index {index}: {error.message}"
                raise
        if len({item.id for item in items}) < len(items):
            raise invalid("jobs", "must not have the same id twice")
        await self._run(items, _forwarded(request, *FORWARDED), is_batch=True)
        return _answer_of(items)

    def _item(self, index: int, job: Form, before: Added | None = None) -> _Item:
        """Prepare a job. Raises RequestRefused."""
        options = job.get("options")
        # Options take precedence over fields.
        own = options.pop("id", None) if isinstance(options, dict) else None
        job_id = own or job.get("id")
        if job_id is None:
            job_id = new_id() if before is None else before.job_id
        if not isinstance(job_id, str) or not 0 < len(job_id) <= MAX_ID_LENGTH:
            raise invalid("id", f"must be a string of at most {MAX_ID_LENGTH} characters")
        job["id"] = job_id
        wanted = wanted_of(job)
        attributes = None if before is None else before.attributes
        return _Item(index, job, wanted, stamp(job, self._regions.federation.local_region, attributes))

    # --- pushing to regions ---

    async def _run(self, items: list[_Item], headers: Mapping[str, str], *, is_batch: bool) -> None:
        """Send jobs until each is finished."""
        for item in items:
            await self._known_already(item)
        while waiting := [item for item in items if item.is_open]:
            groups: dict[str, list[_Item]] = {}
            for item in waiting:
                region = self._next(item)
                if region is not None:
                    groups.setdefault(region.id, []).append(item)
            sending = []
            for name, group in groups.items():
                target = self._regions.get(name)
                if target is not None:
                    sending.append(self._send(target, group, headers, is_batch=is_batch))
            await asyncio.gather(*sending)

    async def _known_already(self, item: _Item) -> None:
        """Finish a repeated push of a job that a region has accepted, but whose answer was lost."""
        doubtful = [self._regions.get(name) for name in self._doubts.regions_of(item.id)]
        for region in doubtful:
            if region is not None and item.is_open and region.is_available:
                await self._look(region, item)

    def _next(self, item: _Item) -> Region | None:
        """Return the region to try next, None if the job is finished."""
        try:
            plan = self._routing.plan(item.wanted, item.tried)
        except RequestRefused as error:
            item.error = error
            return None
        item.first = item.first or plan.order[0]
        home = self._regions.get(self._homes.find(item.id))
        if home is not None and item.wanted.region in {None, home.id}:
            # A repeated push goes to the region of the job, which recognises it.
            if home.id not in item.tried:
                return home
            item.error = _in_doubt(item, home, item.tried[home.id])
            return None
        region = plan.targets[0] if plan.targets else None
        if region is not None and region is not item.first:
            item.redirects += 1
            if item.redirects > self._regions.federation.failover.max_redirects:
                region = None
        if region is None:
            item.error = _unavailable(item, plan.order)
            return None
        if region is not item.first:
            before = next(reversed(item.tried), item.first.id)
            reason = item.tried[before].reason if before in item.tried else item.first.obstacle
            self._failovers.note(before, region.id, reason or "excluded", item.id)
        return region

    async def _send(self, region: Region, group: list[_Item], headers: Mapping[str, str], *, is_batch: bool) -> None:
        body: Any = {"jobs": [item.job for item in group]} if is_batch else group[0].job
        try:
            found = await region.request(
                "POST", BATCH if is_batch else JOBS, msgspec.json.encode(body), headers=headers
            )
            if 200 <= found.status < 300:
                self._take(region, group, found, is_batch=is_batch)
            else:
                for item in group:
                    item.region, item.refusal = region.id, found
        except RegionFailed as error:
            for item in group:
                item.tried[region.id] = error
        left = [item for item in group if item.is_open]
        for item in left:
            item.tried.setdefault(region.id, RegionFailed("its answer has no job", may_have_arrived=True))
        doubtful = [item for item in left if item.tried[region.id].may_have_arrived]
        limit = asyncio.Semaphore(AT_A_TIME)

        async def look(item: _Item) -> None:
            async with limit:
                await self._look(region, item)

        await asyncio.gather(*(look(item) for item in doubtful))

    def _take(self, region: Region, group: list[_Item], found: Answer, *, is_batch: bool) -> None:
        """Finish the jobs that a region has accepted or refused in its answer to a batch."""
        form = msgspec.json.decode(found.body, type=Form)
        if not is_batch:
            item = group[0]
            item.whole = found
            self._taken(item, region, _job_of(form))
            return
        jobs = {str(job.get("id")): job for job in map(_job_of, _listed(form, "jobs"))}
        refused = {str(one.get("job_id")): one for one in _listed(form, "errors") if isinstance(one, dict)}
        # The answer for a duplicate has the existing job.
        others = [job for name, job in jobs.items() if name not in {item.id for item in group}]
        for item in group:
            if item.id in jobs:
                self._taken(item, region, jobs[item.id])
            elif item.id in refused:
                item.region, item.refusal = region.id, refused[item.id]
            elif others:
                self._taken(item, region, others.pop(0) if len(others) > 1 else others[0])

    def _taken(self, item: _Item, region: Region, form: Form) -> None:
        item.answer, item.region = form, region.id
        job_id = form.get("id")
        self._homes.note(job_id if isinstance(job_id, str) else item.id, region.id)
        self._doubts.taken(item.id, region.id)

    async def _look(self, region: Region, item: _Item) -> None:
        """Ask a region whether it has a job."""
        try:
            found = await region.request("GET", f"{JOBS}/{quote(item.id, safe='')}")
        except RegionFailed as error:
            self._doubts.add(item.id, region.id)
            failover = self._regions.federation.failover
            if item.wanted.region is not None or not (failover.enabled and failover.after_lost_answer):
                item.error = _in_doubt(item, region, error)
            return
        if found.status == 200:
            form = _job_of(msgspec.json.decode(found.body, type=Form))
            if form.get("id") == item.id:
                self._taken(item, region, form)


def _forwarded(request: Request, *names: str) -> dict[str, str]:
    """Return the headers to forward."""
    return {name: request.headers[name] for name in names if name in request.headers}


def _listed(form: Form, name: str) -> list[Any]:
    found = form.get(name)
    return found if isinstance(found, list) else []


def _job_of(form: Any) -> Form:  # noqa: ANN401 - a region may answer anything
    """Return the job in an answer, under `job` or flat; {} if there is none."""
    job = form.get("job", form) if isinstance(form, dict) else {}
    return job if isinstance(job, dict) else {}


def _retry_after(found: Answer) -> list[tuple[str, str]]:
    return [] if found.retry_after is None else [("Retry-After", f"{math.ceil(found.retry_after)}")]


def _unavailable(item: _Item, order: Sequence[Region]) -> RequestRefused:
    """Return the error for a job that no region can accept now."""
    reasons = {
        one.id: item.tried[one.id].reason if one.id in item.tried else one.obstacle or "excluded from failover"
        for one in order
    }
    details: dict[str, object] = {"job_id": item.id, "regions": reasons}
    if item.wanted.region is not None:
        details["region"] = item.wanted.region
        reason = reasons[item.wanted.region]
        text = f"The job must run in the region {item.wanted.region!r}, which cannot take it: {reason}."
    else:
        text = f"No region can take the job: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}."
    hint = "Try again: no region has taken the job."
    if any(error.may_have_arrived for error in item.tried.values()):
        hint = "Try again with the same id, or ask with GET whether a region has taken the job."
    return RequestRefused("backend_unavailable", text, details=details, hint=hint)


def _in_doubt(item: _Item, region: Region, error: RegionFailed) -> RequestRefused:
    details: dict[str, object] = {"job_id": item.id, "region": region.id}
    text = f"The region {region.id!r} may have taken the job: {error.reason}."
    return RequestRefused("backend_timeout", text, details=details, hint="Try again with the same id.")


def _answer_of(items: list[_Item]) -> Response:
    """Return the answer to a batch. Raises RequestRefused if no job was enqueued."""
    taken = [item.answer for item in items if item.answer is not None]
    failed = [item for item in items if item.answer is None]
    if not taken:
        first = failed[0]
        if first.error is not None:
            raise first.error
        if isinstance(first.refusal, Answer):
            return Response(first.refusal.status, first.refusal.body, _retry_after(first.refusal))
    found: Form = {"jobs": taken, "count": len(taken)}
    if failed:
        found["errors"] = [{"index": item.index, "job_id": item.id, **_error_of(item)} for item in failed]
    return answer(found, 201)


def _error_of(item: _Item) -> Form:
    if item.error is not None:
        return item.error.body("")
    form = item.refusal
    if isinstance(form, Answer):
        form = msgspec.json.decode(form.body, type=Form)
    return {"error": (form or {}).get("error")}
