"""Decides which job is fetched next, by the job's limits (ojs-rate-limiting) and by priority.

Permits are shared with workers over AMQP (`middleware.permit_pool`) and with all servers of one broker. A job without a
permit is kept here, unacknowledged, for the next fetch, and is offered before later jobs. When fetches stop, it returns
to its queue.

If several priorities share one level of the broker, some jobs are taken in advance to choose those of the highest one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.queue_configs import DEFAULT
from waybill.backend.settings import Settings
from waybill.client import Delivery
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.client import Jobs
from waybill.ojs.errors import InvalidJob, ResponseCode
from waybill.ojs.middleware.limited import KeyedPermitPools
from waybill.ojs.middleware.permit_pool import Permit, PermitPool
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.envelope import Envelope, ErrorRecord
from waybill.ojs.spec.priority import EXACT_LEVELS, message_priority
from waybill.ojs.spec.rate_limit import RateLimitPolicy, Window, read_rate_limit
from waybill.ojs.spec.rate_limit_events import (
    RateLimitAdjusted,
    RateLimitDropped,
    RateLimitExceeded,
    RateLimitReleased,
)
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.worker.execution import Execution, Failure
from waybill.ojs.worker.settlement import Settlement

MAX_HELD: Final = 1000
"""The maximum number of held jobs of a queue: no more are taken before some of these can start."""
WINDOW: Final = 100
"""The number of jobs that are sorted by exact priority, if queues have few levels."""
HOLD_SECONDS: Final = 5.0
RECHECK_SECONDS: Final = 0.1
"""How often a waiting fetch checks again while jobs are held."""
KEYS_REMEMBERED: Final = 10_000
POOLS_REMEMBERED: Final = 200


class Override(msgspec.Struct, omit_defaults=True):
    """Limits set for a key until a time, RFC 3339 in UTC; None means the limits of the jobs."""

    concurrency: int | None = None
    rate: Window | None = None
    throttle: Window | None = None
    expires_at: str | None = None


class Limits:
    """The limits of one backend."""

    def __init__(
        self, jobs: Jobs, settlement: Settlement, events: EventWriter, levels: int, settings: Settings
    ) -> None:
        """`levels` is the number of priority levels of queues."""
        self._jobs = jobs
        self._settlement = settlement
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._pools: BoundedDict[object, KeyedPermitPools] = BoundedDict(POOLS_REMEMBERED)
        self._held: defaultdict[str, dict[Delivery, Execution]] = defaultdict(dict)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._blocked: set[Delivery] = set()
        """The held jobs that wait for a permit."""
        self._busy: set[Delivery] = set()
        """The held jobs whose permits are being acquired."""
        self._levels = levels
        self._priorities: dict[tuple[str, int], int] = {}
        self.mixed: set[str] = set()
        """Queues in which several priorities share one level of the broker."""
        self._permits: dict[Execution, list[Permit]] = {}
        """The permits of leased jobs."""
        self._keys: dict[Execution, list[str]] = {}
        self.known: BoundedDict[str, RateLimitPolicy] = BoundedDict(KEYS_REMEMBERED)
        """The latest policies by key."""
        self.started_at: BoundedDict[str, datetime] = BoundedDict(KEYS_REMEMBERED)
        """When the last job of a key started here."""
        self.active: Counter[str] = Counter()
        self.overrides = settings.table("limit-override", Override)
        self.queues = settings.table("queue-limit", RateLimitPolicy)
        """The limits of queues."""
        self.tenants: dict[str, RateLimitPolicy] = {}
        """The limits of tenants."""

    # --- at a fetch ---

    def apply_to(self, execution: Execution) -> bool:
        """Whether a job has a limit."""
        return (
            execution.envelope.rate_limit is not None
            or (len(self.queues) > 0 and self._limit_of(execution.queue) is not None)
            or (bool(self.tenants) and self._limit_of_tenant(execution) is not None)
        )

    async def admits(self, execution: Execution) -> bool:
        """Return whether a job with a limit may start now; if not, apply its `on_limit`. Raises ClientError."""
        try:
            policies = self._policies(execution)
        except InvalidJob as error:
            self._settlement.unreadable(execution.delivery, execution.queue, error)
            return False
        missing = await self._take(execution, policies)
        if missing is not None:
            self._hold_back(execution, missing)
        return missing is None

    async def held_jobs(
        self,
        queue: str,
        count: int,
        may_start: Callable[[Execution], bool],
        fits: Callable[[Execution], bool] | None = None,
    ) -> list[Execution]:
        """Return up to `count` held jobs that may start now; `may_start` settles those that must not.

        Jobs for which `fits` is false are held for another fetch.
        """
        held = self._held.get(queue)
        found: list[Execution] = []
        full: set[str] = set()
        for delivery, execution in sorted(held.items(), key=_rank) if held else ():
            if len(found) >= count:
                break
            if delivery in self._busy or delivery not in self._held.get(queue, ()):
                continue
            if not delivery.is_current or not may_start(execution):
                self._release(queue, delivery)
                continue
            if fits is not None and not fits(execution):
                continue
            policies = self._policies(execution)
            if any(one.key in full for one in policies):
                continue
            # Another fetch must not take it meanwhile.
            self._busy.add(delivery)
            try:
                missing = await self._take(execution, policies)
            except BaseException:
                for taken in found:
                    self.ended(taken)
                    self.hold(taken)
                raise
            finally:
                self._busy.discard(delivery)
            if missing is not None:
                full.add(missing.key)
                self._hold_back(execution, missing)
                continue
            found.append(execution)
            for one in policies if delivery in self._blocked else ():
                released = RateLimitReleased(key=one.key, strategy=_strategy(one), job_id=execution.envelope.id)
                self._events.record(one.key, released)
            self._release(queue, delivery)
        return found

    def take_held(self, queue: str, job_id: str) -> Execution | None:
        """Return a held job that is to be changed, None if it is not held or about to start."""
        for delivery, execution in self._held.get(queue, {}).items():
            if execution.envelope.id == job_id and delivery.is_current and delivery not in self._busy:
                self._release(queue, delivery)
                return execution
        return None

    def note_pushed(self, envelope: Envelope) -> None:
        """Record a job's priority, and its limit: clients may ask for it before a worker has asked for the job."""
        self.note_priority(envelope.queue, envelope.priority)
        if envelope.rate_limit is not None:
            self._remember(read_rate_limit(envelope.rate_limit))

    def note_priority(self, queue: str, priority: int) -> None:
        """Record a job's priority: its queue may have fewer levels, so two priorities may share one."""
        if priority == 0 or queue in self.mixed or self._levels >= EXACT_LEVELS:
            return
        level = queue, message_priority(priority, self._levels)
        if len(self._priorities) >= KEYS_REMEMBERED:
            self._priorities.clear()
        if self._priorities.setdefault(level, priority) != priority:
            self.mixed.add(queue)

    def room(self, queue: str) -> int:
        """Return how many more jobs to take in advance."""
        held = self._held.get(queue, {})
        return min(WINDOW - sum(delivery not in self._blocked for delivery in held), MAX_HELD - len(held))

    def is_full(self, queue: str) -> bool:
        """Return whether the limit of held jobs of a queue is reached."""
        return len(self._held.get(queue, ())) >= MAX_HELD

    def holds_any(self) -> bool:
        """Whether held jobs may be able to start soon."""
        return bool(self._timers)

    def waiting(self, *, queue: str | None = None, key: str | None = None) -> int:
        """Return the number of held jobs of a queue or with a key."""
        if queue is not None:
            return len(self._held.get(queue, ()))
        return sum(
            any(one.key == key for one in self._policies(execution))
            for held in self._held.values()
            for execution in held.values()
        )

    def ended(self, execution: Execution) -> None:
        """Release the permits of an attempt."""
        permits = self._permits.pop(execution, None)
        if permits is not None:
            for permit in permits:
                permit.release()
        for one in self._keys.pop(execution, ()):
            self.active[one] -= 1
            if self.active[one] <= 0:
                del self.active[one]

    def close(self) -> None:
        """Requeue held jobs."""
        for queue in list(self._timers):
            self._give_back(queue)

    # --- overrides ---

    def override_of(self, key: str) -> Override | None:
        """Return the current override for a key."""
        found = self.overrides.get(key)
        is_over = found is not None and found.expires_at is not None and found.expires_at <= _now()
        return None if is_over else found

    def stop_until(self, key: str, moment: datetime, reason: str) -> None:
        """Start no job of a key before a time, as the called service has requested (section 9.1)."""
        expires_at = format_timestamp(moment.astimezone(UTC))
        self.overrides.put_soon(key, Override(concurrency=0, expires_at=expires_at), expires_at=expires_at)
        self._events.record(key, RateLimitAdjusted(key=key, until=expires_at, reason=reason))

    def in_force(self, policy: RateLimitPolicy) -> RateLimitPolicy:
        """Return a policy with the override for its key."""
        found = self.override_of(policy.key)
        if found is None:
            return policy
        return msgspec.structs.replace(
            policy,
            concurrency=policy.concurrency if found.concurrency is None else found.concurrency,
            rate=found.rate or policy.rate,
            throttle=found.throttle or policy.throttle,
        )

    def pools_of(self, policy: RateLimitPolicy) -> dict[str, PermitPool]:
        """Return the permit pools of a policy, by kind of limit."""
        found: dict[str, PermitPool] = {}
        if policy.concurrency:
            found["concurrency"] = self._pool((policy.concurrency, None)).of(policy.key)
        if policy.rate is not None:
            found["rate"] = self._pool((policy.rate.limit, policy.rate.period)).of(policy.key)
        if policy.throttle is not None:
            found["throttle"] = self._pool((1, policy.throttle.period / policy.throttle.limit)).of(policy.key)
        return found

    # --- permits ---

    def _policies(self, execution: Execution) -> list[RateLimitPolicy]:
        found = []
        if execution.envelope.rate_limit is not None:
            found.append(read_rate_limit(execution.envelope.rate_limit))
        of_queue = self._limit_of(execution.queue)
        of_tenant = self._limit_of_tenant(execution)
        return [*found, *(one for one in (of_queue, of_tenant) if one is not None)]

    def _limit_of_tenant(self, execution: Execution) -> RateLimitPolicy | None:
        """Return the limit of the tenant whose queue a job is in, or that the job names."""
        tenant, dot, _ = execution.queue.partition(".")
        found = self.tenants.get(tenant) if dot else None
        named = execution.envelope.meta.get("tenant_id")
        return self.tenants.get(named) if found is None and isinstance(named, str) else found

    def _limit_of(self, queue: str) -> RateLimitPolicy | None:
        """Return the limit of a queue: its own, or with its own key that of all queues."""
        default = self.queues.get(DEFAULT)
        found = self.queues.get(queue)
        return found or (None if default is None else msgspec.structs.replace(default, key=f"queue:{queue}"))

    async def _take(self, execution: Execution, policies: list[RateLimitPolicy]) -> RateLimitPolicy | None:
        """Take all permits of a job. If one is missing, take none and return its policy."""
        taken: list[Permit] = []
        for policy in policies:
            self._remember(policy)
            in_force = self.in_force(policy)
            is_free = in_force.concurrency != 0
            # Concurrency first: a permit of a rate is used up even if the job cannot start.
            for pool in self.pools_of(in_force).values() if is_free else ():
                permit = await pool.take_now()
                if permit is None:
                    is_free = False
                    break
                taken.append(permit)
            if not is_free:
                for permit in taken:
                    permit.release()
                return in_force
        self._permits[execution] = taken
        self._keys[execution] = [policy.key for policy in policies]
        self.active.update(self._keys[execution])
        now = datetime.now(UTC)
        for policy in policies:
            if policy.rate is not None or policy.throttle is not None:
                self.started_at[policy.key] = now
        return None

    def _remember(self, policy: RateLimitPolicy) -> None:
        self.known[policy.key] = policy
        self.known.move_to_end(policy.key)

    def _pool(self, setting: tuple[int, timedelta | None]) -> KeyedPermitPools:
        found = self._pools.get(setting)
        if found is None:
            count, period = setting
            seconds = None if period is None else max(period.total_seconds(), 0.001)
            found = self._pools[setting] = KeyedPermitPools(self._jobs, count, seconds)
        self._pools.move_to_end(setting)
        return found

    def _hold_back(self, execution: Execution, policy: RateLimitPolicy) -> None:
        """Apply the `on_limit` of a job that may not start."""
        delivery = execution.delivery
        if delivery not in self._blocked:
            self._exceeded(execution, policy)
        if policy.on_limit == "wait":
            self._blocked.add(delivery)
            self.hold(execution)
            return
        self._release(execution.queue, delivery)
        if policy.on_limit == "reschedule":
            self._settlement.postponed(execution, _wait_seconds(policy))
        else:
            envelope = execution.envelope
            dropped = RateLimitDropped(key=policy.key, job_id=envelope.id, job_type=envelope.type)
            self._events.record(policy.key, dropped)
            record = ErrorRecord(type="rate_limited", message=f"the limit of {policy.key} is reached")
            self._settlement.failed(execution, Failure(record, ResponseCode.DISCARD), 0.0)

    def _exceeded(self, execution: Execution, policy: RateLimitPolicy) -> None:
        window = policy.rate or policy.throttle
        limit = policy.concurrency if policy.concurrency is not None else 0 if window is None else window.limit
        data = RateLimitExceeded(
            key=policy.key,
            strategy=_strategy(policy),
            limit=limit,
            current=self.active[policy.key],
            job_id=execution.envelope.id,
        )
        self._events.record(policy.key, data)

    # --- jobs that wait ---

    def hold(self, execution: Execution) -> None:
        """Hold a job for the next fetch."""
        queue = execution.queue
        self._held[queue][execution.delivery] = execution
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        self._timers[queue] = self._loop.call_later(HOLD_SECONDS, self._give_back, queue)

    def _release(self, queue: str, delivery: Delivery) -> None:
        self._blocked.discard(delivery)
        held = self._held.get(queue)
        if held is None:
            return
        held.pop(delivery, None)
        if not held:
            del self._held[queue]
            timer = self._timers.pop(queue, None)
            if timer is not None:
                timer.cancel()

    def _give_back(self, queue: str) -> None:
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        for delivery in list(self._held.get(queue, ())):
            if delivery in self._busy:
                continue
            self._release(queue, delivery)
            if delivery.is_current:
                self._settlement.hand_back(delivery, queue)


def _wait_seconds(policy: RateLimitPolicy) -> float:
    """Return the delay before a rescheduled job may start."""
    windows = [one.period.total_seconds() / one.limit for one in (policy.rate, policy.throttle) if one is not None]
    return max([1.0, *windows])


def _now() -> str:
    return format_timestamp(datetime.now(UTC))


def _rank(one: tuple[Delivery, Execution]) -> int:
    """Order jobs by priority; jobs of the same priority stay in order of arrival."""
    return -one[1].envelope.priority


def _strategy(policy: RateLimitPolicy) -> str:
    names = [name for name in ("concurrency", "rate", "throttle") if getattr(policy, name) is not None]
    return names[0] if names else "concurrency"
