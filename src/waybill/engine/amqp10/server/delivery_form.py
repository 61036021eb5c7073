"""The octets that all deliveries of a link have in common, prepared once.

transfer   size 02 00 channel | 00 53 14 C0 size 05 handle 70 | delivery-id | A0 08 tag | 43 settled
'------------------- prefix -----------------------'             TAG_HEAD      '-- tail ...
message    header | annotations of the address | content
------- tail ------------------------'
"""

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from waybill.engine.amqp10.server.origin import Origin
from waybill.engine.amqp10.server.unsettled_map import TAG_SIZE
from waybill.model.entry import Entry
from waybill.model.message import NO_TTL, Address
from waybill.wire.amqp10.scan import put_uint
from waybill.wire.amqp10.sections import write_header

WRAP: Final = 0xFFFFFFFF
TAG_HEAD: Final = b"\xa0\x08"
MESSAGE_FORMAT_AND_SETTLED: Final = b"\x43\x41"
MESSAGE_FORMAT_AND_UNSETTLED: Final = b"\x43\x42"
DURABLE_FIRST: Final = b"\x00\x53\x70\xc0\x05\x04\x41\x40\x40\x41"
TRANSIENT_FIRST: Final = b"\x00\x53\x70\xc0\x05\x04\x40\x40\x40\x41"
"""Headers of a message with default priority and no ttl that nobody acquired before."""


class DeliveryForm:
    """The transfers of one link. `origin`: the annotations of the address that was delivered last.

    `durable_tail` and `transient_tail`: the tails of messages from there with a plain header. `tail`: without a header.
    `frame_size`: what a frame counts without its tail and content.
    """

    def __init__(self, channel: i64, handle: i64, *, is_settled: bool) -> None:
        head = BytesWriter()
        head.write(b"\x00\x53\x14\xc0\x00\x05")
        put_uint(head, handle)
        head.append(0x70)
        octets = bytearray(head.getvalue())
        octets[4] = len(octets) - 5 + 4 + len(TAG_HEAD) + TAG_SIZE + 2
        self._head = b"\x02\x00" + int(channel).to_bytes(2, "big") + bytes(octets)
        self._prefix = b""
        self._prefix_size: i64 = 0
        self._scratch = BytesWriter()
        self.frame_size: i64 = 4 + len(self._head) + 4 + len(TAG_HEAD) + TAG_SIZE
        self.tail = MESSAGE_FORMAT_AND_SETTLED if is_settled else MESSAGE_FORMAT_AND_UNSETTLED
        self.durable_tail = b""
        self.transient_tail = b""
        self.origin: Origin | None = None

    def turn_to(self, address: Address) -> Origin:
        """Prepare the tails for messages of an address."""
        origin = Origin(address)
        self.origin = origin
        self.durable_tail = self.tail + DURABLE_FIRST + origin.section
        self.transient_tail = self.tail + TRANSIENT_FIRST + origin.section
        return origin

    def header(self, entry: Entry, priority: i64, now: float) -> bytes:
        """The header section of a delivery. Its ttl is what is left of the message's (3.2.1)."""
        message = entry.message
        ttl = message.ttl_ms
        if ttl != NO_TTL:
            elapsed_ms = i64(int((now - message.published_at) * 1000.0))
            ttl = min(max(ttl - elapsed_ms, 0), WRAP)
        scratch = self._scratch
        scratch.truncate(0)
        write_header(
            scratch,
            durable=message.durable,
            priority=min(priority, 255),
            ttl=ttl,
            first_acquirer=not entry.redelivered,
            delivery_count=entry.delivery_count,
        )
        return scratch.getvalue()

    def write(self, out: BytesWriter, size: i64, number: i64, tag: i64, tail: bytes, content: bytes) -> None:
        """Write a delivery in one frame of `size` octets. `number`: its delivery-id."""
        if size != self._prefix_size:
            self._prefix_size = size
            self._prefix = int(size).to_bytes(4, "big") + self._head
        out.write(self._prefix)
        write_i32_be(out, i32((number ^ 0x80000000) - 0x80000000))
        out.write(TAG_HEAD)
        write_i64_be(out, tag)
        out.write(tail)
        out.write(content)
