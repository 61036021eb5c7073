"""Jobs in the form of the HTTP binding: requests of pushes, and answers."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from waybill.http.errors import NoAnswer
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope

Form = dict[str, Any]

_OF_THE_JOB: Final = frozenset({"specversion", "id", "type", "args", "meta", "schema"})
_OF_THE_SERVER: Final = frozenset({"state", "attempt", "created_at", "enqueued_at", "error", "errors"})
_INFO: Final = {"next_attempt_at": "next_retry_at"}
_ENDS: Final = ("completed_at", "cancelled_at", "discarded_at")
_KNOWN: Final = frozenset(JobInfo.__struct_fields__)


def request_of(envelope: Envelope) -> Form:
    """Return the request of a push of this job (ojs-http-binding section 9.1)."""
    fields: Form = msgspec.json.decode(envelope.encode())
    request = {name: fields.pop(name) for name in _OF_THE_JOB & fields.keys()}
    request["options"] = {name: value for name, value in fields.items() if name not in _OF_THE_SERVER}
    return request


def job_in(answer: Form) -> Form:
    """Return the job of an answer: under its name, or flat."""
    job = answer.get("job", answer)
    if not isinstance(job, dict) or not isinstance(job.get("id"), str):
        raise NoAnswer("the server answered without a job")
    return job


def taken(envelope: Envelope, job: Form) -> Envelope:
    """Return the job of a push: the new one, or the existing duplicate."""
    if job["id"] == envelope.id:
        for name in ("state", "created_at", "enqueued_at", "scheduled_at"):
            value = job.get(name)
            if isinstance(value, str):
                setattr(envelope, name, value)
        return envelope
    found = Envelope(
        id=job["id"],
        type=str(job.get("type") or envelope.type),
        queue=str(job.get("queue") or envelope.queue),
        args=envelope.args,
        state=str(job.get("state") or "available"),
    )
    found.is_duplicate = True
    return found


def info_of(job: Form) -> JobInfo:
    """Return a job as `Jobs.info` does. Raises NoAnswer if it is invalid."""
    fields = {_INFO.get(name, name): value for name, value in job.items()}
    fields["ended_at"] = next((job[name] for name in _ENDS if isinstance(job.get(name), str)), None)
    errors = fields.get("errors")
    if fields.get("error") is None and isinstance(errors, list) and errors and isinstance(errors[-1], dict):
        fields["error"] = errors[-1]
    checkpoint = fields.get("checkpoint")
    kept = {name: value for name, value in fields.items() if name in _KNOWN and value is not None}
    if not (isinstance(checkpoint, dict) and "sequence" in checkpoint):
        kept.pop("checkpoint", None)
    try:
        return msgspec.convert(kept, JobInfo)
    except msgspec.ValidationError as error:
        raise NoAnswer(f"the server sent an invalid job: {error}") from None
