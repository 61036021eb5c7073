"""Limits of tenants: enqueued and running jobs (ojs-multi-tenancy section 8).

The jobs of a tenant are those in its queues (see `tenancy`), whoever pushes them, and those in other queues that name
the tenant (see `shared_jobs`). Depths come from the view, so they include all servers; each server counts the rate of
pushes separately.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.keys import TENANT
from waybill.backend.limits import Limits
from waybill.backend.pushed import is_for_later, queue_of
from waybill.backend.settings import Settings, SettingTable
from waybill.backend.shared_jobs import SharedJobs, tenant_named
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.operator_events import TenantLimitExceeded
from waybill.ojs.spec.rate_limit import RateLimitPolicy
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_duration, parse_duration

MOST: Final = 1_000_000_000
NAMES: Final = ("max_concurrency", "max_queue_depth", "max_scheduled")
_LATER: Final = frozenset({State.SCHEDULED.value, State.RETRYABLE.value})
TELL_SECONDS: Final = 1.0
"""How often an event tells of a limit that refuses pushes."""
_WAITING: Final = _LATER | {State.AVAILABLE.value, State.PENDING.value}


class EnqueueRate(msgspec.Struct, frozen=True):
    """A number of jobs per period."""

    limit: int
    period: timedelta


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings of a tenant; None means no limit."""

    max_concurrency: int | None = None
    max_queue_depth: int | None = None
    max_scheduled: int | None = None
    max_enqueue_rate: EnqueueRate | None = None
    reason: str = ""
    fairness_weight: float = 1
    """The weight of its queues in weighted fetches."""


class Admitted(NamedTuple):
    """Admitted jobs by tenant, and those outside the queues of their tenant by tenant and state."""

    jobs: Mapping[str, int]
    shared: Mapping[tuple[str, str], int]


class Tenants:
    """The tenants of one server."""

    def __init__(
        self, settings: Settings, limits: Limits, shared: SharedJobs, clock: Callable[[], float] | None = None
    ) -> None:
        self.shared = shared
        self.table = settings.table("tenant", Tenant)
        self.table.on_read = self._set_limits
        self._limits = limits
        self._clock = clock or asyncio.get_running_loop().time
        self.weights = 0.0
        """The sum of the weights of all tenants."""
        self._pushed: dict[str, deque[tuple[float, int]]] = {}
        self.record: Callable[[str, EventData], None] | None = None
        """Publishes an event about a tenant."""
        self._told_at: dict[str, float] = {}
        self._unapplied: Counter[str] = Counter()
        """Pushed jobs that the view has not applied yet."""

    def __len__(self) -> int:
        return len(self.table)

    async def admit(self, jobs: Sequence[Form], counts: JobCounts) -> Admitted:
        """Admit jobs; returns the number by tenant: see `release`. Raises RequestRefused if a tenant has too many."""
        found: Counter[str] = Counter()
        scheduled: Counter[str] = Counter()
        shared: Counter[tuple[str, str]] = Counter()
        for job in jobs:
            tenant, is_shared = self._owner_of(job)
            if tenant:
                found[tenant] += 1
                is_later = is_for_later(job)
                scheduled[tenant] += is_later
                shared[tenant, State.SCHEDULED.value if is_later else State.AVAILABLE.value] += is_shared
        for tenant, count in found.items():
            try:
                names = any(key[0] == tenant and number for key, number in shared.items())
                self.shared.is_in_use |= names
                await self._check(tenant, count, scheduled[tenant], counts, is_shared=names)
            except _LimitExceeded as error:
                self._tell_exceeded(error)
                raise
        for tenant, count in found.items():
            self._pushed.setdefault(tenant, deque()).append((self._clock(), count))
        self._unapplied.update(found)
        return Admitted(found, shared)

    def _owner_of(self, job: Form) -> tuple[str, bool]:
        """Return the tenant with settings whose job this is, "" for none, and whether it is outside its queues."""
        tenant, dot, _ = queue_of(job).partition(".")
        if dot and self.table.get(tenant) is not None:
            return tenant, False
        named = tenant_named(job)
        return (named, True) if named and self.table.get(named) is not None else ("", False)

    def weight_of(self, queue: str) -> float:
        """Return the weight of a queue's tenant, 1 for none (ojs-multi-tenancy section 7.2)."""
        tenant, dot, _ = queue.partition(".")
        config = self.table.get(tenant) if dot else None
        return 1 if config is None else config.fairness_weight

    def release(self, admitted: Admitted) -> None:
        """Record that the view has applied jobs, or that they were not pushed."""
        self._unapplied.subtract(admitted.jobs)
        self._unapplied += Counter()
        self.shared.add(admitted.shared)

    async def _check(self, tenant: str, count: int, scheduled: int, counts: JobCounts, *, is_shared: bool) -> None:
        config = self.table.get(tenant) or Tenant()
        has_depth = config.max_queue_depth is not None or (scheduled > 0 and config.max_scheduled is not None)
        if has_depth:
            counted_at = await self.shared.count() if is_shared else 0.0
            try:
                self._check_depth(tenant, count, scheduled, counts)
            except _LimitExceeded:
                if not is_shared:
                    raise
                # Some may have ended since they were counted.
                await self.shared.count(after=counted_at)
                self._check_depth(tenant, count, scheduled, counts)
        self._check_rate(tenant, count, config)

    def _check_depth(self, tenant: str, count: int, scheduled: int, counts: JobCounts) -> None:
        shared = self.shared.known(tenant)
        config = self.table.get(tenant) or Tenant()
        own = sum(number for state, number in shared.items() if state in _WAITING)
        depth = count_of(counts, tenant, _WAITING) + own + self._unapplied[tenant]
        if config.max_queue_depth is not None and depth + count > config.max_queue_depth:
            raise _LimitExceeded(tenant, "max_queue_depth", depth, config.max_queue_depth)
        waiting = count_of(counts, tenant, _LATER) + sum(shared[state] for state in _LATER)
        if scheduled and config.max_scheduled is not None and waiting + scheduled > config.max_scheduled:
            raise _LimitExceeded(tenant, "max_scheduled", waiting, config.max_scheduled)

    def _check_rate(self, tenant: str, count: int, config: Tenant) -> None:
        rate = config.max_enqueue_rate
        if rate is not None:
            pushed = self._pushed.setdefault(tenant, deque())
            while pushed and pushed[0][0] <= self._clock() - rate.period.total_seconds():
                pushed.popleft()
            lately = sum(number for _, number in pushed)
            if lately + count > rate.limit:
                raise _LimitExceeded(tenant, "max_enqueue_rate", lately, rate.limit)

    def _tell_exceeded(self, error: _LimitExceeded) -> None:
        """Publish that a tenant has reached a limit, at most once a second."""
        now, tenant = self._clock(), error.event.tenant_id
        if self.record is not None and now - self._told_at.get(tenant, -1e9) >= TELL_SECONDS:
            self._told_at[tenant] = now
            self.record(tenant, error.event)

    def _set_limits(self, table: SettingTable[Tenant]) -> None:
        self.weights = sum(one.fairness_weight for one in table.known.values())
        self._limits.tenants = {
            name: RateLimitPolicy(key=f"tenant:{name}", concurrency=config.max_concurrency)
            for name, config in table.known.items()
            if config.max_concurrency is not None
        }
        self._pushed = {name: one for name, one in self._pushed.items() if table.get(name) is not None}
        self._told_at = {name: at for name, at in self._told_at.items() if table.get(name) is not None}


def count_of(counts: JobCounts, tenant: str, states: frozenset[str]) -> int:
    """Return how many jobs a tenant has in some states."""
    return sum(n for own in counts.of_group(tenant).values() for state, n in own.items() if state in states)


def read_tenant(limits: object, before: Tenant) -> Tenant:
    """Return the settings of a tenant with the changes of a request. Raises RequestRefused."""
    if not isinstance(limits, dict):
        raise invalid("limits", "must be an object")
    unknown = sorted(set(limits) - {*NAMES, "max_enqueue_rate", "reason"})
    if unknown:
        raise RequestRefused("unsupported", f"limits.{unknown[0]} cannot be set.", details={"field": unknown[0]})
    changes: dict[str, object] = {}
    for name in NAMES:
        if name in limits:
            changes[name] = _count(limits[name], f"limits.{name}")
    if "max_enqueue_rate" in limits:
        changes["max_enqueue_rate"] = _rate(limits["max_enqueue_rate"])
    reason = limits.get("reason", "")
    if not isinstance(reason, str) or len(reason) > 1000:
        raise invalid("limits.reason", "must be a string of at most 1000 characters")
    return msgspec.structs.replace(before, reason=reason, **changes)


def check_name(name: str) -> None:
    """Raise RequestRefused for an invalid tenant name."""
    if TENANT.fullmatch(name) is None:
        raise invalid("tenant_id", "must be at most 48 lower-case letters, digits and '-'")


def form_of_limits(config: Tenant) -> Form:
    """Return the limits for a response."""
    form: Form = {name: getattr(config, name) for name in NAMES if getattr(config, name) is not None}
    if config.max_enqueue_rate is not None:
        rate = config.max_enqueue_rate
        form["max_enqueue_rate"] = {"limit": rate.limit, "period": format_duration(rate.period)}
    return form


def _count(value: object, field: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST):
        raise invalid(field, "must be an integer of at least 0")
    return value


def _rate(value: object) -> EnqueueRate | None:
    if value is None:
        return None
    field = "limits.max_enqueue_rate"
    if not isinstance(value, dict):
        raise invalid(field, "must be an object")
    limit, period = _count(value.get("limit"), f"{field}.limit"), value.get("period")
    try:
        read = parse_duration(period if isinstance(period, str) else "", "period")
    except InvalidJob:
        raise invalid(f"{field}.period", "must be an ISO 8601 duration") from None
    if limit is None or not timedelta(0) < read <= timedelta(days=1):
        raise invalid(field, "must have a limit, and a period of at most a day")
    return EnqueueRate(limit, read)


class _LimitExceeded(RequestRefused):
    """A push that is refused because of a limit of its tenant."""

    def __init__(self, tenant: str, limit: str, current: int, maximum: int) -> None:
        details: Form = {"tenant_id": tenant, "limit": limit, "current": current, "maximum": maximum}
        super().__init__(
            "TENANT_LIMIT_EXCEEDED", f"Tenant {tenant!r} has exceeded {limit} ({maximum}).", details=details
        )
        self.event = TenantLimitExceeded(tenant_id=tenant, limit=limit, current=current, maximum=maximum)
