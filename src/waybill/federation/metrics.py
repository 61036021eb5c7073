"""Prometheus metrics of a federation. Names of regions need no quoting, because they are checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from waybill.federation.breaker import CLOSED, HALF_OPEN, OPEN
from waybill.federation.regions import Regions

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STATES: Final = (CLOSED, HALF_OPEN, OPEN)


def lines_of(regions: Regions, failovers: Mapping[tuple[str, str], int], doubtful_count: int) -> Iterator[str]:
    """Yield the metrics of regions and failovers."""
    yield from _head("ojs_federation_region_healthy", "gauge", "Whether the last health check of a region succeeded.")
    for region in regions:
        yield f'ojs_federation_region_healthy{{region="{region.id}"}} {int(region.problem is None)}'
    yield from _head("ojs_federation_region_latency_seconds", "gauge", "Duration of the last health check.")
    for region in regions:
        if region.latency_ms is not None:
            yield f'ojs_federation_region_latency_seconds{{region="{region.id}"}} {region.latency_ms / 1000:g}'
    yield from _head("ojs_federation_circuit_breaker", "gauge", "0 for closed, 1 for half-open, 2 for open.")
    for region in regions:
        yield f'ojs_federation_circuit_breaker{{region="{region.id}"}} {_STATES.index(region.breaker.state)}'
    yield from _head("ojs_federation_failovers_total", "counter", "Jobs that went to another region.")
    for (one, other), count in sorted(failovers.items()):
        yield f'ojs_federation_failovers_total{{from_region="{one}",to_region="{other}"}} {count}'
    yield from _head("ojs_federation_doubtful_jobs", "gauge", "Jobs that a region without an answer may also have.")
    yield f"ojs_federation_doubtful_jobs {doubtful_count}"
    yield ""


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"
