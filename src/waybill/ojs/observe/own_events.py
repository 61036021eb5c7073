"""Passes events of this process to followers in the same process as soon as they are confirmed.

A process need not wait for its own events to come back from the broker. The follower is told of a message before it is
published, so that it recognizes the message when the stream brings it, and of its events when the broker has confirmed
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from waybill.ojs.spec.events import ReceivedEvent


class OwnEvent(NamedTuple):
    """An event as its readers see it. `job` is the envelope of an enqueued job, which `event` leaves out."""

    event: ReceivedEvent
    text: str
    job: bytes | None = None


class EventFollower:
    """A follower of this process's events."""

    def announce(self, message_id: str, events: Sequence[OwnEvent], user: str | None) -> None:
        """Note a message of these events that a user is about to publish."""
        raise NotImplementedError

    def confirmed(self, message_id: str) -> None:
        """Apply the events of a message: they are safe."""
        raise NotImplementedError
