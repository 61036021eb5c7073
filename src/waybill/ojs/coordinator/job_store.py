"""The interface of the stores of the job state: in memory, or in a database.

The stream is the source of truth and a store is a view of it. The store knows its position in the stream, so that
nothing is folded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Self

import msgspec
from mypy_extensions import mypyc_attr

from waybill.ojs.coordinator.failure_group import FailureGroup, Hours, fingerprint_of
from waybill.ojs.coordinator.feature_fold import FeatureFolds, R, StoredRow
from waybill.ojs.coordinator.job_counts import CountChanges, CountMark
from waybill.ojs.coordinator.job_fold import ENDS, ENQUEUED, info_of, run_of
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.coordinator.stream_identity import StreamMark
from waybill.ojs.observe.own_events import OwnEvent
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.events import DeliveredMessage, ReceivedEvent
from waybill.ojs.spec.states import State

PAGE_BYTES: Final = 8 * 1024 * 1024
"""A page ends with the job that makes it larger: jobs may have 1 MiB of arguments, and a page a thousand jobs."""


class HeldAttempt(NamedTuple):
    """A running attempt. `visible_until` is the end of its lease, by the clock of the event's writer."""

    job_id: str
    queue: str
    attempt: int
    visible_until: str | None
    visibility_ms: int


class Forgotten(NamedTuple):
    """The result of a retention step: the approximate number of deleted jobs, and whether there may be more."""

    jobs: int
    is_more: bool


class RunningJob(NamedTuple):
    """A running job, as lists of workers show it."""

    id: str
    type: str
    queue: str
    attempt: int
    worker_id: str | None
    started_at: str | None
    progress: float | None


class JobFilter(NamedTuple):
    """Selects jobs; None matches all.

    States are those of the events. `since` and `until` limit the time of enqueueing; `fingerprint` is that of a failure
    group. `text` is searched in the envelope and in errors, ignoring case.
    """

    queue: str | None = None
    states: frozenset[str] | None = None
    type: str | None = None
    prefix: str = ""
    """The beginning of the queue's name."""
    id_prefix: str | None = None
    fingerprint: str | None = None
    since: str | None = None
    until: str | None = None
    text: str | None = None
    tenant: str | None = None
    """Jobs in its queues, and others whose envelope may name it as `tenant_id`."""

    @property
    def is_looked_for(self) -> bool:
        """Whether each job must be examined, because no index fits."""
        return not (self.text is None and self.since is None and self.until is None and self.tenant is None)

    @property
    def naming(self) -> str:
        """The text in the envelope of a job that names the tenant."""
        return f'"tenant_id":"{self.tenant}"'

    def matches(self, job: JobRecord) -> bool:
        """Return whether a job matches."""
        enqueued = job.enqueued_at or ""
        return (
            self.queue in {None, job.queue}
            and job.queue.startswith(self.prefix)
            and (self.states is None or job.state in self.states)
            and self.type in {None, job.type}
            and (self.id_prefix is None or job.id.startswith(self.id_prefix))
            and (self.since is None or enqueued >= self.since)
            and (self.until is None or enqueued < self.until)
            and (self.fingerprint is None or self.fingerprint == fingerprint_of(job))
            and (self.text is None or self.text.lower() in _text_of(job).lower())
            and (self.tenant is None or job.queue.startswith(f"{self.tenant}.") or self.naming in _text_of(job))
        )


class JobDetail(NamedTuple):
    """A job, its envelope if that is known, and its failed attempts."""

    info: JobInfo
    envelope: dict[str, object] | None
    errors: list[dict[str, object]] | None
    run: int = 0
    """How often it was a dead letter that was retried."""


@mypyc_attr(allow_interpreted_subclasses=True)
class JobStore:
    """The interface of every store; used by one thread at a time.

    Besides the jobs, it has the rows of features: see `feature_fold`.
    """

    is_in_memory = False
    """Whether it never blocks, and its contents end with the process."""
    kind = "memory"
    """What keeps it: "memory", "sqlite" or "postgresql"."""
    fold_bytes = 64 * 1024
    """About how many bytes of the stream are folded at a time, or one larger message: others wait meanwhile."""

    def __init__(self) -> None:
        """`features` are the folds of features that have rows."""
        self.features = FeatureFolds()
        self.watched: set[str] = set()
        """Jobs whose ends are noted in `ended`."""
        self.ended: list[str] = []
        """The watched jobs whose ends were folded, until the reader removes them."""
        self.expected: Collection[tuple[str, str]] = ()
        """Events to note in `arrived` when they are folded, by type and job or by type and id."""
        self.arrived: list[tuple[tuple[str, str], JobRecord | None]] = []
        """The expected events that were folded, each with its job if that is loaded, until the reader removes them."""
        self.enqueued: list[str] = []
        """The jobs that were enqueued, until the reader removes them, unless the store is in memory."""
        self.changed: Mapping[str, JobRecord] = {}
        """The jobs that the last `apply` has written, if events were expected."""
        self.marks: dict[int, StreamMark] = {}
        """By partition, a message at or before the next ones to fold: it is kept with the position."""
        self.pause: Callable[[], None] = _no_pause
        """Called by long reads of a store in memory, when others may use it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget all jobs and the position: the view must be rebuilt from the first event."""
        raise NotImplementedError

    @property
    def next_offset(self) -> int:
        """The offset of the first message of the first partition that is not folded yet."""
        raise NotImplementedError

    def begin(self, partition: int = 0) -> tuple[int, StreamMark | None]:
        """Return the offset of the first message that is not folded yet, and a message before it, if one is known."""
        raise NotImplementedError

    def begin_anew(self, partition: int = 0) -> None:
        """Forget all as `clear` does, unless that was done since this partition was begun, here or elsewhere."""
        raise NotImplementedError

    def apply(
        self,
        messages: Sequence[tuple[int, Sequence[ReceivedEvent]]],
        *,
        partition: int = 0,
        keeps_position: bool = False,
    ) -> dict[str, JobInfo | None]:
        """Apply messages of a partition, each with its offset, and store the position, atomically.

        With `keeps_position`, the messages count as not folded yet: used to fold a message event by event. Returns for
        each reservation, by the id of its event, the conflicting job, None if it got its place; and None for each event
        that a feature has folded. Raises StreamReplaced if the store was cleared since the partition was begun: then
        call `begin_anew`.
        """
        raise NotImplementedError

    def recall(self, events: Sequence[ReceivedEvent], partition: int = 0) -> dict[str, JobInfo | None]:
        """Return what `apply` does, for events of a partition that another has folded into the same database.

        Raises StreamReplaced as `apply` does.
        """
        raise NotImplementedError

    def check(self, partition: int = 0) -> None:
        """Raise StreamReplaced as `apply` does, if a database has lost what it had confirmed of a partition."""

    def follow(self, partition: int) -> int:
        """Return the offset up to which a partition is folded. Raises StreamReplaced as `apply` does."""
        raise NotImplementedError

    def share(self, coordinator: str, *, leads: bool) -> Collection[int] | None:
        """Tell that a coordinator is there; returns the partitions that it is to fold, None for all.

        Call it often: who has not done so for a while is taken for dead. `leads` says whether it is the leader.
        """
        del coordinator, leads
        return None

    def leave(self, coordinator: str) -> None:
        """Leave a coordinator's partitions to the others at once."""

    def is_at_fault(self, error: Exception) -> bool:
        """Whether an error of a change is the store's fault for certain. If not, `probe` tells more."""
        return False

    def probe(self) -> None:
        """Test whether the store can write, without a change. Raises its errors."""

    def ping(self) -> bool:
        """Ask a remote database whether it answers; False if it is no such. Raises its errors. Safe from any thread."""
        return False

    def cut(self) -> None:
        """Make a call that waits for a remote database fail now. Safe from any thread."""

    def forget_old(self, now: datetime) -> Forgotten:
        """Delete some expired jobs, if the store has a retention period; never jobs that still matter."""
        return Forgotten(0, is_more=False)

    def get(self, job_id: str) -> JobInfo | None:
        """Return a job, None if none of its events was folded."""
        job = self._find(job_id)
        return None if job is None else info_of(job)

    def many(self, job_ids: Sequence[str]) -> list[JobInfo]:
        """Return the known jobs among these."""
        return [info for info in map(self.get, job_ids) if info is not None]

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        """Return the ids of the unknown jobs among these."""
        return [job_id for job_id in job_ids if self._find(job_id) is None]

    def adopt(self, events: Sequence[OwnEvent], user: str | None) -> dict[str, JobRecord]:
        """Fold events of this process before the stream brings them. Only for a store that `is_in_memory`.

        Returns changed jobs by id, if they are loaded; do not change them.
        """
        raise NotImplementedError

    def detail(self, job_id: str) -> JobDetail | None:
        """Return a job with its envelope, None if it is unknown."""
        job = self._find(job_id)
        return None if job is None else detail_of(job)

    def note(self, events: Sequence[ReceivedEvent]) -> None:
        """Note which jobs were enqueued, which watched ones have ended, and which expected events have arrived."""
        if not self.is_in_memory:
            self.enqueued += [event.subject for event in events if event.type == ENQUEUED]
        if self.expected:
            changed = self.changed
            self.arrived += [
                (key, changed.get(event.subject)) for event in events for key in keys_of(event) if key in self.expected
            ]
        watched = self.watched
        if watched:
            self.ended += [event.subject for event in events if event.type in ENDS and event.subject in watched]

    def owner(self, job_id: str) -> str | None:
        """Return the user who pushed a job, None if unknown."""
        job = self._find(job_id)
        return None if job is None else job.owner

    def newest(
        self, queue: str | None, state: str | None, limit: int, owners: Collection[str | None] | None = None
    ) -> list[JobInfo]:
        """Return the jobs of a queue that were enqueued last, in all states unless one is given.

        Without a queue, the last jobs of all queues, by id.
        With `owners`, only jobs of these users; None stands for unknown users.
        """
        raise NotImplementedError

    def page(self, wanted: JobFilter, before: str, limit: int) -> tuple[list[JobDetail], str]:
        """Return jobs in descending order of their ids, from below `before` on, and the id at which to continue.

        `before` may be empty, and the returned id is empty at the end. Ids never change and contain the time, so pages
        are stable while their jobs change. Large jobs make a page shorter, see PAGE_BYTES.
        """
        raise NotImplementedError

    def search(self, wanted: JobFilter, before: str, limit: int, most: int) -> tuple[list[JobDetail], str]:
        """Return what `page` does, but of the next `most` jobs only, or fewer if these have long texts.

        The time of a text search depends on how much is examined, not on how many match.
        """
        raise NotImplementedError

    def running(self, limit: int, prefix: str = "") -> list[RunningJob]:
        """Return the running jobs of queues whose names begin with `prefix`, the greatest ids first."""
        raise NotImplementedError

    def times(self, queue: str, last: int) -> QueueTimes:
        """Return the wait and run times of a queue, from its `last` completed jobs; 0 examines none."""
        raise NotImplementedError

    def failures(self, limit: int, prefix: str = "") -> list[FailureGroup]:
        """Return the groups of discarded jobs, the one that grew last first.

        `prefix` is the beginning of the names of their queues.
        """
        raise NotImplementedError

    def failure_hours(self, fingerprints: Sequence[str]) -> dict[str, Hours]:
        """Return how many jobs of some groups failed in which hour, including those that were retried."""
        raise NotImplementedError

    def held(self) -> list[HeldAttempt]:
        """Return the running attempts that have sent heartbeats."""
        raise NotImplementedError

    def kept_message(self, job_id: str, attempt: int) -> DeliveredMessage | None:
        """Return the message of a running attempt, None if it does not run, or has not sent its message."""
        job = self._find(job_id)
        if job is None or job.message is None or (job.state, job.attempt) != (State.ACTIVE.value, attempt):
            return None
        return msgspec.convert(job.message, DeliveredMessage)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state."""
        raise NotImplementedError

    def count(self, queue: str, state: str) -> int:
        """Return how many jobs of a queue are in a state."""
        raise NotImplementedError

    def count_changes(self, since: CountMark | None) -> CountChanges:
        """Return the counts that have changed since a mark; all for None or after the view was rebuilt.

        A count also counts as changed if equally many jobs have come and gone.
        """
        raise NotImplementedError

    def more_counts(self, page: CountChanges) -> CountChanges:
        """Return the next page of all counts, if `count_changes` has returned the first one."""
        raise NotImplementedError

    def row(self, key: str, kind: type[R]) -> R | None:
        """Return a row of a feature, None if there is none."""
        return next((row for _, row in _decoded(self._rows_of([key]).items(), kind)), None)

    def marked(self, mark: str, kind: type[R], limit: int, after: str = "") -> list[tuple[str, R]]:
        """Return rows with a mark and their keys, ordered by key. `after` is the key after which to continue."""
        return _decoded(self._marked(mark, limit, after), kind)

    def has_few(self, mark: str) -> bool:
        """Return whether it is known that few rows have a mark, so reading them is quick. Safe from any thread."""
        return False

    def listed(self, prefix: str, kind: type[R], limit: int, after: str = "") -> list[tuple[str, R]]:
        """Return the rows whose key begins with `prefix`, for example `cron/`, ordered by key.

        `after` is the key after which to continue.
        """
        return _decoded(self._listed(prefix, limit, after), kind)

    def _rows_of(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        raise NotImplementedError

    def _marked(self, mark: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        raise NotImplementedError

    def _listed(self, prefix: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        raise NotImplementedError

    def _find(self, job_id: str) -> JobRecord | None:
        raise NotImplementedError


def keys_of(event: ReceivedEvent) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the keys by which an event may be expected: its type with its job, and with its id."""
    return (event.type, event.subject), (event.type, event.id)


def _no_pause() -> None:
    pass


def _text_of(job: JobRecord) -> str:
    """Return the texts of a job that a search reads."""
    return "\0".join(msgspec.json.encode(one).decode() for one in (job.envelope, job.error, job.errors) if one)


def detail_of(job: JobRecord) -> JobDetail:
    """Return the public part of a job, with its envelope."""
    return JobDetail(info_of(job), job.envelope if _is_envelope(job) else None, job.errors, run_of(job))


def _is_envelope(job: JobRecord) -> bool:
    """Return whether a job's stored envelope is valid and belongs to this job, so that it can be shown."""
    try:
        return msgspec.convert(job.envelope, Envelope).id == job.id
    except Exception:  # noqa: BLE001 - anybody who may write events has written it
        return False


def _decoded(found: Iterable[tuple[str, StoredRow]], kind: type[R]) -> list[tuple[str, R]]:
    return [(key, msgspec.json.decode(stored.value, type=kind)) for key, stored in found]
