"""The last events of the stream. Messages are kept encoded, because requests for them are rare."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import msgspec

from waybill.backend.listeners import Listeners
from waybill.backend.portions import Steps
from waybill.backend.workers import AmqpWorkers
from waybill.ojs.spec.event_pieces import event_pieces
from waybill.ojs.spec.events import ReceivedEvent, read_events

MOST_MESSAGES: Final = 2000
MOST_BYTES: Final = 8 * 1024 * 1024
READ_AT_ONCE_BYTES: Final = 64 * 1024
"""How much a request, or a turn of the loop, decodes before others get their turn."""
INTERNAL_PREFIX: Final = "record."
"""The prefix of internal event types."""

_log = logging.getLogger("waybill.backend")


class RecentEvents:
    """The events since the start of this backend, up to a limit."""

    def __init__(self) -> None:
        """Empty until the view, which follows the stream, calls `take`."""
        self._messages: deque[bytes] = deque()
        self._size = 0
        self.seen_count = 0
        """How many messages of the stream were received: the number of the next one."""
        self.steps = Steps()
        """The steps of requests that read many messages."""
        self.workers = AmqpWorkers()
        self.listeners = Listeners()
        self._untold: deque[bytes] = deque()
        """The messages that are still to be added."""
        self._untold_size = 0
        self._pieces: Iterator[bytes] | None = None
        """What is left of the message that is being told."""
        self._told_size = 0
        """How much was told in this turn of the loop."""
        self._next_turn: asyncio.Handle | None = None
        self.on_events: list[Callable[[Sequence[ReceivedEvent]], None]] = []
        """Called with new events."""

    async def newest(
        self,
        types: Collection[str],
        queues: Collection[str],
        subject: str | None,
        limit: int,
        prefix: str = "",
        before: str = "",
    ) -> list[dict[str, object]]:
        """Return the last events of some types and queues, or all, newest first.

        `prefix` limits them to queues whose names begin with it, `before` to events before the one with this id.
        """
        found: list[dict[str, object]] = []
        # A plain id appears literally in the message, so most messages need not be decoded.
        is_plain = subject is not None and subject.isascii() and subject.replace("-", "").isalnum()
        mark = (subject or "").encode() if is_plain else b""
        last = before.encode(errors="replace")
        await self.steps.begin()
        size = 0
        for body in reversed([one for one in self._messages if mark in one]):
            if last not in body:
                # Nothing stands before an event that is not found.
                continue
            size += len(body)
            if size > READ_AT_ONCE_BYTES:
                size = len(body)
                await self.steps.begin()
            for event in reversed(read_events(body)[0]):
                if before:
                    if event.id == before:
                        before, last = "", b""
                    continue
                if (
                    not event.type.startswith(INTERNAL_PREFIX)
                    and (not types or event.type in types)
                    and (not queues or event.data.get("queue") in queues)
                    and (subject is None or event.subject == subject)
                    and is_of(event, prefix)
                ):
                    found.append(form_of(event))
                    if len(found) >= limit:
                        return found
        return found

    def mentioning(self, event_id: str) -> list[int]:
        """Return the numbers of the stored messages in which an id appears literally, the newest first."""
        mark = f'"{event_id}"'.encode(errors="replace")
        first = self.seen_count - len(self._messages)
        return [first + index for index, body in enumerate(self._messages) if mark in body][::-1]

    def events_of(self, number: int) -> list[ReceivedEvent] | None:
        """Return the events of a message, None if it is no longer stored. The first message has the number 0."""
        index = number - (self.seen_count - len(self._messages))
        return read_events(self._messages[index])[0] if 0 <= index < len(self._messages) else None

    def take(self, body: bytes) -> None:
        """Add a message of the stream: now, or in a later turn of the loop, after others, if there is much to tell."""
        self._untold.append(body)
        self._untold_size += len(body)
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)
        self._go_on()

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._told_size = 0
        self._go_on()
        if self._untold or self._pieces is not None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _go_on(self) -> None:
        """Tell of what has arrived until this turn has had its share; of everything if too much would wait."""
        while self._told_size < READ_AT_ONCE_BYTES or self._untold_size > MOST_BYTES:
            if self._pieces is None:
                if not self._untold:
                    return
                self._pieces = self._add(self._untold.popleft())
            piece = next(self._pieces, None)
            if piece is None:
                self._pieces = None
            else:
                self._told_size += len(piece)
                self._tell(piece)

    def _add(self, body: bytes) -> Iterator[bytes]:
        """Add a message, and return the pieces of it that are told."""
        self._untold_size -= len(body)
        self.seen_count += 1
        self._messages.append(body)
        self._size += len(body)
        while len(self._messages) > MOST_MESSAGES or (self._size > MOST_BYTES and len(self._messages) > 1):
            self._size -= len(self._messages.popleft())
        is_told = AmqpWorkers.MARK in body or self.listeners or self.on_events
        return event_pieces(body) if is_told else iter(())

    def _tell(self, body: bytes) -> None:
        events = read_events(body)[0]
        if AmqpWorkers.MARK in body:
            self.workers.take(events)
        try:
            self.listeners.publish(events, len(body))
            for take in self.on_events:
                take(events)
        except Exception:  # noqa: BLE001 - a listener must not prevent folding
            _log.exception("a listener for events failed")


def is_of(event: ReceivedEvent, prefix: str) -> bool:
    """Whether an event is about a queue whose name begins with `prefix`; True if that is empty."""
    return not prefix or str(event.data.get("queue", "")).startswith(prefix)


def form_of(event: ReceivedEvent) -> dict[str, object]:
    """Return an event for a response."""
    form: dict[str, object] = msgspec.to_builtins(event)
    form.pop("waybill-user", None)
    # Pushed jobs and messages of attempts are only for clients that may read jobs.
    form["data"] = {name: value for name, value in event.data.items() if name not in {"job", "message"}}
    return form
