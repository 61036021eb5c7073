"""Applies messages of the event stream to a store, and skips events that cannot be applied.

Anyone with write access to the events exchange can publish a message. Invalid events, and events that a store refuses
or cannot keep, are counted, logged and skipped. The stream keeps them, so a coordinator that stopped at one would never
continue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from msgspec.structs import force_setattr

from waybill.ojs.coordinator.feature_fold import EventRefused
from waybill.ojs.coordinator.job_fold import is_foldable
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.stream_identity import StreamReplaced
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.event_pieces import PIECE_BYTES, event_pieces
from waybill.ojs.spec.events import ReceivedEvent, read_events
from waybill.ojs.spec.nesting import shown

EVENT_TRIES: Final = 3
PAUSE_SECONDS: Final = 0.1

Message = tuple[int, bytes, str | None]
"""Its offset, its body, and the user who published it, if the broker tells."""
Verdicts = dict[str, JobInfo | None]

_log = logging.getLogger("waybill.ojs.coordinator")


def fold_messages(store: JobStore, messages: Sequence[Message], partition: int = 0) -> tuple[Verdicts, int]:
    """Fold messages of a partition, each with its offset; the store skips what it has already folded.

    Returns what `JobStore.apply` does, and how many events were skipped. Raises errors of the store.
    """
    for index, message in enumerate(messages):
        if len(message[1]) > PIECE_BYTES:
            found = _fold_small(store, messages[:index], partition)
            large = _fold_large(store, message, partition)
            rest = fold_messages(store, messages[index + 1 :], partition)
            return found[0] | large[0] | rest[0], found[1] + large[1] + rest[1]
    return _fold_small(store, messages, partition)


def _fold_small(store: JobStore, messages: Sequence[Message], partition: int) -> tuple[Verdicts, int]:
    if not messages:
        return {}, 0
    skipped = 0
    found = []
    for message in messages:
        events, unreadable = _events_of(store, message)
        found.append((message[0], events))
        skipped += unreadable
    try:
        verdicts = store.apply(found, partition=partition)
    except EventRefused:
        # The store works, so do not pause: many faulty events would otherwise stop the coordinator for long.
        verdicts = {}
        for offset, events in found:
            verdict, refused = _fold_one(store, offset, events, partition)
            verdicts |= verdict
            skipped += refused
    else:
        for _, events in found:
            store.note(events)
    return verdicts, skipped


def recall_messages(store: JobStore, messages: Sequence[Message], partition: int = 0) -> Verdicts:
    """Return the verdicts of messages that another coordinator has folded into the store; note what is expected.

    Raises StreamReplaced if the store has lost them since.
    """
    verdicts: Verdicts = {}
    for offset, body, user in messages:
        for piece in event_pieces(body):
            events, _ = _events_of(store, (offset, piece, user))
            verdicts |= store.recall(events, partition)
            store.note(events)
    return verdicts


def fold_what_can_be(store: JobStore, messages: Sequence[Message], partition: int = 0) -> tuple[Verdicts, int]:
    """Fold messages event by event where a message cannot be folded as a whole.

    An event is at fault, not the store, if the store can write without it. Raises the store's error if it cannot write;
    what was folded by then may be folded again, which changes nothing.
    """
    verdicts: Verdicts = {}
    skipped = 0
    for message in messages:
        try:
            found, unreadable = fold_messages(store, [message], partition)
        except StreamReplaced:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a store can have against a value
            _check_store(store, error)
            events, unreadable = _events_of(store, message)
            found, refused = _take_apart(store, message[0], events, partition)
            unreadable += refused
        verdicts |= found
        skipped += unreadable
    return verdicts, skipped


def _fold_large(store: JobStore, message: Message, partition: int) -> tuple[Verdicts, int]:
    """Fold a message in pieces. The store's position passes it at the end: after an error, it is folded again."""
    offset, body, user = message
    verdicts: Verdicts = {}
    skipped = 0
    for piece in event_pieces(body):
        events, unreadable = _events_of(store, (offset, piece, user))
        skipped += unreadable
        try:
            verdicts |= store.apply([(offset, events)], partition=partition, keeps_position=True)
        except EventRefused:
            found, refused = _one_by_one(store, offset, events, partition)
            verdicts |= found
            skipped += refused
        else:
            store.note(events)
    store.apply([(offset, [])], partition=partition)
    return verdicts, skipped


def _fold_one(store: JobStore, offset: int, events: Sequence[ReceivedEvent], partition: int) -> tuple[Verdicts, int]:
    """Fold one message without the events that fail; also returns their number."""
    try:
        verdicts = store.apply([(offset, events)], partition=partition)
    except EventRefused:
        return _take_apart(store, offset, events, partition)
    store.note(events)
    return verdicts, 0


def _take_apart(store: JobStore, offset: int, events: Sequence[ReceivedEvent], partition: int) -> tuple[Verdicts, int]:
    found = _one_by_one(store, offset, events, partition)
    store.apply([(offset, [])], partition=partition)
    return found


def _one_by_one(store: JobStore, offset: int, events: Sequence[ReceivedEvent], partition: int) -> tuple[Verdicts, int]:
    verdicts: Verdicts = {}
    skipped = 0
    for event in events:
        for tries_left in reversed(range(EVENT_TRIES)):
            try:
                verdicts |= store.apply([(offset, [event])], partition=partition, keeps_position=True)
                store.note([event])
                break
            except StreamReplaced:
                raise
            except EventRefused as refused:
                skipped += 1
                _step_over(event, offset, refused.__cause__ or refused, has_trace=False)
                break
            except Exception as error:  # noqa: BLE001 - see above
                _check_store(store, error)
                if tries_left:
                    time.sleep(PAUSE_SECONDS)
                    continue
                skipped += 1
                _step_over(event, offset, error, has_trace=True)
    return verdicts, skipped


def _check_store(store: JobStore, error: Exception) -> None:
    """Raise an error that is the store's fault."""
    if store.is_at_fault(error):
        raise error
    store.probe()


def _step_over(event: ReceivedEvent, offset: int, error: BaseException, *, has_trace: bool) -> None:
    text = "event %s of message %d cannot be applied and is skipped: %s"
    found = ascii(f"{type(error).__name__}: {error}")[1:300] if not has_trace else type(error).__name__
    _log.error(text, shown(event.id), offset, found, exc_info=error if has_trace else None)


def _events_of(store: JobStore, message: Message) -> tuple[list[ReceivedEvent], int]:
    """Return the job and feature events in a message, and the number of invalid ones."""
    offset, body, user = message
    events, skipped = read_events(body)
    for event in events:
        # The user is the one that the broker states, not that in the JSON.
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
        _log.warning("skipped %d invalid events in message %d of the event stream", skipped, offset)
    return foldable, skipped
