"""The job state in memory, rebuilt from the stream at each start of a coordinator.

Jobs are kept as JSON: objects would take more memory, and the garbage collector would visit all of them. The waiting
jobs of a streamed group take next to none: see `job_texts`. Beside them are the counts, and indexes for frequent
lookups: by unique key, and of running attempts. There is no index by time of enqueueing: it would take half as much
memory as the jobs, and listing jobs is rare enough to scan all.

Memory is bounded: of the ended jobs it keeps the last ones, and the number of all. Unique jobs stay, because they may
conflict with another one. Of the jobs for which there is no room only the ids are in memory: see `overflow`.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from waybill.ojs.bounded_dict import Generations
from waybill.ojs.coordinator.failure_group import FailureGroup, Hours, fingerprint_of
from waybill.ojs.coordinator.feature_fold import Rows, StoredRow
from waybill.ojs.coordinator.job_counts import CountChanges, CountedQueues, CountMark, Pair
from waybill.ojs.coordinator.job_fold import (
    DELETED,
    END_STATES,
    MAX_TIME_LENGTH,
    fold,
    fold_all,
    forget,
    has_ended,
    is_foldable,
    new_record,
    unique_key_of,
)
from waybill.ojs.coordinator.job_record import JobRecord, RawJobRecord
from waybill.ojs.coordinator.job_scan import JobScan, mark_of
from waybill.ojs.coordinator.job_store import (
    HeldAttempt,
    JobDetail,
    JobFilter,
    JobStore,
    RunningJob,
)
from waybill.ojs.coordinator.job_texts import JobTexts
from waybill.ojs.coordinator.memory_failures import MemoryFailures
from waybill.ojs.coordinator.memory_rows import MemoryRows
from waybill.ojs.coordinator.overflow import ROOM_BYTES, Overflow
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.coordinator.stream_identity import StreamReplaced
from waybill.ojs.observe.event_forms import is_plain
from waybill.ojs.observe.own_events import OwnEvent
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.states import State

ENDED_JOBS: Final = 50_000
ENDED_BYTES: Final = 1024**3
"""The texts of ended jobs that are kept, if they are fewer."""
MAX_RUNNING: Final = 5000
"""The number of running jobs that are kept as objects."""
MAX_RUNNING_BYTES: Final = 4096
"""The text of a job that is kept as an object: both take memory."""
FEW_ROWS: Final = 20

_USUAL: Final = frozenset({"job_type", "queue", "priority"})
_SUBJECT: Final = "<id>"
_TIME: Final = "<time>"
_JOB: Final = b'"<job>"'
_ACTIVE: Final = State.ACTIVE.value
_AVAILABLE: Final = State.AVAILABLE.value
_DISCARDED: Final = State.DISCARDED.value
# Takes a quarter of the time of copy.copy; missing in msgspec's stubs.
_copy: Final[Callable[[JobRecord], JobRecord]] = JobRecord.__copy__  # type: ignore[attr-defined]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobRecord).decode
_decode_kept = msgspec.json.Decoder(RawJobRecord).decode


class _Place(NamedTuple):
    """The place of a job in the indexes."""

    queue: str
    state: str
    unique_key: str | None
    is_held: bool
    is_over: bool
    """Whether it has ended and matters to no other job."""
    fingerprint: str | None = None


@functools.lru_cache(1000)
def _plain_place(queue: str, state: str) -> _Place:
    """Return the place of a job of which no index but that of its queue and its state knows: most are such jobs."""
    return _Place(queue, state, None, is_held=False, is_over=state in END_STATES)


def _place_of(job: JobRecord) -> _Place:
    state, unique_key = job.state, job.unique_key
    if unique_key is None and job.visibility_ms is None and state != _DISCARDED:
        return _plain_place(job.queue, state)
    is_held = state == _ACTIVE and job.visibility_ms is not None
    # Only a reservation sets the time of creation.
    is_over = has_ended(job) and (unique_key is None or job.created_at is None)
    return _Place(job.queue, state, unique_key, is_held, is_over, fingerprint_of(job))


class MemoryJobStore(JobStore):
    """A view in memory."""

    is_in_memory = True

    def __init__(self, ended_jobs: int = ENDED_JOBS, room: int = ROOM_BYTES) -> None:
        """The last `ended_jobs` ended jobs are remembered. Jobs of `room` bytes are in memory, and rows of as many."""
        super().__init__()
        self._kept = ended_jobs
        self._overflow = Overflow(room, mark_of)
        self._rows = MemoryRows(Overflow(room))
        self._count_mark = CountMark(0, 0)
        self.clear()

    def close(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._overflow.close()
        self._rows.clear()
        self._jobs = JobTexts(self._overflow)
        """Jobs that have not ended."""
        self._over: Generations[str, bytes] = Generations(self._kept, ENDED_BYTES)
        """What is held for jobs that may be forgotten, in order of their ends."""
        self._scan = JobScan(self._jobs, self._over, self._overflow, self._pause)
        self._over_places: dict[str, _Place] = {}
        """The places of those that have a unique key or a fingerprint."""
        self._next_offsets: dict[int, int] = {}
        """By partition."""
        self._begun: dict[int, int] = {}
        """The epoch in which reading a partition began, if it began."""
        self._counted = CountedQueues()
        self._counts: Counter[Pair] = Counter()
        self._count_mark = CountMark(self._count_mark.epoch + 1, 0)
        self._count_numbers: dict[Pair, int] = {}
        """The number of the last change of each count, in ascending order."""
        self._keys: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._held: dict[str, None] = {}
        self._failures = MemoryFailures()
        self._running: dict[str, JobRecord] = {}
        """Running jobs as objects beside their texts: for most of them, the next event is their end."""

    @property
    def next_offset(self) -> int:
        return self._next_offsets.get(0, 0)

    def begin(self, partition: int = 0) -> tuple[int, None]:
        self._begun[partition] = self._count_mark.epoch
        return self._next_offsets.get(partition, 0), None

    def begin_anew(self, partition: int = 0) -> None:
        if self._begun.get(partition, self._count_mark.epoch) == self._count_mark.epoch:
            begun = self._begun
            self.clear()
            # The other partitions notice.
            self._begun = begun

    def apply(
        self,
        messages: Sequence[tuple[int, Sequence[ReceivedEvent]]],
        *,
        partition: int = 0,
        keeps_position: bool = False,
    ) -> dict[str, JobInfo | None]:
        """Fold messages into copies, and store those at the end. Raises DatabaseUnusable if there is no room."""
        self._require_room()
        if self._begun.get(partition, self._count_mark.epoch) != self._count_mark.epoch:
            raise StreamReplaced("another partition of the event stream has begun anew: rebuilding the job state")
        position = self._next_offsets.get(partition, 0)
        new = [(offset, found) for offset, found in messages if offset >= position]
        if not new:
            return {}
        arrived = [event for _, found in new for event in found]
        rows = Rows(self._rows.load)
        folded = self.features.fold_all(rows, arrived)
        changes = rows.changes()
        events = [event for event in arrived if is_foldable(event)]
        jobs = self._load_kept(event.subject for event in events)
        same: defaultdict[object, list[JobRecord]] = defaultdict(list)
        for key in {unique_key_of(event) for event in events if event.type == "job.reserved"}:
            if isinstance(key, str) and key in self._keys:
                jobs |= self._load_kept(job_id for job_id in self._keys[key] if job_id not in jobs)
                same[key] = [jobs[job_id] for job_id in self._keys[key]]
        places = {job_id: _place_of(job) for job_id, job in jobs.items()}
        verdicts = dict.fromkeys(folded) | fold_all(events, jobs, same)
        self._keep(jobs, places)
        self._rows.change(*changes)
        if not keeps_position:
            self._next_offsets[partition] = new[-1][0] + 1
        return verdicts

    def _require_room(self) -> None:
        self._overflow.require_room()
        self._rows.overflow.require_room()

    def is_at_fault(self, error: Exception) -> bool:
        return self._overflow.is_full or self._rows.overflow.is_full

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        jobs, over = self._jobs, self._over
        if jobs.has_all(job_ids):
            return []
        return [job_id for job_id in job_ids if job_id not in jobs and over.get(job_id) is None]

    def adopt(self, events: Sequence[OwnEvent], user: str | None) -> dict[str, JobRecord]:
        self._require_room()
        if all(map(_is_new_job, events)) and self._adopt_new(events, user):
            return {}
        jobs = self._load_kept(one.event.subject for one in events)
        places = {job_id: _place_of(job) for job_id, job in jobs.items()}
        for event, _, envelope in events:
            if user is not None:
                force_setattr(event, "user", user)
            if event.type == DELETED:
                forget(jobs, event)
                continue
            job = jobs.get(event.subject)
            if job is None:
                job = jobs[event.subject] = new_record(event)
            fold(job, event)
            if envelope is not None:
                job.envelope = msgspec.Raw(envelope)
        self._keep(jobs, places)
        return jobs

    def _adopt_new(self, events: Sequence[OwnEvent], user: str | None) -> bool:
        """Store new jobs as texts; False if one of them is already known."""
        ids = {one.event.subject for one in events}
        if len(ids) < len(events) or not (self._jobs.has_none(ids) and self._over.has_none(ids)):
            return False
        self._count_mark = CountMark(self._count_mark.epoch, self._count_mark.number + 1)
        counted: Counter[Pair] = Counter()
        for event, _, envelope in events:
            queue = str(event.data["queue"])
            before_id, before_time, before_job, rest = _new_text(event.type, str(event.data["job_type"]), queue, user)
            text = b"".join(
                (before_id, event.subject.encode(), before_time, event.time.encode(), before_job, envelope or b"", rest)
            )
            self._jobs.put_new(event.subject, text)
            counted[queue, _AVAILABLE] += 1
        self._count(counted)
        return True

    def newest(
        self, queue: str | None, state: str | None, limit: int, owners: Collection[str | None] | None = None
    ) -> list[JobInfo]:
        return self._scan.newest(queue, state, limit, owners)

    def page(self, wanted: JobFilter, before: str, limit: int) -> tuple[list[JobDetail], str]:
        return self.search(wanted, before, limit, sys.maxsize)

    def search(self, wanted: JobFilter, before: str, limit: int, most: int) -> tuple[list[JobDetail], str]:
        return self._scan.search(wanted, before, limit, most)

    def running(self, limit: int, prefix: str = "") -> list[RunningJob]:
        return self._scan.running(limit, prefix)

    def times(self, queue: str, last: int) -> QueueTimes:
        return self._scan.times(queue, last)

    def failures(self, limit: int, prefix: str = "") -> list[FailureGroup]:
        return self._failures.newest(limit, prefix)

    def failure_hours(self, fingerprints: Sequence[str]) -> dict[str, Hours]:
        return self._failures.hours(fingerprints)

    def held(self) -> list[HeldAttempt]:
        return [
            HeldAttempt(job.id, job.queue, job.attempt, job.visible_until, job.visibility_ms or 0)
            for job in self._load(self._held).values()
        ]

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state, including forgotten ones."""
        return dict(self._counts)

    def count(self, queue: str, state: str) -> int:
        return self._counts[queue, state]

    def count_changes(self, since: CountMark | None) -> CountChanges:
        mark = self._count_mark
        if since is None or since.epoch != mark.epoch:
            return CountChanges(mark, dict(self._counts), is_whole=True)
        changed = takewhile(lambda item: item[1] > since.number, reversed(self._count_numbers.items()))
        return CountChanges(mark, {pair: self._counts[pair] for pair, _ in changed})

    def has_few(self, mark: str) -> bool:
        return self._rows.count(mark) <= FEW_ROWS

    def _rows_of(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        return self._rows.load(keys)

    def _marked(self, mark: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        return self._rows.marked(mark, limit, after)

    def _listed(self, prefix: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        return self._rows.listed(prefix, limit, after)

    def _find(self, job_id: str) -> JobRecord | None:
        return self._load([job_id]).get(job_id)

    def _pause(self) -> None:
        self.pause()

    def _load(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        found = ((job_id, self._scan.text(job_id)) for job_id in dict.fromkeys(job_ids))
        return {job_id: _decode(text) for job_id, text in found if text is not None}

    def _load_kept(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """Do the same for a fold, which changes the jobs but does not read their envelopes."""
        found: dict[str, JobRecord] = {}
        for job_id in dict.fromkeys(job_ids):
            running = self._running.get(job_id)
            if running is not None:
                found[job_id] = _copy(running)
            elif (text := self._scan.text(job_id)) is not None:
                found[job_id] = _decode_kept(text)
        return found

    def _keep(self, jobs: dict[str, JobRecord], places: dict[str, _Place]) -> None:
        """Store changed jobs; `places` are their places before. Those that are not in `jobs` were deleted."""
        self._count_mark = CountMark(self._count_mark.epoch, self._count_mark.number + 1)
        encoded = [_encode(job) for job in jobs.values()]
        changes: Counter[Pair] = Counter()
        for job_id in places.keys() - jobs.keys():
            self._remove(job_id, places[job_id])
            changes[places[job_id].queue, places[job_id].state] -= 1
        for (job_id, job), text in zip(jobs.items(), encoded, strict=True):
            before, after = places.get(job_id), _place_of(job)
            if after.fingerprint != (fingerprint := None if before is None else before.fingerprint):
                self._failures.leave(fingerprint)
                if after.fingerprint is not None:
                    self._failures.join(job)
            self._move(job_id, before, after, text)
            if before is None or (before.state, before.queue) != (after.state, after.queue):
                if before is not None:
                    changes[before.queue, before.state] -= 1
                changes[after.queue, after.state] += 1
            if after.state == _ACTIVE and len(self._running) < MAX_RUNNING and len(text) <= MAX_RUNNING_BYTES:
                self._running[job_id] = job
            else:
                self._running.pop(job_id, None)
        self._count(changes)
        for job_id, held in self._over.forget().items():
            self._overflow.drop(job_id, held)
            place = self._over_places.pop(job_id, None)
            if place is not None:
                self._leave_key(job_id, place.unique_key)
                self._failures.leave(place.fingerprint)

    def _move(self, job_id: str, before: _Place | None, after: _Place, text: bytes) -> None:
        """Store a job, and update the indexes."""
        if before is not None and before.is_over:
            self._leave_over(job_id)
        if after.is_over:
            self._jobs.pop(job_id)
            self._over.add(job_id, self._overflow.keep(job_id, text, is_needed_soon=True), len(text))
            if after.unique_key is not None or after.fingerprint is not None:
                self._over_places[job_id] = after
        else:
            self._jobs.put(job_id, text, alike=after.state == _AVAILABLE)
        if before == after:
            return
        if before is not None and before.unique_key != after.unique_key:
            self._leave_key(job_id, before.unique_key)
        if after.unique_key is not None:
            self._keys[after.unique_key][job_id] = None
        if after.is_held:
            self._held[job_id] = None
        elif before is not None and before.is_held:
            del self._held[job_id]

    def _remove(self, job_id: str, before: _Place) -> None:
        """Remove a job that has ended from the indexes."""
        self._jobs.pop(job_id)
        self._leave_over(job_id)
        self._leave_key(job_id, before.unique_key)
        self._failures.leave(before.fingerprint)

    def _leave_over(self, job_id: str) -> None:
        held = self._over.pop(job_id)
        if held is not None:
            self._overflow.drop(job_id, held)
            self._over_places.pop(job_id, None)

    def _leave_key(self, job_id: str, unique_key: str | None) -> None:
        if unique_key is not None:
            del self._keys[unique_key][job_id]
            if not self._keys[unique_key]:
                del self._keys[unique_key]

    def _count(self, changes: Mapping[Pair, int]) -> None:
        for (queue, state), change in changes.items():
            key = self._counted.name(queue), state
            self._counts[key] += change
            if not self._counts[key]:
                del self._counts[key]
            self._count_numbers.pop(key, None)
            self._count_numbers[key] = self._count_mark.number


def _is_new_job(one: OwnEvent) -> bool:
    """Return whether an event reports an ordinary new job."""
    event = one.event
    return (
        event.type == "job.enqueued"
        and one.job is not None
        and event.data.keys() == _USUAL
        and is_plain(event.subject)
        and is_plain(event.time)
        and len(event.time) <= MAX_TIME_LENGTH
    )


@functools.lru_cache(500)
def _new_text(kind: str, job_type: str, queue: str, user: str | None) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the text of such a job as a fold writes it, cut at its id, time and envelope."""
    data: dict[str, object] = {"job_type": job_type, "queue": queue, "priority": 0}
    event = ReceivedEvent("", kind, "", _TIME, _SUBJECT, data, user=user)
    job = new_record(event)
    fold(job, event)
    job.envelope = msgspec.Raw(_JOB)
    before_id, _, rest = _encode(job).partition(_SUBJECT.encode())
    before_time, _, rest = rest.partition(_TIME.encode())
    before_job, _, rest = rest.rpartition(_JOB)
    return before_id, before_time, before_job, rest
