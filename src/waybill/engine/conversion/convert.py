"""Converts content to the encoding of another protocol, when a message is delivered, never before.

Each protocol has one function that reads its content into a `CanonicalMessage` and one that writes it; no function
knows two protocols.
"""

from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from waybill.engine.amqp010.message_format import AMQP010, SIZE_OCTETS
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.conversion.amqp010 import read_amqp010, write_amqp010
from waybill.engine.conversion.amqp091 import read_amqp091, write_amqp091
from waybill.engine.conversion.amqp10 import read_amqp10, write_amqp10
from waybill.engine.conversion.canonical import CanonicalMessage
from waybill.model.message import NO_TTL, Message, MessageFormat
from waybill.model.operator_log import OperatorLog
from waybill.wire.amqp091.content import ContentFacts, scan
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.sections import MessageFacts, scan_message

_READERS: Final[dict[int, Callable[[bytes], CanonicalMessage]]] = {
    AMQP091.code: read_amqp091,
    AMQP10.code: read_amqp10,
    AMQP010.code: read_amqp010,
}
_REMEMBERED_MAX_OCTETS: Final = 1 << 20
HEADER_UNIT_BITS: Final = 5
"""Reading and writing 32 octets of headers takes about as long as a message does."""
BODY_UNIT_BITS: Final = 14
CONVERSION_UNITS: Final = 2
_SMALL_OCTETS: Final = 1024


class _LastConverted:
    """The last conversion: a message for many consumers is converted once."""

    def __init__(self) -> None:
        self.message: Message | None = None
        self.content = b""

    def put(self, message: Message, content: bytes) -> bytes:
        if len(content) <= _REMEMBERED_MAX_OCTETS:
            self.message = message
            self.content = content
        return content


_LAST_TO_091: Final = _LastConverted()
_LAST_TO_10: Final = _LastConverted()
_LAST_TO_010: Final = _LastConverted()
_LAST: Final[dict[int, _LastConverted]] = {
    AMQP091.code: _LAST_TO_091,
    AMQP10.code: _LAST_TO_10,
    AMQP010.code: _LAST_TO_010,
}


class Inconvertible(ValueError):
    """A message that another protocol cannot represent, or whose content is unreadable."""


def conversion_units(message: Message, target: MessageFormat) -> i64:
    """The cost of converting `message` to the format `target`; check it before.

    A message that was just converted for another consumer costs nothing.
    """
    content = message.content
    if _LAST[target.code].message is message:
        return 0
    if message.format is AMQP091:
        # The size in the frame of the content header. Bodies are only copied.
        return (
            CONVERSION_UNITS
            + (i64(int.from_bytes(content[3:7], "big")) >> HEADER_UNIT_BITS)
            + (len(content) >> BODY_UNIT_BITS)
        )
    size: i64 = len(content)
    if message.format is AMQP010:
        header = SIZE_OCTETS + i64(read_i32_be(content, 0))
        return CONVERSION_UNITS + (header >> HEADER_UNIT_BITS) + (size - header >> BODY_UNIT_BITS)
    if size > _SMALL_OCTETS:
        facts = MessageFacts()
        try:
            scan_message(content, 0, len(content), facts)
        except DecodeError:
            return size >> HEADER_UNIT_BITS
        body = facts.body_end - facts.body
        return CONVERSION_UNITS + (size - body >> HEADER_UNIT_BITS) + (body >> BODY_UNIT_BITS) + facts.body_count
    return CONVERSION_UNITS + (size >> HEADER_UNIT_BITS)


def amqp10_content(message: Message) -> bytes:
    """The sections of a message, without header and delivery annotations. Raises Inconvertible only."""
    if message.format is AMQP10:
        return message.content
    last = _LAST_TO_10
    if last.message is message:
        return last.content
    try:
        content = write_amqp10(_READERS[message.format.code](message.content))
    except Exception as error:
        # No content of a peer may block its queue.
        raise Inconvertible(f"no form in AMQP 1.0: {error}") from error
    return last.put(message, content)


def amqp10_priority(message: Message) -> i64:
    """The priority for the header of a message, -1 if it has none."""
    if message.format is AMQP091:
        facts = ContentFacts()
        scan(message.content, 0, facts)
        return facts.priority
    return message.priority


def amqp091_content(message: Message) -> bytes:
    """The content frames of a message: the header frame first, all on channel 1. Raises only Inconvertible."""
    if message.format is AMQP091:
        return message.content
    last = _LAST_TO_091
    if last.message is message:
        return last.content
    try:
        canonical = _READERS[message.format.code](message.content)
        canonical.durable = message.durable
        canonical.priority = int(message.priority)
        if message.ttl_ms != NO_TTL:
            canonical.ttl_ms = int(message.ttl_ms)
        content = write_amqp091(canonical)
    except Exception as error:
        raise Inconvertible(f"no form in AMQP 0-9-1: {error}") from error
    return last.put(message, content)


def amqp010_content(message: Message) -> bytes:
    """The header segment and the body of a message, as 0-10 stores them. Raises Inconvertible, only that.

    Delivery-properties are in it only for a time that the model does not know; the rest is in the message.
    """
    if message.format is AMQP010:
        return message.content
    last = _LAST_TO_010
    if last.message is message:
        return last.content
    try:
        content = write_amqp010(_READERS[message.format.code](message.content))
    except Exception as error:
        raise Inconvertible(f"no form in AMQP 0-10: {error}") from error
    return last.put(message, content)


def report_undeliverable(operator_log: OperatorLog, queue: str, error: ValueError) -> None:
    """Log that a message of a queue could not be delivered to its consumer."""
    operator_log.warning(
        "message undeliverable",
        f"a message of queue '{queue}' cannot be delivered and is dead-lettered, or dropped where the queue has no "
        f"dead letter exchange: {error}",
    )
