"""The header `x-amqp-1.0`: values without a place in 0-9-1, as a map of 1.0 with these symbols as keys.

| key | value |
|---|---|
| annotations, application-properties | those that a header shows without telling their type, by name |
| unshown-annotations, unshown-application-properties | those that no header shows |
| properties | by name a list: the property, and the text that shows it in 0-9-1, or null |
| type | the annotation `x-basic-type` |
| data | the sizes of the data sections, if there is not just one |
| footer | the encoded section |
"""

from typing import Final

from waybill.wire.amqp10.decode import decode_value
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.field_kinds import checked_annotations
from waybill.wire.amqp10.sections import MessageFacts, scan_message
from waybill.wire.amqp10.types import Symbol, Timestamp, UInt

_SYMBOLS: Final = frozenset({"content-type", "content-encoding"})
PRESERVED_MAX_OCTETS: Final = 32 << 10
"""A header must fit into the frames of any consumer; the rest is dropped."""


class Preserved:
    """The contents of the header, decoded."""

    def __init__(self) -> None:
        self.annotations: dict[object, object] = {}
        self.unshown_annotations: dict[object, object] = {}
        self.application_properties: dict[str, object] = {}
        self.unshown_application_properties: dict[str, object] = {}
        self.properties: dict[str, list[object]] = {}
        self.type: str | None = None
        self.data_sizes: list[int] | None = None
        self.footer = b""

    @staticmethod
    def decode(octets: object) -> "Preserved | None":
        """Read the header; None if it is not one of ours, since anyone can write a header."""
        if not isinstance(octets, bytes):
            return None
        kept = Preserved()
        try:
            value, end = decode_value(octets)
            if end != len(octets) or not isinstance(value, dict):
                return None
            kept._take(value)
        except (DecodeError, EncodeError):
            return None
        return kept

    def _take(self, value: dict[object, object]) -> None:
        self.annotations = checked_annotations(value.get("annotations", {}))
        self.unshown_annotations = checked_annotations(value.get("unshown-annotations", {}))
        self.application_properties = _named(value.get("application-properties"))
        self.unshown_application_properties = _named(value.get("unshown-application-properties"))
        properties = value.get("properties")
        if isinstance(properties, dict):
            for name, entry in properties.items():
                if isinstance(entry, list) and len(entry) == 2:
                    self.properties[str(name)] = entry
        kind = value.get("type")
        self.type = kind if type(kind) is str else None
        sizes = value.get("data")
        if isinstance(sizes, list) and all(isinstance(size, int) and size >= 0 for size in sizes):
            self.data_sizes = [int(size) for size in sizes]
        footer = value.get("footer")
        self.footer = footer if type(footer) is bytes and is_footer(footer) else b""

    def encode(self) -> bytes:
        """The header's value; empty if there is nothing to keep, or it is too large."""
        value: dict[object, object] = {}
        if self.annotations:
            value[Symbol("annotations")] = self.annotations
        if self.unshown_annotations:
            value[Symbol("unshown-annotations")] = self.unshown_annotations
        if self.application_properties:
            value[Symbol("application-properties")] = self.application_properties
        if self.unshown_application_properties:
            value[Symbol("unshown-application-properties")] = self.unshown_application_properties
        if self.properties:
            value[Symbol("properties")] = {Symbol(name): entry for name, entry in self.properties.items()}
        if self.type is not None:
            value[Symbol("type")] = self.type
        if self.data_sizes is not None:
            value[Symbol("data")] = [UInt(size) for size in self.data_sizes]
        if self.footer:
            value[Symbol("footer")] = self.footer
        if not value:
            return b""
        try:
            octets = encode_value(value)
        except EncodeError:
            return b""
        return octets if len(octets) <= PRESERVED_MAX_OCTETS else b""

    def keep(self, name: str, value: object, shown: str | None) -> None:
        """Preserve a property, which is shown in 0-9-1 as `shown`."""
        self.properties[name] = [value, None if shown is None else shown.encode("utf-8", "surrogateescape")]

    def value(self, name: str, shown: str | None, default: object) -> object:
        """A preserved property if it is still shown as `shown`, else `default`."""
        entry = self.properties.get(name)
        if entry is None:
            return default
        text = None if shown is None else shown.encode("utf-8", "surrogateescape")
        return entry[0] if entry[1] == text else default

    def text(self, name: str, shown: str | None, default: str | None) -> str | None:
        """The same for a property that is text; in ASCII, if 1.0 has it as a symbol."""
        value = self.value(name, shown, default)
        if not isinstance(value, str) or (name in _SYMBOLS and not value.isascii()):
            return default
        return str(value)

    def number(self, name: str, shown: str | None, default: int | None) -> int | None:
        """The same for one that is a timestamp or a uint."""
        value = self.value(name, shown, default)
        return int(value) if isinstance(value, (Timestamp, UInt)) else default


def _named(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        return {}
    return {name: item for name, item in value.items() if type(name) is str}


def is_footer(octets: bytes) -> bool:
    """Whether it is exactly one footer section."""
    facts = MessageFacts()
    try:
        scan_message(octets, 0, len(octets), facts)
    except DecodeError:
        return False
    return facts.footer == 0 and facts.footer_end == len(octets)
