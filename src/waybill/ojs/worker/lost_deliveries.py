"""What a worker knows of deliveries that lost connections have taken from it, for when they come again."""

from __future__ import annotations

from collections.abc import Iterable

from waybill.client import Delivery
from waybill.ojs.spec.envelope import read_envelope
from waybill.ojs.spec.headers import attempt_number
from waybill.ojs.worker.bounded_dict import BoundedDict
from waybill.ojs.worker.execution import AttemptKey


class LostDeliveries:
    """Attempts that count as not begun, although the broker has delivered them before."""

    def __init__(self, remembered: int) -> None:
        """Knows the last `remembered` of them."""
        self._held: BoundedDict[AttemptKey, None] = BoundedDict(remembered)
        """Attempts that a lost connection has taken from this worker unstarted."""
        self._charged: BoundedDict[AttemptKey, None] = BoundedDict(remembered)
        """Attempts it had in hand then that somebody else had lost before."""
        self._renewed: set[str] = set()
        """Queues that have delivered something new since the connection was lost."""
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
            # One that was redelivered before it came here may have been started by the worker that lost it.
            attempts = self._charged if delivery.redelivered and found not in self._held else self._held
            attempts[found] = None
        self._renewed = set()
        self.any_lost = True

    def arrived(self, queue: str, delivery: Delivery) -> None:
        """Let a redelivered job keep its attempt number if the broker may have lost it, and not a worker.

        A broker that went down gives out again what any worker had in hand, and more that it is not sure of, before
        what is new. The workers outlive it, so none of that has used an attempt. That the worker of one of these jobs
        vanished at the same time is not to be known: its attempt is made once more then.
        """
        if not delivery.redelivered:
            self._renewed.add(queue)
        elif queue not in self._renewed:
            key = _key_of(delivery)
            if key is not None and key not in self._charged:
                self._held[key] = None

    def take(self, key: AttemptKey) -> bool:
        """Say whether an attempt that is delivered again counts as not begun; that is so once."""
        if key not in self._held:
            return False
        del self._held[key]
        return True


def _key_of(delivery: Delivery) -> AttemptKey | None:
    """Say which attempt a delivery is; None if it is no job."""
    try:
        envelope = read_envelope(delivery.body)
        return envelope.id, attempt_number(delivery.encoded_properties, envelope), envelope.enqueued_at
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is settled when it comes again
        return None
