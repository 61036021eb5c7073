"""Requests of `Jobs` to a server, in place of a coordinator."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from waybill.http.answer import ANSWER_SECONDS, Answer
from waybill.http.crons import ask_of_crons
from waybill.http.errors import RequestRefused, json_of, refusal_of
from waybill.http.exchange import Exchange
from waybill.http.job_form import Form, info_of, job_in
from waybill.ojs.control.control import Control
from waybill.ojs.cron.cron_message import CronRequest
from waybill.ojs.errors import ControlFailed
from waybill.ojs.spec.control_message import JobInfo

PAGE: Final = 100
_FINE: Final = range(200, 300)


class HttpControl(Control):
    """Asks."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def answer_of(
        self, method: str, path: str, body: Form | None = None, *, timeout_seconds: float = ANSWER_SECONDS
    ) -> Answer:
        """Send a request, and return its answer, which is good. Raises NoAnswer, RequestRefused."""
        encoded = None if body is None else msgspec.json.encode(body)
        answer = await self._exchange.send(method, path, encoded, timeout_seconds=timeout_seconds)
        if answer.status not in _FINE:
            raise refusal_of(answer)
        return answer

    async def request(
        self, method: str, path: str, body: Form | None = None, *, timeout_seconds: float = ANSWER_SECONDS
    ) -> Form:
        """Send a request, and return the JSON of its answer. Raises NoAnswer, RequestRefused."""
        answer = await self.answer_of(method, path, body, timeout_seconds=timeout_seconds)
        return json_of(answer) if answer.body else {}

    async def cancel(self, job_id: str, queue: str | None) -> None:
        """Return when the server has the request. An ended job does not change."""
        try:
            await self.request("DELETE", _path(job_id))
        except RequestRefused as error:
            if error.status != 409:
                raise

    async def info(self, job_id: str, queue: str | None, timeout_seconds: float) -> JobInfo | None:
        try:
            return info_of(job_in(await self.request("GET", _path(job_id), timeout_seconds=timeout_seconds)))
        except RequestRefused as error:
            if error.status == 404:
                return None
            raise

    async def newest(self, queue: str | None, state: str | None, limit: int, timeout_seconds: float) -> list[JobInfo]:
        given = {"queue": queue, "state": state, "limit": str(min(limit, PAGE))}
        fields = {name: value for name, value in given.items() if value is not None}
        found: list[JobInfo] = []
        while True:
            path = f"/ojs/v1/jobs?{urlencode(fields)}"
            answer = await self.request("GET", path, timeout_seconds=timeout_seconds)
            jobs = answer.get("jobs")
            found += [info_of(job) for job in jobs] if isinstance(jobs, list) else []
            pagination = answer.get("pagination")
            cursor = pagination.get("next_cursor") if isinstance(pagination, dict) else None
            if not jobs or not isinstance(cursor, str) or len(found) >= limit:
                return found[:limit]
            fields["cursor"] = cursor

    async def pause(self, queue: str, by: str | None) -> bool:
        return await self._switch(queue, "pause", by)

    async def resume(self, queue: str, by: str | None) -> bool:
        return await self._switch(queue, "resume", by)

    async def is_paused(self, queue: str) -> bool:
        """Whether a queue is paused; an unknown one is not."""
        try:
            stats: dict[str, Any] = await self.request("GET", f"/ojs/v1/queues/{quote(queue, safe='')}/stats")
        except RequestRefused as error:
            if error.status == 404:
                return False
            raise
        return stats.get("paused") is True or stats.get("status") == "paused"

    async def ask(
        self, queue: str | None, kind: str, request: msgspec.Struct, timeout_seconds: float, *, again: bool = False
    ) -> bytes:
        """Ask about cron jobs. Raises ControlFailed for requests that only work over AMQP."""
        if isinstance(request, CronRequest):
            return msgspec.json.encode(await ask_of_crons(self.answer_of, request))
        raise ControlFailed(f"{kind} is only available over AMQP")

    async def send(self, kind: str, request: msgspec.Struct, reply_to: str, expiration_ms: int) -> None:
        """See `ask`."""
        raise ControlFailed(f"{kind} is only available over AMQP")

    async def _switch(self, queue: str, action: str, by: str | None) -> bool:
        was_paused = await self.is_paused(queue)
        body: Form = {} if by is None else {"by": by}
        await self.request("POST", f"/ojs/v1/queues/{quote(queue, safe='')}/{action}", body)
        return was_paused == (action == "resume")


def _path(job_id: str) -> str:
    return f"/ojs/v1/jobs/{quote(job_id, safe='')}"
