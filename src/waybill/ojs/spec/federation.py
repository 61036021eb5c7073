"""The federation attributes in the metadata of a job (ojs-federation section 9.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PREFIX: Final = "ojs.federation."
FEDERATION_ID: Final = f"{PREFIX}federation_id"
REGION: Final = f"{PREFIX}region"
STRATEGY: Final = f"{PREFIX}region_affinity"
SOURCE_REGION: Final = f"{PREFIX}source_region"
ROUTED_AT: Final = f"{PREFIX}routed_at"

GEO_PIN: Final = "geo-pin"

_MetaOf = Mapping[str, Any]


def meta_of(job: _MetaOf) -> dict[str, Any]:
    """Return the metadata of a job as clients push it: at the top or under `options`, which goes first.

    `metadata` is another name for it; where both name an attribute, `meta` counts.
    """
    options = job.get("options")
    places = [job, options] if isinstance(options, dict) else [job]
    found: dict[str, Any] = {}
    for name in ("metadata", "meta"):
        given = [place[name] for place in places if place.get(name) is not None]
        if given and isinstance(given[-1], dict):
            found |= given[-1]
    return found


def pinned_region(meta: _MetaOf) -> object:
    """Return the region that a job must run in, None if it may run anywhere.

    A job that names a region and no strategy is pinned: to route it elsewhere would be the worse mistake.
    """
    strategy = meta.get(STRATEGY)
    return meta.get(REGION) if strategy is None or strategy == GEO_PIN else None
