"""The events of one message, and how those of several partitions become several messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from waybill.ojs.observe.own_events import OwnEvent
from waybill.ojs.spec.events import BATCH_TYPE, join_events, read_events

MAX_EVENTS_PER_MESSAGE: Final = 2000
MAX_CHARACTERS_PER_MESSAGE: Final = 256 * 1024


class Place(NamedTuple):
    """Where an element of a batch belongs, with the id of its first event and its type."""

    partition: int
    event_id: str
    type: str


class Batch:
    """The events of one message as JSON, and what waits for them.

    An element may be two events with a comma between. `type` is that of the first element, until the batch is cut.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.actions: list[Callable[[], object]] = []
        self.own: list[OwnEvent] = []
        """The same events for a follower, as many as `events` if each is of a kind that it takes."""
        self.places: list[Place] = []
        """Where each element belongs, if there is more than one partition."""
        self.partition = 0
        self.siblings: list[Batch] = []
        """The messages whose confirms the actions wait for, if there are several: those that are not confirmed."""
        self.first_id = ""
        self.published_at = 0.0
        self.type = ""
        self.body = b""

    @property
    def is_all_own(self) -> bool:
        """Whether a follower can be told of every event."""
        return bool(self.own) and len(self.own) == len(self.events)

    def settle(self) -> bool:
        """Note that the broker has confirmed this message; says whether that was the last of its siblings."""
        if not self.siblings:
            return True
        self.siblings.remove(self)
        return not self.siblings


def cut(batch: Batch, rest: Batch) -> None:
    """Leave the events beyond the limits of a message, and all actions with them, in `rest`."""
    count = _fitting(batch.events)
    if count == len(batch.events):
        return
    rest.events, batch.events = batch.events[count:], batch.events[:count]
    rest.actions, batch.actions = batch.actions, []
    rest.places, batch.places = batch.places[count:], batch.places[:count]
    if len(batch.own) == count + len(rest.events):
        rest.own, batch.own = batch.own[count:], batch.own[:count]
    else:
        # Those of both messages take the way of all others.
        batch.own = []
    if rest.places:
        rest.first_id, rest.type = rest.places[0].event_id, rest.places[0].type
    elif rest.own:
        rest.first_id = rest.own[0].event.id
        rest.type = rest.own[0].event.type if len(rest.own) == 1 else BATCH_TYPE
    else:
        found, _ = read_events(f"[{rest.events[0]}]".encode())
        if found:
            rest.first_id, rest.type = found[0].id, found[0].type if len(found) == 1 else BATCH_TYPE
        else:
            rest.first_id, rest.type = batch.first_id, BATCH_TYPE


def messages_of(batch: Batch) -> list[Batch]:
    """Return the messages of a batch, encoded: one, or one for each partition that it has events of."""
    if not batch.places:
        batch.type, batch.body = join_events(batch.type, batch.events)
        return [batch]
    found: dict[int, Batch] = {}
    is_all_own = batch.is_all_own
    for number, place in enumerate(batch.places):
        one = found.get(place.partition)
        if one is None:
            one = found[place.partition] = Batch()
            one.partition, one.first_id, one.type = place
        one.events.append(batch.events[number])
        if is_all_own:
            one.own.append(batch.own[number])
    messages = list(found.values())
    for one in messages:
        one.type, one.body = join_events(one.type, one.events)
        one.actions = batch.actions
        if len(messages) > 1:
            one.siblings = messages
    return list(messages)


def _fitting(events: list[str]) -> int:
    """Return how many events go into one message: results and checkpoints may be large."""
    if len(events) <= MAX_EVENTS_PER_MESSAGE and sum(map(len, events)) <= MAX_CHARACTERS_PER_MESSAGE:
        return len(events)
    count, size = 0, 0
    for event in events[:MAX_EVENTS_PER_MESSAGE]:
        size += len(event)
        if count and size > MAX_CHARACTERS_PER_MESSAGE:
            break
        count += 1
    return count
