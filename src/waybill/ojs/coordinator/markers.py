"""Markers in the event stream: once a view has folded a marker, it knows everything that was confirmed before."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from waybill.ojs.coordinator.feature_fold import FeatureFold, Rows
from waybill.ojs.coordinator.job_view import VERDICT_SECONDS, JobView
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import new_id

MARKED = "view.marked"
REPORT_SECONDS: Final = 5.0
STUCK_SECONDS: Final = 60.0

_log = logging.getLogger("waybill.ojs.coordinator")


class MarkerFold(FeatureFold):
    """Folds markers: they change nothing, but their writer is notified."""

    types = (MARKED,)

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return one key for all markers; no such row exists."""
        return ("marker/",) if event.type == MARKED else ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Do nothing: the view notifies the marker's writer."""


async def catch_up(view: JobView, events: EventWriter, seconds: float | None = VERDICT_SECONDS) -> None:
    """Return when the view knows everything that was confirmed so far. Raises TimeoutError if that takes too long."""
    partitions = range(view.partition_count)
    await asyncio.gather(*(_catch_up(view, events, partition, seconds) for partition in partitions))


async def rebuild(view: JobView, events: EventWriter) -> None:
    """Do the same at a start, when there may be millions of events to read: however long it takes, if it goes on.

    It logs how far it is. Raises TimeoutError if the event stream brings nothing for a minute.
    """
    now = asyncio.get_running_loop().time
    began = moved_at = now()
    position: object = None
    catching = asyncio.ensure_future(catch_up(view, events, None))
    try:
        while not (await asyncio.wait({catching}, timeout=REPORT_SECONDS))[0]:
            lag = max((one.seconds or 0.0 for one in view.lags()), default=0.0)
            # The time of the next event; without one, nothing moves.
            next_at = round(time.time() - lag, 1) if lag else None
            if (next_at, view.waiting_count) != position:
                position, moved_at = (next_at, view.waiting_count), now()
            elif now() - moved_at > STUCK_SECONDS:
                raise TimeoutError(f"the event stream has brought nothing for {STUCK_SECONDS:.0f} s")
            _log.info("the job state is being built from the event stream: the next event is %.0f s old", lag)
        await catching
    finally:
        catching.cancel()
    if now() - began >= REPORT_SECONDS:
        _log.info("the job state was built from the event stream in %.0f s", now() - began)


async def _catch_up(view: JobView, events: EventWriter, partition: int, seconds: float | None) -> None:
    event_id = f"evt_{new_id()}"
    await view.folded(event_id, lambda: events.mark(partition, event_id), seconds)
