"""Checks pushes against settings of operators: schemas, bounds of queues, limits of tenants.

Without settings, pushes skip these checks.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response
from waybill.backend.portions import PORTION_SECONDS, Steps
from waybill.backend.pushed import queue_of
from waybill.backend.queue_configs import DEFAULT, QueueConfigs, QueueMove
from waybill.backend.router import Handler
from waybill.backend.schemas import Schemas
from waybill.backend.settings import Settings, SettingTable
from waybill.backend.tenants import Admitted, Tenants
from waybill.backend.type_defaults import TypeDefaults
from waybill.ojs.coordinator.job_counts import FollowedCounts
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.federation import REGION, meta_of, pinned_region
from waybill.ojs.spec.operator_events import QueueFilled, QueueOverflow
from waybill.ojs.spec.server_events import BackpressureCleared, BackpressureRejected, BackpressureWarning
from waybill.ojs.spec.states import State

REJECT: Final = "reject"
BLOCK: Final = "block"
DROP: Final = "drop_oldest"
UNBOUNDED: Final = 1 << 62
STRATEGIES: Final = frozenset({REJECT, BLOCK, DROP})
MAX_BLOCK_SECONDS: Final = 60.0
TELL_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.05
TENANT_HEADER: Final = "x-ojs-tenant"
BLOCK_HEADER: Final = "ojs-block-timeout"
PUSHES: Final = frozenset({"/ojs/v1/jobs", "/ojs/v1/jobs/batch", "/ojs/v1/jobs/bulk"})

_WAITING: Final = frozenset({State.AVAILABLE.value, State.SCHEDULED.value, State.RETRYABLE.value, State.PENDING.value})
_PINNED: Final = REGION.encode()
_TENANT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}")


Drop = Callable[[str, int], Awaitable[int]]
SizeOf = Callable[[str], Awaitable[int]]
RecordEvent = Callable[[str, EventData], None]


class QueueBound(msgspec.Struct):
    """The bound of a queue, and what happens beyond it (ojs-backpressure section 6). 0 means no limit."""

    max_depth: int
    strategy: str = REJECT
    warning_threshold: float = 0.8
    max_size_bytes: int = 0

    @property
    def most(self) -> int:
        """How many jobs there may be."""
        return self.max_depth or UNBOUNDED


class PushChecks:
    """The checks of one server."""

    def __init__(
        self,
        settings: Settings,
        schemas: Schemas,
        counts: FollowedCounts,
        tenants: Tenants,
        defaults: TypeDefaults,
        configs: QueueConfigs,
        moves: SettingTable[QueueMove],
    ) -> None:
        self.drop: Drop | None = None
        """Discards a number of the oldest available jobs of a queue; returns how many it found."""
        self.record: RecordEvent | None = None
        """Publishes an event about a queue."""
        self.size_of: SizeOf | None = None
        """Returns the size of the jobs of a queue."""
        self.tenants = tenants
        self.bounds = settings.table("queue-bound", QueueBound)
        self._schemas = schemas
        self._defaults = defaults
        self._configs = configs
        self._moves = moves
        self._counts = counts
        self.region: str | None = None
        """The region of this server in a federation."""
        self._unapplied: Counter[str] = Counter()
        """Pushed jobs of bounded queues that the view has not applied yet."""
        self._unapplied_bytes: Counter[str] = Counter()
        """Their sizes."""
        self._warned: set[str] = set()
        self._filled: set[str] = set()
        """Queues that are full, as far as is known."""
        """Queues whose last event says that they are nearly full."""
        self._rejected_at: dict[str, float] = {}
        """When the last rejection was published, by queue."""
        self._steps = Steps()

    @property
    def is_idle(self) -> bool:
        """Whether there are no settings for pushes."""
        # Every push passes here.
        return not (
            self.bounds.known
            or self.tenants.table.known
            or self._defaults.table.known
            or self._schemas.versions.known
            or self._configs.table.known
            or self._moves.known
        )

    def bound_of(self, queue: str) -> QueueBound | None:
        """Return the bound of a queue, None if it has none."""
        return self.bounds.get(queue) or self.bounds.get(DEFAULT)

    def concerns(self, request: Request) -> bool:
        """Return whether pushes with the head of a request are checked without settings, too."""
        return TENANT_HEADER in request.headers or self.region is not None

    def lets_pass(self, request: Request) -> bool:
        """Return whether there is nothing to check."""
        if TENANT_HEADER in request.headers or not self.is_idle:
            return False
        # JSON may escape characters of a name.
        return self.region is None or (_PINNED not in request.body and b"\\u" not in request.body)

    async def handle(self, request: Request, handler: Handler) -> Response:
        """Check the jobs of a push, then call the handler. Raises RequestRefused."""
        body = request.json(required=True)
        jobs = _jobs_of(request, body)
        tenant = request.headers.get(TENANT_HEADER, "")
        warnings: list[str] = []
        is_changed = bool(tenant)
        ends_at = perf_counter() + PORTION_SECONDS
        for index, job in enumerate(jobs):
            try:
                self._check_region(job)
                if tenant:
                    set_tenant(job, tenant)
                is_changed |= self._defaults.fill(job)
                self._check_move(queue_of(job))
                if self._configs:
                    is_changed |= self._configs.apply_to(job, queue_of(job), request.actor)
                warnings += self._schemas.check(job)
                # Validations of many jobs take long.
                if perf_counter() > ends_at:
                    await self._steps.begin()
                    ends_at = perf_counter() + PORTION_SECONDS
            except RequestRefused as error:
                if len(jobs) > 1:
                    error.details |= {"index": index}
                    error.message = f"The job at index {index}: {error.message}"
                raise
        if is_changed:
            request.body = msgspec.json.encode(body)
        counts = Counter(queue_of(job) for job in jobs)
        bounded = {queue: count for queue, count in counts.items() if self.bound_of(queue) is not None}
        sizes = self._sizes_of(jobs, bounded)
        headers = await self._admit(request, bounded, sizes, jobs)
        of_tenants = Admitted({}, {})
        try:
            if self.tenants:
                of_tenants = await self.tenants.admit(jobs, await self._counts.now())
            response = await handler(request)
        finally:
            self.tenants.release(of_tenants)
            self._unapplied.subtract(bounded)
            self._unapplied_bytes.subtract(sizes)
            self._unapplied += Counter()
            self._unapplied_bytes += Counter()
        response.headers += headers
        return _with_warnings(response, warnings) if warnings and response.status < 300 else response

    def _check_region(self, job: Form) -> None:
        """Refuse a job that must run in another region (ojs-federation section 11). Raises RequestRefused."""
        pinned = None if self.region is None else pinned_region(meta_of(job))
        if pinned is None or pinned == self.region:
            return
        details: Form = {"field": f"meta.{REGION}", "region": pinned, "server_region": self.region}
        text = f"The job must run in the region {pinned!r:.80}, and this server is in {self.region!r}."
        hint = "Push the job to a server of its region, or through the federation."
        raise RequestRefused("unsupported", text, details=details, hint=hint)

    def _check_move(self, queue: str) -> None:
        """Refuse jobs for a queue that is being deleted (ojs-queue-config section 5.1). Raises RequestRefused."""
        if self._moves.get(queue) is not None:
            raise RequestRefused("conflict", f"Queue {queue} is being deleted.", details={"queue": queue})

    def _sizes_of(self, jobs: list[Form], bounded: dict[str, int]) -> Counter[str]:
        """Return the size of the new jobs of each queue that is bounded by size."""
        sizes: Counter[str] = Counter()
        for job in jobs if bounded else ():
            queue = queue_of(job)
            bound = self.bound_of(queue)
            if bound is not None and bound.max_size_bytes:
                sizes[queue] += len(msgspec.json.encode(job))
        return sizes

    async def _is_full(self, queue: str, depth: int, count: int, sizes: Counter[str]) -> bool:
        bound = self.bound_of(queue)
        if bound is None or depth + count > bound.most:
            return bound is not None
        if not sizes[queue] or self.size_of is None:
            return False
        return await self.size_of(queue) + self._unapplied_bytes[queue] + sizes[queue] > bound.max_size_bytes

    async def _admit(
        self, request: Request, wanted: dict[str, int], sizes: Counter[str], jobs: list[Form]
    ) -> list[tuple[str, str]]:
        """Wait until there is room for all jobs; returns a warning, if any. Raises RequestRefused if there is none."""
        if not wanted:
            return []
        ends_at = asyncio.get_running_loop().time() + _block_timeout(request)
        while True:
            depths = await self._depths(list(wanted))
            full = None
            for queue, count in wanted.items():
                if full is None and await self._is_full(queue, depths[queue], count, sizes):
                    full = queue
            if full is None:
                self._filled.difference_update(wanted)
                self._unapplied.update(wanted)
                self._unapplied_bytes.update(sizes)
                return self._pressure({queue: depths[queue] + count for queue, count in wanted.items()})
            bound = self.bound_of(full)
            if await self._make_room(full, depths[full], wanted[full], sizes[full]):
                continue
            blocks = bound is not None and bound.strategy == BLOCK
            if not blocks or asyncio.get_running_loop().time() >= ends_at:
                self._tell_rejected(full, depths[full], jobs)
                raise self._full(full, depths[full])
            await asyncio.sleep(POLL_SECONDS)

    async def _make_room(self, queue: str, depth: int, count: int, size: int) -> bool:
        """Discard the oldest jobs of a full queue, if that is its strategy (section 5.3); False if there is none."""
        bound = self.bound_of(queue)
        if bound is None or bound.strategy != DROP or self.drop is None or count > bound.most:
            return False
        if bound.max_size_bytes and size > bound.max_size_bytes:
            return False
        dropped = await self.drop(queue, max(1, depth + count - bound.most))
        if dropped and self.record is not None:
            self.record(queue, QueueOverflow(queue=queue, count=dropped))
        return dropped > 0

    async def _depths(self, queues: list[str]) -> dict[str, int]:
        by_queue = (await self._counts.now()).by_queue
        return {
            queue: self._unapplied[queue]
            + sum(count for state, count in by_queue.get(queue, {}).items() if state in _WAITING)
            for queue in queues
        }

    def _bound(self, queue: str) -> int:
        bound = self.bound_of(queue)
        return UNBOUNDED if bound is None else bound.most

    def _full(self, queue: str, depth: int) -> RequestRefused:
        bound = self._bound(queue)
        found = self.bound_of(queue)
        details: Form = {"queue": queue, "depth": depth, "bound": bound}
        details["strategy"] = REJECT if found is None else found.strategy
        if found is not None and bound == UNBOUNDED:
            details |= {"bound": None, "max_size_bytes": found.max_size_bytes}
            text = f"The jobs of queue {queue!r} have reached their bound of {found.max_size_bytes} bytes."
            return RequestRefused("QUEUE_FULL", text, details=details, headers=[("X-OJS-Queue-Depth", str(depth))])
        headers = [("X-OJS-Queue-Depth", str(depth)), ("X-OJS-Queue-Bound", str(bound))]
        text = f"Queue {queue!r} has reached its bound of {bound} jobs."
        return RequestRefused("QUEUE_FULL", text, details=details, headers=headers)

    def _pressure(self, depths: dict[str, int]) -> list[tuple[str, str]]:
        """Return the headers of the fullest queue, if it is nearly full (section 7.3)."""
        for one, depth in depths.items():
            self._tell_pressure(one, depth)
        queue = max(depths, key=lambda one: depths[one] / self._bound(one))
        found = self.bound_of(queue)
        pressure = depths[queue] / self._bound(queue)
        if found is None or pressure < found.warning_threshold:
            return []
        return [
            ("X-OJS-Queue-Depth", str(depths[queue])),
            ("X-OJS-Queue-Bound", str(found.max_depth)),
            ("X-OJS-Queue-Pressure", f"{pressure:.2f}"),
        ]

    def _tell_pressure(self, queue: str, depth: int) -> None:
        """Publish that a queue is nearly full, or no longer."""
        bound = self.bound_of(queue)
        if bound is None or self.record is None:
            return
        if not bound.max_depth:
            return
        is_pressed = depth >= bound.warning_threshold * bound.max_depth
        if is_pressed and queue not in self._warned:
            self._warned.add(queue)
            self.record(queue, BackpressureWarning(queue=queue, depth=depth, bound=bound.max_depth))
        elif not is_pressed and queue in self._warned:
            self._warned.discard(queue)
            self.record(queue, BackpressureCleared(queue=queue, depth=depth, bound=bound.max_depth))

    def _tell_rejected(self, queue: str, depth: int, jobs: list[Form]) -> None:
        """Publish that a queue is full, at most once a second: the stream must not grow with refused pushes."""
        now = asyncio.get_running_loop().time()
        if self.record is None or now - self._rejected_at.get(queue, -1e9) < TELL_SECONDS:
            return
        self._rejected_at[queue] = now
        if queue not in self._filled:
            self._filled.add(queue)
            self.record(queue, QueueFilled(queue=queue, depth=depth, bound=self._bound(queue)))
        job_type = next((str(job.get("type")) for job in jobs if queue_of(job) == queue), "")
        data = BackpressureRejected(queue=queue, depth=depth, bound=self._bound(queue), job_type=job_type)
        self.record(queue, data)


def read_bound(given: object) -> QueueBound | None:
    """Read the bound of a queue; None for one without. Raises RequestRefused."""
    if not isinstance(given, dict):
        raise invalid("backpressure", "must be an object")
    depth, strategy = given.get("max_depth", 0), given.get("strategy", REJECT)
    threshold = given.get("warning_threshold", 0.8)
    size = given.get("max_size_bytes") or 0
    for name, value in (("max_depth", depth), ("max_size_bytes", size)):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
            raise invalid(f"backpressure.{name}", "must be an integer of at least 0")
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        text = f"backpressure.strategy: must be one of {', '.join(sorted(STRATEGIES))}."
        raise RequestRefused("unsupported", text, details={"field": "backpressure.strategy"})
    if not isinstance(threshold, int | float) or isinstance(threshold, bool) or not 0 <= threshold <= 1:
        raise invalid("backpressure.warning_threshold", "must be a number from 0 to 1")
    return QueueBound(depth, strategy, float(threshold), size) if depth or size else None


def _jobs_of(request: Request, body: Form) -> list[Form]:
    if request.path == "/ojs/v1/jobs":
        return [body]
    given = body.get("jobs")
    return [job for job in given if isinstance(job, dict)] if isinstance(given, list) else []


def set_tenant(job: Form, tenant: str) -> None:
    """Write the tenant of a request into a job (ojs-multi-tenancy section 5.3)."""
    if _TENANT.fullmatch(tenant) is None:
        raise invalid("X-OJS-Tenant", "must be letters, digits, '.', '_', ':' and '-'")
    meta = job.get("meta")
    given = meta.get("tenant_id") if isinstance(meta, dict) else None
    if given is not None and given != tenant:
        raise invalid("meta.tenant_id", "differs from the tenant in the header X-OJS-Tenant")
    job["meta"] = {**(meta if isinstance(meta, dict) else {}), "tenant_id": tenant}


def _block_timeout(request: Request) -> float:
    text = request.headers.get(BLOCK_HEADER, "")
    return min(float(text), MAX_BLOCK_SECONDS) if text.isascii() and text.isdecimal() and len(text) < 9 else 0.0


def _with_warnings(response: Response, warnings: list[str]) -> Response:
    found = msgspec.json.decode(response.body)
    if isinstance(found, dict):
        found["warnings"] = warnings[:100]
        response.body = msgspec.json.encode(found)
    return response
