"""Waits for the ends of jobs by asking for them, often at first and then once a second."""

from __future__ import annotations

import asyncio
from typing import Final

from waybill.http.control import HttpControl
from waybill.http.errors import NoAnswer, RequestRefused
from waybill.ojs.results.errors import ResultTimeout
from waybill.ojs.results.inbox import Handle, Inbox
from waybill.ojs.results.outcome import Outcome, outcome_of
from waybill.ojs.spec.states import State

FIRST_SECONDS: Final = 0.02
FACTOR: Final = 1.5
MOST_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 10.0

_ENDED: Final = frozenset({State.COMPLETED.value, State.CANCELLED.value, State.DISCARDED.value})


class HttpInbox(Inbox):
    """Asks for jobs."""

    def __init__(self, control: HttpControl) -> None:
        self._questions = control

    async def outcome(self, handle: Handle, timeout_seconds: float | None) -> Outcome:
        """Wait for the end of a job. Raises ResultTimeout; ControlFailed if the server refuses to tell."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._ended(handle)
        except TimeoutError:
            raise ResultTimeout(handle.id, f"it has not ended within {timeout_seconds:g} s") from None

    async def _ended(self, handle: Handle) -> Outcome:
        pause = FIRST_SECONDS
        while handle.outcome is None:
            try:
                job = await self._questions.info(handle.id, None, ANSWER_SECONDS)
            except NoAnswer:
                # The server comes back, or the caller's time is over.
                job = None
            except RequestRefused as error:
                if not error.is_retryable:
                    raise
                job = None
            if job is not None and job.state in _ENDED:
                handle.outcome = outcome_of(job)
                break
            await asyncio.sleep(pause)
            pause = min(pause * FACTOR, MOST_SECONDS)
        return handle.outcome
