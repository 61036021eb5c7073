"""Markers in the event stream: once a view has folded a marker, it knows everything that was confirmed before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waybill.ojs.coordinator.feature_fold import FeatureFold, Rows
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import new_id

MARKED = "view.marked"


class MarkerFold(FeatureFold):
    """Folds markers: they change nothing, but their writer is notified."""

    types = (MARKED,)

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return one key for all markers; no such row exists."""
        return ("marker/",) if event.type == MARKED else ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Do nothing: the view notifies the marker's writer."""


async def catch_up(view: JobView, events: EventWriter) -> None:
    """Return when the view knows everything that was confirmed so far. Raises TimeoutError if that takes too long."""
    await asyncio.gather(*(_catch_up(view, events, partition) for partition in range(view.partition_count)))


async def _catch_up(view: JobView, events: EventWriter, partition: int) -> None:
    event_id = f"evt_{new_id()}"
    await view.folded(event_id, lambda: events.mark(partition, event_id))
