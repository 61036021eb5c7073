"""Tenants: a key with a tenant has access to the tenant's queues only (ojs-multi-tenancy).

Tenants are isolated by namespaces (section 6.1). The queue `email` of the tenant `acme` is `acme.email` for everyone
else, also on AMQP; the tenant itself uses `email`. Jobs, dead letters, cron jobs, workflows and events belong to the
tenant of their queue. This module has the rule of each route; a route without a rule is closed to tenants.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.cron_form import changed, cron_job_of
from waybill.backend.errors import RequestRefused, not_found
from waybill.backend.message import Request, Response
from waybill.backend.push_checks import TENANT_HEADER, set_tenant
from waybill.backend.pushed import queue_of
from waybill.backend.router import Handler, Route
from waybill.backend.workflow_request import KINDS, definition_of
from waybill.backend.workflows import Workflows
from waybill.ojs.workflow.definition import CALLBACKS
from waybill.ojs.workflow.plan import Plan

Json = dict[str, Any]
Before = Callable[["Tenancy", Request], Awaitable[None]]

_WORKER: Final = "/"
_V1: Final = "/ojs/v1"
_OPAQUE: Final = frozenset({"args", "meta", "metadata", "result", "results", "error", "errors", "state", "envelope"})
"""Fields of jobs whose contents are never changed."""


def prefix_of(tenant: str) -> str:
    """Return the prefix of a tenant's queues."""
    return f"{tenant}."


class Tenancy:
    """Translates between tenants and one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workflows = Workflows(backend)

    async def handle(self, request: Request, route: Route, handler: Handler) -> Response:
        """Answer a request of a tenant. Raises RequestRefused."""
        before = RULES.get((route.method, route.path))
        if before is None:
            raise RequestRefused("permission_denied", "Keys of tenants do not allow this request.")
        if request.headers.pop(TENANT_HEADER, request.tenant) != request.tenant:
            raise RequestRefused("permission_denied", "X-OJS-Tenant: the key belongs to another tenant.")
        request.queue_prefix = prefix_of(request.tenant)
        await before(self, request)
        response = await handler(request)
        if response.stream is None and response.body and route.path not in _UNTRANSLATED:
            found = msgspec.json.decode(response.body)
            response.body = msgspec.json.encode(_translated(found, request.tenant))
        return response

    # --- request checks ---

    async def nothing(self, request: Request) -> None:
        """Let a request pass: its handler applies `queue_prefix`, or reveals nothing of other tenants."""

    async def job(self, request: Request) -> None:
        """Check that a job is the tenant's."""
        await self._check(request, request.parameters["id"])

    async def queue(self, request: Request) -> None:
        """Convert the name of a queue or cron job from the tenant's."""
        request.parameters["name"] = request.queue_prefix + request.parameters["name"]

    async def queue_end(self, request: Request) -> None:
        """Convert the names of a queue that is deleted, and of the one that gets its jobs, from the tenant's."""
        await self.queue(request)
        body = _body(request, is_required=False)
        if isinstance(body.get("target_queue"), str):
            body["target_queue"] = request.queue_prefix + body["target_queue"]
            _write(request, body)

    async def letter_retry(self, request: Request) -> None:
        """Retry a dead letter of the tenant, in a queue of the tenant."""
        await self.job(request)
        body = _body(request, is_required=False)
        override = body.get("override")
        if isinstance(override, dict) and isinstance(override.get("queue"), str):
            override["queue"] = request.queue_prefix + override["queue"]
            _write(request, body)

    async def filtered(self, request: Request) -> None:
        """Convert the queues of a filter from the tenant's."""
        for name in ("queue", "queues"):
            if request.query.get(name):
                names = request.query[name].split(",")
                request.query[name] = ",".join(request.queue_prefix + one for one in names if one)
        if request.query.get("worker_id"):
            request.query["worker_id"] = f"{request.tenant}{_WORKER}{request.query['worker_id']}"

    async def push(self, request: Request) -> None:
        """Push jobs into queues of the tenant."""
        body = _body(request)
        jobs = body.get("jobs") if request.path != f"{_V1}/jobs" else [body]
        for job in jobs if isinstance(jobs, list) else []:
            if isinstance(job, dict):
                _own(job, request)
                _check_queue(queue_of(job), request)
        ids = [job.get("id") for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
        foreign = await self._foreign(request, ids)
        if foreign:
            # Its type and state, which other duplicates have, are not the tenant's to know.
            details: dict[str, object] = {"existing_job_id": min(foreign)}
            raise RequestRefused("duplicate", f"A job with the id {min(foreign)} already exists.", details=details)
        _write(request, body)

    async def results(self, request: Request) -> None:
        """Return results of the tenant's jobs only: other jobs are unknown."""
        body = _body(request)
        ids = body.get("ids")
        if isinstance(ids, list) and all(isinstance(one, str) for one in ids):
            foreign = await self._foreign(request, ids[:1000])
            body["ids"] = [one for one in ids if one not in foreign]
            _write(request, body)

    async def bulk(self, request: Request) -> None:
        """Change jobs of the tenant, by ids or by a filter with a queue."""
        body = _body(request)
        ids, wanted = body.get("job_ids", body.get("ids")), body.get("filter")
        if isinstance(ids, list):
            foreign = await self._foreign(request, ids[:1000])
            if foreign:
                raise not_found("job", min(foreign))
        if isinstance(wanted, dict):
            given = [wanted.get(name) for name in ("queue", "queues")]
            listed = [value.split(",") if isinstance(value, str) else value for value in given if value]
            names = [one for value in listed if isinstance(value, list) for one in value]
            if not names or not all(isinstance(one, str) and one for one in names):
                details: dict[str, object] = {"field": "filter.queue"}
                raise RequestRefused("invalid_request", "filter.queue: is required.", details=details)
            body["filter"] = {name: value for name, value in wanted.items() if name not in {"queue", "queues"}}
            body["filter"]["queues"] = [request.queue_prefix + one for one in names]
        _write(request, body)

    async def fetch(self, request: Request) -> None:
        """Fetch from queues of the tenant."""
        body = _body(request, is_required=False)
        queues = body.get("queues", ["default"])
        if isinstance(queues, list):
            body["queues"] = [request.queue_prefix + one if isinstance(one, str) else one for one in queues]
        if isinstance(body.get("weights"), dict):
            body["weights"] = {request.queue_prefix + queue: weight for queue, weight in body["weights"].items()}
        _check_no_pool(body)
        _own_worker(body, request)
        _write(request, body)

    async def end(self, request: Request) -> None:
        """End an attempt of a job of the tenant."""
        body = _body(request, is_required=False)
        for name in ("job_id", "id"):
            if isinstance(body.get(name), str):
                await self._check(request, body[name])
        _own_worker(body, request)
        _write(request, body)

    async def beat(self, request: Request) -> None:
        """Accept heartbeats for the tenant's jobs only."""
        body = _body(request, is_required=False)
        for name in ("active_job_ids", "active_jobs"):
            if isinstance(body.get(name), list):
                ids = [one for one in body[name] if isinstance(one, str)]
                known = await self._backend.view.many(ids[:10_000])
                own = {info.id for info in known if info.queue.startswith(request.queue_prefix)}
                body[name] = [one for one in ids if one in own]
        if isinstance(body.get("job_id"), str):
            await self._check(request, body["job_id"])
        _check_no_pool(body)
        _own_worker(body, request)
        _write(request, body)

    async def report(self, request: Request) -> None:
        """Accept the progress of a job of the tenant."""
        await self.job(request)
        body = _body(request, is_required=False)
        if "worker_id" in body:
            _own_worker(body, request)
            _write(request, body)

    async def named(self, request: Request) -> None:
        """Create a queue of the tenant."""
        body = _body(request)
        if isinstance(body.get("name"), str):
            body["name"] = request.queue_prefix + body["name"]
        _write(request, body)

    async def selected(self, request: Request) -> None:
        """Restrict the filter of a body to the tenant's queues."""
        body = _body(request, is_required=False)
        for part in (body, body.get("filter")):
            if isinstance(part, dict) and isinstance(part.get("queue"), str) and part["queue"]:
                part["queue"] = request.queue_prefix + part["queue"]
        _write(request, body)

    async def cron(self, request: Request) -> None:
        """Register a cron job of the tenant."""
        await self.named(request)
        body = _body(request)
        parts = [body[name] for name in ("job_template", "job") if isinstance(body.get(name), dict)]
        for part in parts or [body]:
            _own(part, request)
        if parts:
            _own(body, request, is_partial=True)
        _write(request, body)
        _check_queue(cron_job_of(body).queue, request)

    async def cron_change(self, request: Request) -> None:
        """Change a cron job of the tenant."""
        await self.queue(request)
        body = _body(request)
        if "name" in body:
            body["name"] = request.parameters["name"]
        info = await self._backend.jobs.crons.get(request.parameters["name"])
        for part in (body, body.get("job_template"), body.get("job")):
            if isinstance(part, dict):
                _own(part, request, is_partial=True)
                options = part.get("options")
                if isinstance(options, dict) and options.get("queue") is None:
                    # New options replace all existing ones.
                    options["queue"] = part.get("queue") or info.options.get("queue")
        _write(request, body)
        fields = {name: value for name, value in body.items() if name != "enabled"}
        if fields:
            _check_queue(changed(info, fields).queue, request)

    async def subscription(self, request: Request) -> None:
        """Convert the queues of a webhook from the tenant's."""
        body = _body(request, is_required=False)
        wanted = body.get("filter")
        if isinstance(wanted, dict) and isinstance(wanted.get("queues"), list):
            names = wanted["queues"]
            wanted["queues"] = [request.queue_prefix + one if isinstance(one, str) else one for one in names]
            _write(request, body)

    async def workflow_begin(self, request: Request) -> None:
        """Start a workflow whose jobs are all in queues of the tenant."""
        body = _body(request)
        _own_steps(body, request)
        _write(request, body)
        definition = await definition_of(body, self._backend.jobs.make)
        for node in Plan(definition).nodes:
            if node.job is not None:
                _check_queue(node.job.get("queue"), request)

    async def workflow(self, request: Request) -> None:
        """Check that a workflow is the tenant's."""
        workflow_id = request.parameters["id"]
        if not await self._workflows.is_within(workflow_id, request.queue_prefix):
            raise not_found("workflow", workflow_id)

    async def _foreign(self, request: Request, ids: Sequence[object]) -> set[str]:
        """Return which of these ids are of jobs of others."""
        given = [one for one in ids if isinstance(one, str)]
        known = await self._backend.view.many(given) if given else []
        return {info.id for info in known if not info.queue.startswith(request.queue_prefix)}

    async def _check(self, request: Request, job_id: str) -> None:
        found = await self._backend.detail(job_id)
        if found is None or not found.info.queue.startswith(request.queue_prefix):
            raise not_found("job", job_id)


def _own(job: Json, request: Request, *, is_partial: bool = False) -> None:
    """Convert a job of a request from the tenant's."""
    options = job.get("options")
    places = [one for one in (options, job) if isinstance(one, dict)]
    has_queue = False
    for place in places:
        if place.get("queue") is not None:
            has_queue = True
            if isinstance(place["queue"], str):
                place["queue"] = request.queue_prefix + place["queue"]
        _own_limits(place, request)
        if is_partial and isinstance(place.get("meta"), dict):
            set_tenant(place, request.tenant)
    if not is_partial:
        if not has_queue:
            job["queue"] = f"{request.queue_prefix}default"
        if isinstance(options, dict) and options.get("meta") is not None:
            set_tenant(options, request.tenant)
        else:
            set_tenant(job, request.tenant)


def _own_limits(place: Json, request: Request) -> None:
    """Prefix the keys of unique policies and limits with the tenant."""
    unique, limit = place.get("unique"), place.get("rate_limit")
    if isinstance(unique, dict):
        if isinstance(unique.get("key"), str):
            unique["key"] = f"{request.tenant}:{unique['key']}"
        for name in ("keys", "key"):
            if isinstance(unique.get(name), list) and "queue" not in unique[name]:
                unique[name] = [*unique[name], "queue"]
        if unique.get("keys") is None and unique.get("key") is None:
            unique["keys"] = ["type", "queue"]
    if isinstance(limit, dict) and isinstance(limit.get("key"), str):
        limit["key"] = f"{request.tenant}:{limit['key']}"


def _own_steps(part: Json, request: Request) -> None:
    """Do the same with all jobs of a workflow."""
    for name in ("steps", "jobs"):
        parts = part.get(name)
        for one in parts if isinstance(parts, list) else []:
            if isinstance(one, dict):
                is_composite = one.get("type") in KINDS and ("steps" in one or "jobs" in one)
                (_own_steps if is_composite else _own)(one, request)
    callbacks = part.get("callbacks")
    given = [*(callbacks.values() if isinstance(callbacks, dict) else ()), *(part.get(name) for name in CALLBACKS)]
    for one in given:
        if isinstance(one, dict):
            _own(one, request)
    # The defaults for all steps were applied to each.
    if isinstance(part.get("options"), dict):
        part["options"].pop("queue", None)
        _own_limits(part["options"], request)


def _check_queue(queue: object, request: Request) -> None:
    """Refuse requests for queues of other tenants, in any form."""
    if not isinstance(queue, str) or not queue.startswith(request.queue_prefix):
        raise RequestRefused("permission_denied", "This queue does not belong to the tenant.")


def _check_no_pool(body: Json) -> None:
    """Refuse to join a pool: it may have queues of other tenants."""
    if body.get("pool") is not None:
        raise RequestRefused("permission_denied", "Workers of a tenant cannot join a pool.")


def _own_worker(body: Json, request: Request) -> None:
    if isinstance(body.get("worker_id"), str) and body["worker_id"]:
        body["worker_id"] = f"{request.tenant}{_WORKER}{body['worker_id']}"


def _body(request: Request, *, is_required: bool = True) -> Json:
    return request.json(required=is_required)


def _write(request: Request, body: object) -> None:
    request.body = msgspec.json.encode(body)


def _translated(value: object, tenant: str, name: str = "") -> object:
    """Return an answer with the tenant's names of queues, cron jobs and workers."""
    if isinstance(value, dict):
        return {
            _without_prefix(key, tenant) if name == "by_queue" else key: one
            if key in _OPAQUE
            else _translated(one, tenant, key)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_translated(one, tenant, name) for one in value]
    return _without_prefix(value, tenant) if isinstance(value, str) and name in _NAMES else value


def _without_prefix(name: str, tenant: str) -> str:
    return name.removeprefix(prefix_of(tenant)).removeprefix(tenant + _WORKER)


_NAMES: Final = frozenset({"queue", "target_queue", "queues", "name", "subject", "worker_id"})
_UNTRANSLATED: Final = frozenset({f"{_V1}/openapi.json", f"{_V1}/docs", f"{_V1}/jobs/results"})


def _rules() -> dict[tuple[str, str], Before]:
    own = Tenancy
    found: dict[tuple[str, str], Before] = {
        ("GET", f"{_V1}/openapi.json"): own.nothing,
        ("GET", f"{_V1}/docs"): own.nothing,
        ("GET", f"{_V1}/events"): own.filtered,
        ("GET", f"{_V1}/events/stream"): own.filtered,
        ("GET", f"{_V1}/jobs"): own.filtered,
        ("POST", f"{_V1}/jobs"): own.push,
        ("POST", f"{_V1}/jobs/batch"): own.push,
        ("POST", f"{_V1}/jobs/bulk"): own.push,
        ("POST", f"{_V1}/jobs/bulk/cancel"): own.bulk,
        ("POST", f"{_V1}/jobs/bulk/retry"): own.bulk,
        ("POST", f"{_V1}/jobs/bulk/delete"): own.bulk,
        ("PATCH", f"{_V1}/jobs"): own.bulk,
        ("POST", f"{_V1}/jobs/results"): own.results,
        ("POST", f"{_V1}/workers/fetch"): own.fetch,
        ("POST", f"{_V1}/workers/ack"): own.end,
        ("POST", f"{_V1}/workers/nack"): own.end,
        ("POST", f"{_V1}/workers/heartbeat"): own.beat,
        ("GET", f"{_V1}/queues"): own.nothing,
        ("POST", f"{_V1}/queues"): own.named,
        ("GET", f"{_V1}/dead-letter"): own.filtered,
        ("GET", f"{_V1}/dead-letter/stats"): own.nothing,
        ("DELETE", f"{_V1}/dead-letter"): own.selected,
        ("POST", f"{_V1}/dead-letter/purge"): own.selected,
        ("POST", f"{_V1}/dead-letter/retry"): own.selected,
        ("POST", f"{_V1}/workflows"): own.workflow_begin,
        ("GET", f"{_V1}/workflows"): own.nothing,
        ("GET", f"{_V1}/ws"): own.nothing,
    }
    return found | _rules_of_one() | _rules_of_pages()


def _rules_of_one() -> dict[tuple[str, str], Before]:
    """Return the rules of paths for single objects."""
    own = Tenancy
    found: dict[tuple[str, str], Before] = {}
    jobs = ["", "/result", "/retries", "/progress", "/checkpoint", "/events", "/history"]
    jobs += ["/progress/stream", "/result/stream"]
    found |= {("GET", f"{_V1}/jobs/{{id}}{end}"): own.job for end in jobs}
    changes = [
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("POST", "/activate"),
        ("DELETE", "/checkpoint"),
        ("DELETE", "/history"),
        ("PATCH", ""),
        ("GET", "/logs"),
        ("POST", "/logs"),
    ]
    found |= {(method, f"{_V1}/jobs/{{id}}{end}"): own.job for method, end in changes}
    reports = [(method, end) for method in ("PUT", "POST") for end in ("/progress", "/checkpoint")]
    reports += [("POST", "/ack"), ("POST", "/nack")]
    found |= {(method, f"{_V1}/jobs/{{id}}{end}"): own.report for method, end in reports}
    found["DELETE", f"{_V1}/queues/{{name}}"] = own.queue_end
    queues = [("GET", ""), ("GET", "/stats"), ("GET", "/priority-stats"), ("GET", "/events")]
    queues += [("POST", "/pause"), ("POST", "/resume"), ("POST", "/purge")]
    found |= {(method, f"{_V1}/queues/{{name}}{end}"): own.queue for method, end in queues}
    found["POST", f"{_V1}/dead-letter/{{id}}/retry"] = own.letter_retry
    letters = [("GET", ""), ("DELETE", "")]
    found |= {(method, f"{_V1}/dead-letter/{{id}}{end}"): own.job for method, end in letters}
    workflows = [("GET", ""), ("GET", "/progress"), ("DELETE", ""), ("POST", "/cancel"), ("POST", "/retry")]
    found |= {(method, f"{_V1}/workflows/{{id}}{end}"): own.workflow for method, end in workflows}
    crons = [("GET", ""), ("DELETE", ""), ("GET", "/history"), ("POST", "/pause"), ("POST", "/resume")]
    for base in (f"{_V1}/cron", f"{_V1}/crons"):
        found |= {("GET", base): own.nothing, ("POST", base): own.cron}
        found |= {(method, f"{base}/{{name}}{end}"): own.queue for method, end in [*crons, ("POST", "/trigger")]}
        found |= {(method, f"{base}/{{name}}"): own.cron_change for method in ("PUT", "PATCH")}
    subscriptions = f"{_V1}/webhooks/subscriptions"
    deliveries = f"{_V1}/webhooks/deliveries"
    for path in ("", "/{id}", "/{id}/test", "/{id}/rotate-secret"):
        methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
        found |= {(method, subscriptions + path): own.subscription for method in methods}
    for path in ("", "/{id}", "/{id}/retry"):
        found |= {(method, deliveries + path): own.nothing for method in ("GET", "POST")}
    return found


def _rules_of_pages() -> dict[tuple[str, str], Before]:
    """Return the rules of the dashboard's paths."""
    own = Tenancy
    found: dict[tuple[str, str], Before] = {}
    admin = f"{_V1}/admin"
    pages = [("GET", ""), ("GET", "/why"), ("POST", "/cancel"), ("POST", "/retry")]
    found |= {(method, f"{admin}/jobs/{{id}}{end}"): own.job for method, end in pages}
    found["GET", f"{admin}/search"] = own.filtered
    looks = (
        "session",
        "overview",
        "queue-summaries",
        "failures",
        "changes",
        "operations",
        "operations/{id}",
        "workers",
    )
    found |= {("GET", f"{admin}/{name}"): own.nothing for name in looks}
    posts = ("failures/{fingerprint}/dismiss", "operations", "operations/{id}/stop")
    found |= {("POST", f"{admin}/{name}"): own.nothing for name in posts}
    found |= {("POST", f"{admin}/queues/{{name}}/{verb}"): own.queue for verb in ("pause", "resume")}
    return found


RULES: Final = _rules()
"""The rules for tenants by method and path."""
