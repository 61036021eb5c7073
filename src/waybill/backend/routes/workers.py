"""Workers: fetch, ack, nack, heartbeat (ojs-http-binding section 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, ended_since, invalid, not_found
from waybill.backend.extensions import MAINTENANCE
from waybill.backend.failures import failure_of
from waybill.backend.job_form import Form, form_of, list_parents
from waybill.backend.job_text import FOR_WORKERS, open_text, with_fields
from waybill.backend.large_answers import LARGE_BYTES
from waybill.backend.leases import Lease
from waybill.backend.message import Request, Response, answer, integer_of
from waybill.backend.quick_acks import QuickAcks
from waybill.backend.router import OPERATE, Route
from waybill.backend.scheduling.pool import read_queues
from waybill.backend.versions import read_handlers
from waybill.backend.workflows import Workflows
from waybill.ojs.spec.checkpoint import read_checkpoint
from waybill.ojs.spec.envelope import MAX_SAFE_INTEGER, Envelope
from waybill.ojs.spec.headers import max_attempts
from waybill.ojs.spec.retry import retry_delay_seconds
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import parse_timestamp
from waybill.ojs.worker.attempt_ends import delay_of, gets_another, result_limit
from waybill.ojs.worker.execution import Execution

MOST_JOBS: Final = 1000
MAX_FETCH_BYTES: Final = 64 * 1024
MOST_WAIT_MS: Final = 60_000
MAX_REASON: Final = 500
MAINTENANCE_SECONDS: Final = 1.0
"""How long a fetch waits during maintenance, or from a quiet worker."""
MOST_BEATS: Final = 10_000
MOST_DELAY_MS: Final = 30 * 86_400_000
DIRECTIVES: Final = frozenset({"running", "quiet", "terminate"})

_JITTER_OF_NONE: Final = 0.5
_ACTIVE: Final = State.ACTIVE.value


class WorkerRoutes:
    """The routes for workers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workflows = Workflows(backend)
        self._quick = QuickAcks(backend)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("POST", "/ojs/v1/workers/fetch", self._fetch, OPERATE),
            Route("POST", "/ojs/v1/workers/ack", self._ack, OPERATE, self._quick.ack, self._quick.shorten),
            Route("POST", "/ojs/v1/workers/nack", self._nack, OPERATE),
            Route("POST", "/ojs/v1/workers/heartbeat", self._beat, OPERATE),
            Route("POST", "/ojs/v1/jobs/{id}/ack", self._ack_named, OPERATE),
            Route("POST", "/ojs/v1/jobs/{id}/nack", self._nack_named, OPERATE),
        ]

    # --- fetch ---

    async def _fetch(self, request: Request) -> Response:
        if len(request.body) > MAX_FETCH_BYTES:
            raise RequestRefused("payload_too_large", f"A request for jobs has at most {MAX_FETCH_BYTES} bytes.")
        body = request.json()
        queues = read_queues(body["queues"]) if "queues" in body else None
        count = integer_of(body, "count", integer_of(body, "batch_size", 1, 1, MOST_JOBS), 1, MOST_JOBS)
        visibility = _seconds(body, "visibility_timeout_ms")
        wait_ms = integer_of(body, "wait_ms", 0, 0, MOST_WAIT_MS)
        worker_id = _text(body, "worker_id")
        backend = self._backend
        backend.extensions.workers.record(worker_id, list(queues or ()))
        visit = backend.extensions.scheduler.visit(worker_id, body, queues, count)
        fits = self._fits(worker_id, body.get("handlers"))
        # Thousands of requests may wait, and their bodies may have more in them.
        del body
        request.body = b""
        if backend.extensions.maintenance.get(MAINTENANCE) is not None or backend.extensions.workers.is_quiet(
            worker_id
        ):
            await asyncio.sleep(min(wait_ms / 1000, MAINTENANCE_SECONDS))
            return answer({"jobs": []})
        for queue in visit.queues:
            if await backend.fetcher.has_queue(queue, creates=wait_ms > 0):
                await backend.coordinate_queue(queue)
        leases = await backend.fetcher.fetch(visit, worker_id, visibility, wait_ms / 1000, fits)
        form = partial(_answer_with, leases)
        try:
            if leases:
                await backend.begun(leases)
            is_large = sum(len(one.execution.delivery.body) for one in leases) > LARGE_BYTES
            response = await (backend.large_answers.handle(request, form) if is_large else form(request))
        except BaseException:
            backend.fetcher.give_back(leases)
            raise
        response.unheard = partial(backend.fetcher.give_back, leases)
        return response

    def _fits(self, worker_id: str, handlers: object) -> Callable[[Execution], bool] | None:
        """Return whether a worker takes a job, None if it takes all."""
        extensions = self._backend.extensions
        if handlers is None:
            handlers = extensions.workers.handlers_of(worker_id)
        return None if handlers is None else read_handlers(handlers, extensions.version_routes.chosen)

    # --- ends ---

    async def _ack_named(self, request: Request) -> Response:
        """Do the same for the job that the path names (ojs-results section 10.1)."""
        return await self._ack(_naming_job(request))

    async def _nack_named(self, request: Request) -> Response:
        return await self._nack(_naming_job(request))

    async def _ack(self, request: Request) -> Response:
        body = request.json()
        lease = await self._held(body)
        execution = lease.execution
        job_id = execution.envelope.id
        _check_result(execution.envelope, body.get("result"))
        self._backend.leases.end(job_id)
        duration = self._backend.loop_time() - execution.started
        async with self._backend.folded([("job.completed", job_id)]):
            self._backend.settlement.completed(execution, body.get("result"), duration)
        if execution.envelope.workflow_id is not None:
            await self._workflows.wait_for_next_jobs(execution.envelope.workflow_id)
        ended = await self._ended(job_id)
        return answer(
            {
                "acknowledged": True,
                "id": job_id,
                "job_id": job_id,
                "state": State.COMPLETED.value,
                "attempt": execution.attempt,
                "completed_at": ended.get("completed_at") or self._backend.now(),
                "job": ended,
            }
        )

    async def _nack(self, request: Request) -> Response:
        body = request.json()
        requeue = body.get("requeue", False)
        if not isinstance(requeue, bool):
            raise invalid("requeue", "must be true or false")
        given = body.get("error")
        if not isinstance(given, dict) and not (given is None and requeue):
            raise invalid("error", "must be an object")
        lease = await self._take(body)
        if requeue:
            return await self._requeue(lease, integer_of(body, "delay_ms", 0, 0, MOST_DELAY_MS) / 1000)
        execution, backend = lease.execution, self._backend
        envelope = execution.envelope
        failure = failure_of(given or {}, execution, backend.now())
        again = gets_another(execution, failure)
        self._apply_rate_limit(given or {}, lease)
        delay = delay_of(execution) if again else None
        duration = backend.loop_time() - execution.started
        async with backend.folded([("job.retrying" if again else "job.discarded", envelope.id)]):
            backend.settlement.failed(execution, failure, duration, delay=delay)
        if not again and envelope.workflow_id is not None:
            await self._workflows.wait_for_next_jobs(envelope.workflow_id)
        form = await self._ended(envelope.id)
        found: Form = {
            "id": envelope.id,
            "job_id": envelope.id,
            "state": State.RETRYABLE.value if again else State.DISCARDED.value,
            "attempt": execution.attempt,
            "max_attempts": max_attempts(execution.delivery, envelope),
            "error": msgspec.to_builtins(failure.record),
            "job": form,
        }
        if delay is not None:
            found |= {"next_attempt_at": form.get("next_attempt_at"), "retry_delay_ms": round(delay * 1000)}
        else:
            ended = form.get("discarded_at") or backend.now()
            found |= {"discarded_at": ended, "completed_at": ended}
        return answer(found)

    def _apply_rate_limit(self, error: Form, lease: Lease) -> None:
        """Delay jobs of a limit's key for the time requested by the called service (ojs-rate-limiting 9.1)."""
        policy = lease.execution.envelope.rate_limit
        details = error.get("details")
        until = error.get("rate_limit_until", details.get("rate_limit_until") if isinstance(details, dict) else None)
        if policy is None or not isinstance(until, str):
            return
        try:
            moment = parse_timestamp(until, "rate_limit_until").astimezone(UTC)
        except (ValueError, OverflowError):
            # The attempt has failed in any case.
            return
        self._backend.limits.stop_until(str(policy.get("key")), moment, str(error.get("message", ""))[:MAX_REASON])

    async def _requeue(self, lease: Lease, delay_seconds: float) -> Response:
        """Requeue a job that its worker did not run: the same attempt, immediately or later."""
        execution = lease.execution
        job_id = execution.envelope.id
        async with self._backend.folded([("job.scheduled", job_id)]):
            self._backend.settlement.postponed(execution, delay_seconds)
        form = await self._ended(job_id)
        state = State.SCHEDULED if delay_seconds else State.AVAILABLE
        found = {"id": job_id, "job_id": job_id, "state": state.value, "attempt": execution.attempt}
        return answer({**found, "requeued": True, "job": form})

    async def _take(self, body: Form) -> Lease:
        """End and return the lease of a worker. Raises RequestRefused if it has none."""
        lease = await self._held(body)
        self._backend.leases.end(lease.execution.envelope.id)
        return lease

    async def _held(self, body: Form) -> Lease:
        """Return the lease of a worker. Raises RequestRefused if it has none."""
        job_id = body.get("job_id", body.get("id"))
        if not isinstance(job_id, str) or not job_id:
            raise invalid("job_id", "must be a string")
        worker_id = _text(body, "worker_id")
        leases = self._backend.leases
        lease = leases.get(job_id)
        if lease is not None and worker_id and lease.worker_id and worker_id != lease.worker_id:
            details: Form = {"job_id": job_id, "current_state": State.ACTIVE.value}
            raise RequestRefused("conflict", "Another worker has this job.", details=details)
        attempt = integer_of(body, "attempt", 0, 0, MAX_SAFE_INTEGER)
        if lease is not None and attempt not in {0, lease.execution.attempt}:
            details = {"job_id": job_id, "current_attempt": lease.execution.attempt}
            raise RequestRefused("conflict", f"Attempt {attempt} of this job has ended.", details=details)
        if lease is None:
            found = await self._backend.detail(job_id)
            if found is None:
                raise not_found("job", job_id)
            state = form_of(found, datetime.now(UTC))["state"]
            details = {"job_id": job_id, "current_state": state, "expected_state": State.ACTIVE.value}
            text = f"This server has not given out job {job_id}: it is {state}."
            raise RequestRefused("conflict", text, details=details)
        return lease

    async def _ended(self, job_id: str) -> Form:
        """Return a job after its attempt. Raises RequestRefused if it had been cancelled before."""
        found = await self._backend.view.detail(job_id)
        form: Form = {"id": job_id} if found is None else form_of(found, datetime.now(UTC))
        if form.get("state") == State.CANCELLED.value:
            raise ended_since(job_id, form["state"])
        return form

    # --- heartbeats ---

    async def _beat(self, request: Request) -> Response:
        body = request.json()
        worker_id = _text(body, "worker_id")
        named = body.get("active_job_ids", body.get("active_jobs", []))
        single = body.get("job_id")
        ids = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
        if isinstance(single, str):
            ids.append(single)
        if len(ids) > MOST_BEATS:
            raise invalid("active_jobs", f"must have at most {MOST_BEATS} jobs")
        if not worker_id and not ids:
            raise invalid("worker_id", "must be a string")
        visibility = _seconds(body, "visibility_timeout_ms")
        backend = self._backend
        read_handlers(body.get("handlers"))
        queues = body.get("queues")
        told = (
            [f"{request.queue_prefix}{one}" for one in queues if isinstance(one, str)]
            if isinstance(queues, list)
            else []
        )
        backend.extensions.workers.record(worker_id, told, body)
        if body.get("pool") is not None:
            backend.extensions.scheduler.join(worker_id, body["pool"])
        extended: list[str] = []
        stored = backend.extensions.directives.get(worker_id)
        state = backend.directives.get(worker_id, "running") if stored is None else stored.directive
        for job_id in dict.fromkeys(ids):
            lease = backend.leases.extend(job_id, worker_id, visibility)
            if lease is not None:
                extended.append(job_id)
                state = self._directive_of(lease, state)
        found = {"state": state, "directive": state, "jobs_extended": extended, "server_time": backend.now()}
        return answer(found)

    def _directive_of(self, lease: Lease, state: str) -> str:
        """Return the directive that a job requests for its worker, in tests."""
        if not self._backend.is_test:
            return state
        fields = msgspec.json.decode(lease.execution.delivery.body, type=dict[str, object])
        for name in ("metadata", "meta"):
            metadata = fields.get(name)
            found = metadata.get("test_directive") if isinstance(metadata, Mapping) else None
            if isinstance(found, str) and found in DIRECTIVES:
                return found
        return state


def _check_result(envelope: Envelope, result: object) -> None:
    """Refuse a result that is too large: its job stays active (ojs-results section 7.2). Raises RequestRefused."""
    if result is None:
        return
    size, limit = len(msgspec.json.encode(result)), result_limit(envelope)
    if size > limit:
        text = f"The result has {size} bytes, and may have {limit}."
        details: Form = {"job_id": envelope.id, "actual_bytes": size, "max_bytes": limit}
        raise RequestRefused("RESULT_TOO_LARGE", text, details=details)


async def _answer_with(leases: Sequence[Lease], _request: Request) -> Response:
    forms = [_text_of(lease) or _form_of(lease) for lease in leases]
    first = {"job": forms[0]} if forms else {}
    return answer({"jobs": forms, **first})


def _naming_job(request: Request) -> Request:
    """Return a request whose body names the job of its path."""
    request.body = msgspec.json.encode({**request.json(), "job_id": request.parameters["id"]})
    return request


def _text_of(lease: Lease) -> msgspec.Raw | None:
    """Return a job for its worker without decoding its arguments, if it has the common form."""
    execution = lease.execution
    envelope = execution.envelope
    if execution.attempt > 1 or envelope.parent_results is not None:
        return None
    fields = _fields_of(lease)
    if fields.pop("queue") != envelope.queue or fields.pop("max_attempts") != envelope.max_attempts:
        return None
    if envelope.priority:
        # The field is already in the text.
        del fields["priority"]
    opened = open_text(envelope, execution.delivery.body, FOR_WORKERS)
    lease.opened = opened if lease.is_small else None
    return None if opened is None else with_fields(opened, fields)


def _fields_of(lease: Lease) -> Form:
    """Return the fields for a worker besides the envelope."""
    execution = lease.execution
    envelope = execution.envelope
    fields: Form = {
        "state": _ACTIVE,
        "attempt": execution.attempt,
        "max_attempts": max_attempts(execution.delivery, envelope),
        "started_at": lease.started_at,
        "queue": execution.queue,
        "priority": envelope.priority,
        "timeout_ms": round(envelope.timeout_seconds * 1000),
        "visibility_timeout_ms": round(lease.visibility_seconds * 1000),
    }
    if lease.worker_id:
        fields["worker_id"] = lease.worker_id
    return fields


def _form_of(lease: Lease) -> Form:
    """Return a job for its worker."""
    execution = lease.execution
    envelope = execution.envelope
    form: Form = msgspec.json.decode(execution.delivery.body, type=dict[str, object])
    form |= _fields_of(lease)
    checkpoint = read_checkpoint(envelope.checkpoint)
    if checkpoint is not None:
        form["last_checkpoint"] = checkpoint.state
    list_parents(form)
    if execution.attempt > 1 and not envelope.policy.jitter:
        delay = retry_delay_seconds(envelope.policy, execution.attempt - 1, _JITTER_OF_NONE)
        form["retry_delay_ms"] = round(delay * 1000)
    return form


def _seconds(body: Form, name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
        raise invalid(name, "must be a number of milliseconds above 0")
    return value / 1000


def _text(body: Form, name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 255 or "\0" in value:
        raise invalid(name, "must be a string of at most 255 characters")
    return value
