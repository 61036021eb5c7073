"""Folds messages of the event stream into a store, and steps over what cannot be folded.

A message comes from whoever may write to the events exchange. What is no event, what no store could keep, and what a
store refuses for whatever reason is counted, logged, and passed by: the stream keeps it, so a coordinator that stopped
there would stop there for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from msgspec.structs import force_setattr

from waybill.ojs.coordinator.job_fold import is_foldable
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.stream_identity import StreamReplaced
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import ReceivedEvent, read_events
from waybill.ojs.spec.nesting import shown

FOLD_BYTES: Final = 256 * 1024
"""About so much of the stream is folded at a time, or one message if that is larger."""
EVENT_TRIES: Final = 3
PAUSE_SECONDS: Final = 0.1

Message = tuple[int, bytes, str | None]
"""Its offset, its body, and the user who has published it, if the broker says so."""
Verdicts = dict[str, JobInfo | None]

_log = logging.getLogger("waybill.ojs.coordinator")


def fold_messages(store: JobStore, messages: Sequence[Message]) -> tuple[Verdicts, int]:
    """Fold messages, each with its offset, a piece at a time; the store skips what it has. See `JobStore.apply`.

    Returns how many events were stepped over, too. Raises what the store raises.
    """
    verdicts: Verdicts = {}
    skipped = 0
    start, size = 0, 0
    for end, (_, body, _) in enumerate(messages, 1):
        size += len(body)
        if size >= FOLD_BYTES or end == len(messages):
            piece = []
            for message in messages[start:end]:
                events, unreadable = _events_of(store, message)
                piece.append((message[0], events))
                skipped += unreadable
            verdicts |= store.apply(piece)
            for _, events in piece:
                store.note(events)
            start, size = end, 0
    return verdicts, skipped


def fold_what_can_be(store: JobStore, messages: Sequence[Message]) -> tuple[Verdicts, int]:
    """Do the same, event by event where a message cannot be folded as a whole.

    An event is at fault, and not the store, if the store can write without it. Raises what the store raises if it
    cannot; what was folded by then may be folded again, which changes nothing.
    """
    verdicts: Verdicts = {}
    skipped = 0
    for message in messages:
        try:
            found, unreadable = fold_messages(store, [message])
        except StreamReplaced:
            raise
        except Exception:  # noqa: BLE001 - whatever a store can have against a value
            store.probe()
            found, unreadable = _take_apart(store, message)
        verdicts |= found
        skipped += unreadable
    return verdicts, skipped


def _take_apart(store: JobStore, message: Message) -> tuple[Verdicts, int]:
    verdicts: Verdicts = {}
    offset = message[0]
    events, skipped = _events_of(store, message)
    for event in events:
        for tries_left in reversed(range(EVENT_TRIES)):
            try:
                verdicts |= store.apply([(offset, [event])], keeps_position=True)
                store.note([event])
                break
            except StreamReplaced:
                raise
            except Exception as error:  # noqa: BLE001 - see above
                store.probe()
                if tries_left:
                    time.sleep(PAUSE_SECONDS)
                    continue
                skipped += 1
                _log.error(
                    "event %s of message %d cannot be folded and is stepped over: %s",
                    shown(event.id),
                    offset,
                    type(error).__name__,
                    exc_info=error,
                )
    store.apply([(offset, [])])
    return verdicts, skipped


def _events_of(store: JobStore, message: Message) -> tuple[list[ReceivedEvent], int]:
    """Return the events of jobs and features in a message, and how many there are that nobody could fold."""
    offset, body, user = message
    events, skipped = read_events(body)
    for event in events:
        # Whatever the JSON says.
        if event.user is not user:
            force_setattr(event, "user", user)
    foldable = []
    for event in events:
        if event.type.startswith("job."):
            if is_foldable(event):
                foldable.append(event)
            else:
                skipped += 1
        elif store.features.wants(event):
            foldable.append(event)
    if skipped:
        _log.warning("%d events of message %d of the event stream cannot be understood", skipped, offset)
    return foldable, skipped
