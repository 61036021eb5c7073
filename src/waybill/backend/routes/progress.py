"""Progress and checkpoints: reported by workers, read and streamed by other clients (ojs-progress, ojs-realtime)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, invalid, is_valid_queue_name, not_found
from waybill.backend.event_streams import MEDIA_TYPE, Pieces, event_text, follow, gap_text, stream_head
from waybill.backend.job_form import TERMINAL, Form
from waybill.backend.listeners import Predicate
from waybill.backend.message import Request, Response, answer, integer_of, streamed
from waybill.backend.missed_events import Gap, missed_events
from waybill.backend.progress import read_report
from waybill.backend.recent_events import INTERNAL_PREFIX, form_of, is_of
from waybill.backend.router import OPERATE, READ, Route
from waybill.backend.state_changes import CHANGED, ENDS, STATES, StateChanges
from waybill.ojs.spec.checkpoint import MAX_CHECKPOINT_BYTES, MAX_SEQUENCE, make_checkpoint
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.operator_events import JobCheckpointed
from waybill.ojs.spec.states import State

_ACTIVE: Final = State.ACTIVE.value
_NAMED: Final = {State.DISCARDED.value: "failed"}
MOST_PIECES: Final = 50
"""How many events are kept in the form in which they are sent."""


class ProgressRoutes:
    """The routes for progress and checkpoints."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._event_pieces = _EventPieces()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("PUT", "/ojs/v1/jobs/{id}/progress", self._report, OPERATE),
            Route("POST", "/ojs/v1/jobs/{id}/progress", self._report, OPERATE),
            Route("GET", "/ojs/v1/jobs/{id}/progress", self._get, READ),
            Route("GET", "/ojs/v1/jobs/{id}/progress/stream", self._follow_progress, READ),
            Route("GET", "/ojs/v1/jobs/{id}/result/stream", self._follow_progress, READ),
            Route("POST", "/ojs/v1/jobs/{id}/checkpoint", self._save, OPERATE),
            Route("PUT", "/ojs/v1/jobs/{id}/checkpoint", self._save, OPERATE),
            Route("GET", "/ojs/v1/jobs/{id}/checkpoint", self._load, READ),
            Route("DELETE", "/ojs/v1/jobs/{id}/checkpoint", self._remove, OPERATE),
            Route("GET", "/ojs/v1/jobs/{id}/events", self._follow_job, READ),
            Route("GET", "/ojs/v1/queues/{name}/events", self._follow_queue, READ),
            Route("GET", "/ojs/v1/events/stream", self._follow_all, READ),
        ]

    # --- progress ---

    async def _report(self, request: Request) -> Response:
        body = request.json(required=True)
        report = read_report(body)
        job = (await self._backend.known(request.parameters["id"])).info
        is_active = job.state == _ACTIVE and _is_of(job, body)
        progress = job.progress
        if is_active:
            # A job that has ended meanwhile is not an error (section 6.1).
            if body.get("checkpoint") is not None:
                self._publish_checkpoint(job, body["checkpoint"])
            progress = self._backend.extensions.progress.report(job, report)
        return answer({"acknowledged": is_active, "job_id": job.id, "state": job.state, "progress": progress})

    async def _get(self, request: Request) -> Response:
        job = await self._current(request)
        headers = [("Cache-Control", "no-cache")]
        if job.progress is not None:
            headers.append(("X-OJS-Progress", f"{job.progress:g}"))
        if (at := job.progress_at) is not None:
            headers.append(("Last-Modified", format_datetime(datetime.fromisoformat(at).astimezone(UTC), usegmt=True)))
        return answer({**_progress_form(job), "job_id": job.id}, headers=headers)

    async def _current(self, request: Request) -> JobInfo:
        await self._backend.extensions.progress.wait_until_applied(request.parameters["id"])
        return (await self._backend.known(request.parameters["id"])).info

    # --- checkpoints ---

    async def _save(self, request: Request) -> Response:
        body = request.json(required=True)
        if "state" not in body:
            raise invalid("state", "is required")
        job = await self._current(request)
        if job.state != _ACTIVE or not _is_of(job, body):
            details: Form = {"job_id": job.id, "current_state": job.state, "expected_state": _ACTIVE}
            text = "Another worker has this job." if job.state == _ACTIVE else f"The job is {job.state}, not active."
            raise RequestRefused("conflict", text, details=details)
        sequence = integer_of(body, "sequence", 0, 0, MAX_SEQUENCE) if body.get("sequence") is not None else None
        event_id = f"evt_{new_id()}"
        async with self._backend.folded([("job.progress", event_id)]):
            made = self._publish_checkpoint(job, body["state"], event_id, sequence)
        return answer({"checkpoint": {"job_id": job.id, **made}})

    def _publish_checkpoint(
        self, job: JobInfo, state: object, event_id: str | None = None, sequence: int | None = None
    ) -> Form:
        lease = self._backend.leases.get(job.id)
        reported = None if lease is None or not lease.execution.has_told_checkpoint else lease.execution.checkpoint
        before = reported if reported is not None else job.checkpoint
        if sequence is not None and before is not None and sequence <= before.sequence:
            known: Form = {"job_id": job.id, "current_sequence": before.sequence}
            raise RequestRefused("conflict", f"The job has checkpoint {before.sequence}.", details=known)
        try:
            checkpoint = make_checkpoint(state, before, sequence)
        except ValueError as error:
            details: Form = {"max_bytes": MAX_CHECKPOINT_BYTES}
            raise RequestRefused("payload_too_large", f"{error}.", details=details) from None
        self._backend.extensions.progress.checkpoint(job, checkpoint, event_id)
        told = JobCheckpointed(job_type=job.type, queue=job.queue, attempt=job.attempt, sequence=checkpoint.sequence)
        self._backend.broker.events.record(job.id, told)
        return {"sequence": checkpoint.sequence, "created_at": checkpoint.created_at}

    async def _load(self, request: Request) -> Response:
        job = await self._current(request)
        if job.checkpoint is None:
            raise not_found("checkpoint", job.id)
        form: Form = {"job_id": job.id, "sequence": job.checkpoint.sequence, **msgspec.to_builtins(job.checkpoint)}
        return answer({"checkpoint": form})

    async def _remove(self, request: Request) -> Response:
        job = await self._current(request)
        if job.checkpoint is None or job.state != _ACTIVE:
            raise not_found("checkpoint", job.id)
        event_id = f"evt_{new_id()}"
        async with self._backend.folded([("job.progress", event_id)]):
            self._backend.extensions.progress.checkpoint(job, None, event_id)
        return answer({"deleted": True, "job_id": job.id})

    # --- streams ---

    async def _follow_progress(self, request: Request) -> Response:
        """Stream the progress of a job, and its end."""
        job = await self._current(request)
        return streamed(self._progress(job.id, is_result=request.path.endswith("/result/stream")), MEDIA_TYPE)

    async def _progress(self, job_id: str, *, is_result: bool) -> AsyncIterator[bytes]:
        with self._backend.events.listeners.listening(lambda event: event.subject == job_id) as listener:
            yield stream_head()
            texts, progress = await self._progress_so_far(job_id, is_result=is_result)
            while texts:
                yield listener.shared(texts.pop(0))
            if progress is None:
                return
            async for piece in follow(listener, progress.pieces, f"job:{job_id}"):
                yield piece

    async def _progress_so_far(self, job_id: str, *, is_result: bool) -> tuple[list[bytes], _ProgressPieces | None]:
        """Return the texts to begin with, and what converts later events, None if there are none.

        The caller lasts as long as its client, and must not keep the job.
        """
        detail = await self._backend.view.detail(job_id)
        if detail is None:
            return [], None
        job = detail.info
        texts = [] if job.progress is None else [event_text("progress", _progress_form(job))]
        if job.state in TERMINAL:
            return [*texts, _end_of(job, is_result=is_result)], None
        return texts, _ProgressPieces(job.progress, is_result=is_result)

    async def _follow_job(self, request: Request) -> Response:
        """Stream the changes of a job's state."""
        job = (await self._backend.known(request.parameters["id"])).info
        return streamed(self._job_changes(job.id, request.listed("event_types")), MEDIA_TYPE)

    async def _job_changes(self, job_id: str, names: set[str]) -> AsyncIterator[bytes]:
        with self._backend.events.listeners.listening(lambda event: event.subject == job_id) as listener:
            yield stream_head()
            text, state = await self._state_so_far(job_id)
            if text:
                yield text
            if not state:
                return
            changes = _StatePieces(self._changes({job_id: state}, names), ends=True)
            async for piece in follow(listener, changes.pieces, f"job:{job_id}"):
                yield piece

    async def _state_so_far(self, job_id: str) -> tuple[bytes, str]:
        """Return the text to begin with, and the state of a job that may change, "" if it does not."""
        detail = await self._backend.view.detail(job_id)
        if detail is None:
            return b"", ""
        job = detail.info
        if job.state not in TERMINAL:
            return b"", job.state
        form: Form = {"job_id": job.id, "queue": job.queue, "type": job.type, "from": _ACTIVE}
        return event_text(CHANGED, form | {"to": job.state, "timestamp": job.ended_at}), ""

    def _changes(self, states: dict[str, str], names: set[str]) -> StateChanges:
        return StateChanges(states, self._backend.events.listeners, names)

    async def _follow_queue(self, request: Request) -> Response:
        """Stream the changes of the jobs of a queue."""
        name = request.parameters["name"]
        if not is_valid_queue_name(name) or name not in await self._backend.queues():
            raise not_found("queue", name)
        changes = _StatePieces(self._changes({}, request.listed("event_types")))
        return streamed(
            self._stream(request, lambda event: event.data.get("queue") == name, changes.pieces, f"queue:{name}"),
            MEDIA_TYPE,
        )

    async def _follow_all(self, request: Request) -> Response:
        """Stream events unchanged."""
        types = request.listed("types") | request.listed("event_types")
        queues = request.listed("queues")

        def wanted(event: ReceivedEvent) -> bool:
            is_wanted = (not types or event.type in types) and (not queues or event.data.get("queue") in queues)
            return is_wanted and is_of(event, request.queue_prefix)

        return streamed(self._stream(request, wanted, self._event_pieces.pieces, "all"), MEDIA_TYPE)

    async def _stream(self, request: Request, wanted: Predicate, pieces: Pieces, channel: str) -> AsyncIterator[bytes]:
        """Stream events of a channel from now on, or after the last event that the client has received."""
        last = request.headers.get("last-event-id", "")
        with self._backend.events.listeners.listening(wanted) as listener:
            end = self._backend.events.seen_count
            yield stream_head()
            if last:
                async for group in missed_events(self._backend.events, last, end):
                    if isinstance(group, Gap):
                        yield gap_text(channel, last)
                        continue
                    for event in group:
                        if wanted(event):
                            yield pieces(event)[0]
            async for piece in follow(listener, pieces, channel):
                yield piece


class _ProgressPieces:
    """Converts the events of a job for a listener to its progress."""

    def __init__(self, progress: float | None, *, is_result: bool) -> None:
        self._progress = progress
        self._is_result = is_result

    def pieces(self, event: ReceivedEvent) -> tuple[bytes, bool]:
        if event.type == "job.progress":
            percent = event.data.get("progress_percent")
            now = percent / 100 if isinstance(percent, int | float) else 0.0
            self._progress = max(self._progress or 0.0, min(now, 1.0))
            form: Form = {"progress": self._progress, "updated_at": event.time}
            form |= {name: event.data[f"progress_{name}"] for name in _FIELDS if f"progress_{name}" in event.data}
            return event_text("progress", form, event.id), False
        if event.type == "job.started":
            # Another attempt begins from the start (section 5.3).
            self._progress = None
        name = ENDS.get(event.type)
        if name is None:
            return b"", False
        state = STATES[event.type]
        if self._is_result:
            if name == "completed":
                return event_text("result", {"value": event.data.get("result")}, event.id), True
            return event_text("error", {"error": event.data.get("last_error") or {}, "state": state}, event.id), True
        progress = 1.0 if name == "completed" else self._progress
        form = {"progress": progress, "state": state, "updated_at": event.time, "job_id": event.subject}
        return event_text(name, form, event.id), True


class _StatePieces:
    """Converts events for a listener to texts; with `ends`, the end of a job is the last one."""

    def __init__(self, changes: StateChanges, *, ends: bool = False) -> None:
        self._changes = changes
        self._ends = ends

    def pieces(self, event: ReceivedEvent) -> tuple[bytes, bool]:
        found = self._changes.form_of(event)
        piece = b"" if found is None else event_text(*found, event.id)
        return piece, self._ends and event.type in ENDS


_FIELDS: Final = ("data", "message")


def _is_of(job: JobInfo, body: Form) -> bool:
    """Return whether the reporting worker holds the job, if it gives its id."""
    worker_id = body.get("worker_id")
    return worker_id in {None, "", job.worker_id} or not job.worker_id


def _progress_form(job: JobInfo) -> Form:
    return {
        "state": job.state,
        "progress": job.progress,
        "data": job.progress_data,
        "message": job.progress_message,
        "updated_at": job.progress_at,
    }


def _end_of(job: JobInfo, *, is_result: bool) -> bytes:
    """Return the event for a job that ended before the listener connected."""
    name = _NAMED.get(job.state, job.state)
    if not is_result:
        return event_text(name, {**_progress_form(job), "job_id": job.id})
    if name == "completed":
        return event_text("result", {"value": job.result})
    return event_text("error", {"error": job.error or {}, "state": job.state})


class _EventPieces:
    """Converts events unchanged, each once for all listeners that read it at about the same time."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[ReceivedEvent, bytes]] = {}
        """By identity: producers choose the ids of events."""

    def pieces(self, event: ReceivedEvent) -> tuple[bytes, bool]:
        found = self._last.get(id(event))
        if found is None:
            piece = b"" if event.type.startswith(INTERNAL_PREFIX) else event_text(event.type, form_of(event), event.id)
            if len(self._last) >= MOST_PIECES:
                self._last.clear()
            # The event is kept too, so that no other one gets its identity.
            found = self._last[id(event)] = event, piece
        return found[1], False
