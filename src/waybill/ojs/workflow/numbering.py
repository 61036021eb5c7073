"""The ids of a workflow and of its jobs. Each follows from the others, so that a step enqueued twice is one job.

    01a2b3c4-d5e6-7abc-8def-0123 00000000     the workflow, in its first run
    01a2b3c4-d5e6-7abc-8def-0123 00000007     the job of its node 7
    01a2b3c4-d5e6-7abc-8def-0123 01000003     member 3 of a group whose jobs its client streams
    |---- prefix of one run ---| |number|

All are UUIDv7. An event about a job leads to its workflow by the prefix alone: nobody keeps a table of the jobs of a
batch of millions. A retry gives the steps that it starts anew a prefix of their own, derived from the workflow's id.
"""

from __future__ import annotations

import hashlib
from typing import Final

from waybill.ojs.spec.identifiers import is_uuid7, new_id

PREFIX_LENGTH: Final = 28
FIRST_MEMBER: Final = 1 << 24
"""The number of the first streamed job; the nodes of a definition have smaller ones."""
MAX_MEMBERS: Final = 10_000_000
"""How many jobs a streamed group may have."""

_NUMBER_DIGITS: Final = 8
_TIME_LENGTH: Final = len("01a2b3c4-d5e6")


def new_workflow_id() -> str:
    """Return the id of a new workflow."""
    return new_id()[:PREFIX_LENGTH] + "0" * _NUMBER_DIGITS


def is_workflow_id(text: str) -> bool:
    """Say whether a text can be the id of a workflow."""
    return is_uuid7(text) and text.endswith("0" * _NUMBER_DIGITS)


def derived_id(origin: str, name: str) -> str:
    """Return the id of the workflow that belongs to `origin`, any UUIDv7, under `name`: always the same one."""
    digits = hashlib.sha256(f"{origin}/{name}".encode()).hexdigest()
    return f"{origin[:_TIME_LENGTH]}-7{digits[:3]}-8{digits[3:6]}-{digits[6:10]}{'0' * _NUMBER_DIGITS}"


def run_prefix(workflow_id: str, run: int) -> str:
    """Return what the ids of the jobs of one run begin with; runs count from 0, and each retry begins another."""
    owner = workflow_id if run == 0 else derived_id(workflow_id, f"run {run}")
    return owner[:PREFIX_LENGTH]


def job_id_of(prefix: str, number: int) -> str:
    """Return the id of the job with a number."""
    return f"{prefix}{number:08x}"


def number_of(job_id: str) -> int:
    """Return the number in the id of a workflow's job; 0, which no job has, if there is none."""
    try:
        return int(job_id[PREFIX_LENGTH:], 16) if len(job_id) == PREFIX_LENGTH + _NUMBER_DIGITS else 0
    except ValueError:
        return 0


def event_id_of(workflow_id: str, what: str) -> str:
    """Return the id of an event that several coordinators may write, and readers shall count once."""
    digest = hashlib.sha256(f"{workflow_id}/{what}".encode()).hexdigest()
    return f"evt_{workflow_id}-{digest[:16]}"
