"""Notifies requesters that wait for jobs when these have ended.

A request is acknowledged when the end of all of its jobs was reported, so if this coordinator dies, the broker passes
it to the next one. It is dropped after a while: clients that still wait ask again.

    WAIT a, b -> [a] has ended: told at once ... job.completed of b -> [b] is told, WAIT is acknowledged
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from waybill.ojs.coordinator.job_fold import has_ended
from waybill.ojs.coordinator.responder import Answer, Request, Responder
from waybill.ojs.results.outcome import encode_outcome, join_outcomes, outcome_of
from waybill.ojs.spec.control_message import MAX_WAITED, WAIT, JobInfo, WaitRequest

MAX_OPEN: Final = 5000
"""The maximum number of open requests; the channel has room for twice as many."""
MAX_HOLD_SECONDS: Final = 600.0
MAX_MESSAGE_BYTES: Final = 256 * 1024

_decoder: Final = msgspec.json.Decoder(WaitRequest)
_log = logging.getLogger("waybill.ojs.coordinator")


class _Question:
    """A request, and those of its jobs that have not ended."""

    __slots__ = ("left", "request", "timer")

    def __init__(self, request: Request, job_ids: Iterable[str]) -> None:
        self.request = request
        self.left = set(job_ids)
        self.timer: asyncio.TimerHandle | None = None


class WaitRequests:
    """Tracks open requests."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._view = responder.view
        self._questions: dict[_Question, None] = {}
        self._by_job: defaultdict[str, list[_Question]] = defaultdict(list)
        responder.view.on_end.append(self._have_ended)
        responder.broker.connection.on_reconnect(self._forget_lost)

    def answers(self) -> dict[str, Answer]:
        """Return the handlers by kind of request."""
        return {WAIT: self._wait}

    async def _wait(self, request: Request) -> None:
        try:
            body = _decoder.decode(request.delivery.body)
        except (msgspec.DecodeError, RecursionError):
            self._responder.drop_invalid(request)
            return
        if not request.delivery.properties.reply_to or len(body.job_ids) > MAX_WAITED:
            self._responder.drop_invalid(request)
        elif len(self._questions) >= MAX_OPEN:
            _log.warning("%d requests are waiting for jobs to end: refusing more", MAX_OPEN)
            request.delivery.ack()
        else:
            self._responder.spawn(self._responder.attempt(request, self._begin))

    async def _begin(self, request: Request) -> None:
        """Track a request, and report the jobs that have ended by now."""
        body = _decoder.decode(request.delivery.body)
        question = _Question(request, body.job_ids)
        # Register first, so that no end falls between the look and the wait.
        self._questions[question] = None
        for job_id in question.left:
            self._by_job[job_id].append(question)
        self._view.watched.update(question.left)
        try:
            known = await self._view.many(list(question.left))
        except BaseException:
            self._drop(question)
            raise
        hold_seconds = min(max(body.hold_seconds, 0.0), MAX_HOLD_SECONDS)
        question.timer = asyncio.get_running_loop().call_later(hold_seconds, self._give_up, question)
        await self._tell(known)
        self._settle(question)

    def _have_ended(self, job_ids: Sequence[str]) -> None:
        self._responder.spawn(self._look(job_ids))

    async def _look(self, job_ids: Sequence[str]) -> None:
        await self._tell(await self._view.many(job_ids))

    async def _tell(self, jobs: Iterable[JobInfo]) -> None:
        """Report the jobs that have ended."""
        outcomes: defaultdict[_Question, list[bytes]] = defaultdict(list)
        for job in jobs:
            if not has_ended(job):
                continue
            encoded = encode_outcome(outcome_of(job))
            self._view.watched.discard(job.id)
            for question in self._by_job.pop(job.id, ()):
                question.left.discard(job.id)
                outcomes[question].append(encoded)
        for question, found in outcomes.items():
            await self._send(question.request, found)
            self._settle(question)

    async def _send(self, request: Request, outcomes: list[bytes]) -> None:
        start = size = 0
        for end, outcome in enumerate(outcomes):
            size += len(outcome)
            if size > MAX_MESSAGE_BYTES and end > start:
                await self._responder.reply(request, join_outcomes(outcomes[start:end]))
                start, size = end, len(outcome)
        await self._responder.reply(request, join_outcomes(outcomes[start:]))

    def _settle(self, question: _Question) -> None:
        if not question.left and question in self._questions:
            self._drop(question)
            question.request.delivery.ack()

    def _give_up(self, question: _Question) -> None:
        """Drop a request: clients that still wait ask again."""
        if question in self._questions:
            self._drop(question)
            question.request.delivery.ack()

    def _drop(self, question: _Question) -> None:
        self._questions.pop(question, None)
        if question.timer is not None:
            question.timer.cancel()
        for job_id in question.left:
            others = self._by_job.get(job_id)
            if others is not None:
                others.remove(question)
                if not others:
                    del self._by_job[job_id]
                    self._view.watched.discard(job_id)

    def _forget_lost(self) -> None:
        """After a lost connection: the broker delivers open requests again."""
        for question in [one for one in self._questions if not one.request.delivery.is_current]:
            self._drop(question)
