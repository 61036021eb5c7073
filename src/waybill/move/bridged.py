"""A message between brokers of which one or both use AMQP 1.0, in its original encoding.

It is converted with the functions that Waybill's broker uses between protocols: see docs/reference/conversion.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from waybill.client import BasicProperties, Delivery
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.conversion.convert import Inconvertible, amqp091_content, amqp10_content
from waybill.model.message import NO_TTL, Address, Message
from waybill.move.errors import MoveFailed
from waybill.move.stamp import for_target
from waybill.wire.amqp091.content import body_of
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import PERSISTENT
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.message import DEFAULT_PRIORITY, Header
from waybill.wire.amqp10.scan import ABSENT
from waybill.wire.amqp10.sections import MessageFacts, scan_message

NOWHERE: Final = Address("", "")
CHANNEL: Final = 1
FRAME_HEAD_OCTETS: Final = 7
CONTENT_HEAD_OCTETS: Final = 12
"""The size of class, weight and body size, which precede the properties in a content header."""
MAX_TTL_MS: Final = 2**32 - 1

Content = tuple[BasicProperties | bytes, bytes]
"""Properties and body of an AMQP 0-9-1 message."""


class Bridged:
    """A message from a source. `accept` settles it there after it has arrived."""

    def __init__(self, octets: int, accept: Callable[[], object]) -> None:
        self.octets = octets
        self.accept = accept

    def amqp10(self, user: str, *, keeps_user: bool) -> bytes:
        """Return all sections for AMQP 1.0. `user` is the login at the target. Raises MoveFailed."""
        raise NotImplementedError

    def amqp091(self, user: str, *, keeps_user: bool) -> Content:
        """Return properties and body for AMQP 0-9-1. Raises MoveFailed."""
        raise NotImplementedError


class From091(Bridged):
    """A message received over AMQP 0-9-1."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(len(delivery.body) + len(delivery.encoded_properties), delivery.ack)
        self._delivery = delivery

    def amqp091(self, user: str, *, keeps_user: bool) -> Content:
        """Return it unchanged."""
        return for_target(self._delivery.encoded_properties, user, keeps_user=keeps_user), self._delivery.body

    def amqp10(self, user: str, *, keeps_user: bool) -> bytes:
        """Convert it. Durability, priority and expiration go into the header."""
        given, body = self.amqp091(user, keeps_user=keeps_user)
        try:
            properties = BasicProperties.decode(given) if isinstance(given, bytes) else given
            content = content_frames(CHANNEL, given, body, 0)
            durable = properties.delivery_mode == PERSISTENT
            sections = amqp10_content(Message(AMQP091, content, NOWHERE, durable, 0, NO_TTL, 0.0))
        except ValueError as error:
            raise MoveFailed(f"a message cannot be converted to AMQP 1.0: {error}") from None
        priority = DEFAULT_PRIORITY if properties.priority is None else properties.priority
        expiration = properties.expiration or ""
        ttl = min(int(expiration), MAX_TTL_MS) if expiration.isdecimal() else None
        return encode_value(Header(durable=durable, priority=priority, ttl=ttl)) + sections


class From10(Bridged):
    """A message received over AMQP 1.0, with all sections."""

    def __init__(self, sections: bytes, accept: Callable[[], object]) -> None:
        super().__init__(len(sections), accept)
        self._sections = sections

    def amqp10(self, user: str, *, keeps_user: bool) -> bytes:
        """Return it with a new header, whose delivery count is 0. The bare message is unchanged."""
        del user, keeps_user
        facts = self._scan()
        ttl = None if facts.ttl == ABSENT else int(facts.ttl)
        header = Header(durable=facts.durable, priority=int(facts.priority), ttl=ttl)
        return encode_value(header) + self._content(facts)

    def amqp091(self, user: str, *, keeps_user: bool) -> Content:
        """Convert it."""
        facts = self._scan()
        ttl = NO_TTL if facts.ttl == ABSENT else facts.ttl
        message = Message(AMQP10, self._content(facts), NOWHERE, facts.durable, facts.priority, ttl, 0.0)
        try:
            content = amqp091_content(message)
        except Inconvertible as error:
            raise MoveFailed(f"a message cannot be converted to AMQP 0-9-1: {error}") from None
        payload_end = FRAME_HEAD_OCTETS + int.from_bytes(content[3:FRAME_HEAD_OCTETS])
        properties = content[FRAME_HEAD_OCTETS + CONTENT_HEAD_OCTETS : payload_end]
        return for_target(properties, user, keeps_user=keeps_user), body_of(content)

    def _scan(self) -> MessageFacts:
        facts = MessageFacts()
        try:
            scan_message(self._sections, 0, len(self._sections), facts)
        except DecodeError as error:
            raise MoveFailed(f"a message of the source is malformed: {error}") from None
        return facts

    def _content(self, facts: MessageFacts) -> bytes:
        """Return the sections after the header and the delivery annotations."""
        start = max(0, facts.header_end, facts.delivery_annotations_end)
        return self._sections[start:]
