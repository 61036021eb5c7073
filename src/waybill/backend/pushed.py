"""What a job that is pushed says, before it is read: its queue, and whether it is for later."""

from __future__ import annotations

from waybill.backend.job_form import Form


def queue_of(job: Form) -> str:
    """Return the queue that a push is for."""
    options = job.get("options")
    named = options.get("queue") if isinstance(options, dict) else None
    queue = named or job.get("queue")
    return queue if isinstance(queue, str) else "default"


def is_for_later(job: Form) -> bool:
    """Return whether a job that is pushed names the time at which it may start."""
    options = job.get("options")
    places = (options, job) if isinstance(options, dict) else (job,)
    return any(place.get(name) is not None for place in places for name in ("scheduled_at", "delay_until"))
