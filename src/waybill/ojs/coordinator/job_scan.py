"""Finds jobs in the store in memory by looking at them one after another.

It lets others use the store every few milliseconds, so jobs may change meanwhile. Its generators are functions: mypyc
would make a list of what a generator expression yields.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from waybill.ojs.bounded_dict import Generations
from waybill.ojs.coordinator.job_fold import info_of
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.job_store import PAGE_BYTES, JobDetail, JobFilter, RunningJob, detail_of
from waybill.ojs.coordinator.job_texts import JobTexts
from waybill.ojs.coordinator.overflow import Overflow
from waybill.ojs.coordinator.queue_times import QueueTimes, Times, times_of
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.states import State

LOOK_BYTES: Final = 16 * 1024 * 1024
"""The text that one search examines."""
LOOKED_AT: Final = 2000
"""The number of jobs that are examined for the times of a queue."""
FIRST_IDS: Final = (500, 20_000)
"""How many of the greatest ids are selected in the first steps."""
NEXT_IDS: Final = 50_000
"""How many are selected in each further step: sorting them stops all threads for some 20 ms."""
PAUSE_AFTER: Final = 100
"""How many jobs are examined before it is time to think of others."""

_ACTIVE: Final = State.ACTIVE.value
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobRecord).decode


class _Seen(msgspec.Struct):
    queue: str
    type: str
    state: str


_decode_seen = msgspec.json.Decoder(_Seen).decode


class JobScan:
    """Looks at the jobs that have not ended, and at those that are `over`."""

    def __init__(
        self, jobs: JobTexts, over: Generations[str, bytes], overflow: Overflow, pause: Callable[[], None]
    ) -> None:
        """`pause` is called between jobs. `overflow` has the texts of those for which memory has no room."""
        self._jobs = jobs
        self._over = over
        self._overflow = overflow
        self._pause = pause

    def text(self, job_id: str) -> bytes | None:
        """Return the text of a job, None if it is unknown."""
        held = self._held(job_id)
        return None if held is None else self._overflow.text(job_id, held)

    def newest(
        self, queue: str | None, state: str | None, limit: int, owners: Collection[str | None] | None
    ) -> list[JobInfo]:
        """Do what `JobStore.newest` says."""
        wanted = JobFilter(queue, None if state is None else frozenset({state}))
        fitting = _of_owners(self._matching(self._ids(), wanted), owners)
        key = _recency if queue is not None else attrgetter("id")
        return [info_of(job) for job in nlargest(limit, fitting, key=key)]

    def search(self, wanted: JobFilter, before: str, limit: int, most: int) -> tuple[list[JobDetail], str]:
        """Do what `JobStore.search` says."""
        found: list[JobDetail] = []
        looked = examined = size = 0
        for job_id in self._newest_first(before, _marks_of(wanted)):
            text = self.text(job_id)
            if text is None:
                continue
            looked += 1
            examined += len(text)
            if wanted.matches(job := _decode(text)):
                if len(found) == limit or size > PAGE_BYTES:
                    return found, found[-1].info.id
                found.append(detail_of(job))
                size += len(text)
            if looked >= most or (wanted.is_looked_for and examined > LOOK_BYTES):
                return found, job_id
        return found, ""

    def running(self, limit: int, prefix: str) -> list[RunningJob]:
        """Do what `JobStore.running` says."""
        wanted = JobFilter(states=frozenset({_ACTIVE}), prefix=prefix)
        found = nlargest(limit, self._matching(iter(self._jobs), wanted), key=_id)
        return [RunningJob(*[getattr(job, name) for name in RunningJob._fields]) for job in found]

    def times(self, queue: str, last: int) -> QueueTimes:
        """Return the wait and run times of a queue; the oldest jobs count as far as they are quickly found."""
        waiting = JobFilter(queue, frozenset({State.AVAILABLE.value}))
        # Jobs are in the order of their first events.
        oldest = [job.enqueued_at for job in islice(self._matching(self._jobs.first(LOOKED_AT), waiting), 1)]
        ended = JobFilter(queue, frozenset({State.COMPLETED.value}))
        newest = [job_id for job_id, _ in islice(self._over.newest(), LOOKED_AT if last else 0)]
        done = [
            Times(job.enqueued_at, job.scheduled_at, job.started_at, job.ended_at)
            for job in islice(self._matching(newest, ended), last)
            if job.attempt <= 1
        ]
        return times_of(oldest[0] if oldest else None, done)

    def _ids(self) -> Iterator[str]:
        yield from self._jobs
        yield from list(self._over.keys())

    def _held(self, job_id: str) -> bytes | None:
        held = self._jobs.held(job_id)
        return self._over.get(job_id) if held is None else held

    def _matching(self, ids: Iterable[str], wanted: JobFilter) -> Iterator[JobRecord]:
        for job_id in self._may_match(ids, "", _marks_of(wanted)):
            text = self.text(job_id)
            if text is not None and wanted.matches(job := _decode(text)):
                yield job

    def _may_match(self, ids: Iterable[str], before: str, marks: list[list[bytes]]) -> Iterator[str]:
        """Yield the ids below `before` of jobs that may match: a look takes a tenth of the time of decoding."""
        looked = 0
        for job_id in ids:
            looked += 1
            if looked % PAUSE_AFTER == 0:
                self._pause()
            if before and job_id >= before:
                continue
            if not marks:
                yield job_id
                continue
            held = self._held(job_id)
            if held is not None and _has_all(held, marks):
                yield job_id

    def _newest_first(self, before: str, marks: list[list[bytes]]) -> Iterator[str]:
        """Yield ids, the greatest first: finding a few takes a tenth of the time of sorting all."""
        step = 0
        while True:
            size = FIRST_IDS[step] if step < len(FIRST_IDS) else NEXT_IDS
            found = nlargest(size, self._may_match(self._ids(), before, marks))
            yield from found
            if len(found) < size:
                return
            before = found[-1]
            step += 1


@functools.lru_cache(1000)
def _shared_mark(queue: str, kind: str, state: str) -> bytes:
    return b'"queue":%b,"type":%b,"state":%b' % (_encode(queue), _encode(kind), _encode(state))


def mark_of(text: bytes) -> bytes:
    """Return the parts of a job's JSON that are compared before it is decoded: held for a job in the file."""
    seen = _decode_seen(text)
    return _shared_mark(seen.queue, seen.type, seen.state)


def _marks_of(wanted: JobFilter) -> list[list[bytes]]:
    """Return parts of JSON: of each list, a job that matches has one."""
    marks = []
    if wanted.queue is not None:
        marks.append([b'"queue":' + _encode(wanted.queue)])
    if wanted.type is not None:
        marks.append([b'"type":' + _encode(wanted.type)])
    if wanted.states is not None:
        marks.append([b'"state":' + _encode(state) for state in wanted.states])
    return marks


def _has_all(held: bytes, marks: list[list[bytes]]) -> bool:
    for alternatives in marks:
        for mark in alternatives:
            if mark in held:
                break
        else:
            return False
    return True


def _of_owners(jobs: Iterator[JobRecord], owners: Collection[str | None] | None) -> Iterator[JobRecord]:
    for job in jobs:
        if owners is None or job.owner in owners:
            yield job


def _id(job: JobRecord) -> str:
    return job.id


def _recency(job: JobRecord) -> tuple[str, str]:
    """Sort key: jobs by time of enqueueing; jobs without a known time come first."""
    return job.enqueued_at or "", job.id


__all__ = ["JobScan", "mark_of"]
