"""One thing that is wrong."""

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad it is."""

    PROBLEM = "problem"
    """Jobs are lost, or nothing works."""
    WARNING = "warning"
    """Something will go wrong one day, or a part does not work."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True)
class Diagnosis:
    """A finding about `subject`. `check` is a short name that stays the same, for scripts."""

    check: str
    severity: Severity
    subject: str
    finding: str
    cause: str
    remedy: str
