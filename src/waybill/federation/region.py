"""A region at run time: its connection, its health, its circuit breaker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.federation.breaker import CLOSED, HALF_OPEN, CircuitBreaker
from waybill.federation.configuration import Federation, RegionEntry
from waybill.federation.connection import MAX_ANSWER_BYTES, RegionConnection, RegionFailed
from waybill.http.answer import Answer
from waybill.ojs.spec.timestamps import format_timestamp

HEALTH: Final = "/ojs/v1/health"
MAX_HEALTH_BYTES: Final = 64 * 1024
HEALTHY: Final = "healthy"
UNHEALTHY: Final = "unhealthy"


class _Health(msgspec.Struct):
    status: str


_NO_HEADERS: Final[Mapping[str, str]] = {}


class Region:
    """One region of a federation."""

    def __init__(
        self, entry: RegionEntry, federation: Federation, field: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is sent before the first request. Raises InvalidFederation."""
        self.entry = entry
        self.id = entry.id
        self.is_local = entry.id == federation.local_region
        self.breaker = CircuitBreaker(
            federation.circuit_breaker.failure_threshold, federation.circuit_breaker.cooldown_seconds, clock
        )
        self.latency_ms: float | None = None
        self.checked_at: str | None = None
        self.problem: str | None = "it was not checked yet"
        """Why it is unhealthy."""
        self.interval_seconds = entry.health_interval_seconds or federation.health_check.interval_seconds
        self._check_seconds = federation.health_check.timeout_seconds
        self._timeout_seconds = federation.request_timeout_seconds
        self._connection = RegionConnection(entry, field)

    @property
    def status(self) -> str:
        """Return healthy or unhealthy."""
        return HEALTHY if self.problem is None else UNHEALTHY

    @property
    def is_available(self) -> bool:
        """Whether jobs can be sent there."""
        return self.problem is None and self.breaker.is_ready

    @property
    def obstacle(self) -> str:
        """Why no jobs can be sent there."""
        if self.problem is not None:
            return self.problem
        return "" if self.breaker.is_ready else f"its circuit breaker is {self.breaker.state}"

    def serves(self, queue: str) -> bool:
        """Whether it serves a queue."""
        return not self.entry.queues or queue in self.entry.queues

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        wait_seconds: float = 0.0,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Answer:
        """Send a request, unless the circuit breaker is open. Raises RegionFailed.

        `wait_seconds` is how long the region may wait before answering.
        """
        if not self.breaker.allow():
            raise RegionFailed(f"its circuit breaker is {self.breaker.state}", may_have_arrived=False)
        try:
            answer = await self._connection.send(
                method, path, body, headers, self._timeout_seconds + wait_seconds, max_bytes
            )
        except RegionFailed:
            self.breaker.failed()
            raise
        except BaseException:
            self.breaker.gave_up()
            raise
        self.breaker.succeeded()
        return answer

    async def check(self) -> bool:
        """Check the health; return whether the region is healthy (ojs-federation section 6.2).

        A successful check is the probe of a half-open breaker. It does not reset the failures of other requests.
        """
        began = time.monotonic()
        try:
            answer = await self._connection.send(
                "GET", HEALTH, None, _NO_HEADERS, self._check_seconds, MAX_HEALTH_BYTES
            )
            self.problem = _problem_of(answer)
        except RegionFailed as error:
            self.problem = error.reason
        self.checked_at = format_timestamp(datetime.now(UTC))
        if self.problem is not None:
            self.latency_ms = None
            self.breaker.failed()
            return False
        self.latency_ms = round((time.monotonic() - began) * 1000, 3)
        if self.breaker.state == HALF_OPEN and self.breaker.is_ready:
            self.breaker.succeeded()
        return True

    def form(self) -> dict[str, object]:
        """Return the region for the registry (section 10.1)."""
        found: dict[str, object] = {
            "id": self.id,
            "url": self.entry.url,
            "status": self.status,
            "latency_ms": self.latency_ms,
            "circuit_breaker": self.breaker.state,
            "last_health_check": self.checked_at,
            "is_local": self.is_local,
            "weight": self.entry.weight,
            "priority": self.entry.priority,
            "tags": list(self.entry.tags),
            "queues": list(self.entry.queues),
        }
        if self.problem is not None:
            found["problem"] = self.problem
        elif self.breaker.state != CLOSED:
            found["problem"] = self.obstacle or "its circuit breaker is half-open"
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def check_for_ever(self, then: Callable[[Region], None]) -> None:
        """Check the health at intervals; `then` is called after each success."""
        while True:
            await asyncio.sleep(self.interval_seconds)
            if await self.check():
                then(self)


def _problem_of(answer: Answer) -> str | None:
    if answer.status != 200:
        return f"its health check answers {answer.status}"
    try:
        status = msgspec.json.decode(answer.body, type=_Health).status
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "its health check answers without a status"
    if status == "ok":
        return None
    return f"its status is {status!r:.100}"
