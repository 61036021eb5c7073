"""Cron jobs over HTTP: requests to coordinators, sent to a server (ojs-cron section 8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from waybill.http.answer import Answer
from waybill.http.errors import INVALID, NoAnswer, RequestRefused, json_of
from waybill.ojs.cron.cron_message import CronReply, CronRequest
from waybill.ojs.cron.definition import CronInfo

Send = Callable[[str, str, dict[str, Any] | None], Awaitable[Answer]]
"""Sends a request; raises NoAnswer, RequestRefused."""

_BASE: Final = "/ojs/v1/cron"
_METHODS: Final = {"get": "GET", "remove": "DELETE"}
_ACTIONS: Final = {"pause": "/pause", "resume": "/resume", "run": "/trigger"}
_CREATED: Final = 201


async def ask_of_crons(send: Send, request: CronRequest) -> CronReply:
    """Return the reply that a coordinator would send. Raises NoAnswer, RequestRefused."""
    try:
        return await _ask(send, request)
    except RequestRefused as error:
        if error.status == 404:
            return CronReply(error="not_found", message=error.message)
        if error.status in INVALID:
            return CronReply(error="invalid_request", message=error.message)
        raise


async def _ask(send: Send, request: CronRequest) -> CronReply:
    if request.action == "register":
        answer = await send("POST", _BASE, request.job)
        return CronReply(outcome="created" if answer.status == _CREATED else "updated")
    if request.action == "list":
        listed = json_of(await send("GET", _BASE, None)).get("crons")
        return CronReply(cron_jobs=[_info(one) for one in listed] if isinstance(listed, list) else [])
    path = f"{_BASE}/{quote(request.name, safe='')}{_ACTIONS.get(request.action, '')}"
    body: dict[str, Any] | None = None if request.action in _METHODS else {}
    answer = await send(_METHODS.get(request.action, "POST"), path, body)
    found = json_of(answer)
    if request.action == "run":
        return CronReply(outcome=str(found.get("job_id") or found.get("id") or ""))
    return CronReply(cron_jobs=[_info(found.get("cron_job", found))])


def _info(form: object) -> CronInfo:
    try:
        return msgspec.convert(form, CronInfo)
    except msgspec.ValidationError as error:
        raise NoAnswer(f"the server sent an invalid cron job: {error}") from None
