"""The events that a client has missed, for one that names the last event that it has received.

There may be megabytes of them, and thousands of clients that connect again in the same moment. So each turn of the
event loop looks at a few messages of one client. Those that are no longer stored when a slow client comes to them are
a gap.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from waybill.backend.recent_events import RecentEvents
from waybill.ojs.spec.events import ReceivedEvent


class Gap:
    """Stands for events that were lost."""


async def missed_events(recent: RecentEvents, event_id: str, end: int) -> AsyncIterator[list[ReceivedEvent] | Gap]:
    """Yield the events after an event, in groups, up to the message with the number `end`, without it."""
    await recent.steps.begin()
    number = end
    found: list[ReceivedEvent] | None = None
    for number in recent.mentioning(event_id):
        found = _after(recent.events_of(number), event_id)
        if found is not None:
            break
        # It is only mentioned.
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
