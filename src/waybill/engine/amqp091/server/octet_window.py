"""A prefetch in bytes (basic.qos prefetch-size): how much may be delivered before it is settled."""

from mypy_extensions import i64

from waybill.model.entry import Entry
from waybill.model.message import HOLDING_BYTES, Message


def content_size(message: Message) -> i64:
    """The octets of a message's content, as it was published."""
    return message.size - HOLDING_BYTES


class OctetWindow:
    """`limit`: octets that may be delivered and unsettled. A peer that holds nothing gets a message of any size."""

    def __init__(self, limit: i64) -> None:
        self.limit: i64 = limit
        self._taken: i64 = 0
        # The size of each delivery: when it is settled, its content may be only on disk.
        self._sizes: dict[Entry, i64] = {}

    def has_room(self, size: i64) -> bool:
        return not self._sizes or self._taken + size <= self.limit

    def add(self, entry: Entry, size: i64) -> None:
        self._sizes[entry] = size
        self._taken += size

    def remove(self, entry: Entry) -> None:
        """Does nothing for a delivery that the window does not hold."""
        self._taken -= self._sizes.pop(entry, 0)
