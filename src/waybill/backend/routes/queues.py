"""Queues: list, create, count, pause, resume, purge and delete them (ojs-http-binding section 11, ojs-queue-config)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.bulk import delete
from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import TERMINAL, UNFINISHED, Form
from waybill.backend.job_pages import pages
from waybill.backend.job_search import SearchFilter, search, time_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.queue_configs import QueueMove
from waybill.backend.queue_stats import stats_of
from waybill.backend.redirections import Redirections
from waybill.backend.router import ADMIN, OPERATE, READ, Route
from waybill.backend.routes.queue_configs import configure, configured_at, shown_config
from waybill.ojs.control.pauses import paused_among
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.errors import ResponseCode
from waybill.ojs.spec.envelope import ErrorRecord, check_queue
from waybill.ojs.spec.operator_events import QueueCreated, QueueDeleted
from waybill.ojs.spec.states import State
from waybill.ojs.worker.execution import Failure

MOST_PURGED: Final = 10_000
AT_A_TIME: Final = 100
WAITING: Final = UNFINISHED - {State.ACTIVE.value}
PURGED: Final = WAITING | TERMINAL
STRATEGIES: Final = ("reject", "discard", "move")


class QueueRoutes:
    """The routes for queues."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._deleted: dict[str, int] = {}
        """Deleted queues with their total jobs: a queue that gets more jobs exists again."""
        backend.on_close.append(Redirections(backend, self._forget).close)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/queues", self._list, READ),
            Route("POST", "/ojs/v1/queues", self._make, OPERATE),
            Route("GET", "/ojs/v1/queues/{name}", self._stats, READ),
            Route("DELETE", "/ojs/v1/queues/{name}", self._delete, ADMIN),
            Route("GET", "/ojs/v1/queues/{name}/stats", self._stats, READ),
            Route("GET", "/ojs/v1/queues/{name}/priority-stats", self._priorities, READ),
            Route("POST", "/ojs/v1/queues/{name}/pause", self._pause, OPERATE),
            Route("POST", "/ojs/v1/queues/{name}/resume", self._resume, OPERATE),
            Route("POST", "/ojs/v1/queues/{name}/purge", self._purge, ADMIN),
            Route("DELETE", "/ojs/v1/admin/queues/{name}/jobs", self._purge_confirmed, ADMIN),
        ]

    async def _list(self, request: Request) -> Response:
        totals = _totals(await self._backend.counts())
        known = [
            name
            for name in await self._backend.queues()
            if self._deleted.get(name) != totals[name] and name.startswith(request.queue_prefix)
        ]
        names, pagination = page_of(request, known, lambda name: name)
        paused = await paused_among(self._backend.broker, names)
        made = await self._backend.extensions.known_queues.created_at(names)
        queues = [
            {"name": name, "status": status, "state": status, "paused": name in paused}
            | ({"created_at": made[name]} if name in made else {})
            for name in names
            for status in [self._status(name, is_paused=name in paused)]
        ]
        return answer({"queues": queues, "items": queues, "count": len(queues), "pagination": pagination})

    def _status(self, name: str, *, is_paused: bool) -> str:
        if self._backend.extensions.queue_moves.get(name) is not None:
            return "draining"
        return "paused" if is_paused else "active"

    async def _make(self, request: Request) -> Response:
        body = request.json(required=True)
        name, config = body.get("name"), body.get("config", {})
        if not isinstance(name, str):
            raise invalid("name", "must be a string")
        check_queue(name)
        if not isinstance(config, dict):
            raise invalid("config", "must be an object")
        if config and request.role != ADMIN:
            raise RequestRefused("permission_denied", "config: only keys of the role admin configure queues.")
        if config:
            await configure(self._backend, name, config)
        await self._backend.fetcher.has_queue(name, creates=True)
        if not await created(self._backend, name):
            self._backend.broker.events.record(name, QueueCreated(queue=name))
        await self._backend.extensions.known_queues.add(name, waits=True)
        await self._backend.coordinate_queue(name)
        self._deleted.pop(name, None)
        await self._backend.extensions.queue_moves.remove(name)
        form: Form = {"name": name, "status": "active", "state": "active", "paused": False}
        form |= {"config": shown_config(self._backend, name)["config"], **await created(self._backend, name)}
        return answer({**form, "queue": form}, 201, [("Location", f"/ojs/v1/queues/{name}")])

    async def _stats(self, request: Request) -> Response:
        """Count the jobs of a queue: waiting jobs by the broker, others by the events."""
        name = request.parameters["name"]
        stats, is_paused = await stats_of(self._backend, name)
        shown = {state: stats[state] for state in ("available", "active", "completed")}
        return answer(
            {
                "queue": name,
                "name": name,
                "status": self._status(name, is_paused=is_paused),
                "state": self._status(name, is_paused=is_paused),
                "paused": is_paused,
                "depth": stats["available"],
                **shown,
                "config": shown_config(self._backend, name)["config"],
                "stats": stats,
                "computed_at": self._backend.now(),
                **await created(self._backend, name),
                **configured_at(self._backend, name),
            }
        )

    async def _priorities(self, request: Request) -> Response:
        """Count the newest available jobs by priority."""
        name = request.parameters["name"]
        await stats_of(self._backend, name)
        wanted = JobFilter(name, frozenset({State.AVAILABLE.value}))
        counts: Counter[str] = Counter()
        async for found in pages(self._backend.view, wanted, AT_A_TIME, MOST_PURGED):
            counts.update(str((job.envelope or {}).get("priority", 0)) for job in found)
        return answer({"queue": name, "counts_by_priority": counts, "total": counts.total()})

    async def _pause(self, request: Request) -> Response:
        name = request.parameters["name"]
        check_queue(name)
        await self._backend.jobs.pause(name)
        await self._backend.fetcher.refresh_pauses([name])
        return self._answer(name, "paused", "paused_at")

    async def _resume(self, request: Request) -> Response:
        name = request.parameters["name"]
        check_queue(name)
        await self._backend.jobs.resume(name)
        await self._backend.fetcher.refresh_pauses([name])
        return self._answer(name, "active", "resumed_at")

    def _answer(self, name: str, status: str, when: str) -> Response:
        found = {"name": name, "status": status, "paused": status == "paused", when: self._backend.now()}
        return answer({"queue": name, **found})

    # --- purge ---

    async def _purge_confirmed(self, request: Request) -> Response:
        """Do the same with the safety interlock of ojs-admin-api section 6.5."""
        body = request.json(required=True)
        if body.get("confirm") is not True and body.get("dry_run") is not True:
            raise invalid("confirm", "must be true, as this cannot be undone")
        if "states" not in body:
            raise invalid("states", "is required")
        return await self._purge(request)

    async def _purge(self, request: Request) -> Response:
        """Cancel the jobs of a queue that have not started, and delete those that have ended, by their states."""
        name, body = request.parameters["name"], request.json()
        given, is_dry = body.get("states", sorted(WAITING)), body.get("dry_run", False)
        if not isinstance(given, list) or not given or not all(isinstance(one, str) and one in PURGED for one in given):
            raise invalid("states", f"must be an array of {', '.join(sorted(PURGED))}")
        if not isinstance(is_dry, bool):
            raise invalid("dry_run", "must be true or false")
        older_than = time_of(body, "older_than")
        await stats_of(self._backend, name)
        states = frozenset(given)
        ended = SearchFilter([name], states & TERMINAL, ended_before=older_than)
        # Only jobs that have ended have a time of their end.
        waiting = states & WAITING if older_than is None else frozenset()
        found = await search(self._backend, ended, MOST_PURGED + 1) if ended.states else []
        has_more = len(found) > MOST_PURGED
        if is_dry:
            matched = len(found[:MOST_PURGED]) + await self._open_jobs(name, waiting)
            done = 0
        else:
            done = matched = await self._delete_all(found[:MOST_PURGED]) + await self._cancel_all(name, waiting)
            has_more = has_more or await self._open_jobs(name, waiting) > 0
        counts: Form = dict.fromkeys(("purged", "purged_count", "deleted", "jobs_affected"), done)
        return answer(
            {"queue": name, **counts, "states": given, "matched": matched, "dry_run": is_dry, "has_more": has_more}
        )

    async def _delete(self, request: Request) -> Response:
        """Forget a queue without unfinished jobs; `discard` discards them, and `move` moves them to another queue."""
        name, body = request.parameters["name"], request.json()
        strategy = body.get("strategy", request.query.get("strategy", "reject"))
        if strategy not in STRATEGIES:
            raise invalid("strategy", f"must be {', '.join(STRATEGIES)}")
        stats, _ = await stats_of(self._backend, name)
        left = sum(int(str(stats[one])) for one in UNFINISHED)
        if strategy == "move":
            return await self._move(name, body.get("target_queue"), left)
        done = 0
        if strategy == "discard":
            done = await self._discard_available(name) + await self._cancel_all(name, WAITING)
            left = await self._open_jobs(name, UNFINISHED)
        if left:
            details: Form = {"queue": name, "jobs": left}
            raise RequestRefused("conflict", f"Queue {name} has {left} jobs that have not ended.", details=details)
        await self._forget(name)
        return answer({"queue": name, "name": name, "deleted": True, "strategy": strategy, "jobs_affected": done})

    async def _forget(self, name: str) -> None:
        self._deleted[name] = _totals(await self._backend.counts())[name]
        await self._backend.forget_queue(name)
        self._backend.broker.events.record(name, QueueDeleted(queue=name))

    async def _move(self, name: str, target: object, count: int) -> Response:
        """Move the jobs of a queue. Those that run, or have to wait, move when they come back."""
        if not isinstance(target, str):
            raise invalid("target_queue", "must be a string")
        check_queue(target)
        moves = self._backend.extensions.queue_moves
        if target == name or moves.get(target) is not None:
            raise invalid("target_queue", "must be another queue, which is not being deleted")
        await moves.put(name, QueueMove(target))
        found = {"queue": name, "name": name, "strategy": "move", "target_queue": target, "jobs_affected": count}
        return answer({**found, "deleted": False, "state": "draining"}, 202)

    async def _discard_available(self, name: str) -> int:
        """Discard the jobs of a queue that could start now (ojs-queue-config section 5.3); returns how many."""
        backend, done = self._backend, 0
        while done < MOST_PURGED and (found := await backend.fetcher.oldest(name, AT_A_TIME)):
            async with backend.folded([("job.discarded", one.envelope.id) for one in found]):
                for one in found:
                    record = ErrorRecord(type="queue_deleted", message="the queue was deleted", code="QUEUE_DELETED")
                    backend.settlement.failed(one, Failure(record, ResponseCode.DISCARD), 0.0)
            done += len(found)
        return done

    async def _delete_all(self, forms: Sequence[Form]) -> int:
        failed: dict[str, str] = {}
        for start in range(0, len(forms), AT_A_TIME):
            failed |= await delete(self._backend, forms[start : start + AT_A_TIME])
        return len(forms) - len(failed)

    async def _cancel_all(self, name: str, states: frozenset[str]) -> int:
        coordinator = self._backend.coordinator
        done = 0
        async for found in pages(self._backend.view, JobFilter(name, states), AT_A_TIME, MOST_PURGED if states else 0):
            await asyncio.gather(*(coordinator.cancel(job.info.id, name) for job in found))
            done += len(found)
        return done

    async def _open_jobs(self, name: str, states: frozenset[str]) -> int:
        counts = await self._backend.counts()
        return sum(count for (queue, state), count in counts.items() if queue == name and state in states)


async def created(backend: Backend, name: str) -> Form:
    """Return the time of a queue's creation, nothing if it is unknown."""
    found = await backend.extensions.known_queues.created_at([name])
    return {"created_at": found[name]} if found else {}


def _totals(counts: Mapping[tuple[str, str], int]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for (queue, _), count in counts.items():
        totals[queue] += count
    return totals
