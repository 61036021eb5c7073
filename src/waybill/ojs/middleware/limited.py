"""The base of limits: permits by key, and the handling of jobs without a permit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from waybill.client.ranges import check_number
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.client import Jobs
from waybill.ojs.errors import DiscardJob, PostponeJob
from waybill.ojs.middleware.permit_pool import Permit, PermitPool, check_limit
from waybill.ojs.spec.rate_limit import OnLimit

KEYS_REMEMBERED: Final = 1000
MAX_SECONDS: Final = 31_536_000


@dataclass(frozen=True)
class WaitPolicy:
    """How long a job waits for a permit in its worker, where it occupies a place, before it returns to the broker.

    Then it is redelivered after `postpone_seconds`, and no attempt is used. With `drop` it is discarded instead.
    """

    wait_seconds: float = 5.0
    postpone_seconds: float = 1.0
    drop: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a time out of range."""
        check_number("wait_seconds", self.wait_seconds, 0, MAX_SECONDS)
        check_number("postpone_seconds", self.postpone_seconds, 0, MAX_SECONDS)

    def for_action(self, action: OnLimit) -> WaitPolicy:
        """Return the policy for a job's `on_limit`."""
        if action == "wait":
            return self
        return replace(self, wait_seconds=min(self.wait_seconds, 0.05), drop=action == "drop")


class KeyedPermitPools:
    """A pool of permits for each key. Keeps the KEYS_REMEMBERED most recently used pools."""

    def __init__(self, jobs: Jobs, count: int, period_seconds: float | None = None) -> None:
        """See `PermitPool`."""
        check_limit(count, period_seconds)
        self._jobs = jobs
        self._count = count
        self._period_seconds = period_seconds
        self._by_key: BoundedDict[str, PermitPool] = BoundedDict(KEYS_REMEMBERED)

    def of(self, key: str) -> PermitPool:
        """Return the permits of a key. Raises InvalidJob for an invalid key."""
        permits = self._by_key.get(key)
        if permits is None:
            permits = self._by_key[key] = PermitPool(self._jobs, key, self._count, period_seconds=self._period_seconds)
        self._by_key.move_to_end(key)
        return permits


async def acquire(permits: PermitPool, wait_policy: WaitPolicy) -> Permit:
    """Return a permit. Raises PostponeJob, or DiscardJob, if there is none in time."""
    try:
        return await permits.acquire(wait_policy.wait_seconds)
    except TimeoutError as error:
        if wait_policy.drop:
            raise DiscardJob("the limit of its key is reached", type="rate_limited") from error
        raise PostponeJob(wait_policy.postpone_seconds) from error
