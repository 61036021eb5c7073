"""Recognizes frames that repeat the octets of the last one of their kind.

From one transfer to the next only the delivery-id, the delivery-tag and the body change, from one disposition to the
next only the delivery-id. So the rest is compared instead of decoded again.

    transfer      00 53 14 C0 size count handle | delivery-id | A0 size tag | message-format settled ... |
                  '----------- head -----------'                            '---------- tail ----------'
    message       header | properties | application-properties | data
    disposition   00 53 15 C0 size count role | first | last | settled state ... |
                  '---------- head ---------'                '------ tail ------'
"""

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp10.server.properties import SUBJECT, USER_ID
from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.disposition import DispositionFacts
from waybill.wire.amqp10.message import DEFAULT_PRIORITY
from waybill.wire.amqp10.scan import NO_STATE
from waybill.wire.amqp10.sections import MessageFacts
from waybill.wire.amqp10.transfer import TransferFacts

DIFFERENT: Final = -1
UNKNOWN: Final = b"\xff"
"""No frame begins with this."""
TRANSFER_HEAD: Final = b"\x00\x53\x14\xc0"
DISPOSITION_HEAD: Final = b"\x00\x53\x15\xc0"
FIELDS: Final = 6
"""Where the fields of a performative with a list8 begin."""
SHORTEST: Final = 16
PLAIN_PROPERTIES_MAX: Final = 8
"""Properties with at most so many fields have no absolute-expiry-time."""
ACCEPTED_FIRST: Final = FIELDS + 1
TAIL_MAX: Final = 7
"""Room for settled, a short accepted, and batchable. Longer dispositions are always decoded."""


class TransferShape:
    """The common octets of a link's transfers, and their meaning. `delivery_id`: of the last that matched."""

    def __init__(self) -> None:
        self.delivery_id: i64 = 0
        self.is_settled = False
        self.durable = False
        self.priority: i64 = DEFAULT_PRIORITY
        self._head = UNKNOWN
        self._head_size: i64 = 1
        self._list_size: i64 = 0
        self._tail = b""
        self._tail_size: i64 = 0
        self._header = b""
        self._header_size: i64 = 0

    def match_transfer(self, data: bytes, start: i64, end: i64) -> i64:
        """The offset of the payload if the transfer `data[start:end]` is like the last one; else `DIFFERENT`."""
        if not data.startswith(self._head, start):
            return DIFFERENT
        stop = start + self._list_size
        o = start + self._head_size
        if stop > end or end - o < SHORTEST:
            return DIFFERENT
        form: i64 = data[o]
        if form == codes.UINT:
            self.delivery_id = i64(read_i32_be(data, o + 1)) & 0xFFFFFFFF
            o += 5
        elif form == codes.SMALL_UINT:
            self.delivery_id = data[o + 1]
            o += 2
        else:
            return DIFFERENT
        if data[o] != codes.BINARY_8 or data[o + 1] > 32:
            return DIFFERENT
        o += 2 + i64(data[o + 1])
        if o + self._tail_size != stop or not data.startswith(self._tail, o):
            return DIFFERENT
        return stop

    def match_message(self, data: bytes, start: i64, end: i64) -> i64:
        """The offset of the content if the message `data[start:end]` is like the last one; else `DIFFERENT`.

        It has the same header, perhaps properties that the broker ignores and application properties, and one data
        section.
        """
        if not data.startswith(self._header, start):
            return DIFFERENT
        content = start + self._header_size
        o = content
        last: i64 = descriptors.MESSAGE_ANNOTATIONS
        while end - o >= 5 and data[o] == 0 and data[o + 1] == codes.SMALL_ULONG:
            code: i64 = data[o + 2]
            form: i64 = data[o + 3]
            if code <= last:
                return DIFFERENT
            last = code
            if code == descriptors.DATA:
                size: i64 = DIFFERENT
                if form == codes.BINARY_8:
                    size = 5 + i64(data[o + 4])
                elif form == codes.BINARY_32 and end - o >= 8:
                    size = 8 + (i64(read_i32_be(data, o + 4)) & 0xFFFFFFFF)
                return content if o + size == end else DIFFERENT
            if code == descriptors.PROPERTIES:
                if form != codes.LIST_8 or not _are_plain_properties(data, o + 4, end):
                    return DIFFERENT
            elif code != descriptors.APPLICATION_PROPERTIES or form != codes.MAP_8:
                return DIFFERENT
            elif end - o < 6 or data[o + 5] >= data[o + 4]:
                # There are more keys and values than octets.
                return DIFFERENT
            o += 5 + i64(data[o + 4])
        return DIFFERENT

    def learn(self, data: bytes, start: i64, facts: TransferFacts, message: MessageFacts) -> None:
        """Remember a transfer with a whole delivery, if the next ones can be recognized by it."""
        self._head = UNKNOWN
        self._head_size = 1
        if (
            not data.startswith(TRANSFER_HEAD, start)
            or facts.more
            or facts.aborted
            or facts.resume
            or facts.state != NO_STATE
            or message.ttl >= 0
            or message.delivery_annotations >= 0
            or message.message_annotations >= 0
            or facts.tag < 0
            or data[facts.tag - 2] != codes.BINARY_8
        ):
            return
        o = start + FIELDS
        if data[o] == codes.SMALL_UINT:
            o += 2
        elif data[o] == codes.UINT_0:
            o += 1
        else:
            return
        self._head = data[start:o]
        self._head_size = o - start
        self._list_size = facts.payload - start
        self._tail = data[facts.tag_end : facts.payload]
        self._tail_size = facts.payload - facts.tag_end
        self.is_settled = facts.settled == 1
        self.durable = message.durable
        self.priority = message.priority
        header_end = message.header_end if message.header >= 0 else facts.payload
        self._header = data[facts.payload : header_end]
        self._header_size = header_end - facts.payload


def _are_plain_properties(data: bytes, o: i64, end: i64) -> bool:
    """Whether the list8 of properties whose size is at `o` has neither user-id nor absolute-expiry-time.

    This checks each field, as the full scan of a message does: what is refused there must not be accepted here.
    """
    if end - o < 3 or data[o] < 1 or data[o + 1] > PLAIN_PROPERTIES_MAX:
        return False
    stop = o + 1 + i64(data[o])
    if stop > end:
        return False
    count: i64 = data[o + 1]
    o += 2
    index: i64 = 0
    while index < count:
        if o >= stop:
            return False
        form: i64 = data[o]
        if form == codes.NULL:
            o += 1
        elif form == codes.STRING_8 and index != USER_ID:
            if o + 1 >= stop:
                return False
            o += 2 + i64(data[o + 1])
        elif USER_ID <= index <= SUBJECT:
            return False
        elif form == codes.SYMBOL_8 or form == codes.BINARY_8:  # noqa: PLR1714 - native integers
            if o + 1 >= stop:
                return False
            o += 2 + i64(data[o + 1])
        elif form == codes.SMALL_ULONG:
            o += 2
        elif form == codes.ULONG:
            o += 9
        elif form == codes.UUID:
            o += 17
        elif form == codes.ULONG_0:
            o += 1
        else:
            return False
        index += 1
    return o == stop


class AcceptedShape:
    """The common octets of dispositions that accept one delivery. Head and tail are compared as integers."""

    def __init__(self) -> None:
        self._size: i64 = DIFFERENT
        self._head: i64 = 0
        self._tail: i64 = 0
        self._tail_size: i64 = 0
        self._tail_mask: i64 = 0

    def match(self, data: bytes, start: i64, end: i64) -> i64:
        """The delivery-id if the disposition `data[start:end]` is like the last one; else `DIFFERENT`."""
        if (
            end - start != self._size
            or read_i64_be(data, start) >> 8 != self._head
            or read_i64_be(data, end - 8) & self._tail_mask != self._tail
        ):
            return DIFFERENT
        o = start + ACCEPTED_FIRST
        number: i64 = 0
        # `last` is absent, or the same as `first`.
        if data[o] == codes.UINT:
            number = i64(read_i32_be(data, o + 1)) & 0xFFFFFFFF
            o += 5
            if data[o] == codes.UINT and i64(read_i32_be(data, o + 1)) & 0xFFFFFFFF == number:
                o += 5
        elif data[o] == codes.SMALL_UINT:
            number = data[o + 1]
            o += 2
            if data[o] == codes.SMALL_UINT and data[o + 1] == number:
                o += 2
        else:
            return DIFFERENT
        return number if o + self._tail_size == end else DIFFERENT

    def learn(self, data: bytes, start: i64, end: i64, facts: DispositionFacts) -> None:
        """Remember a settled disposition that accepts one delivery."""
        if not data.startswith(DISPOSITION_HEAD, start):
            return
        o = start + ACCEPTED_FIRST
        width: i64 = 5 if data[o] == codes.UINT else 2
        if data[o] != codes.UINT and data[o] != codes.SMALL_UINT:
            return
        first = data[o : o + width]
        o += width
        if data.startswith(first, o):
            o += width
        tail_size = end - o
        if tail_size < 1 or tail_size > TAIL_MAX:
            return
        self._size = end - start
        self._head = read_i64_be(data, start) >> 8
        self._tail_size = tail_size
        mask: i64 = 0
        for _ in range(tail_size):
            mask = mask << 8 | 0xFF
        self._tail_mask = mask
        self._tail = read_i64_be(data, end - 8) & self._tail_mask
