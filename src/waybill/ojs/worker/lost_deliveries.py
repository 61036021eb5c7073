"""Remembers deliveries that were lost with a connection, to recognise them when they are redelivered."""

from __future__ import annotations

from collections.abc import Iterable

from waybill.client import Delivery
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.spec.envelope import read_envelope
from waybill.ojs.spec.headers import attempt_number
from waybill.ojs.worker.execution import AttemptKey


class LostDeliveries:
    """Attempts that count as not started, although the broker has delivered them before."""

    def __init__(self, remembered: int) -> None:
        """The last `remembered` attempts are kept."""
        self._held: BoundedDict[AttemptKey, None] = BoundedDict(remembered)
        """Attempts that this worker lost with a connection before they started."""
        self._charged: BoundedDict[AttemptKey, None] = BoundedDict(remembered)
        """Attempts that it held then, and that another consumer had lost before."""
        self._renewed: set[str] = set()
        """Queues that have delivered a new message since the connection was lost."""
        self.any_lost = False

    def lost(
        self, unstarted: Iterable[AttemptKey], waiting: Iterable[Delivery], unadmitted: Iterable[Delivery] = ()
    ) -> None:
        """Record a lost connection: the attempts that waited for a process, and waiting deliveries.

        `unadmitted` are deliveries that cannot have started anywhere.
        """
        for key in unstarted:
            self._held[key] = None
        for delivery in unadmitted:
            if (found := _key_of(delivery)) is not None:
                self._held[found] = None
        for delivery in waiting:
            found = _key_of(delivery)
            if found is None:
                continue
            # If it was already redelivered to this worker, the worker that lost it may have started it.
            attempts = self._charged if delivery.redelivered and found not in self._held else self._held
            attempts[found] = None
        self._renewed = set()
        self.any_lost = True

    def arrived(self, queue: str, delivery: Delivery) -> None:
        """Keep the attempt number of a redelivered job if the broker may have lost the delivery, not a worker.

        After a crash, a broker redelivers what any worker held, and more that it is not sure of, before new messages.
        The workers are still alive, so none of these deliveries has used an attempt. It cannot be known whether the
        worker of one of these jobs vanished at the same time: then its attempt runs once more.
        """
        if not delivery.redelivered:
            self._renewed.add(queue)
        elif queue not in self._renewed:
            key = _key_of(delivery)
            if key is not None and key not in self._charged:
                self._held[key] = None

    def take(self, key: AttemptKey) -> bool:
        """Return whether a redelivered attempt counts as not started. It does so only once."""
        if key not in self._held:
            return False
        del self._held[key]
        return True


def _key_of(delivery: Delivery) -> AttemptKey | None:
    """Return the key of a delivery's attempt; None if it is not a job."""
    try:
        envelope = read_envelope(delivery.body)
        return envelope.id, attempt_number(delivery.encoded_properties, envelope), envelope.enqueued_at
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is settled when it comes again
        return None
