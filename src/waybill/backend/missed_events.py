"""The events that a reconnecting client has missed since the last one that it received.

Thousands of clients may reconnect at once, each with megabytes of missed events. So each turn of the event loop reads a
few messages for one client. Messages that are no longer stored by then are reported as a gap.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from waybill.backend.recent_events import RecentEvents
from waybill.ojs.spec.events import ReceivedEvent


class Gap:
    """Stands for events that are no longer stored."""


async def missed_events(recent: RecentEvents, event_id: str, end: int) -> AsyncIterator[list[ReceivedEvent] | Gap]:
    """Yield the events after `event_id` in groups, up to but not including the message with the number `end`."""
    await recent.steps.begin()
    number = end
    found: list[ReceivedEvent] | None = None
    for number in recent.mentioning(event_id):
        found = _after(recent.events_of(number), event_id)
        if found is not None:
            break
        # The message mentions the id, but is not the event.
        await recent.steps.begin()
    if found is None:
        yield Gap()
        return
    yield found
    is_gap = False
    for later in range(number + 1, end):
        await recent.steps.begin()
        events = recent.events_of(later)
        if events is not None:
            yield events
        elif not is_gap:
            is_gap = True
            yield Gap()


def _after(events: list[ReceivedEvent] | None, event_id: str) -> list[ReceivedEvent] | None:
    for index, event in enumerate(events or []):
        if event.id == event_id and events is not None:
            return events[index + 1 :]
    return None
