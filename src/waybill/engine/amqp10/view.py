"""A message as filters see it: values by section and name. Each section is decoded when it is first needed."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.message_format import AMQP10, annotations_in, application_properties_in
from waybill.model.message import NO_TTL, Address, Message
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.scan import ABSENT
from waybill.wire.amqp10.sections import MessageFacts, decode_properties, scan_message
from waybill.wire.amqp10.types import Uuid

HEADER: Final = "header"
PROPERTIES: Final = "properties"
APPLICATION: Final = "application-properties"
ANNOTATIONS: Final = "message-annotations"

HEADER_FIELDS: Final = frozenset({"durable", "priority", "ttl", "delivery_mode"})
PROPERTY_FIELDS: Final = frozenset(Properties.FIELDS.names)

STEPS_MAX: Final = 65_536
"""All patterns of a link together examine so many characters of one message."""
STEPS_PER_UNIT_BITS: Final = 7
OCTETS_PER_UNIT_BITS: Final = 6

_NOBODY: Final = Message(AMQP10, b"", Address("", ""), False, 0, NO_TTL, 0.0)  # noqa: FBT003 - as in its signature


class MessageView:
    """A link has one view, and shows it one message after the other.

    Values are plain: str for strings, symbols, characters and uuids; int, float, bool, bytes; None for null, for absent
    fields, and for lists, maps and the like. `units`: the work that this message has cost so far.
    """

    def __init__(self) -> None:
        self.message = _NOBODY
        self.content = b""
        self.facts = MessageFacts()
        self.units: i64 = 0
        self._steps_left: i64 = STEPS_MAX
        self._is_scanned = False
        self._properties: Properties | None = None
        self._application: dict[str, object] | None = None
        self._annotations: dict[object, object] | None = None

    def show(self, message: Message, content: bytes) -> None:
        """Look at another message. `content`: its content in the encoding of 1.0."""
        self.message = message
        self.content = content
        self.units = 0
        self._steps_left = STEPS_MAX
        self._is_scanned = False
        self._properties = None
        self._application = None
        self._annotations = None

    def take_steps(self, count: i64) -> bool:
        """Count steps of patterns over this message. False if they exceed the limit."""
        if count > self._steps_left:
            return False
        self._steps_left -= count
        self.units += count >> STEPS_PER_UNIT_BITS
        return True

    def value(self, section: str, name: str) -> object:
        if section == APPLICATION:
            return plain(self.application_properties().get(name))
        if section == PROPERTIES:
            return self.property_value(name)
        if section == ANNOTATIONS:
            return plain(self.annotations().get(name))
        return self._header_value(name)

    def property_value(self, name: str) -> object:
        """A property by its name with underscores. The subject of a message of 0-9-1 is its routing key."""
        value = plain(getattr(self.properties(), name))
        if value is None and name == "subject" and self.message.format is not AMQP10:
            return self.message.address.routing_key
        return value

    def properties(self) -> Properties:
        properties = self._properties
        if properties is None:
            facts = self._scanned()
            properties = Properties()
            if facts.properties != ABSENT:
                try:
                    properties = decode_properties(self.content, facts.properties, facts.properties_end)
                except DecodeError:
                    properties = Properties()
            self._properties = properties
        return properties

    def application_properties(self) -> dict[str, object]:
        application = self._application
        if application is None:
            facts = self._scanned()
            self.units += (facts.application_properties_end - facts.application_properties) >> OCTETS_PER_UNIT_BITS
            application = application_properties_in(self.content, facts)
            self._application = application
        return application

    def annotations(self) -> dict[object, object]:
        annotations = self._annotations
        if annotations is None:
            facts = self._scanned()
            self.units += (facts.message_annotations_end - facts.message_annotations) >> OCTETS_PER_UNIT_BITS
            annotations = annotations_in(self.content, facts)
            self._annotations = annotations
        return annotations

    def _scanned(self) -> MessageFacts:
        if not self._is_scanned:
            scan_message(self.content, 0, len(self.content), self.facts)
            self._is_scanned = True
        return self.facts

    def _header_value(self, name: str) -> object:
        message = self.message
        if name == "durable":
            return message.durable
        if name == "delivery_mode":
            return "PERSISTENT" if message.durable else "NON_PERSISTENT"
        if name == "priority":
            return int(message.priority)
        return None if message.ttl_ms == NO_TTL else int(message.ttl_ms)


def plain(value: object) -> object:
    """A value without its AMQP type."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Uuid):
        return str(value)
    return bytes(value) if isinstance(value, bytes) else None
