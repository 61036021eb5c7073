"""The extensions that this server supports, and requests that require one (ojs-extension-lifecycle section 8.3)."""

from __future__ import annotations

from typing import Final

from waybill.backend.errors import RequestRefused
from waybill.backend.job_form import Form

REQUIRED: Final = "ojs-requires-extension"
"""The header of a request that requires extensions, separated by commas."""
EXTENSIONS: Final = [
    "urn:ojs:ext:admin-api",
    "urn:ojs:ext:backpressure",
    "urn:ojs:ext:bulk-operations",
    "urn:ojs:ext:dead-letter",
    "urn:ojs:ext:durable-execution",
    "urn:ojs:ext:execution-history",
    "urn:ojs:ext:experimental:job-versioning",
    "urn:ojs:ext:fair-scheduling",
    "urn:ojs:ext:graceful-shutdown",
    "urn:ojs:ext:multi-tenancy",
    "urn:ojs:ext:observability",
    "urn:ojs:ext:payload-limits",
    "urn:ojs:ext:priority",
    "urn:ojs:ext:progress",
    "urn:ojs:ext:queue-config",
    "urn:ojs:ext:rate-limiting",
    "urn:ojs:ext:results",
    "urn:ojs:ext:saga",
    "urn:ojs:ext:schema-registry",
    "urn:ojs:ext:timeouts",
    "urn:ojs:ext:webhooks",
]
FEDERATION: Final = "urn:ojs:ext:experimental:federation"
"""An extension of servers with a region."""
_CORE: Final = "urn:ojs:spec:"
"""The prefix of the core specifications, which this server supports."""
_OTHER_NAMES: Final = frozenset({"urn:ojs:ext:experimental:multi-tenancy", "urn:ojs:ext:job-versioning"})
"""Texts of the specification differ on which extensions are experimental."""


def extensions_of(region: str | None) -> list[str]:
    """Return the extensions of a server, which may have a region."""
    return EXTENSIONS if region is None else [*EXTENSIONS, FEDERATION]


def require(header: str, region: str | None) -> None:
    """Check that a server has all extensions of a header. Raises RequestRefused."""
    supported = {*extensions_of(region), *_OTHER_NAMES}
    for uri in (one.strip() for one in header.split(",")):
        if uri and uri not in supported and not uri.startswith(_CORE):
            details: Form = {"extension": uri[:300]}
            text = f"The extension {uri[:300]!r} is not supported by this server."
            raise RequestRefused("EXTENSION_NOT_SUPPORTED", text, details=details)
