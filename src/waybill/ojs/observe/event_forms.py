"""Writes the frequent events from templates: the JSON of an event, cut at the parts that differ between jobs.

An encoder would visit the same dozen fields each time, and need their objects first. That costs ten times as much as
joining the parts.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import JobCompleted, JobEnqueued, JobStarted, encode_event, make_event

K = TypeVar("K")

MAX_FORMS: Final = 1000

_ID: Final = "<id>"
_TIME: Final = "<time>"
_SUBJECT: Final = "<subject>"
_KEY: Final = "<key>"
_JOB: Final = '"<job>"'
_RESULT: Final = '"<result>"'
_DURATION: Final = 2**53 + 1
"""Not a valid duration: an integer too large for JSON readers to represent exactly."""

JobKind = tuple[str, str, int]
"""The type, the queue and the priority of a job."""
Form = tuple[str, ...]
"""The text before, between and after the values."""


def is_plain(job_id: str) -> bool:
    """Return whether a text needs no escaping in JSON; ids of foreign producers may contain anything."""
    return job_id.isprintable() and '"' not in job_id and "\\" not in job_id


class EventForms:
    """The templates of one source, for jobs whose id `is_plain`. Each method returns the JSON of one event."""

    def __init__(self, source: str) -> None:
        """`source` is the source of all events."""
        self._source = source
        self._enqueued: dict[tuple[str, str, int, bool], Form] = {}
        self._described: dict[JobKind, Form] = {}
        self._started: dict[tuple[str, str, int, str], Form] = {}
        self._completed: dict[tuple[str, str, int, bool], Form] = {}
        self._attempts: dict[tuple[str, str, int, str], Form] = {}

    def enqueued(
        self,
        event_id: str,
        time: str,
        job_id: str,
        job_type: str,
        queue: str,
        priority: int,
        unique_key: str | None = None,
    ) -> str:
        """Write job.enqueued of a job that is due immediately; its unique key must be plain, too."""
        key = (job_type, queue, priority, unique_key is None)
        form = self._enqueued.get(key)
        if form is None:
            mark = None if unique_key is None else _KEY
            form = self._cut(JobEnqueued(job_type=job_type, queue=queue, priority=priority, unique_key=mark))
            before, _, after = form[-1].rpartition(_KEY)
            form = (*form[:-1], before, after)
            _keep(self._enqueued, key, form)
        before_id, before_time, before_subject, before_key, rest = form
        unique = unique_key or ""
        return f"{before_id}{event_id}{before_time}{time}{before_subject}{job_id}{before_key}{unique}{rest}"

    def described(self, event_id: str, time: str, job_id: str, kind: JobKind, job: str) -> str:
        """Write job.enqueued of a job that is due immediately, with its envelope as JSON."""
        form = self._described.get(kind)
        if form is None:
            job_type, queue, priority = kind
            data = JobEnqueued(job_type=job_type, queue=queue, priority=priority, job=msgspec.Raw(_JOB.encode()))
            form = self._cut(data)
            before, _, after = form[-1].rpartition(_JOB)
            form = (*form[:-1], before, after)
            _keep(self._described, kind, form)
        before_id, before_time, before_subject, before_job, rest = form
        return f"{before_id}{event_id}{before_time}{time}{before_subject}{job_id}{before_job}{job}{rest}"

    def started(
        self, event_id: str, time: str, job_id: str, job_type: str, queue: str, attempt: int, worker: str
    ) -> str:
        """Write job.started."""
        key = (job_type, queue, attempt, worker)
        form = self._started.get(key)
        if form is None:
            form = self._cut(JobStarted(job_type=job_type, queue=queue, worker_id=worker, attempt=attempt))
            _keep(self._started, key, form)
        before_id, before_time, before_subject, rest = form
        return f"{before_id}{event_id}{before_time}{time}{before_subject}{job_id}{rest}"

    def completed(
        self,
        event_id: str,
        time: str,
        job_id: str,
        key: tuple[str, str, int],
        ms: int,
        result: str | None = None,
    ) -> str:
        """Write job.completed. `ms` is the duration in milliseconds; the result, if any, is JSON.

        `key` is the job type, the queue and the attempt.
        """
        form = self._completed.get((*key, result is None))
        if form is None:
            job_type, queue, attempt = key
            mark = None if result is None else msgspec.Raw(_RESULT.encode())
            form = self._cut(
                JobCompleted(job_type=job_type, queue=queue, duration_ms=_DURATION, attempt=attempt, result=mark)
            )
            before, _, after = form[-1].partition(str(_DURATION))
            before_result, _, rest = after.rpartition(_RESULT)
            form = (*form[:-1], before, before_result, rest)
            _keep(self._completed, (*key, result is None), form)
        before_id, before_time, before_subject, before_ms, before_result, rest = form
        return (
            f"{before_id}{event_id}{before_time}{time}{before_subject}{job_id}{before_ms}{ms}{before_result}"
            f"{result or ''}{rest}"
        )

    def attempt(
        self, key: tuple[str, str, int, str], job_id: str, started: tuple[str, str], completed: tuple[str, str], ms: int
    ) -> str:
        """Write job.started and job.completed, each with its id and time, as two elements of a JSON array.

        `key` is the job type, the queue, the attempt and the worker.
        """
        form = self._attempts.get(key)
        if form is None:
            job_type, queue, attempt, worker = key
            first = self._cut(JobStarted(job_type=job_type, queue=queue, worker_id=worker, attempt=attempt))
            second = self._cut(JobCompleted(job_type=job_type, queue=queue, duration_ms=_DURATION, attempt=attempt))
            before, _, after = second[-1].partition(str(_DURATION))
            form = (*first[:-1], f"{first[-1]},{second[0]}", *second[1:-1], before, after)
            _keep(self._attempts, key, form)
        a, b, c, d, e, f, g, h = form
        return f"{a}{started[0]}{b}{started[1]}{c}{job_id}{d}{completed[0]}{e}{completed[1]}{f}{job_id}{g}{ms}{h}"

    def _cut(self, data: EventData) -> Form:
        rest = encode_event(make_event(self._source, _TIME, _SUBJECT, data, _ID))
        pieces = []
        for mark in (_ID, _TIME, _SUBJECT):
            before, _, rest = rest.partition(mark)
            pieces.append(before)
        return (*pieces, rest)


def _keep(forms: dict[K, Form], key: K, form: Form) -> None:
    if len(forms) >= MAX_FORMS:
        forms.clear()
    forms[key] = form
