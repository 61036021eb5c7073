"""Which versions of jobs a worker can do (ojs-job-versioning section 8).

A worker says so for each type, when it fetches or in its heartbeats. A job with a version goes to a worker of this
server whose range includes it; a worker that says nothing of a type takes all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from waybill.backend.errors import invalid
from waybill.ojs.worker.execution import Execution

MOST_HANDLERS: Final = 1000
Version = tuple[int, int]

_VERSION = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?(?:\.\d+)*(?:[-+].*)?")
_BOUND = re.compile(r"(>=|<=|>|<|=)?\s*(\d{1,6}(?:\.\d{1,6})?)(?:\s+|$)")
_FITS: Final[Mapping[str, Callable[[Version, Version], bool]]] = {
    ">=": lambda version, bound: version >= bound,
    "<=": lambda version, bound: version <= bound,
    ">": lambda version, bound: version > bound,
    "<": lambda version, bound: version < bound,
    "=": lambda version, bound: version == bound,
}

Range = list[tuple[str, Version]]


class _Versioned(msgspec.Struct):
    """What is looked at of a job."""

    version: str | None = None


_decode = msgspec.json.Decoder(_Versioned).decode


def read_version(text: str) -> Version | None:
    """Return a version, None for what is none."""
    found = _VERSION.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def read_range(text: str) -> Range:
    """Return a range: all of its bounds must hold. Raises ValueError for what is none."""
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


def read_handlers(given: object) -> Callable[[Execution], bool] | None:
    """Return what says whether a worker can do a job, None if it can do all. Raises RequestRefused."""
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
        try:
            text = _decode(execution.delivery.body).version
        except msgspec.DecodeError:
            return True
        version = None if text is None else read_version(text)
        return version is None or all(_FITS[name](version, bound) for name, bound in bounds)

    return fits
