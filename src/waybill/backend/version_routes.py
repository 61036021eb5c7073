"""Rules by which the jobs of a type go to versions of its handler (ojs-job-versioning section 10.1).

A rule gives a version a weight. Which version a job gets depends on its id and the rules only, so all servers agree and
every attempt goes to the same one. The rules count, not the version of the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.settings import Settings
from waybill.backend.versions import Version, read_version

MOST_RULES: Final = 100
MOST_WEIGHT: Final = 1_000_000


class VersionRule(msgspec.Struct):
    """The share of a version."""

    version: str
    weight: int


class VersionRules(msgspec.Struct):
    """The rules of a job type."""

    rules: list[VersionRule]


class VersionRoutes:
    """The rules that one server knows."""

    def __init__(self, settings: Settings) -> None:
        self.table = settings.table("version-rules", VersionRules)

    @property
    def chosen(self) -> Callable[[str, str], Version | None] | None:
        """The function that returns the version of a job of a type by its id; None if there are no rules."""
        return self._chosen if self.table.known else None

    def _chosen(self, job_type: str, job_id: str) -> Version | None:
        found = self.table.get(job_type)
        if found is None:
            return None
        total = sum(one.weight for one in found.rules)
        place = int.from_bytes(hashlib.blake2b(job_id.encode(errors="replace"), digest_size=8).digest()) % total
        for one in found.rules:
            if place < one.weight:
                return read_version(one.version)
            place -= one.weight
        return None


def read_rules(given: Form) -> VersionRules:
    """Read the rules of a request. Raises RequestRefused."""
    if given.get("auto_rollback") is not None:
        text = "auto_rollback is not supported: watch the failures, and change the weights."
        raise RequestRefused("unsupported", text, details={"field": "auto_rollback"})
    rules = given.get("rules")
    if not isinstance(rules, list) or not 0 < len(rules) <= MOST_RULES:
        raise invalid("rules", f"must be an array of 1 to {MOST_RULES} objects")
    made = []
    for index, one in enumerate(rules):
        version, weight = (one.get("version"), one.get("weight", 1)) if isinstance(one, dict) else (None, None)
        if not isinstance(version, str) or len(version) > 100 or read_version(version) is None:
            raise invalid(f"rules[{index}].version", "must be a version such as 2.0")
        if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= MOST_WEIGHT:
            raise invalid(f"rules[{index}].weight", f"must be an integer from 0 to {MOST_WEIGHT}")
        made.append(VersionRule(version, weight))
    if not any(one.weight for one in made):
        raise invalid("rules", "must give some version a weight above 0")
    return VersionRules(made)
