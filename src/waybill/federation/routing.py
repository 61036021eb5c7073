"""Decides to which region a job goes, and to which others if that fails (ojs-federation sections 3.2 and 5).

Eligible regions have the job's tags and serve its queue. The strategy sorts them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from waybill.backend.errors import RequestRefused, invalid
from waybill.federation.configuration import (
    ACTIVE_PASSIVE,
    AFFINITY,
    GEO_PIN,
    GEOGRAPHIC,
    LATENCY_BASED,
    OVERFLOW,
    ROUND_ROBIN,
)
from waybill.federation.region import Region
from waybill.federation.regions import Regions
from waybill.federation.wanted import Wanted
from waybill.ojs.spec.federation import REGION

MAX_CYCLES: Final = 1000
"""The maximum number of round-robin cycles, one for each set of regions."""


@dataclass(frozen=True)
class RoutingPlan:
    """Where a job may go. `order` is that of the strategy; `targets` are the available regions in this order."""

    strategy: str
    order: Sequence[Region]
    targets: Sequence[Region]
    excluded: frozenset[str] = field(default_factory=frozenset)

    def candidates(self) -> list[dict[str, object]]:
        """Return all eligible regions, available ones first (section 10.2)."""
        places = {one.id: place for place, one in enumerate(self.targets)}
        ordered = [*self.targets, *(one for one in self.order if one.id not in places)]
        return [
            {
                "id": one.id,
                "score": round(1 / (1 + places[one.id]), 2) if one.id in places else 0.0,
                "reason": self._reason(one),
            }
            for one in ordered
        ]

    def _reason(self, region: Region) -> str:
        parts = ["local"] if region.is_local else []
        if region.obstacle:
            parts.append(region.obstacle)
        else:
            parts.append("healthy")
            if region.latency_ms is not None:
                parts.append(f"{region.latency_ms:g} ms")
            if region.id in self.excluded:
                parts.append("excluded from failover")
        return ", ".join(parts)


class Routing:
    """The routing of one federation."""

    def __init__(self, regions: Regions, chance: random.Random | None = None) -> None:
        """`chance` is for the strategy overflow."""
        self._regions = regions
        self._federation = regions.federation
        self._chance = chance or random.Random()  # noqa: S311 - not a secret
        self._positions: dict[tuple[str, ...], int] = {}

    def plan(self, wanted: Wanted, without: Collection[str] = (), *, is_dry: bool = False) -> RoutingPlan:
        """Return the plan for a job. `without`: regions that have failed. A dry run does not advance cycles.

        Raises RequestRefused for an unknown region, and for a queue that no region serves.
        """
        if wanted.region is not None:
            pinned = self._regions.get(wanted.region)
            if pinned is None:
                raise invalid(f"meta.{REGION}", f"there is no region {wanted.region!r:.80} in this federation")
            can_try = pinned.is_available and pinned.id not in without
            return RoutingPlan(GEO_PIN, [pinned], [pinned] if can_try else [])
        strategy = wanted.strategy or self._federation.default_strategy
        order = self._ordered(strategy, self._eligible(wanted), wanted, is_dry=is_dry)
        failover = self._federation.failover
        first, others = order[0], order[1:]
        if not failover.enabled:
            others = []
        preferred = {name: place for place, name in enumerate(failover.prefer_regions)}
        others = [one for one in others if one.id not in failover.exclude_regions]
        others.sort(key=lambda one: preferred.get(one.id, len(preferred)))
        targets = [one for one in (first, *others) if one.is_available and one.id not in without]
        return RoutingPlan(strategy, order, targets, frozenset(failover.exclude_regions))

    def _eligible(self, wanted: Wanted) -> list[Region]:
        """Return the eligible regions. Raises RequestRefused if there are none."""
        found = list(self._regions)
        known = {tag for one in found for tag in one.entry.tags}
        needed = wanted.tags & known
        found = [one for one in found if needed <= set(one.entry.tags)]
        # Regions that name the queue take precedence over those that serve all queues.
        serving = [one for one in found if wanted.queue in one.entry.queues]
        serving = serving or [one for one in found if not one.entry.queues]
        if not serving and not needed:
            default = self._regions.get(self._federation.default_region)
            serving = [] if default is None else [default]
        if serving:
            return serving
        tags = f" with the tags {', '.join(sorted(needed))}" if needed else ""
        details: dict[str, object] = {"queue": wanted.queue[:128], "tags": sorted(needed)}
        text = f"No region{tags} serves the queue {wanted.queue[:128]!r}."
        raise RequestRefused("unsupported", text, details=details, hint="GET /v1/federation/regions lists the regions.")

    def _ordered(self, strategy: str, regions: list[Region], wanted: Wanted, *, is_dry: bool) -> list[Region]:
        if strategy == AFFINITY:
            return sorted(regions, key=lambda one: (not one.is_local, _latency(one), one.entry.priority))
        if strategy == LATENCY_BASED:
            return sorted(regions, key=lambda one: (not one.is_available, _latency(one), one.entry.priority))
        if strategy == ACTIVE_PASSIVE:
            return sorted(regions, key=lambda one: one.entry.priority)
        if strategy == ROUND_ROBIN:
            return self._cycled(regions, is_dry=is_dry)
        if strategy == OVERFLOW:
            return sorted(regions, key=lambda one: (not one.is_available, -self._draw(one)))
        return self._by_hint(regions, wanted, is_dry=is_dry)

    def _cycled(self, regions: list[Region], *, is_dry: bool) -> list[Region]:
        key = tuple(one.id for one in regions)
        position = self._positions.get(key, 0) % len(regions)
        cycle = regions[position:] + regions[:position]
        if not is_dry:
            if len(self._positions) >= MAX_CYCLES:
                self._positions.clear()
            # The next job starts after the region that gets this one, not after a skipped one.
            skipped = next((place for place, one in enumerate(cycle) if one.is_available), 0)
            self._positions[key] = position + skipped + 1
        return cycle

    def _draw(self, region: Region) -> float:
        """Draw a random number, so that each region is first in proportion to its weight."""
        drawn: float = self._chance.random() ** (1 / region.entry.weight)
        return drawn

    def _by_hint(self, regions: list[Region], wanted: Wanted, *, is_dry: bool) -> list[Region]:
        """Put the region of the geographic hint first; the others follow by the default strategy."""
        default = self._federation.default_strategy
        ordered = self._ordered(AFFINITY if default == GEOGRAPHIC else default, regions, wanted, is_dry=is_dry)
        table = self._federation.geographic
        for hint in table.hints:
            value = (wanted.hints or {}).get(hint)
            mapped = table.regions.get(value) if isinstance(value, str) else None
            if mapped is not None:
                return sorted(ordered, key=lambda one: one.id != mapped)
        return ordered


def _latency(region: Region) -> float:
    return float("inf") if region.latency_ms is None else region.latency_ms
