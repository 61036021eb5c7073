"""The deliveries of detached links (1.0, 2.6.3): the peer may still settle them by their delivery-ids.

A delivery keeps its delivery-id while its session is open. So a disposition counts that comes after the detach, and
before the link is attached again.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.outcomes import Outcome
from waybill.engine.amqp10.server.outgoing import OutgoingEnd
from waybill.engine.amqp10.server.unsettled_map import Resumed, tag_of
from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry

WRAP: Final = 0xFFFFFFFF
SWEEP_LENGTH: Final = 1024


class DetachedDeliveries:
    """`entries`: the links and their deliveries by delivery-id, of one session."""

    def __init__(self, session: LinkHost) -> None:
        self.entries: dict[i64, tuple[DeliveryHost, Entry]] = {}
        self._session = session
        self._sweep_at = SWEEP_LENGTH

    def add(self, link: DeliveryHost, number: i64, entry: Entry) -> None:
        """Call this once the terminus of the link holds the delivery."""
        self.entries[number] = (link, entry)
        if len(self.entries) > self._sweep_at:
            # Drop those of links that were attached again, or are gone for good.
            kept = {number: pair for number, pair in self.entries.items() if pair[0].terminus.is_listed}
            self.entries = kept
            self._sweep_at = 2 * len(kept) + SWEEP_LENGTH

    def numbers(self, first: i64, count: i64) -> list[i64]:
        """The delivery-ids that are among `count` from `first` on, in order."""
        entries = self.entries
        if count > len(entries):
            return [number for number in entries if (number - first) & WRAP < count]
        return [number for number in [(first + index) & WRAP for index in range(int(count))] if number in entries]

    def take(self, number: i64) -> tuple[DeliveryHost, Entry] | None:
        """Remove a delivery, also from its terminus. None if it does not exist."""
        pair = self.entries.pop(number, None)
        if pair is None:
            return None
        link, entry = pair
        tag = tag_of(entry)
        if link.terminus.held.get(tag) is entry:
            del link.terminus.held[tag]
        else:
            awaited = self._awaited(link.terminus, tag)
            if awaited is None or awaited.entry is not entry:
                return None
            # The link is attached again and has not resumed the delivery yet.
            awaited.is_gone = True
        link.unsettled_count += 1
        return pair

    def settle(self, number: i64, outcome: Outcome | None) -> None:
        """Apply an outcome to a delivery, or the default outcome if its link does not allow it."""
        pair = self.take(number)
        if pair is not None:
            link, entry = pair
            given = outcome if outcome is not None and outcome.name in link.outcomes else link.default_outcome
            given.apply(link, entry)
            link.delivery_settled()

    def _awaited(self, terminus: Terminus, tag: bytes) -> Resumed | None:
        """Take a delivery from those that the present link of a terminus has still to resume."""
        end = terminus.link
        link = end.link if isinstance(end, OutgoingEnd) else None
        return None if link is None or link.session is not self._session else link.awaiting.pop(tag, None)
