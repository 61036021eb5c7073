"""Events of ours about jobs that are pushed now and activated later (ojs-http-binding section 9.5)."""

from __future__ import annotations

import msgspec

from waybill.ojs.spec.event_data import EventData


class JobStaged(EventData, frozen=True, kw_only=True):
    """A job was accepted that waits to be activated: it is in no queue yet."""

    job_type: str
    queue: str
    job: msgspec.Raw


class JobActivated(EventData, frozen=True, kw_only=True):
    """A job that waited is to go to its queue: whose event comes first sees to that."""

    job_type: str
    queue: str


class JobUnstaged(EventData, frozen=True, kw_only=True):
    """A job that waited is in its queue, or was cancelled, which has no effect once it is being activated."""

    job_type: str
    queue: str
    cancelled: bool | None = None
