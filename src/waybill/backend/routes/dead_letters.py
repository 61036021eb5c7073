"""Dead letters: list, show, retry and discard them, one or many (ojs-http-binding section 12, ojs-dead-letter)."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.dead_letter_list import DeadLetterList, filter_of, key_of
from waybill.backend.enqueue import envelope_of
from waybill.backend.errors import RequestRefused, invalid, not_found
from waybill.backend.job_form import Form, form_of, times_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import LIMIT, page_of
from waybill.backend.queue_configs import DEFAULT
from waybill.backend.router import ADMIN, OPERATE, READ, Route
from waybill.ojs.spec.states import State

BASES: Final = ("/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter")

PER_PAGE: Final = 20
"""The default of the paths of the admin API."""

_OVERRIDES: Final = ("queue", "args", "meta", "priority", "retry", "tags", "timeout", "timeout_ms")


class DeadLetterRoutes:
    """The routes for dead letters."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._dead = DeadLetterList(backend)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            route
            for base in BASES
            for route in (
                Route("GET", base, self._list, READ, is_large=True),
                Route("DELETE", base, self._purge_confirmed, ADMIN),
                Route("POST", f"{base}/purge", self._purge, ADMIN),
                Route("POST", f"{base}/retry", self._retry_many, OPERATE),
                Route("GET", f"{base}/stats", self._stats, READ),
                Route("GET", f"{base}/{{id}}", self._get, READ),
                Route("POST", f"{base}/{{id}}/retry", self._retry, OPERATE),
                Route("DELETE", f"{base}/{{id}}", self._discard, OPERATE),
            )
        ]

    async def _list(self, request: Request) -> Response:
        forms = await self._dead.find(filter_of(request.query, request.queue_prefix))
        default = PER_PAGE if request.path.startswith(BASES[1]) else LIMIT
        page, pagination = page_of(request, forms, key_of, default=default)
        return answer({"jobs": page, "items": page, "count": len(page), "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        form = await self._dead.one(await self._queue_of(job_id), job_id)
        if form is None:
            raise not_found("dead letter", job_id)
        return answer({**form, "metadata": times_of(form), "job": form})

    async def _retry(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        changes = _changes(request.json())
        target = changes.pop("queue", None)
        queue = await self._queue_of(job_id)
        if target is not None:
            await self._backend.coordinate_queue(str(target))
        if isinstance(added := changes.get("meta"), dict):
            before = (await self._dead.one(queue, job_id) or {}).get("meta")
            changes["meta"] = {**before, **added} if isinstance(before, dict) else added
        if not await self._dead.retry(queue, [job_id], changes, None if target is None else str(target)):
            raise not_found("dead letter", job_id)
        found = await self._backend.detail(job_id)
        form: Form = {"id": job_id} if found is None else form_of(found, datetime.now(UTC))
        form["re_enqueued_at"] = form.get("enqueued_at", self._backend.now())
        return answer({**form, "job": form})

    async def _discard(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        queue = await self._queue_of(job_id)
        if not await self._dead.discard(queue, [job_id]):
            raise not_found("dead letter", job_id)
        return answer({"deleted": True, "id": job_id, "job_id": job_id})

    # --- bulk requests ---

    async def _retry_many(self, request: Request) -> Response:
        body = request.json()
        found, is_dry = await self._selected(body, request.queue_prefix)
        done = 0 if is_dry else sum([await self._dead.retry(queue, ids) for queue, ids in found.items()])
        return answer({"retried": done, "retried_count": done, "matched": _count(found), "dry_run": is_dry})

    async def _purge_confirmed(self, request: Request) -> Response:
        body = request.json()
        if body.get("confirm") is not True and body.get("dry_run") is not True:
            raise invalid("confirm", "must be true, as this cannot be undone")
        return await self._purge(request)

    async def _purge(self, request: Request) -> Response:
        found, is_dry = await self._selected(request.json(), request.queue_prefix)
        done = 0 if is_dry else sum([await self._dead.discard(queue, ids) for queue, ids in found.items()])
        counts: Form = dict.fromkeys(("purged", "purged_count", "deleted", "deleted_count"), done)
        return answer({**counts, "matched": _count(found), "dry_run": is_dry})

    async def _selected(self, body: Form, prefix: str) -> tuple[dict[str, list[str]], bool]:
        """Return the selected ids by queue, and whether it is a dry run. Raises RequestRefused."""
        given, ids, is_dry = body.get("filter", body), body.get("ids", body.get("job_ids")), body.get("dry_run", False)
        if not isinstance(given, dict):
            raise invalid("filter", "must be an object")
        if ids is not None and not (isinstance(ids, list) and all(isinstance(one, str) for one in ids)):
            raise invalid("ids", "must be an array of strings")
        if not isinstance(is_dry, bool):
            raise invalid("dry_run", "must be true or false")
        found: dict[str, list[str]] = {}
        for form in await self._dead.find(filter_of(given, prefix)):
            if ids is None or form["id"] in ids:
                found.setdefault(str(form["queue"]), []).append(str(form["id"]))
        return found, is_dry

    async def _stats(self, request: Request) -> Response:
        """Count dead letters: by queue from the broker, by type and error for those that were read."""
        counts = await self._dead.counts(request.queue_prefix)
        forms = await self._dead.find(filter_of({}, request.queue_prefix))
        errors = (form.get("error") for form in forms)
        died = sorted(str(form.get("discarded_at") or form.get("died_at") or "") for form in forms)
        found: Form = {
            "total": sum(counts.values()),
            "by_queue": counts,
            "by_type": Counter(str(form.get("type")) for form in forms),
            "by_error_type": Counter(
                str(one.get("type") or one.get("code")) for one in errors if isinstance(one, dict)
            ),
        }
        if died:
            found |= {"oldest_at": died[0], "newest_at": died[-1]}
        kept = self._backend.extensions.queue_configs.of(DEFAULT)
        found["retention"] = {
            "max_age": kept.dead_letter_ttl,
            "max_count": kept.dead_letter_max_size,
            "next_prune_at": self._backend.next_prune_at,
        }
        return answer({**found, "stats": found})

    async def _queue_of(self, job_id: str) -> str:
        """Return the queue of a job. Raises RequestRefused if it is not a dead letter."""
        found = await self._backend.detail(job_id)
        if found is None:
            raise not_found("dead letter", job_id)
        state = form_of(found, datetime.now(UTC))["state"]
        if state != State.DISCARDED.value:
            details: Form = {"resource_type": "dead_letter_job", "resource_id": job_id, "job_id": job_id}
            details["current_state"] = state
            raise RequestRefused("not_found", f"Job {job_id} is not a dead letter: it is {state}.", details=details)
        return found.info.queue


def _changes(body: Form) -> Form:
    """Return the fields of a job to override (ojs-dead-letter section 6.3). Raises RequestRefused."""
    given = body.get("override")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise invalid("override", "must be an object")
    unknown = sorted(set(given) - set(_OVERRIDES))
    if unknown:
        raise RequestRefused("unsupported", f"override.{unknown[0]} cannot be set.", details={"field": unknown[0]})
    made = envelope_of({"type": "override", "args": [], **given})
    return {name: made[name] for name in (*_OVERRIDES, "timeout_ms") if name in made and name in given}


def _count(found: dict[str, list[str]]) -> int:
    return sum(map(len, found.values()))
