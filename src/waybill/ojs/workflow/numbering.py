"""The ids of a workflow and of its jobs. Each is derived from the others, so a step that is enqueued twice is one job.

    01a2b3c4-d5e6-7abc-8def-0123 00000000     the workflow
    01a2b3c4-d5e6-7abc-8def-0123 01000003     member 3 of a group whose jobs its client streams
    01a2b3c4-d5e6-7fff-8123-456789ab 0007     the job of its node 7; 123456789ab is made of the workflow and the run

All are UUIDv7. The id of a job alone identifies its workflow, so no table of the jobs of a batch of millions is needed.
Jobs that coordinators enqueue have derived ids, so workers make sure that none runs twice. A retry is another run, and
gives the steps that it restarts other ids.
"""

from __future__ import annotations

import hashlib
from typing import Final

from waybill.ojs.spec.identifiers import derived_id, is_uuid7, new_id

MAX_MEMBERS: Final = 10_000_000
"""The maximum number of jobs in a streamed group."""

MEMBERS_LENGTH: Final = 28
NODES_LENGTH: Final = 32
"""The length of the common prefix of the ids of streamed jobs, and of the jobs that one run starts."""

_TIME_LENGTH: Final = len("01a2b3c4-d5e6")
_DERIVED: Final = "-7fff-"
_FIRST_MEMBER: Final = 1 << 24
_MEMBER_MARK: Final = "01"


def new_workflow_id() -> str:
    """Return the id of a new workflow."""
    made = new_id()
    # Only jobs that coordinators enqueue may look derived.
    made = made if made[13:19] != _DERIVED else made.replace(_DERIVED, "-7ffe-")
    return made[:MEMBERS_LENGTH] + "0" * 8


def is_workflow_id(text: str) -> bool:
    """Return whether a text can be the id of a workflow."""
    return is_uuid7(text) and text.endswith("0" * 8)


def spawned_id(job_id: str, count: int) -> str:
    """Return the id of the workflow that a job spawns first, second and so on: the same in each attempt."""
    digits = hashlib.sha256(f"{job_id}/spawned {count}".encode()).hexdigest()
    return f"{job_id[:_TIME_LENGTH]}-7e{digits[:2]}-8{digits[2:5]}-{digits[5:9]}{'0' * 8}"


def nodes_prefix(workflow_id: str, run: int) -> str:
    """Return the prefix of the ids of the node jobs of a run; runs count from 0."""
    digits = hashlib.sha256(f"{workflow_id}/run {run}".encode()).hexdigest()
    return f"{workflow_id[:_TIME_LENGTH]}{_DERIVED}8{digits[:3]}-{digits[3:11]}"


def node_job_id(prefix: str, number: int) -> str:
    """Return the id of the job of a node."""
    return f"{prefix}{number:04x}"


def member_job_id(workflow_id: str, index: int) -> str:
    """Return the id of a streamed job."""
    return f"{workflow_id[:MEMBERS_LENGTH]}{_FIRST_MEMBER + index:08x}"


def may_be_numbered(job_id: str) -> bool:
    """Return whether an id may be one of `node_job_id` or `member_job_id`; few other ids look like them."""
    return job_id[13:19] == _DERIVED or job_id[MEMBERS_LENGTH : MEMBERS_LENGTH + 2] == _MEMBER_MARK


def read_node_id(job_id: str) -> tuple[str, int] | None:
    """Return the prefix and the number of the node whose job may have this id; None if the id has another form."""
    if job_id[13:19] != _DERIVED:
        return None
    number = _hexadecimal(job_id[NODES_LENGTH:], 4)
    return None if number is None else (job_id[:NODES_LENGTH], number)


def read_member_id(job_id: str) -> tuple[str, int] | None:
    """Return the workflow and the index of the streamed job that may have this id; None if the id has another form.

    One in 256 other ids has this form.
    """
    if job_id[MEMBERS_LENGTH : MEMBERS_LENGTH + 2] != _MEMBER_MARK:
        return None
    number = _hexadecimal(job_id[MEMBERS_LENGTH:], 8)
    return None if number is None else (job_id[:MEMBERS_LENGTH] + "0" * 8, number - _FIRST_MEMBER)


def event_id_of(workflow_id: str, what: str) -> str:
    """Return the id of an event that several coordinators may write, so that readers count it once."""
    return f"evt_{derived_id(0, 'workflow', workflow_id, what)}"


def _hexadecimal(text: str, length: int) -> int | None:
    try:
        return int(text, 16) if len(text) == length else None
    except ValueError:
        return None
