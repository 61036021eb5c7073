"""The sections of a message (1.0, 3.2): located without decoding, decoded and encoded one by one.

    | header | delivery-    | message-    | properties | application- | body: data..., sequence..., | footer |
    |        | annotations  | annotations |            | properties   | or one value                |        |
                                          |<------------------ bare message ------------------>|

The bare message must be delivered unchanged, octet for octet, so a message stays encoded. `scan_message` locates its
sections and reads the header, which the broker needs.
"""

from collections.abc import Mapping
from typing import Any, Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.composite import Composite, decode_composite
from waybill.wire.amqp10.decode import Decoder
from waybill.wire.amqp10.descriptors import read_descriptor, read_list, read_map, write_descriptor
from waybill.wire.amqp10.encode import write_binary, write_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.field_kinds import annotation_keys, checked_annotations
from waybill.wire.amqp10.message import DEFAULT_PRIORITY, Header, Properties
from waybill.wire.amqp10.scan import ABSENT, binary_at, boolean_at, put_flag, put_uint, ubyte_at, uint_at
from waybill.wire.amqp10.skip import skip_value
from waybill.wire.amqp10.types import Array, OddMap

HEADER_FIELD_COUNT: Final = 5

_HEADER_HEAD: Final = b"\x00\x53\x70\xc0\x00\x00"


class MessageFacts:
    """The sections of a message, in absolute offsets. One object is reused for all messages.

    A section is `data[section:section_end]`, its descriptor included. It is absent if the offset is -1. `body_kind` is
    descriptors.DATA, AMQP_SEQUENCE, AMQP_VALUE, or -1 without a body; the `body_count` sections of a body are together.
    The bare message is `data[bare:bare_end]`. The header's fields have their defaults if they are absent; `ttl` is in
    milliseconds, -1 if absent.
    """

    def __init__(self) -> None:
        self.header: i64 = ABSENT
        self.header_end: i64 = ABSENT
        self.delivery_annotations: i64 = ABSENT
        self.delivery_annotations_end: i64 = ABSENT
        self.message_annotations: i64 = ABSENT
        self.message_annotations_end: i64 = ABSENT
        self.properties: i64 = ABSENT
        self.properties_end: i64 = ABSENT
        self.application_properties: i64 = ABSENT
        self.application_properties_end: i64 = ABSENT
        self.body: i64 = ABSENT
        self.body_end: i64 = ABSENT
        self.body_kind: i64 = ABSENT
        self.body_count: i64 = 0
        self.footer: i64 = ABSENT
        self.footer_end: i64 = ABSENT
        self.bare: i64 = 0
        self.bare_end: i64 = 0
        self.durable: bool = False
        self.priority: i64 = DEFAULT_PRIORITY
        self.ttl: i64 = ABSENT
        self.first_acquirer: bool = False
        self.delivery_count: i64 = 0

    def clear(self) -> None:
        """Reset all fields."""
        self.header = ABSENT
        self.header_end = ABSENT
        self.delivery_annotations = ABSENT
        self.delivery_annotations_end = ABSENT
        self.message_annotations = ABSENT
        self.message_annotations_end = ABSENT
        self.properties = ABSENT
        self.properties_end = ABSENT
        self.application_properties = ABSENT
        self.application_properties_end = ABSENT
        self.body = ABSENT
        self.body_end = ABSENT
        self.body_kind = ABSENT
        self.body_count = 0
        self.footer = ABSENT
        self.footer_end = ABSENT
        self.durable = False
        self.priority = DEFAULT_PRIORITY
        self.ttl = ABSENT
        self.first_acquirer = False
        self.delivery_count = 0


def scan_message(data: bytes, offset: i64, end: i64, facts: MessageFacts) -> None:
    """Fill `facts` from the message `data[offset:end]`. Raises DecodeError, with `facts` undefined.

    This checks the order, number and outermost types of sections, and the fields of the header. The contents of other
    sections are not checked. A message without a body is accepted: some clients send it.
    """
    facts.clear()
    facts.bare = ABSENT
    facts.bare_end = ABSENT
    last: i64 = 0
    o = offset
    while o < end:
        code, value = read_descriptor(data, o, end)
        after = _section_end(data, value, end, code)
        if code <= last:
            _check_repeated(code, last)
        elif descriptors.DATA < code < descriptors.FOOTER and facts.body_kind != ABSENT:
            raise DecodeError("a body of different kinds of sections")
        last = code
        if descriptors.PROPERTIES <= code <= descriptors.AMQP_VALUE:
            if facts.bare == ABSENT:
                facts.bare = o
            facts.bare_end = after
        _note(facts, code, o, after)
        if code == descriptors.HEADER:
            _scan_header(data, value, after, facts)
        o = after
    if facts.bare == ABSENT:
        # Between the sections before a bare message and the footer.
        facts.bare = facts.footer if facts.footer != ABSENT else end
        facts.bare_end = facts.bare


def _check_repeated(code: i64, last: i64) -> None:
    if code < last:
        raise DecodeError(f"section {code:#x} after section {last:#x}")
    if code != descriptors.DATA and code != descriptors.AMQP_SEQUENCE:  # noqa: PLR1714 - native integers
        raise DecodeError(f"section {code:#x} twice")


def _section_end(data: bytes, o: i64, end: i64, code: i64) -> i64:
    """The offset after a section whose value starts at `o`. Checks that the value has the type of the section."""
    if code == descriptors.DATA:
        start, after = binary_at(data, o, end)
        if start == ABSENT:
            raise DecodeError("a data section of null")
        return after
    if code == descriptors.AMQP_VALUE:
        return skip_value(data, o, end)
    if code == descriptors.HEADER or code == descriptors.PROPERTIES or code == descriptors.AMQP_SEQUENCE:  # noqa: PLR1714 - native
        _, _, after = read_list(data, o, end)
        return after
    if descriptors.HEADER < code <= descriptors.FOOTER:
        _, _, after = read_map(data, o, end)
        return after
    raise DecodeError(f"an unknown section {code:#x}")


def _note(facts: MessageFacts, code: i64, start: i64, end: i64) -> None:
    if descriptors.DATA <= code <= descriptors.AMQP_VALUE:
        if facts.body_kind == ABSENT:
            facts.body_kind = code
            facts.body = start
        facts.body_count += 1
        facts.body_end = end
    elif code == descriptors.HEADER:
        facts.header = start
        facts.header_end = end
    elif code == descriptors.PROPERTIES:
        facts.properties = start
        facts.properties_end = end
    elif code == descriptors.MESSAGE_ANNOTATIONS:
        facts.message_annotations = start
        facts.message_annotations_end = end
    elif code == descriptors.APPLICATION_PROPERTIES:
        facts.application_properties = start
        facts.application_properties_end = end
    elif code == descriptors.DELIVERY_ANNOTATIONS:
        facts.delivery_annotations = start
        facts.delivery_annotations_end = end
    else:
        facts.footer = start
        facts.footer_end = end


def _scan_header(data: bytes, o: i64, end: i64, facts: MessageFacts) -> None:
    count, o, stop = read_list(data, o, end)
    if count > HEADER_FIELD_COUNT:
        raise DecodeError(f"{count} values for the {HEADER_FIELD_COUNT} fields of a header")
    if count > 0:
        durable, o = boolean_at(data, o, stop)
        facts.durable = durable > 0
    if count > 1:
        priority, o = ubyte_at(data, o, stop)
        if priority != ABSENT:
            facts.priority = priority
    if count > 2:
        facts.ttl, o = uint_at(data, o, stop)
    if count > 3:
        first_acquirer, o = boolean_at(data, o, stop)
        facts.first_acquirer = first_acquirer > 0
    if count > 4:
        delivery_count, o = uint_at(data, o, stop)
        if delivery_count != ABSENT:
            facts.delivery_count = delivery_count
    if o != stop:
        raise DecodeError(f"{stop - o} octets after the fields of a header")


def section_starts(data: bytes, offset: i64, end: i64) -> list[int]:
    """The offset of each section of `data[offset:end]`. The last one may be incomplete, even its descriptor.

    For the state `received` (3.4.1): all sections but the last are complete, and `end` minus the last offset is what
    there is of that. Raises DecodeError.
    """
    starts: list[int] = []
    o = offset
    while o < end:
        if data[o] != codes.DESCRIBED:
            raise DecodeError(f"no section at {o}")
        starts.append(o)
        try:
            o = skip_value(data, o, end)
        except DecodeError:
            break
    return starts


def decode_header(data: bytes, start: i64, end: i64) -> Header:
    """Decode a header section, `data[start:end]`, descriptor included. Raises DecodeError."""
    header = _decode_composite(data, start, end)
    if not isinstance(header, Header):
        raise DecodeError(f"a header is needed, not {header.NAME}")
    return header


def decode_properties(data: bytes, start: i64, end: i64) -> Properties:
    """Decode a properties section, `data[start:end]`, descriptor included. Raises DecodeError."""
    properties = _decode_composite(data, start, end)
    if not isinstance(properties, Properties):
        raise DecodeError(f"properties are needed, not {properties.NAME}")
    return properties


def _decode_composite(data: bytes, start: i64, end: i64) -> Composite:
    value, after = decode_composite(data, start, end)
    if after != end:
        raise DecodeError("octets after a section")
    return value


def decode_annotations(data: bytes, start: i64, end: i64) -> dict[object, object]:
    """Decode annotations or a footer, descriptor included; keys are Symbol or ULong. Raises DecodeError."""
    _, value = _decode_section(data, start, end)
    return checked_annotations(value)


def decode_application_properties(data: bytes, start: i64, end: i64) -> dict[str, object]:
    """Decode application properties, descriptor included. Raises DecodeError.

    Values should be simple; lists and maps are accepted, because some clients send them.
    """
    _, value = _decode_section(data, start, end)
    if not isinstance(value, dict):
        raise DecodeError("application properties are not a map")
    for key in value:
        if type(key) is not str:
            raise DecodeError(f"an application property's name is a string, not {type(key).__name__}")
    return value


def decode_body(data: bytes, start: i64, end: i64, max_values: i64 = codes.MAX_VALUES) -> list[object]:
    """Decode the body sections `data[start:end]`: for each the bytes, the list or the value.

    Raises DecodeError, also for more than `max_values` values in a section.
    """
    values: list[object] = []
    o = start
    while o < end:
        code, value = read_descriptor(data, o, end)
        if not descriptors.DATA <= code <= descriptors.AMQP_VALUE:
            raise DecodeError(f"no body in section {code:#x}")
        after = _section_end(data, value, end, code)
        values.append(Decoder(data, value, after, max_values).value(1))
        o = after
    return values


def data_of(data: bytes, facts: MessageFacts) -> bytes:
    """The joined octets of data sections. Raises DecodeError if the body is of another kind."""
    if facts.body_kind != descriptors.DATA:
        raise DecodeError("a body of data sections is needed")
    parts = BytesWriter()
    o = facts.body
    while o < facts.body_end:
        _, value = read_descriptor(data, o, facts.body_end)
        start, o = binary_at(data, value, facts.body_end)
        if facts.body_count == 1:
            return data[start:o]
        parts.write(data[start:o])
    return parts.getvalue()


def _decode_section(data: bytes, start: i64, end: i64) -> tuple[int, object]:
    code, value = read_descriptor(data, start, end)
    decoder = Decoder(data, value, end)
    decoded = decoder.value(1)
    if decoder.reader.offset != end:
        raise DecodeError("octets after a section")
    return code, decoded


def write_header(
    out: BytesWriter, *, durable: bool, priority: i64, ttl: i64, first_acquirer: bool, delivery_count: i64
) -> None:
    """Write a header section, or nothing if all fields have their defaults. `ttl` is -1 for none."""
    count: i64 = 0
    if delivery_count > 0:
        count = 5
    elif first_acquirer:
        count = 4
    elif ttl >= 0:
        count = 3
    elif priority != DEFAULT_PRIORITY:
        count = 2
    elif durable:
        count = 1
    else:
        return
    out.write(_HEADER_HEAD)
    start: i64 = len(out)
    put_flag(out, value=durable)
    if count > 1:
        if priority == DEFAULT_PRIORITY:
            out.append(codes.NULL)
        else:
            out.append(codes.UBYTE)
            out.append(priority)
    if count > 2:
        if ttl < 0:
            out.append(codes.NULL)
        else:
            put_uint(out, ttl)
    if count > 3:
        put_flag(out, value=first_acquirer)
    if count > 4:
        put_uint(out, delivery_count)
    size: i64 = len(out) - start
    out[start - 2] = u8(size + 1)
    out[start - 1] = u8(count)


def encode_annotations(code: int, annotations: Mapping[Any, object]) -> bytes:
    """Encode a section of annotations: `code` is one of descriptors.DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, FOOTER.

    String keys become symbols. Raises EncodeError.
    """
    return _encode_section(code, annotation_keys(annotations))


def encode_application_properties(properties: Mapping[Any, object]) -> bytes:
    """Encode application properties. Raises EncodeError unless names are strings and values simple (3.2.5)."""
    for name, value in properties.items():
        if type(name) is not str:
            raise EncodeError(f"an application property's name is a string, not {type(name).__name__}")
        if isinstance(value, (Mapping, OddMap, list, tuple, Array)):
            raise EncodeError(f"{name}: an application property is a simple value, not {type(value).__name__}")
    return _encode_section(descriptors.APPLICATION_PROPERTIES, properties)


def encode_data(octets: bytes) -> bytes:
    """Encode one data section."""
    out = BytesWriter()
    write_descriptor(out, descriptors.DATA)
    write_binary(out, octets)
    return out.getvalue()


def encode_sequence(values: list[object]) -> bytes:
    """Encode one amqp-sequence section. Raises EncodeError."""
    return _encode_section(descriptors.AMQP_SEQUENCE, values)


def encode_amqp_value(value: object) -> bytes:
    """Encode an amqp-value section. Raises EncodeError."""
    return _encode_section(descriptors.AMQP_VALUE, value)


def _encode_section(code: int, value: object) -> bytes:
    out = BytesWriter()
    write_descriptor(out, code)
    write_value(out, value)
    return out.getvalue()
