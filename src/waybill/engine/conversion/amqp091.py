"""Content of AMQP 0-9-1 as a canonical message, and a canonical message as such content.

Values without a place in 0-9-1 are kept in the header `x-amqp-1.0`, a map in the encoding of 1.0, which is only present
if needed. If the message is sent on with it, the conversion back to 1.0 restores the original values; a header that was
changed meanwhile takes precedence over `x-amqp-1.0`.
"""

from typing import Final

from waybill.engine.amqp10.address import QUEUES_PREFIX, queue_address, unquoted
from waybill.engine.amqp10.message_format import COPIES_ANNOTATION, COPIES_HEADER
from waybill.engine.conversion.amqp10 import HEADERS_ANNOTATION, PROPERTIES_ANNOTATION, TYPE_ANNOTATION
from waybill.engine.conversion.canonical import DATA, NO_BODY, OTHER_SECTIONS, UNSET, CanonicalMessage
from waybill.engine.conversion.deaths import DEATHS_ANNOTATION, DEATHS_HEADER, annotation_of, deaths_of, header_of
from waybill.engine.conversion.fields import MAX_I64, FieldReader, field_of, read_back, text_or_octets
from waybill.engine.conversion.identifiers import TYPE_SUFFIX, identifier_of, text_of
from waybill.engine.conversion.preserved import Preserved
from waybill.engine.conversion.sections import SECTIONS_TYPE, holds_sections
from waybill.wire.amqp091.content import ContentFacts, body_of, properties_of, scan
from waybill.wire.amqp091.errors import DecodeError, EncodeError
from waybill.wire.amqp091.field_table import EncodedField
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import PERSISTENT, TRANSIENT, BasicProperties
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import EncodeError as SectionEncodeError
from waybill.wire.amqp10.message import MessageId
from waybill.wire.amqp10.types import Array, Described, Symbol, Timestamp, UInt, ULong, Uuid

PRESERVED_HEADER: Final = "x-amqp-1.0"

MESSAGE_ID: Final = "x-message-id"
CORRELATION_ID: Final = "x-correlation-id"

_OWN_HEADERS: Final = frozenset(
    {PRESERVED_HEADER, MESSAGE_ID, CORRELATION_ID, MESSAGE_ID + TYPE_SUFFIX, CORRELATION_ID + TYPE_SUFFIX}
)
_OWN_ANNOTATIONS: Final = frozenset(
    {str(TYPE_ANNOTATION), str(HEADERS_ANNOTATION), str(PROPERTIES_ANNOTATION), str(COPIES_ANNOTATION)}
    | {str(DEATHS_ANNOTATION)}
)
_TEXT_MAX: Final = 255
HEADERS_MAX_OCTETS: Final = 120_000
"""The header frame must fit into the usual frame-max of 128 KiB."""
_FIELD_OVERHEAD: Final = 6
_CHANNEL: Final = 1


# --- from 0-9-1 ---


def read_amqp091(content: bytes) -> CanonicalMessage:
    """The canonical message of `content`."""
    facts = ContentFacts()
    scan(content, 0, facts)
    properties = properties_of(content)
    message = CanonicalMessage()
    pairs: dict[object, object] = {}
    if facts.headers_size > 0:
        pairs = dict(FieldReader(content, facts.headers_offset).table())
    kept = Preserved.decode(pairs.get(PRESERVED_HEADER))
    if kept is None:
        kept = Preserved()
    else:
        del pairs[PRESERVED_HEADER]
    message.message_id = _identifier(message, "message-id", properties.message_id, MESSAGE_ID, pairs)
    message.correlation_id = _identifier(message, "correlation-id", properties.correlation_id, CORRELATION_ID, pairs)
    message.content_type = _symbol(message, "content-type", properties.content_type)
    message.content_encoding = _symbol(message, "content-encoding", properties.content_encoding)
    message.type = _text(message, "type", properties.type)
    message.group_id = _text(message, "app-id", properties.app_id)
    if properties.user_id is not None:
        message.user_id = properties.user_id.encode("utf-8", "surrogateescape")
    if properties.reply_to is not None:
        message.reply_to = queue_address(properties.reply_to)
    if isinstance(properties.timestamp, int):
        if properties.timestamp * 1000 <= MAX_I64:
            message.creation_time = properties.timestamp * 1000
        else:
            message.foreign["timestamp"] = ULong(properties.timestamp)
    for name, value in pairs.items():
        _take_header(message, kept, name, value)
    message.annotations.update(kept.unshown_annotations)
    message.application_properties.update(kept.unshown_application_properties)
    _take_properties(message, kept, properties)
    _take_body(message, kept, properties.type, body_of(content))
    return message


def _identifier(
    message: CanonicalMessage, name: str, text: str | None, header: str, pairs: dict[object, object]
) -> MessageId | None:
    if text is None:
        value = pairs.get(header)
        if type(value) is str or type(value) is bytes:
            return pairs.pop(header)  # type: ignore[return-value]
        return None
    kind = pairs.get(header + TYPE_SUFFIX)
    plain = _text(message, name, text)
    if plain is None:
        return None
    identifier = identifier_of(plain, kind)
    if identifier is None:
        return plain
    if kind is not None and text_of(identifier) == (text, kind):
        del pairs[header + TYPE_SUFFIX]
    return identifier


def _text(message: CanonicalMessage, name: str, text: str | None) -> str | None:
    """Return valid text; octets that are not UTF-8 become a foreign property."""
    if text is None:
        return None
    value = text_or_octets(text.encode("utf-8", "surrogateescape"))
    if isinstance(value, str):
        return value
    message.foreign[name] = value
    return None


def _symbol(message: CanonicalMessage, name: str, text: str | None) -> str | None:
    plain = _text(message, name, text)
    if plain is None or plain.isascii():
        return plain
    message.foreign[name] = plain
    return None


def _take_header(message: CanonicalMessage, kept: Preserved, name: object, value: object) -> None:
    if isinstance(name, str):
        if name in kept.application_properties and _shows(kept.application_properties[name], value):
            message.application_properties[name] = kept.application_properties[name]
            return
        for key in (_annotation_key(name), Symbol(name)):
            if key in kept.annotations and _shows(header_of(key, kept.annotations[key]), value):
                message.annotations[key] = kept.annotations[key]
                return
        if name == COPIES_HEADER and _is_list_of_texts(value):
            message.annotations[COPIES_ANNOTATION] = value
            return
        deaths = annotation_of(value) if name == DEATHS_HEADER else None
        if deaths is not None:
            message.annotations[DEATHS_ANNOTATION] = deaths
            return
        if name.startswith("x-"):
            if name.isascii() and name not in _OWN_ANNOTATIONS and name not in _OWN_HEADERS:
                message.annotations[Symbol(name)] = value
                return
        elif not isinstance(value, (list, dict, Described)):
            message.application_properties[name] = value
            return
    message.headers[name] = value


def _annotation_key(name: str) -> Symbol:
    """The annotation that a header shows."""
    if name == COPIES_HEADER:
        return COPIES_ANNOTATION
    return DEATHS_ANNOTATION if name == DEATHS_HEADER else Symbol(name)


def _shows(value: object, header: object) -> bool:
    """Whether the header is the 0-9-1 form of `value`, so that it was not changed in transit.

    Clients of 0-9-1 do not keep the widths of integers, so these are not compared.
    """
    try:
        return _are_alike(read_back(field_of(value)[0]), header)
    except (DecodeError, SectionEncodeError):
        return False


def _are_alike(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int) and isinstance(other, int):
        return int(one) == int(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_are_alike(one[i], other[i]) for i in range(len(one)))
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(_are_alike(value, other[name]) for name, value in one.items())
    return encode_value(one) == encode_value(other)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is str for item in value)


def _take_properties(message: CanonicalMessage, kept: Preserved, properties: BasicProperties) -> None:
    """Restore the properties of 1.0, unless they were changed in 0-9-1."""
    message.to = kept.text("to", None, None)
    message.subject = kept.text("subject", None, None)
    message.reply_to_group_id = kept.text("reply-to-group-id", None, None)
    message.reply_to = kept.text("reply-to", properties.reply_to, message.reply_to)
    message.group_id = kept.text("group-id", properties.app_id, message.group_id)
    message.content_type = kept.text("content-type", properties.content_type, message.content_type)
    message.content_encoding = kept.text("content-encoding", properties.content_encoding, message.content_encoding)
    user_id = kept.value("user-id", properties.user_id, message.user_id)
    message.user_id = user_id if isinstance(user_id, bytes) else None
    message.absolute_expiry_time = kept.number("absolute-expiry-time", None, None)
    message.group_sequence = kept.number("group-sequence", None, None)
    message.creation_time = kept.number("creation-time", _seconds_text(properties), message.creation_time)
    if isinstance(message.message_id, (str, Uuid)):
        message.message_id = kept.text("message-id", properties.message_id, None) or message.message_id
    if isinstance(message.correlation_id, (str, Uuid)):
        message.correlation_id = kept.text("correlation-id", properties.correlation_id, None) or message.correlation_id


def _seconds_text(properties: BasicProperties) -> str | None:
    return str(properties.timestamp) if isinstance(properties.timestamp, int) else None


def _take_body(message: CanonicalMessage, kept: Preserved, type_: str | None, body: bytes) -> None:
    if type_ == SECTIONS_TYPE and holds_sections(body):
        message.body_kind = OTHER_SECTIONS
        message.sections = body
        message.type = kept.type
    else:
        message.body_kind = DATA
        message.data = [body]
        if kept.type is not None and type_ is None:
            message.type = kept.type
        if kept.data_sizes is not None and sum(kept.data_sizes) == len(body):
            message.data = []
            start = 0
            for size in kept.data_sizes:
                message.data.append(body[start : start + size])
                start += size
            if not message.data:
                message.body_kind = NO_BODY
    message.footer = kept.footer


# --- to 0-9-1 ---


def write_amqp091(message: CanonicalMessage) -> bytes:
    """Content frames on channel 1. Values that do not fit a table of 0-9-1 are dropped."""
    kept = Preserved()
    headers: dict[str, object] = {}
    properties = BasicProperties()
    _write_properties(message, kept, properties, headers)
    _write_headers(message, kept, headers)
    body = _write_body(message, kept, properties)
    kept.footer = message.footer
    octets = kept.encode()
    if octets:
        headers[PRESERVED_HEADER] = octets
    _drop_what_does_not_fit(headers)
    properties.headers = headers or None
    try:
        content = content_frames(_CHANNEL, properties, body, 0)
        scan(content, 0, ContentFacts())
    except (DecodeError, EncodeError):
        properties.headers = None
        content = content_frames(_CHANNEL, properties, body, 0)
    return content


def _drop_what_does_not_fit(headers: dict[str, object]) -> None:
    """A content header is one frame, which its reader must accept: drop the largest headers until they fit."""
    sizes = {name: len(name) + _size(value) for name, value in headers.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if total <= HEADERS_MAX_OCTETS:
            break
        total -= sizes[name]
        del headers[name]


def _size(value: object) -> int:
    octets = value.octets if isinstance(value, EncodedField) else value
    return _FIELD_OVERHEAD + (len(octets) if isinstance(octets, (bytes, str)) else 0)


def _write_properties(
    message: CanonicalMessage, kept: Preserved, properties: BasicProperties, headers: dict[str, object]
) -> None:
    foreign = message.foreign
    properties.delivery_mode = PERSISTENT if message.durable else TRANSIENT
    properties.priority = message.priority if 0 <= message.priority <= 0xFF else None
    properties.expiration = str(message.ttl_ms) if message.ttl_ms != UNSET else None
    properties.message_id = _foreign(foreign, "message-id") or _identifier_text(
        kept, "message-id", message.message_id, MESSAGE_ID, headers
    )
    properties.correlation_id = _foreign(foreign, "correlation-id") or _identifier_text(
        kept, "correlation-id", message.correlation_id, CORRELATION_ID, headers
    )
    properties.content_type = _foreign(foreign, "content-type") or _fitting(kept, "content-type", message.content_type)
    properties.content_encoding = _foreign(foreign, "content-encoding") or _fitting(
        kept, "content-encoding", message.content_encoding
    )
    properties.app_id = _foreign(foreign, "app-id") or _fitting(kept, "group-id", message.group_id)
    properties.reply_to = _reply_to(kept, message.reply_to)
    if message.user_id is not None:
        if len(message.user_id) <= _TEXT_MAX:
            properties.user_id = message.user_id.decode("utf-8", "surrogateescape")
        else:
            kept.keep("user-id", message.user_id, None)
    timestamp = foreign.get("timestamp")
    if isinstance(timestamp, ULong):
        properties.timestamp = int(timestamp)
    elif message.creation_time is not None:
        properties.timestamp = message.creation_time // 1000 if message.creation_time >= 0 else None
        if message.creation_time < 0 or message.creation_time % 1000:
            kept.keep("creation-time", Timestamp(message.creation_time), _seconds_text(properties))
    if message.to is not None:
        kept.keep("to", message.to, None)
    if message.subject is not None:
        kept.keep("subject", message.subject, None)
    if message.absolute_expiry_time is not None:
        kept.keep("absolute-expiry-time", Timestamp(message.absolute_expiry_time), None)
    if message.group_sequence is not None:
        kept.keep("group-sequence", UInt(message.group_sequence), None)
    if message.reply_to_group_id is not None:
        kept.keep("reply-to-group-id", message.reply_to_group_id, None)


def _foreign(foreign: dict[str, object], name: str) -> str | None:
    """A foreign property, in its original form of 0-9-1."""
    value = foreign.get(name)
    if type(value) is bytes:
        return value.decode("utf-8", "surrogateescape") if len(value) <= _TEXT_MAX else None
    return value if type(value) is str and len(value.encode()) <= _TEXT_MAX else None


def _identifier_text(
    kept: Preserved, name: str, identifier: MessageId | None, header: str, headers: dict[str, object]
) -> str | None:
    if identifier is None:
        return None
    text, kind = text_of(identifier)
    if text is None:
        headers[header] = field_of(identifier)[0]
        return None
    if kind is not None:
        headers[header + TYPE_SUFFIX] = kind
    elif type(identifier) is str and isinstance(identifier_of(text, None), Uuid):
        kept.keep(name, identifier, text)
    return text


def _fitting(kept: Preserved, name: str, text: str | None) -> str | None:
    """Return the text if it fits a short string; otherwise it is preserved."""
    if text is None or len(text.encode()) <= _TEXT_MAX:
        return text
    kept.keep(name, text, None)
    return None


def _reply_to(kept: Preserved, address: str | None) -> str | None:
    """The name of the queue of an address, or the address itself if it names no queue."""
    if address is None:
        return None
    if address.startswith(QUEUES_PREFIX):
        try:
            name = unquoted(address[len(QUEUES_PREFIX) :])
        except ValueError:
            name = ""
        if queue_address(name) == address and len(name.encode("utf-8", "surrogateescape")) <= _TEXT_MAX:
            return name
    shown = address if len(address.encode()) <= _TEXT_MAX else None
    kept.keep("reply-to", address, shown)
    return shown


def _write_headers(message: CanonicalMessage, kept: Preserved, headers: dict[str, object]) -> None:
    for name, value in message.headers.items():
        text = name if isinstance(name, str) else _octets(name).decode("utf-8", "surrogateescape")
        headers[text] = field_of(value)[0]
    for name, value in message.application_properties.items():
        if len(name.encode()) > _TEXT_MAX or name in _OWN_HEADERS or name in headers:
            kept.unshown_application_properties[name] = value
            continue
        field, is_exact = field_of(value)
        headers[name] = field
        if not is_exact or name.startswith("x-") or isinstance(value, (list, dict)):
            kept.application_properties[name] = value
    for key, value in message.annotations.items():
        _write_annotation(kept, headers, key, value)


def _octets(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _write_annotation(kept: Preserved, headers: dict[str, object], key: object, value: object) -> None:
    if not isinstance(key, Symbol) or not key.startswith("x-") or len(key) > _TEXT_MAX:
        kept.unshown_annotations[key] = value
        return
    name = str(key)
    shown = value
    is_natural = name not in _OWN_ANNOTATIONS
    # Names are compared as plain strings: mypyc 2.4 compares two symbols by identity.
    if name == str(COPIES_ANNOTATION) and isinstance(value, (list, Array)):
        name = COPIES_HEADER
        is_natural = _is_list_of_texts(value)
    elif name == str(DEATHS_ANNOTATION):
        deaths = deaths_of(value)
        if deaths is not None:
            name = DEATHS_HEADER
            shown = deaths
            again = annotation_of(deaths)
            is_natural = again is not None and encode_value(again) == encode_value(value)
    elif name == DEATHS_HEADER:
        is_natural = annotation_of(read_back(field_of(value)[0])) is None
    if name in headers or name in _OWN_HEADERS:
        kept.unshown_annotations[key] = value
        return
    field, is_exact = field_of(shown)
    headers[name] = field
    if not is_exact or not is_natural:
        kept.annotations[key] = value


def _write_body(message: CanonicalMessage, kept: Preserved, properties: BasicProperties) -> bytes:
    if message.body_kind == OTHER_SECTIONS:
        properties.type = SECTIONS_TYPE
        kept.type = message.type
        return message.sections
    body = message.data[0] if len(message.data) == 1 else b"".join(message.data)
    if message.body_kind == NO_BODY or len(message.data) != 1:
        kept.data_sizes = [len(octets) for octets in message.data]
    type_ = _foreign(message.foreign, "type") or message.type
    if type_ is None or len(type_.encode("utf-8", "surrogateescape")) > _TEXT_MAX:
        kept.type = type_
    elif type_ == SECTIONS_TYPE and holds_sections(body):
        # Otherwise it would be read as something else.
        kept.type = type_
    else:
        properties.type = type_
    return body
