"""Server-sent events (W3C), each with an id, and a heartbeat while nothing happens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from waybill.backend.job_form import Form
from waybill.backend.listeners import Listener, ShuttingDown
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import is_uuid7
from waybill.ojs.spec.timestamps import format_unix_time

HEARTBEAT: Final = b":heartbeat\n\n"
RETRY_MS: Final = 3000
MEDIA_TYPE: Final = "text/event-stream"

Pieces = Callable[[ReceivedEvent], tuple[bytes, bool]]
"""Converts an event to the text to send, and returns whether it is the last."""


def event_text(name: str, data: Form, event_id: str = "") -> bytes:
    """Return an event as text. An unprintable name becomes `unknown`, an unprintable id is omitted."""
    name = name if name.isprintable() else "unknown"
    head = f"id: {event_id}\n" if event_id and event_id.isprintable() else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def stream_head() -> bytes:
    """Return the first lines of a stream: the reconnection time of clients."""
    return f"retry: {RETRY_MS}\n\n".encode()


def gap_text(channel: str, last_id: str) -> bytes:
    """Return the event for events of a channel that are no longer kept, since the one with the id `last_id`."""
    now = time.time()
    name = last_id.rpartition("_")[2]
    # Our ids begin with their time; what others call an event says nothing of it.
    begin = int(name[:8] + name[9:13], 16) / 1000 if is_uuid7(name) else now
    form: Form = {"channel": channel, "gap_start": format_unix_time(begin), "gap_end": format_unix_time(now)}
    return event_text("system.gap", form)


async def follow(listener: Listener, pieces: Pieces, channel: str) -> AsyncIterator[bytes]:
    """Yield the text that `pieces` makes of each event of a channel, until the last one or the server's shutdown."""
    while True:
        try:
            event = await listener.next()
        except ShuttingDown:
            yield event_text("server.shutdown", {"grace_period_ms": 0})
            return
        if listener.dropped_count:
            dropped: Form = {"channel": channel, "dropped_count": listener.dropped_count}
            yield event_text("system.events_dropped", dropped | {"timestamp": format_unix_time(time.time())})
            listener.dropped_count = 0
        if event is None:
            yield HEARTBEAT
            continue
        piece, is_last = pieces(event)
        del event
        if piece:
            piece = listener.shared(piece)
            yield piece
        if is_last:
            return
