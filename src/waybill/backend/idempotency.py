"""Idempotency keys: a change requested twice under one key is made once, and both requests get the same response.

    1. A claim is written under the key: the digest of the request, and the seed of the ids of its jobs.
    2. The change is made. Jobs without ids get ids from the seed.
    3. The answer is stored with the claim.

Meanwhile, requests with the same key wait. A server that dies between 1 and 3 leaves a claim without an answer.
The next request under the key takes it over once that server's connection is gone, and makes the change again with the
same ids: a known job is not pushed twice, and the answer has its current state. A job that the broker has confirmed,
but that has no event, is searched for in its queue before (`unreported_jobs`).

Answers other than 2xx are not stored: nothing was changed, and the request may succeed later.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid, is_valid_queue_name
from waybill.backend.job_form import Form, form_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.presence import Presence
from waybill.backend.pushed import queue_of
from waybill.backend.router import Handler
from waybill.backend.unreported_jobs import report_missing
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.records import Records
from waybill.ojs.spec.identifiers import DERIVED, new_id
from waybill.ojs.spec.timestamps import format_timestamp

HEADER: Final = "idempotency-key"
MAX_KEY: Final = 256
RETENTION: Final = timedelta(hours=25)
"""The specification requires 24 hours."""
MAX_KEPT_BYTES: Final = 256 * 1024
"""The limit of a stored answer, compressed. A larger one is made again from the current state."""
MAX_TOTAL_BYTES: Final = 64 * 1024 * 1024
"""The limit of all stored answers of a server that have not expired. Beyond it, answers are made again, too."""
MOST_UNANSWERED: Final = 20_000
"""How many claims of a server may have no answer: those of its requests in progress, and of failed ones."""
PACKED_FROM_BYTES: Final = 1024
WAIT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.25
METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
REPLAYED: Final = ("Idempotency-Replayed", "true")
KIND: Final = "idempotency/"
ONE_JOB: Final = frozenset({"/ojs/v1/jobs"})
MANY_JOBS: Final = frozenset({"/ojs/v1/jobs/batch", "/ojs/v1/jobs/bulk"})
UNKEYED: Final = frozenset({"/ojs/v1/workers/fetch", "/ojs/v1/workers/heartbeat"})
"""Paths for which repeating an answer would be wrong."""


class Claim(msgspec.Struct, omit_defaults=True):
    """The record of a key. `by` is the server that made the claim; a `status` of 0 means no response yet."""

    digest: str
    seed: str
    by: str
    status: int = 0
    location: str = ""
    body: bytes = b""
    is_packed: bool = False
    is_too_large: bool = False


class _KeyQueue:
    """The requests under one key, one of which is being processed."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0


class _AnswerQuota:
    """The limit of stored answers, which expire after a while. `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._size = 0
        self._by_hour: dict[int, int] = {}

    def take(self, size: int, now: float) -> bool:
        """Reserve `size` bytes until they expire; False if there are too few left."""
        hour = int(now // 3600)
        for begun in [one for one in self._by_hour if one < hour - RETENTION // timedelta(hours=1)]:
            self._size -= self._by_hour.pop(begun)
        if self._size + size > MAX_TOTAL_BYTES:
            return False
        self._size += size
        self._by_hour[hour] = self._by_hour.get(hour, 0) + size
        return True


class _Unanswered:
    """The claims of this server that have no answer. `now` is in seconds of a monotonic clock.

    A request that fails after it may have changed something leaves one.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """By key, the oldest first."""

    def add(self, key: str, now: float) -> bool:
        """Add a claim until it expires; False if there are too many."""
        while self._since and now - next(iter(self._since.values())) > RETENTION.total_seconds():
            del self._since[next(iter(self._since))]
        if key not in self._since and len(self._since) >= MOST_UNANSWERED:
            return False
        self._since.pop(key, None)
        self._since[key] = now
        return True

    def remove(self, key: str) -> None:
        """Remove a claim, if it is there."""
        self._since.pop(key, None)


class Idempotency:
    """Makes each change once."""

    def __init__(self, broker: BrokerConnection, records: Records, view: JobView, presence: Presence) -> None:
        self._broker = broker
        self._records = records
        self._view = view
        self._presence = presence
        self._in_progress: dict[str, _KeyQueue] = {}
        self._quota = _AnswerQuota()
        self._unanswered = _Unanswered()

    async def handle(self, request: Request, given: str, handler: Handler) -> Response:
        """Return the answer to a request with a key. Each actor has its own keys."""
        if not 0 < len(given) <= MAX_KEY or not given.isprintable():
            text = f"An idempotency key must have 1 to {MAX_KEY} printable characters."
            raise RequestRefused("invalid_request", text, details={"field": "Idempotency-Key"})
        key = KIND + _digest(request.actor, request.method, request.path, given)
        digest = _digest(request.body.decode("latin-1"), *(f"{name}={text}" for name, text in request.query.items()))
        queue = self._in_progress.setdefault(key, _KeyQueue())
        queue.length += 1
        try:
            async with queue.lock:
                return await self._once(key, digest, request, handler)
        finally:
            queue.length -= 1
            if not queue.length:
                del self._in_progress[key]

    async def _once(self, key: str, digest: str, request: Request, handler: Handler) -> Response:
        claim, is_first = await self._claimed(key, digest)
        if claim.status and not claim.is_too_large:
            return _replayed(claim)
        ids: list[str] = []
        try:
            jobs = _name_jobs(request, claim.seed)
            ids = [job_id for job_id, _ in jobs]
            if not is_first and jobs:
                await report_missing(self._broker, self._view, _by_queue(jobs))
            response = await handler(request)
        except RequestRefused as error:
            if is_first or error.code != "duplicate" or error.details.get("existing_job_id") not in ids:
                if error.kind.status < 500:
                    await self._release(key)
                raise
            response = await self._again(request, ids, handler)
        if response.status >= 300:
            await self._release(key)
        else:
            self._unanswered.remove(key)
            self._records.put_soon(key, self._answered(claim, response), expires_at=_expiry())
        return response

    async def _release(self, key: str) -> None:
        """Forget a claim: nothing was changed under it."""
        await self._records.remove(key)
        self._unanswered.remove(key)

    async def _claimed(self, key: str, digest: str) -> tuple[Claim, bool]:
        """Return the claim with an answer, or our own claim, and whether it is the first."""
        while True:
            before, version = await self._found(key)
            if before is not None and before.digest != digest:
                text = "This idempotency key was used for another request."
                raise RequestRefused("conflict", text, hint="Use a new key for each change.")
            if before is not None and before.status and not before.is_too_large:
                return before, False
            if before is None and not self._unanswered.add(key, asyncio.get_running_loop().time()):
                text = "Too many requests with idempotency keys have no answer yet."
                raise RequestRefused("overloaded", text, hint="Repeat requests that have failed, with the same keys.")
            claim = Claim(digest, new_id() if before is None else before.seed, self._presence.name)
            if await self._records.put(key, claim, expected=version, expires_at=_expiry()):
                return claim, before is None
            self._unanswered.remove(key)

    async def _found(self, key: str) -> tuple[Claim | None, int]:
        """Return the claim under a key, with its version; waits for one that another server is processing."""
        ends_at = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            record = await self._records.get(key)
            if record is None:
                return None, 0
            claim = record.read(Claim)
            if claim.status or claim.by == self._presence.name or not await self._presence.is_running(claim.by):
                return claim, record.version
            if asyncio.get_running_loop().time() >= ends_at:
                text = "Another server is still processing this request."
                raise RequestRefused("conflict", text, hint="Try again in a moment.")
            await asyncio.sleep(POLL_SECONDS)

    def _answered(self, claim: Claim, response: Response) -> Claim:
        """Return the claim with its answer, or without it if the limit is reached."""
        location = next((value for name, value in response.headers if name == "Location"), "")
        is_packed = len(response.body) >= PACKED_FROM_BYTES
        body = zlib.compress(response.body, 1) if is_packed else response.body
        if len(body) > MAX_KEPT_BYTES or not self._quota.take(len(body), asyncio.get_running_loop().time()):
            return Claim(claim.digest, claim.seed, claim.by, response.status, is_too_large=True)
        return Claim(claim.digest, claim.seed, claim.by, response.status, location, body, is_packed=is_packed)

    async def _again(self, request: Request, ids: list[str], handler: Handler) -> Response:
        """Push the missing jobs of a partly enqueued batch, and return the current state of all."""
        known = {info.id for info in await self._view.many(ids)}
        if request.path in MANY_JOBS and len(known) < len(ids):
            body = request.json()
            jobs = body["jobs"]
            if isinstance(jobs, list):
                body["jobs"] = [job for job in jobs if isinstance(job, dict) and job.get("id") not in known]
            request.body = msgspec.json.encode(body)
            await handler(request)
        now = datetime.now(UTC)
        forms: dict[str, Form] = {one.info.id: form_of(one, now) for one in await self._view.details(ids)}
        found = [forms[job_id] for job_id in ids if job_id in forms]
        if request.path in ONE_JOB:
            return answer({**found[0], "job": found[0]}, 201, [("Location", f"/ojs/v1/jobs/{ids[0]}")])
        items = [{"index": index, "status": "created", "job": form} for index, form in enumerate(found)]
        counts = {"count": len(found), "total": len(found), "succeeded": len(found), "failed": 0}
        return answer({"jobs": found, "items": items, **counts}, 201)


def key_in_body(request: Request) -> str | None:
    """Return the key in the body of a bulk operation, None if it has none. Raises RequestRefused."""
    found = request.json().get("idempotency_key")
    if found is None or isinstance(found, str):
        return found
    raise invalid("idempotency_key", "must be a string")


def _name_jobs(request: Request, seed: str) -> list[tuple[str, str]]:
    """Give ids to the jobs of a request that have none; returns the ids of all, each with its queue."""
    if request.method != "POST" or request.path not in ONE_JOB | MANY_JOBS:
        return []
    body = request.json(required=True)
    given = [body] if request.path in ONE_JOB else body.get("jobs")
    jobs = [job for job in given if isinstance(job, dict)] if isinstance(given, list) else []
    request.are_ids_made = all(job.get("id") is None for job in jobs)
    for index, job in enumerate(jobs):
        if job.get("id") is None:
            job["id"] = _seeded_id(seed, index)
    request.body = msgspec.json.encode(body)
    return [(job["id"], queue_of(job)) for job in jobs if isinstance(job["id"], str)]


def _by_queue(jobs: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for job_id, queue in jobs:
        if is_valid_queue_name(queue):
            found.setdefault(queue, []).append(job_id)
    return found


def _seeded_id(seed: str, index: int) -> str:
    """Return a UUIDv7 of the time of another, ascending with the index."""
    count = (int(seed[15:18], 16) + index) % int(DERIVED, 16)
    number = int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8])
    tail = f"{(2 << 62) | (number & ((1 << 62) - 1)):016x}"
    return f"{seed[:14]}7{count:03x}-{tail[:4]}-{tail[4:]}"


def _replayed(claim: Claim) -> Response:
    body = zlib.decompress(claim.body) if claim.is_packed else claim.body
    headers = [REPLAYED, *([("Location", claim.location)] if claim.location else [])]
    return Response(claim.status, body, headers)


def _digest(*texts: str) -> str:
    named = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()


def _expiry() -> str:
    return format_timestamp(datetime.now(UTC) + RETENTION)
