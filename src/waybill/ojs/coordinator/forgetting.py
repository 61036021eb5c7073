"""Forgets jobs that have ended long ago, in steps between the folds: see `JobStore.forget_old`."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from waybill.ojs.coordinator.job_view import JobView

FIRST_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 1800.0
PAUSE_SHARE: Final = 1.0
"""For how long as a step took the folds have the database for themselves after it."""

_log = logging.getLogger("waybill.ojs.coordinator")


async def forget_for_ever(view: JobView) -> None:
    """Forget what there is to forget from time to time, until cancelled. What fails is tried the next time."""
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
    """Forget all that there is to forget; returns about how many jobs."""
    count = 0
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        found = await view.read(lambda store: store.forget_old(datetime.now(UTC)))
        count += found.jobs
        if not found.is_more:
            return count
        await asyncio.sleep((loop.time() - began) * PAUSE_SHARE)
