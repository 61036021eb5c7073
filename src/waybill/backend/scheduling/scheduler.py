"""Decides from which queues a fetch takes jobs, and how many (ojs-fair-scheduling).

By default, queues are served in the order of the worker's list. A worker may request another strategy. Workers of a
pool always use the strategy of the pool.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from waybill.backend.errors import RequestRefused, invalid, not_found
from waybill.backend.job_form import Form
from waybill.backend.leases import Lease, Leases
from waybill.backend.scheduling.dispatches import WINDOW_SECONDS, Dispatches
from waybill.backend.scheduling.pool import (
    LEAST_LOADED,
    ROUND_ROBIN,
    STRICT,
    WEIGHTED,
    Pool,
    check_pool_name,
    form_of_pool,
    read_strategy,
    read_weights,
)
from waybill.backend.scheduling.rotation import (
    Rotation,
    Rotations,
    Step,
    deepest_first,
    guaranteed_steps,
    in_order,
    with_rest,
)
from waybill.backend.settings import Settings, SettingTable
from waybill.backend.tenants import Tenants
from waybill.backend.workers import HttpWorkers
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import parse_timestamp

CLOSED: Final = "permission_denied"


class Plan(NamedTuple):
    """The next steps of a fetch, and its maximum number of jobs, which is 0 while its pool is at its limit."""

    steps: list[Step]
    most: int
    due: list[Step]
    """The share of each queue in the rotation; empty without a rotation."""


class Visit:
    """One fetch: it may visit its queues several times while it waits, each time with new steps."""

    pool_name = ""

    def __init__(
        self, scheduler: Scheduler, queues: list[str], strategy: str, weights: Mapping[str, float], most: int
    ) -> None:
        self.queues = queues
        self._scheduler = scheduler
        self._strategy = strategy
        self._weights = weights
        self._most = most

    async def begin(self) -> Plan:
        """Return the next steps. `end` must follow."""
        return await self._plan(self._most)

    def end(self, plan: Plan, leases: Sequence[Lease]) -> None:
        """Count the jobs that were found."""
        if plan.due:
            found = Counter(lease.execution.queue for lease in leases)
            self._rotation().advance(self._weights, plan.due, found, plan.most)
        self._scheduler.dispatched(self.pool_name, leases)

    async def _plan(self, most: int) -> Plan:
        if len(self.queues) == 1 or self._strategy == STRICT:
            return Plan(in_order(self.queues, most), most, [])
        if self._strategy == LEAST_LOADED:
            available = await self._scheduler.available(self.queues)
            return Plan(deepest_first(self.queues, available, most), most, [])
        due = self._rotation().plan(self._weights, most)
        return Plan(with_rest(due, most), most, due)

    def _rotation(self) -> Rotation:
        return self._scheduler.rotations.get(self.pool_name or tuple(self._weights.items()))


class PoolVisit(Visit):
    """A fetch by a worker of a pool. Its jobs are reserved from `begin` to `end`."""

    def __init__(
        self, scheduler: Scheduler, name: str, pool: Pool, queues: list[str], weights: Mapping[str, float], most: int
    ) -> None:
        super().__init__(scheduler, queues, pool.strategy, weights, most)
        self.pool_name = name
        self._pool = pool

    async def begin(self) -> Plan:
        """Return the next steps within the limit of the pool, guaranteed shares first."""
        pool, scheduler, name = self._pool, self._scheduler, self.pool_name
        most = self._most
        if pool.concurrency is not None:
            most = max(0, min(most, pool.concurrency - scheduler.active(name) - scheduler.reserved[name]))
        if not most:
            return Plan([], 0, [])
        scheduler.reserved[name] += most
        try:
            plan = await self._plan(most)
        except BaseException:
            scheduler.reserved[name] -= most
            raise
        prevention = pool.starvation_prevention
        if prevention is None:
            return plan
        counts = scheduler.dispatches.of_pool(name, prevention.rotation_seconds)
        return plan._replace(
            steps=guaranteed_steps(self.queues, counts, prevention.min_dispatch_ratio, most) + plan.steps
        )

    def end(self, plan: Plan, leases: Sequence[Lease]) -> None:
        """Count the jobs that were found, and end the reservation."""
        self._scheduler.reserved[self.pool_name] -= plan.most
        super().end(plan, leases)


class Scheduler:
    """The scheduler of one server; dispatches of other servers do not count."""

    def __init__(
        self,
        settings: Settings,
        leases: Leases,
        workers: HttpWorkers,
        tenants: Tenants,
        job_counts: Callable[[], Awaitable[JobCounts]],
        clock: Callable[[], float],
    ) -> None:
        """`clock` returns seconds."""
        self.pools: SettingTable[Pool] = settings.table("pool", Pool)
        self.pools.on_read = self._read_pools
        self.dispatches = Dispatches(clock)
        self.reserved: Counter[str] = Counter()
        """Jobs reserved by fetches in progress, by pool."""
        self.rotations = Rotations()
        self._leases = leases
        self._workers = workers
        self._tenants = tenants
        self._job_counts = job_counts
        self._isolated: dict[str, str] = {}

    def visit(self, worker_id: str, body: Form, queues: Sequence[str] | None, count: int) -> Visit:
        """Return the visit for a fetch of up to `count` jobs. `queues` is None if the request names none.

        Raises RequestRefused.
        """
        name = self._pool_of(worker_id, body)
        pool = self.pools.get(name) if name else None
        if pool is None:
            if queues is None:
                raise invalid("queues", "must name at least one queue, unless the worker is in a pool")
            strategy = read_strategy(body.get("strategy", STRICT))
            allowed = self._open_queues(queues)
            return Visit(
                self, allowed, strategy, self._weights(strategy, allowed, read_weights(body.get("weights"))), count
            )
        allowed = [queue for queue in pool.queues if queues is None or queue in queues]
        if not allowed:
            raise RequestRefused(CLOSED, f"The pool {name!r} has none of these queues.", details={"pool": name})
        return PoolVisit(self, name, pool, allowed, self._weights(pool.strategy, allowed, pool.weights), count)

    async def available(self, queues: Sequence[str]) -> dict[str, int]:
        """Return the number of available jobs of each queue."""
        by_pair = (await self._job_counts()).by_pair
        return {queue: by_pair.get((queue, State.AVAILABLE.value), 0) for queue in queues}

    def dispatched(self, pool: str, leases: Sequence[Lease]) -> None:
        """Count jobs that a fetch returns to a worker of a pool; "" means no pool."""
        now = datetime.now(UTC)
        waits: defaultdict[str, list[int]] = defaultdict(list)
        for lease in leases:
            waits[lease.execution.queue].append(_waited_ms(lease, now))
        for queue, waits_ms in waits.items():
            self.dispatches.add(queue, pool, waits_ms)

    def active(self, pool: str) -> int:
        """Return how many jobs the workers of a pool have from this server."""
        members = self._workers.members(pool)
        return self._leases.count_of(members) if members else 0

    def join(self, worker_id: str, pool: object) -> str:
        """Add a worker to a pool; returns its name. Raises RequestRefused."""
        name = check_pool_name(pool)
        if self.pools.get(name) is None:
            raise not_found("pool", name)
        if not worker_id:
            raise invalid("worker_id", "is required for a worker of a pool")
        self._workers.join(worker_id, name)
        return name

    def form_of(self, name: str) -> Form:
        """Return a pool with its workers and running jobs for a response."""
        pool = self.pools.get(name)
        if pool is None:
            raise not_found("pool", name)
        active = self.active(name)
        workers = len(self._workers.members(name))
        form = form_of_pool(name, pool) | {"active_workers": workers, "active_jobs": active}
        if pool.concurrency is not None:
            form["utilization"] = round(active / pool.concurrency, 4)
        return form | {"updated_at": self.pools.updated_at(name)}

    def stats(self, active: Mapping[str, int]) -> list[Form]:
        """Return the dispatches of the last minute by queue. `active` has the numbers of running jobs by queue."""
        found = self.dispatches.by_queue()
        ratios = _ratios(found)
        return [
            {
                "name": queue,
                "dispatch_count_1m": count,
                "dispatch_ratio_1m": round(ratios[queue], 4),
                "avg_wait_ms": round(wait_ms),
                "active_jobs": active.get(queue, 0),
            }
            for queue, (count, wait_ms) in sorted(found.items())
        ]

    def ratios(self) -> dict[str, float]:
        """Return the share of each queue in the dispatches of the last minute."""
        return _ratios(self.dispatches.by_queue())

    def utilization(self) -> dict[str, float]:
        """Return the share of its concurrency that each pool uses; pools without a limit are left out."""
        bounds = {name: pool.concurrency for name, pool in self.pools.items()}
        return {name: self.active(name) / bound for name, bound in bounds.items() if bound}

    def _weights(self, strategy: str, queues: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
        """Return the weight of each queue: its own, else its tenant's (ojs-multi-tenancy section 7.2).

        Other strategies have no weights.
        """
        if strategy == ROUND_ROBIN:
            return dict.fromkeys(queues, 1)
        if strategy == WEIGHTED:
            return {queue: weights.get(queue) or self._tenants.weight_of(queue) for queue in queues}
        return {}

    def _pool_of(self, worker_id: str, body: Form) -> str:
        if body.get("pool") is not None:
            return self.join(worker_id, body["pool"])
        return self._workers.pool_of(worker_id)

    def _open_queues(self, queues: Sequence[str]) -> list[str]:
        """Return the queues that are not reserved for a pool."""
        allowed = [queue for queue in queues if queue not in self._isolated]
        if not allowed:
            queue = queues[0]
            details: Form = {"queue": queue, "pool": self._isolated[queue]}
            raise RequestRefused(CLOSED, f"Queue {queue!r} is only available to workers of a pool.", details=details)
        return allowed

    def _read_pools(self, pools: SettingTable[Pool]) -> None:
        self._isolated = {queue: name for name, pool in pools.items() if pool.isolated for queue in pool.queues}
        intervals = [one.rotation_seconds for _, pool in pools.items() if (one := pool.starvation_prevention)]
        self.dispatches.keep_seconds = max(WINDOW_SECONDS, *intervals, 0.0)


def _ratios(dispatched: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    total = sum(count for count, _ in dispatched.values())
    return {queue: count / total for queue, (count, _) in dispatched.items()}


def _waited_ms(lease: Lease, now: datetime) -> int:
    """Return how long a job was available before it was fetched, as far as its envelope tells: 0 after a retry."""
    execution = lease.execution
    envelope = execution.envelope
    since = envelope.scheduled_at or envelope.enqueued_at
    if execution.attempt > 1 or not since:
        return 0
    moment = _moment(since)
    return 0 if moment is None else max(0, int((now - moment).total_seconds() * 1000))


@functools.lru_cache(1000)
def _moment(text: str) -> datetime | None:
    """Return the time of a text, None if it has none. Jobs that were pushed together have the same one."""
    try:
        return parse_timestamp(text, "time")
    except InvalidJob:
        return None
