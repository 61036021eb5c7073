"""Which versions of jobs a worker supports (ojs-job-versioning section 8).

A worker declares ranges per type when it fetches or in heartbeats. A job with a version goes to a worker of this server
whose range includes it; a worker without a range for a type takes all versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from waybill.backend.errors import invalid
from waybill.ojs.worker.execution import Execution

MOST_HANDLERS: Final = 1000
Version = tuple[int, ...]
"""Major, minor, and in schema registries a patch. Without a patch, a bound stands for all of them."""

_VERSION = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?(?:\.(\d{1,6}))?(?:\.\d+)*(?:[-+].*)?")
_BOUND = re.compile(r"(>=|<=|>|<|=)?\s*(\d{1,6}(?:\.\d{1,6}){0,2})(?:\s+|$)")
_COMPARISONS: Final[Mapping[str, Callable[[Version, Version], bool]]] = {
    ">=": lambda version, bound: version >= bound,
    "<=": lambda version, bound: version <= bound,
    ">": lambda version, bound: version > bound,
    "<": lambda version, bound: version < bound,
    "=": lambda version, bound: version == bound,
}

Range = list[tuple[str, Version]]


class _Versioned(msgspec.Struct):
    """The fields that are read from a job."""

    version: str | None = None


_decode = msgspec.json.Decoder(_Versioned).decode


def read_version(text: str) -> Version | None:
    """Return a version, None if it is invalid."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    version = (int(found[1]), int(found[2] or 0))
    return version if found[3] is None else (*version, int(found[3]))


def read_range(text: str) -> Range:
    """Return a range, all of whose bounds must hold. Raises ValueError if it is invalid."""
    text = text.strip()
    if text == "*":
        return []
    found: Range = []
    place = 0
    while place < len(text):
        bound = _BOUND.match(text, place)
        version = None if bound is None else read_version(bound[2])
        if bound is None or version is None:
            raise ValueError(text)
        found.append((bound[1] or "=", version))
        place = bound.end()
    if not found:
        raise ValueError(text)
    return found


def is_within(version: Version, bounds: Range) -> bool:
    """Whether a version is in a range."""
    whole = (*version, 0)
    return all(_COMPARISONS[name](whole[: len(bound)], bound) for name, bound in bounds)


def read_handlers(
    given: object, chosen: Callable[[str, str], Version | None] | None = None
) -> Callable[[Execution], bool] | None:
    """Return whether a worker with these ranges takes a job, None if it takes all. Raises RequestRefused.

    `chosen` returns the version of a job by its type and id, if there are rules for that.
    """
    if given is None:
        return None
    if not isinstance(given, list) or len(given) > MOST_HANDLERS:
        raise invalid("handlers", f"must be an array of at most {MOST_HANDLERS} objects")
    ranges: dict[str, Range] = {}
    for index, one in enumerate(given):
        kind, versions = (one.get("type"), one.get("versions", "*")) if isinstance(one, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(versions, str):
            raise invalid(f"handlers[{index}]", "must have a type, and versions must be a string")
        try:
            ranges[kind] = read_range(versions)
        except ValueError:
            raise invalid(
                f"handlers[{index}].versions", 'must be "*", a version, or a range such as ">=1.0 <2.0"'
            ) from None
    limited = {kind: bounds for kind, bounds in ranges.items() if bounds}
    if not limited:
        return None

    def fits(execution: Execution) -> bool:
        bounds = limited.get(execution.envelope.type)
        if bounds is None:
            return True
        version = None if chosen is None else chosen(execution.envelope.type, execution.envelope.id)
        if version is not None:
            return is_within(version, bounds)
        try:
            text = _decode(execution.delivery.body).version
        except msgspec.DecodeError:
            return True
        version = None if text is None else read_version(text)
        return version is None or is_within(version, bounds)

    return fits
