"""What travels over control queues: CANCEL, BEAT and INFO (binding sections 5.6 to 5.8), and our LIST."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.ojs.spec.checkpoint import Checkpoint
from waybill.ojs.spec.nesting import is_too_heavy

CANCEL: Final = "ojs.control.cancel"
HEARTBEAT: Final = "ojs.control.heartbeat"
INFO: Final = "ojs.control.info"
LIST: Final = "ojs.control.list"
RESERVE: Final = "ojs.control.reserve"
RELEASE: Final = "ojs.control.release"
WAIT: Final = "ojs.control.wait"
"""Report when jobs have ended. The replies are outcomes, in as many messages as needed."""

SYNC: Final = "ojs.control.sync"
"""Published to the relay by a worker that wants to know that it has read everything before."""

LOOK: Final = "ojs.control.look"
"""To the control queue: the coordinator that reads it must look for attempts that send no heartbeats."""

REPLACE: Final = "ojs.control.replace"
"""Published to the relay: an attempt is over, whatever its worker may say."""

STOP_WORKFLOW: Final = "ojs.control.workflow.stop"
"""Published to the relay: no job of a workflow is to start any more. `job_id` is the workflow's, `attempt` its run."""

ADMIT: Final = "ojs.control.admit"
"""A worker asks whether a copy of a job may run."""

PAUSE: Final = "ojs.control.pause"
RESUME: Final = "ojs.control.resume"
"""Published to the relay: a queue was paused, or is no longer."""

QUIET: Final = "ojs.control.worker.quiet"
WAKE: Final = "ojs.control.worker.resume"
TERMINATE: Final = "ojs.control.worker.terminate"
"""Published to the relay: the worker `worker_id` takes no new jobs, takes jobs again, finishes its jobs and ends."""

CONTENT_TYPE: Final = "application/json"
MAX_NAME: Final = 255
MAX_LISTED: Final = 1000
MAX_WAITED: Final = 1000
MAX_LEASE_SECONDS: Final = 7 * 86400.0


class Reservation(msgspec.Struct, omit_defaults=True):
    """A unique job's request to a coordinator; the reply has the conflicting job, if there is one."""

    job_type: str
    unique_key: str
    states: list[str]
    on_conflict: str
    lease_seconds: float
    period: str | None = None
    definer: str | None = None
    """The user who has defined the workflow or cron job whose job this is, "" if unknown: it needs the rights, too."""


class ControlRequest(msgspec.Struct, omit_defaults=True):
    """The body of every control message; which fields count depends on its type."""

    job_id: str = ""
    worker_id: str = ""
    queue: str = ""
    state: str | None = None
    limit: int = 100
    attempt: int = 0
    enqueued_at: str | None = None
    reservation: Reservation | None = None


class WaitRequest(msgspec.Struct):
    """The body of WAIT: the jobs, at most MAX_WAITED, and how long to remember the request."""

    job_ids: list[str]
    hold_seconds: float


class JobInfo(msgspec.Struct, omit_defaults=True):
    """What the events say about a job. Times are RFC 3339; `error` and `result` are JSON values.

    `progress` is from 0 to 1. `checkpoint` is there until the job has ended. Without `certain`, the job should be in
    its queue by the events, but the queue holds fewer jobs than should be there: a worker has just taken it, or a
    program that tells no events has taken or done it.
    """

    id: str
    type: str = ""
    queue: str = ""
    state: str = ""
    attempt: int = 0
    enqueued_at: str | None = None
    scheduled_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    next_retry_at: str | None = None
    visible_until: str | None = None
    visibility_ms: int | None = None
    worker_id: str | None = None
    error: dict[str, object] | None = None
    result: object = None
    progress: float | None = None
    progress_message: str | None = None
    progress_data: dict[str, object] | None = None
    progress_at: str | None = None
    checkpoint: Checkpoint | None = None
    result_expires_at: str | None = None
    certain: bool = True


class ControlReply(msgspec.Struct, omit_defaults=True):
    """The reply to INFO and LIST: the jobs, none if unknown."""

    jobs: list[JobInfo] = msgspec.field(default_factory=list)
    replaced: JobInfo | None = None


class AdmissionRequest(msgspec.Struct):
    """What ADMIT asks: whether this copy of a job may run."""

    job_id: str
    copy: str
    worker_id: str = ""


class Admission(msgspec.Struct):
    """The answer to ADMIT."""

    is_admitted: bool


_requests: Final = msgspec.json.Decoder(ControlRequest)
_replies: Final = msgspec.json.Decoder(ControlReply)


def read_request(body: bytes) -> ControlRequest:
    """Decode a request. Raises ValueError if it is invalid."""
    if is_too_heavy(body):
        raise ValueError("it has too many values")
    try:
        request = _requests.decode(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if max(len(request.job_id), len(request.worker_id), len(request.queue)) > MAX_NAME:
        raise ValueError("it has a name that is too long")
    return request


def read_reply(body: bytes) -> ControlReply:
    """Decode a reply. Raises msgspec.DecodeError or RecursionError if it is invalid."""
    return _replies.decode(body)
