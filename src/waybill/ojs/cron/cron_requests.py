"""Answers requests about cron jobs.

A cron job belongs to the user who registered it, and may be changed by that user and by users trusted by the
coordinator's policy. Any verified user may register one, since users who may send requests may push, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from waybill.ojs.coordinator.leader import Leader
from waybill.ojs.coordinator.responder import Answer, Request, Responder
from waybill.ojs.cron.cron_fold import CRON, MAX_CRON_JOBS, CronRow
from waybill.ojs.cron.cron_message import CRON_REQUEST, CronReply, CronRequest
from waybill.ojs.cron.decision import manual, next_tick, wake_ms
from waybill.ojs.cron.definition import CronInfo, read_cron_job, time_of
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.cron_events import CronRegistered, CronRemoved, CronToggled
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.identifiers import is_uuid7, new_id

MAX_NEXT_RUNS: Final = 1000


class _Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reply = CronReply(error=code, message=message)


class CronRequests:
    """The requests about cron jobs."""

    def __init__(self, responder: Responder, leader: Leader, coordinator: str) -> None:
        """`leader` provides the time."""
        self._responder = responder
        self._leader = leader
        self._coordinator = coordinator
        self._actions: dict[str, Callable[[Request, CronRequest], Awaitable[CronReply]]] = {
            "register": self._register,
            "list": self._list,
            "get": self._get,
            "pause": self._toggle,
            "resume": self._toggle,
            "remove": self._remove,
            "run": self._run,
        }

    def answers(self) -> dict[str, Answer]:
        """Return the handlers by kind of request."""
        return {CRON_REQUEST: self._answer}

    async def _answer(self, request: Request) -> None:
        try:
            asked = msgspec.json.decode(request.delivery.body, type=CronRequest)
        except (msgspec.DecodeError, RecursionError):
            self._responder.drop_invalid(request)
            return
        # Other requests need not wait for the stream.
        request.delivery.ack()
        self._responder.spawn(self._reply(request, asked))

    async def _reply(self, request: Request, asked: CronRequest) -> None:
        try:
            reply = await self._actions[asked.action](request, asked)
        except _Refused as error:
            reply = error.reply
        except InvalidJob as error:
            reply = CronReply(error="invalid_request", message=str(error))
        except TimeoutError:
            reply = CronReply(error="unavailable", message="the event stream does not answer")
        smaller = CronReply(error="invalid_request", message="the reply would be too large: ask for single cron jobs")
        await self._responder.reply(request, reply, smaller=smaller)

    async def _register(self, request: Request, asked: CronRequest) -> CronReply:
        job = read_cron_job(asked.job)
        before = await self._find(job.name)
        if before is not None:
            self._check(request, job.name, before.owner)
            if before.job == job:
                return CronReply([self._info(before)], "unchanged")
        elif request.user is None and not self._responder.is_trusted(request):
            raise _Refused("forbidden", "the request has no user-id")
        elif len(await self._responder.view.listed(CRON, CronRow, MAX_CRON_JOBS)) >= MAX_CRON_JOBS:
            raise _Refused("forbidden", f"the limit of {MAX_CRON_JOBS} cron jobs is reached")
        now_ms = self._now_ms()
        data = CronRegistered(job=msgspec.to_builtins(job), owner=request.user, now_ms=now_ms)
        event_id = f"evt_{new_id()}"
        row = await self._record(job.name, data, event_id)
        # Another coordinator may have created it at the same moment: the first event in the stream did.
        return CronReply([self._info(row)], "created" if row.origin == event_id else "updated")

    async def _list(self, request: Request, _asked: CronRequest) -> CronReply:
        rows = await self._responder.view.listed(CRON, CronRow, MAX_CRON_JOBS)
        seen = [row for _, row in rows if self._may_see(request, row)]
        return CronReply([self._info(row) for row in seen])

    async def _get(self, request: Request, asked: CronRequest) -> CronReply:
        row = await self._find(asked.name)
        if row is None or not self._may_see(request, row):
            raise _missing(asked.name)
        info = self._info(row)
        info.firings = row.firings[::-1]
        info.next_runs = self._next_runs(row, min(max(asked.count, 0), MAX_NEXT_RUNS))
        return CronReply([info])

    async def _toggle(self, request: Request, asked: CronRequest) -> CronReply:
        await self._changeable(request, asked.name)
        data = CronToggled(enabled=asked.action == "resume", now_ms=self._now_ms(), by=asked.by)
        return CronReply([self._info(await self._record(asked.name, data))])

    async def _remove(self, request: Request, asked: CronRequest) -> CronReply:
        row = await self._changeable(request, asked.name)
        await self._write(asked.name, CronRemoved(by=asked.by))
        return CronReply([self._info(row)])

    async def _run(self, request: Request, asked: CronRequest) -> CronReply:
        row = await self._changeable(request, asked.name)
        request_id = asked.request_id if is_uuid7(asked.request_id) else new_id()
        found = manual(row, self._now_ms(), self._coordinator, request_id)
        row = await self._record(asked.name, found)
        firing = row.firing(found.key)
        return CronReply([self._info(row)], (firing.job_id if firing is not None else found.job_id) or "")

    async def _record(self, name: str, data: EventData, event_id: str | None = None) -> CronRow:
        """Write an event, and return the row once the event is folded."""
        await self._write(name, data, event_id)
        row = await self._responder.view.row(CRON + name, CronRow)
        if row is None:
            message = "the coordinator does not trust its own events: add its user to the policy, or trust all users"
            raise _Refused("forbidden", message)
        return row

    async def _write(self, name: str, data: EventData, event_id: str | None = None) -> None:
        event_id = event_id or f"evt_{new_id()}"
        events = self._responder.broker.events
        await self._responder.view.folded(event_id, lambda: events.record(name, data, event_id=event_id))

    async def _find(self, name: str) -> CronRow | None:
        if not name or len(name) > 255 or "\0" in name:
            return None
        return await self._responder.view.row(CRON + name, CronRow)

    async def _changeable(self, request: Request, name: str) -> CronRow:
        row = await self._find(name)
        if row is None:
            raise _missing(name)
        self._check(request, name, row.owner)
        return row

    def _check(self, request: Request, name: str, owner: str | None) -> None:
        if not self._responder.may_change(request, owner):
            self._responder.skipped_requests["refused"] += 1
            raise _Refused(
                "forbidden",
                f"cron job {name} belongs to another user: the coordinator's policy lists who may change it",
            )

    def _may_see(self, request: Request, row: CronRow) -> bool:
        return self._responder.may_change(request, row.owner)

    def _now_ms(self) -> int:
        return int(self._leader.now() * 1000)

    def _info(self, row: CronRow) -> CronInfo:
        runs = self._next_runs(row, 1)
        return row.info(runs[0] if runs else None)

    @staticmethod
    def _next_runs(row: CronRow, count: int) -> list[str]:
        """Return its next runs: none while it is paused (section 8.5), or if this machine lacks its time zone."""
        if not row.is_enabled or count == 0:
            return []
        try:
            schedule, tick = row.job.schedule(row.anchor_ms), next_tick(row)
        except InvalidJob:
            return []
        runs: list[str] = []
        while tick is not None and len(runs) < count:
            if tick.exists:
                runs.append(time_of(wake_ms(row, tick)))
            tick = schedule.next(*tick.order)
        return runs


def _missing(name: str) -> _Refused:
    return _Refused("not_found", f"there is no cron job {name[:100]}")
