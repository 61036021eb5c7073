"""The state of all jobs in memory: for as long as a coordinator runs, and made again from the stream by the next one.

Jobs are kept as JSON: as objects they would take more room, and the collector of garbage would look at all of them.
Beside them are the indices that a database would have: by unique key, by the time of enqueuing, of what is held, and
the counts.

It does not grow for ever: of the jobs that have ended it knows the last ones, and how many there were. One that must be
unique stays, as it may be in the way of another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from waybill.ojs.control_message import JobInfo
from waybill.ojs.events import ReceivedEvent
from waybill.ojs.job_fold import JobRecord, fold_all, has_ended, info_of
from waybill.ojs.job_store import HeldAttempt, JobStore, is_of_a_job
from waybill.ojs.states import State

ENDED_JOBS: Final = 50_000

_ACTIVE: Final = State.ACTIVE.value
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobRecord).decode


class _Place(msgspec.Struct, frozen=True):
    """Where a job stands in the indices."""

    queue: str
    state: str
    enqueued_at: str | None
    unique_key: str | None
    is_held: bool
    is_over: bool
    """Whether it has ended and matters to no other job."""

    @classmethod
    def of(cls, job: JobRecord) -> _Place:
        is_held = job.visibility_ms is not None and job.state == _ACTIVE
        # A reservation, and nothing else, says when a job was created.
        is_over = has_ended(job) and (job.unique_key is None or job.created_at is None)
        return cls(job.queue, job.state, job.enqueued_at, job.unique_key, is_held, is_over)


class MemoryJobStore(JobStore):
    """One view, of which nothing is left when it is closed."""

    def __init__(self, ended_jobs: int = ENDED_JOBS) -> None:
        """Nothing is known yet. At least `ended_jobs` of those that have ended will be remembered."""
        self._kept = ended_jobs
        self.clear()

    def close(self) -> None:
        """Forget everything."""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._jobs: dict[str, bytes] = {}
        self._next_offset = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._keys: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._held: dict[str, None] = {}
        self._over: dict[str, None] = {}
        """Those that may be forgotten, in the order of their ends."""
        self._enqueued: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        """By queue, times and ids in order."""
        self._others: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """By queue, jobs of which it is not known yet when they were enqueued."""

    @property
    def next_offset(self) -> int:
        """The offset from which on events are not folded yet."""
        return self._next_offset

    def apply(self, messages: Sequence[tuple[int, Sequence[ReceivedEvent]]]) -> dict[str, JobInfo | None]:
        """Fold messages into copies, and take those over in the end."""
        new = [(offset, found) for offset, found in messages if offset >= self._next_offset]
        if not new:
            return {}
        events = [event for _, found in new for event in found if is_of_a_job(event)]
        jobs = self._load(event.subject for event in events)
        same: defaultdict[object, list[JobRecord]] = defaultdict(list)
        for key in {event.data.get("unique_key") for event in events if event.type == "job.reserved"}:
            if isinstance(key, str) and key in self._keys:
                jobs |= self._load(job_id for job_id in self._keys[key] if job_id not in jobs)
                same[key] = [jobs[job_id] for job_id in self._keys[key]]
        places = {job_id: _Place.of(job) for job_id, job in jobs.items()}
        verdicts = fold_all(events, jobs, same)
        encoded = {job_id: _encode(job) for job_id, job in jobs.items()}
        self._jobs |= encoded
        for job_id, job in jobs.items():
            self._move(job_id, places.get(job_id), _Place.of(job))
        self._forget_the_oldest()
        self._next_offset = new[-1][0] + 1
        return verdicts

    def newest(self, queue: str, state: str | None, limit: int) -> list[JobInfo]:
        """Return the jobs of a queue that were enqueued last."""
        found: list[JobInfo] = []
        for job_id in self._newest_first(queue):
            if len(found) >= limit:
                break
            job = _decode(self._jobs[job_id])
            if state is None or job.state == state:
                found.append(info_of(job))
        return found

    def held(self) -> list[HeldAttempt]:
        """Return the attempts that are under way and have sent heartbeats."""
        return [
            HeldAttempt(job.id, job.queue, job.attempt, job.visible_until, job.visibility_ms or 0)
            for job in self._load(self._held).values()
        ]

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state, those with it that were forgotten."""
        return dict(self._counts)

    def _find(self, job_id: str) -> JobRecord | None:
        return self._load([job_id]).get(job_id)

    def _load(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        jobs = self._jobs
        return {job_id: _decode(jobs[job_id]) for job_id in dict.fromkeys(job_ids) if job_id in jobs}

    def _newest_first(self, queue: str) -> Iterator[str]:
        for _, job_id in reversed(self._enqueued.get(queue, ())):
            yield job_id
        yield from sorted(self._others.get(queue, ()), reverse=True)

    def _move(self, job_id: str, before: _Place | None, after: _Place) -> None:
        """Keep the indices."""
        if before == after:
            return
        if before is not None:
            self._count(before, -1)
        self._count(after, 1)
        if before is None or (before.queue, before.enqueued_at) != (after.queue, after.enqueued_at):
            if before is not None:
                self._take_out(job_id, before)
            if after.enqueued_at is None:
                self._others[after.queue][job_id] = None
            else:
                insort(self._enqueued[after.queue], (after.enqueued_at, job_id))
        if before is not None and before.unique_key != after.unique_key:
            self._leave_key(job_id, before.unique_key)
        if after.unique_key is not None:
            self._keys[after.unique_key][job_id] = None
        _keep(self._held, job_id, after.is_held, before is not None and before.is_held)
        _keep(self._over, job_id, after.is_over, before is not None and before.is_over)

    def _forget_the_oldest(self) -> None:
        """Let go of the jobs that have ended long ago, many at a time: each time takes a look at all that are there."""
        excess = len(self._over) - self._kept
        if excess <= self._kept // 10:
            return
        forgotten = self._load(islice(self._over, excess))
        for job_id, job in forgotten.items():
            del self._jobs[job_id], self._over[job_id]
            self._leave_key(job_id, job.unique_key)
            if job.enqueued_at is None:
                del self._others[job.queue][job_id]
        for entries in self._enqueued.values():
            entries[:] = [entry for entry in entries if entry[1] not in forgotten]

    def _leave_key(self, job_id: str, unique_key: str | None) -> None:
        if unique_key is not None:
            del self._keys[unique_key][job_id]
            if not self._keys[unique_key]:
                del self._keys[unique_key]

    def _count(self, place: _Place, change: int) -> None:
        key = (place.queue, place.state)
        self._counts[key] += change
        if not self._counts[key]:
            del self._counts[key]

    def _take_out(self, job_id: str, place: _Place) -> None:
        if place.enqueued_at is None:
            del self._others[place.queue][job_id]
        else:
            entries = self._enqueued[place.queue]
            del entries[bisect_left(entries, (place.enqueued_at, job_id))]


def _keep(index: dict[str, None], job_id: str, is_in: bool, was_in: bool) -> None:  # noqa: FBT001 - what is kept, and was
    if is_in:
        index[job_id] = None
    elif was_in:
        del index[job_id]
