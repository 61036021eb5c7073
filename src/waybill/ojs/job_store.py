"""The state of all jobs as the events tell it, folded into SQLite.

The stream is the truth, this is a view of it: the position in the stream is written in one transaction with what was
folded, so that a crash repeats or loses nothing, and a lost file is made again from the first event.

Events of clients and workers pass each other, so an event moves a job forward only: by attempt, then by phase. The
first end counts. Only an enqueuing, or a start, that is later than the end begins anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final, Self

import msgspec

from waybill.ojs.control_message import JobInfo
from waybill.ojs.events import ReceivedEvent
from waybill.ojs.states import TERMINAL, State

_SCHEMA_VERSION: Final = 2
_SCHEMA: Final = """
create table if not exists job (
    id text primary key, type text, queue text, state text, attempt integer, rank integer,
    enqueued_at text, scheduled_at text, started_at text, ended_at text, next_retry_at text, visible_until text,
    worker_id text, error text, result text, progress real, progress_message text, checkpoint text
) without rowid;
create index if not exists job_queue on job (queue, enqueued_at);
create table if not exists position (stream text primary key, next_offset integer) without rowid;
"""
_FIELDS: Final = (
    "id", "type", "queue", "state", "attempt", "enqueued_at", "scheduled_at", "started_at", "ended_at",
    "next_retry_at", "visible_until", "worker_id", "error", "result", "progress", "progress_message", "checkpoint",
)  # fmt: skip
_SELECT: Final = f"select {', '.join(_FIELDS)} from job"  # noqa: S608 - names of ours
_STREAM: Final = "events"
_ENDS: Final = {
    "job.completed": State.COMPLETED,
    "job.discarded": State.DISCARDED,
    "job.cancelled": State.CANCELLED,
}
_END_VALUES: Final = frozenset(state.value for state in TERMINAL)
_PHASES: Final = {
    "job.enqueued": (0, State.AVAILABLE),
    "job.started": (1, State.ACTIVE),
    "job.retrying": (2, State.RETRYABLE),
}
_END_RANK: Final = 1 << 40


class JobStore:
    """One SQLite database, used by one coordinator. Calls block for the time of a small transaction."""

    def __init__(self, database: str) -> None:
        """`database` is a file name, or ":memory:"."""
        self._connection = sqlite3.connect(database, isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = normal")
        if self._connection.execute("pragma user_version").fetchone()[0] != _SCHEMA_VERSION:
            # A view of an older form: it is made again from the events.
            self._connection.executescript("drop table if exists job; drop table if exists position;")
        self._connection.executescript(f"{_SCHEMA} pragma user_version = {_SCHEMA_VERSION};")

    def __enter__(self) -> Self:
        """Nothing is left to open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    @property
    def next_offset(self) -> int:
        """The offset in the stream from which on events are not folded yet."""
        row = self._connection.execute("select next_offset from position where stream = ?", (_STREAM,)).fetchone()
        return 0 if row is None else int(row[0])

    def apply(self, events: Iterable[ReceivedEvent], next_offset: int) -> None:
        """Fold events, and remember where the stream goes on, in one transaction."""
        self._connection.execute("begin")
        try:
            for event in events:
                self._fold(event)
            self._connection.execute("insert or replace into position values (?, ?)", (_STREAM, next_offset))
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute("commit")

    def get(self, job_id: str) -> JobInfo | None:
        """Return a job, None if no event of it was folded."""
        row = self._connection.execute(f"{_SELECT} where id = ?", (job_id,)).fetchone()
        return None if row is None else _info(row)

    def newest(self, queue: str, state: str | None, limit: int) -> list[JobInfo]:
        """Return the jobs of a queue that were enqueued last, all states unless one is given."""
        rows = self._connection.execute(
            f"{_SELECT} where queue = ? and (? is null or state = ?) order by enqueued_at desc, id desc limit ?",
            (queue, state, state, limit),
        )
        return [_info(row) for row in rows]

    def _fold(self, event: ReceivedEvent) -> None:
        kind, data = event.type, event.data
        if not kind.startswith("job."):
            return
        job_type, queue = data.get("job_type"), data.get("queue")
        self._connection.execute(
            "insert into job (id, type, queue, state, attempt, rank) values (?, ?, ?, ?, 0, -1) on conflict do nothing",
            (event.subject, job_type, queue, State.AVAILABLE.value),
        )
        if kind in _ENDS:
            self._end(event)
        elif kind in _PHASES:
            self._advance(event)
        elif kind == "job.heartbeat":
            self._connection.execute(
                "update job set visible_until = ? where id = ? and state = ?",
                (data.get("visible_until"), event.subject, State.ACTIVE.value),
            )
        elif kind == "job.progress":
            self._note_progress(event)
        elif kind == "job.failed":
            self._connection.execute(
                "update job set error = ? where id = ? and rank < ?",
                (_json(data.get("error")), event.subject, _END_RANK),
            )

    def _advance(self, event: ReceivedEvent) -> None:
        data = event.data
        phase, state = _PHASES[event.type]
        attempt = _number(data.get("attempt"))
        rank = attempt * 3 + phase
        if event.type in {"job.enqueued", "job.started"}:
            # A dead letter was tried again: everything begins anew. Its start may be heard of first.
            self._connection.execute(
                "update job set rank = -1, attempt = 0, ended_at = null, error = null, result = null,"
                " started_at = null, worker_id = null, next_retry_at = null, visible_until = null, progress = null,"
                " progress_message = null, checkpoint = null"
                " where id = ? and ended_at < ?",
                (event.subject, event.time),
            )
        if event.type == "job.enqueued":
            if data.get("scheduled_at") is not None:
                state = State.SCHEDULED
            self._connection.execute(
                "update job set enqueued_at = ?, scheduled_at = ? where id = ?",
                (event.time, data.get("scheduled_at"), event.subject),
            )
        elif event.type == "job.started":
            self._connection.execute(
                "update job set started_at = ?, worker_id = ?, progress = null, progress_message = null"
                " where id = ? and attempt <= ?",
                (event.time, data.get("worker_id"), event.subject, attempt),
            )
        self._connection.execute(
            "update job set state = ?, attempt = ?, next_retry_at = ?, rank = ?, visible_until = null"
            " where id = ? and rank < ?",
            (state.value, attempt, data.get("next_retry_at"), rank, event.subject, rank),
        )

    def _note_progress(self, event: ReceivedEvent) -> None:
        """Take what the attempt tells that is under way; one that was replaced has nothing to say any more."""
        data = event.data
        self._connection.execute(
            "update job set progress = max(coalesce(progress, 0), ? / 100.0),"
            " progress_message = coalesce(?, progress_message), checkpoint = coalesce(?, checkpoint)"
            " where id = ? and state = ? and attempt = ?",
            (
                data.get("progress_percent", 0),
                data.get("progress_message"),
                _json(data.get("checkpoint")),
                event.subject,
                State.ACTIVE.value,
                _number(data.get("attempt")),
            ),
        )

    def _end(self, event: ReceivedEvent) -> None:
        data = event.data
        self._connection.execute(
            "update job set state = ?, ended_at = ?, rank = ?, attempt = max(attempt, ?), next_retry_at = null,"
            " visible_until = null, result = ?, error = coalesce(?, error), checkpoint = null,"
            " progress = case when ? and progress is not null then 1 else progress end where id = ? and rank < ?",
            (
                _ENDS[event.type].value,
                event.time,
                _END_RANK,
                _number(data.get("attempt", data.get("total_attempts"))),
                _json(data.get("result")),
                _json(data.get("last_error")),
                event.type == "job.completed",
                event.subject,
                _bound(event),
            ),
        )


def has_ended(job: JobInfo) -> bool:
    """Say whether a job is in a terminal state."""
    return job.state in _END_VALUES


def _bound(event: ReceivedEvent) -> int:
    """Return the rank below which an end counts: the late result of an attempt that was replaced does not."""
    attempt = _number(event.data.get("attempt"))
    return attempt * 3 + _PHASES["job.retrying"][0] if event.type == "job.completed" and attempt else _END_RANK


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _info(row: tuple[object, ...]) -> JobInfo:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in ("error", "result", "checkpoint"):
        text = fields[name]
        fields[name] = msgspec.json.decode(text) if isinstance(text, str) else None
    fields["type"], fields["queue"] = fields["type"] or "", fields["queue"] or ""
    return msgspec.convert(fields, JobInfo)
