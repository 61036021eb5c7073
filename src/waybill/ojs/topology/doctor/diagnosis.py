"""A single finding of the doctor."""

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """The severity of a finding."""

    PROBLEM = "problem"
    """Jobs are lost, or nothing works."""
    WARNING = "warning"
    """A future problem, or a part that does not work."""
    NOTE = "note"
    """For information."""


@dataclass(frozen=True)
class Diagnosis:
    """A finding about `subject`. `check` is a short, stable name for scripts."""

    check: str
    severity: Severity
    subject: str
    finding: str
    cause: str
    remedy: str
