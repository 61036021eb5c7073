"""Deletes jobs that ended long ago, in steps between the folds: see `JobStore.forget_old`."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from waybill.ojs.coordinator.job_view import JobView

FIRST_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 1800.0
PAUSE_SHARE: Final = 1.0
"""After a step, folds have the database to themselves for this multiple of the step's duration."""

_log = logging.getLogger("waybill.ojs.coordinator")


async def forget_for_ever(view: JobView) -> None:
    """Delete expired jobs periodically until cancelled. A failed step is retried."""
    pause = FIRST_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = AGAIN_SECONDS
        try:
            count = await forget_now(view)
        except Exception as error:  # noqa: BLE001 - whatever a database can have against it
            pause = FIRST_SECONDS
            _log.warning("ended jobs could not be deleted, trying again: %s", error)
        else:
            if count:
                _log.info("deleted %d jobs whose retention period was over", count)


async def forget_now(view: JobView) -> int:
    """Delete all expired jobs; returns about how many."""
    count = 0
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        found = await view.read(lambda store: store.forget_old(datetime.now(UTC)))
        count += found.jobs
        if not found.is_more:
            return count
        await asyncio.sleep((loop.time() - began) * PAUSE_SHARE)
