"""The event of a job that a program has published, for the first time or again."""

from __future__ import annotations

from typing import Protocol

import msgspec

from waybill.ojs.spec.events import JobEnqueued
from waybill.ojs.spec.states import State


class PublishedJob(Protocol):
    """The fields of an envelope that the event repeats."""

    @property
    def type(self) -> str:
        """The type."""

    @property
    def state(self) -> str | None:
        """The state in the envelope: later events tell the current one."""

    @property
    def priority(self) -> int:
        """The priority."""

    @property
    def scheduled_at(self) -> str | None:
        """The time before which it must not start."""


def enqueued_event(
    job: PublishedJob, queue: str, shown: bytes | str | None, unique_key: str | None = None, run: int | None = None
) -> JobEnqueued:
    """Return the event of a job in `queue`. `shown` is its envelope as JSON, if coordinators are to show it.

    `run` is for a dead letter that is retried: see `headers`.
    """
    return JobEnqueued(
        job_type=job.type,
        queue=queue,
        priority=job.priority,
        scheduled_at=job.scheduled_at if job.state == State.SCHEDULED.value else None,
        unique_key=unique_key,
        job=None if shown is None else msgspec.Raw(shown),
        run=run,
    )
