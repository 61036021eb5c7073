"""The routing attributes of a job, and the attributes that the layer adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from waybill.backend.errors import invalid
from waybill.federation.configuration import GEO_PIN, STRATEGIES
from waybill.ojs.spec.federation import (
    FEDERATION_ID,
    REGION,
    ROUTED_AT,
    SOURCE_REGION,
    STRATEGY,
    meta_of,
    pinned_region,
)
from waybill.ojs.spec.identifiers import is_uuid7, new_id
from waybill.ojs.spec.timestamps import format_timestamp

Form = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """`strategy` empty: the federation's own. `region`: the one that the job is pinned to."""

    queue: str
    strategy: str = ""
    region: str | None = None
    tags: frozenset[str] = frozenset()
    hints: Mapping[str, object] | None = None


def wanted_of(job: Form) -> Wanted:
    """Read a pushed job. Raises RequestRefused for invalid federation attributes."""
    meta = meta_of(job)
    options = job.get("options")
    places: list[Form] = [options, job] if isinstance(options, dict) else [job]
    for name in ("meta", "metadata"):
        if any(not isinstance(place.get(name) or {}, dict) for place in places):
            raise invalid(name, "must be an object")
    federation_id = meta.get(FEDERATION_ID)
    if federation_id is not None and not (isinstance(federation_id, str) and is_uuid7(federation_id)):
        raise invalid(f"meta.{FEDERATION_ID}", "must be a UUIDv7")
    strategy, region = meta.get(STRATEGY), meta.get(REGION)
    if strategy is not None and strategy not in STRATEGIES:
        raise invalid(f"meta.{STRATEGY}", f"must be one of {', '.join(STRATEGIES)}")
    if region is not None and not isinstance(region, str):
        raise invalid(f"meta.{REGION}", "must be a string")
    pinned = pinned_region(meta)
    if region is not None and pinned is None:
        raise invalid(f"meta.{REGION}", f"is for the strategy {GEO_PIN}, and the job asks for {strategy}")
    if strategy == GEO_PIN and region is None:
        raise invalid(f"meta.{REGION}", f"is missing: the strategy {GEO_PIN} needs it")
    tags: list[object] = next((place["tags"] for place in places if isinstance(place.get("tags"), list)), [])
    queue = next((place["queue"] for place in places if place.get("queue") is not None), "default")
    return Wanted(
        queue if isinstance(queue, str) else "default",
        GEO_PIN if region is not None else strategy or "",
        region,
        frozenset(one for one in tags if isinstance(one, str)),
        meta,
    )


def stamp(job: Form, local_region: str | None, before: Form | None = None) -> Form:
    """Add federation attributes to a job; those of the client are kept (section 9.1).

    `before` are the attributes of the first push of the same job, which are added again.
    """
    meta = meta_of(job)
    meta.setdefault(FEDERATION_ID, new_id())
    if local_region is not None:
        meta.setdefault(SOURCE_REGION, local_region)
    meta[ROUTED_AT] = format_timestamp(datetime.now(UTC))
    meta |= before or {}
    job.pop("metadata", None)
    options = job.get("options")
    if isinstance(options, dict):
        options.pop("metadata", None)
        options.pop("meta", None)
    job["meta"] = meta
    return {name: meta[name] for name in (FEDERATION_ID, SOURCE_REGION, ROUTED_AT) if name in meta}
