"""Content of AMQP 0-10 as a canonical message, and a canonical message as such content.

| canonical | 0-10 |
|---|---|
| application properties, headers, annotations `x-...` | application-headers of those names |
| subject | the application-header `qpid.subject`, as in Qpid's clients; it is an application property too |
| type | the application-header `x-basic-type` |
| reply_to | reply-to: `/queues/q` is the routing key q, `/exchanges/e/k` that exchange and key |
| group_id | app-id |
| message_id | message-id if it is a uuid; else the application-header `x-message-id` |
| correlation_id | correlation-id; `x-correlation-id-type` beside it tells a ulong or binary |
| creation_time, absolute_expiry_time | timestamp, expiration: seconds |
| body | its octets; of sections that are no data sections, these, and `x-basic-type` says `amqp-1.0` |

Values without a place in 0-10 are kept in the application-header `x-amqp-1.0`, as in 0-9-1; those of a message from
0-9-1 in `x-amqp-0-9-1`. Both are only present if needed.
"""

from typing import Final

from librt.strings import read_i32_be

from waybill.engine.amqp010.message_format import packed
from waybill.engine.amqp10.address import (
    EXCHANGE,
    QUEUE,
    InvalidAddress,
    exchange_address,
    parse_address,
    queue_address,
)
from waybill.engine.amqp10.message_format import COPIES_ANNOTATION, COPIES_HEADER
from waybill.engine.conversion.amqp10 import HEADERS_ANNOTATION, PROPERTIES_ANNOTATION, TYPE_ANNOTATION
from waybill.engine.conversion.canonical import DATA, NO_BODY, OTHER_SECTIONS, CanonicalMessage
from waybill.engine.conversion.deaths import DEATHS_ANNOTATION, DEATHS_HEADER, annotation_of, deaths_of, header_of
from waybill.engine.conversion.fields010 import canonical_value, is_same, shown_value
from waybill.engine.conversion.identifiers import BINARY, TYPE_SUFFIX, ULONG, identifier_of, text_of
from waybill.engine.conversion.preserved import Preserved
from waybill.engine.conversion.sections import SECTIONS_TYPE, holds_sections
from waybill.wire.amqp010.class_message import DeliveryProperties, MessageProperties, ReplyTo
from waybill.wire.amqp010.encode import encode_map
from waybill.wire.amqp010.errors import EncodeError
from waybill.wire.amqp010.message_header import decode_header, encode_header
from waybill.wire.amqp10.message import MessageId
from waybill.wire.amqp10.types import Array, Described, Symbol, Timestamp, UInt, ULong, Uuid

PRESERVED_HEADER: Final = "x-amqp-1.0"
FOREIGN_HEADER: Final = "x-amqp-0-9-1"
"""A map: properties of 0-9-1 by name, and `headers`, a list of name and value in turn."""
SUBJECT_HEADER: Final = "qpid.subject"
TYPE_HEADER: Final = "x-basic-type"
MESSAGE_ID: Final = "x-message-id"
MESSAGE_ID_TYPE: Final = MESSAGE_ID + TYPE_SUFFIX
"""Only 0-9-1 has it: as an annotation, it would say there what the message id is."""
CORRELATION_ID: Final = "x-correlation-id"
CORRELATION_TYPE: Final = CORRELATION_ID + TYPE_SUFFIX
_OWN_HEADERS: Final = frozenset(
    {PRESERVED_HEADER, FOREIGN_HEADER, TYPE_HEADER, MESSAGE_ID, MESSAGE_ID_TYPE, CORRELATION_ID, CORRELATION_TYPE}
)
_OWN_ANNOTATIONS: Final = frozenset(
    str(one)
    for one in (TYPE_ANNOTATION, HEADERS_ANNOTATION, PROPERTIES_ANNOTATION, COPIES_ANNOTATION, DEATHS_ANNOTATION)
)
_NATIVE: Final[dict[str, type]] = {"content-type": str, "content-encoding": str, "app-id": bytes, "timestamp": ULong}
"""Properties that 0-9-1 and 0-10 support but 1.0 does not: not ASCII, not UTF-8, or an unsupported time."""
_NAME_MAX: Final = 255
_OCTETS_MAX: Final = 0xFFFF
_SIZE_OCTETS: Final = 4


# --- from 0-10 ---


def read_amqp010(content: bytes) -> CanonicalMessage:
    """The canonical message of `content`. Raises DecodeError."""
    end = _SIZE_OCTETS + (int(read_i32_be(content, 0)) & 0xFFFFFFFF)
    header = decode_header(content[_SIZE_OCTETS:end])
    message = CanonicalMessage()
    known = header.properties
    properties = MessageProperties() if known is None else known
    headers: dict[str, object] = {
        name: canonical_value(value) for name, value in (properties.application_headers or {}).items()
    }
    kept = Preserved.decode(headers.pop(PRESERVED_HEADER, None)) or Preserved()
    _take_foreign(message, headers)
    _take_identifiers(message, kept, properties, headers)
    _take_texts(message, kept, properties, headers)
    delivery = header.delivery
    timestamp = None if delivery is None else delivery.timestamp
    message.creation_time = _milliseconds(kept, "creation-time", timestamp)
    if timestamp is not None and message.creation_time is None:
        message.foreign["timestamp"] = ULong(timestamp)
    message.absolute_expiry_time = _milliseconds(
        kept, "absolute-expiry-time", None if delivery is None else delivery.expiration
    )
    kind = headers.pop(TYPE_HEADER, None)
    if kind is not None and type(kind) is not str:
        message.headers[TYPE_HEADER] = kind
        kind = None
    for name, value in headers.items():
        _take_header(message, kept, name, value)
    message.annotations.update(kept.unshown_annotations)
    message.application_properties.update(kept.unshown_application_properties)
    _take_body(message, kept, kind if isinstance(kind, str) else None, content[end:])
    return message


def _take_foreign(message: CanonicalMessage, headers: dict[str, object]) -> None:
    foreign = headers.get(FOREIGN_HEADER)
    if not isinstance(foreign, dict):
        return
    del headers[FOREIGN_HEADER]
    named = foreign.pop("headers", None)
    if isinstance(named, list):
        for index in range(0, len(named) - 1, 2):
            if type(named[index]) is bytes or type(named[index]) is str:
                message.headers[named[index]] = named[index + 1]
    message.foreign.update(foreign)


def _take_identifiers(
    message: CanonicalMessage, kept: Preserved, properties: MessageProperties, headers: dict[str, object]
) -> None:
    if properties.message_id is not None:
        message.message_id = properties.message_id
    else:
        message.message_id = _identifier_in(headers, MESSAGE_ID)
    octets = properties.correlation_id
    if octets is None:
        message.correlation_id = _identifier_in(headers, CORRELATION_ID)
        return
    text = _text(octets)
    kind = headers.get(CORRELATION_TYPE)
    if text is None:
        message.correlation_id = octets
    elif kind == BINARY:
        message.correlation_id = octets
        del headers[CORRELATION_TYPE]
    else:
        identifier = identifier_of(text, ULONG if kind == ULONG else None)
        if kind == ULONG and identifier is not None:
            del headers[CORRELATION_TYPE]
        exact = kept.text("correlation-id", text, None) if isinstance(identifier, Uuid) else None
        message.correlation_id = exact or (text if identifier is None else identifier)


def _identifier_in(headers: dict[str, object], name: str) -> MessageId | None:
    value = headers.get(name)
    if type(value) is str or type(value) is bytes or type(value) is ULong:
        return headers.pop(name)  # type: ignore[return-value]
    return None


def _take_texts(
    message: CanonicalMessage, kept: Preserved, properties: MessageProperties, headers: dict[str, object]
) -> None:
    message.content_type = _symbol(message, kept, "content-type", properties.content_type)
    message.content_encoding = _symbol(message, kept, "content-encoding", properties.content_encoding)
    message.user_id = properties.user_id
    app_id = None
    if properties.app_id is not None:
        app_id = _text(properties.app_id)
        if app_id is None:
            message.foreign["app-id"] = properties.app_id
    message.group_id = kept.text("group-id", app_id, app_id)
    address = _address_of(properties.reply_to)
    message.reply_to = kept.text("reply-to", address, address)
    _take_subject(message, kept, headers)
    message.to = kept.text("to", None, None)
    message.reply_to_group_id = kept.text("reply-to-group-id", None, None)
    message.group_sequence = kept.number("group-sequence", None, None)


def _take_subject(message: CanonicalMessage, kept: Preserved, headers: dict[str, object]) -> None:
    """The header remains an application property, unless it was created from a subject."""
    value = headers.get(SUBJECT_HEADER)
    shown = value if type(value) is str else None
    message.subject = kept.text("subject", shown, shown)
    entry = kept.properties.get("subject")
    if entry is not None and shown is not None and entry[1] == shown.encode():
        del headers[SUBJECT_HEADER]


def _symbol(message: CanonicalMessage, kept: Preserved, name: str, text: str | None) -> str | None:
    if text is not None and not text.isascii():
        message.foreign[name] = text
        text = None
    return kept.text(name, text, text)


def _text(octets: bytes) -> str | None:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _address_of(reply_to: ReplyTo | None) -> str | None:
    if reply_to is None or not (reply_to.exchange or reply_to.routing_key):
        return None
    if not reply_to.exchange:
        return queue_address(reply_to.routing_key or "")
    return exchange_address(reply_to.exchange, reply_to.routing_key)


def _milliseconds(kept: Preserved, name: str, seconds: int | None) -> int | None:
    plain = None if seconds is None or seconds * 1000 > 2**63 - 1 else seconds * 1000
    return kept.number(name, None if seconds is None else str(seconds), plain)


def _take_header(message: CanonicalMessage, kept: Preserved, name: str, value: object) -> None:
    if name in kept.application_properties and is_same(shown_value(kept.application_properties[name])[0], value):
        message.application_properties[name] = kept.application_properties[name]
        return
    keys = {COPIES_HEADER: COPIES_ANNOTATION, DEATHS_HEADER: DEATHS_ANNOTATION}
    for key in (keys.get(name, Symbol(name)), Symbol(name)):
        if key in kept.annotations and is_same(shown_value(header_of(key, kept.annotations[key]))[0], value):
            message.annotations[key] = kept.annotations[key]
            return
    if name == COPIES_HEADER and isinstance(value, list) and all(type(item) is str for item in value):
        message.annotations[COPIES_ANNOTATION] = value
        return
    deaths = annotation_of(value) if name == DEATHS_HEADER else None
    if deaths is not None:
        message.annotations[DEATHS_ANNOTATION] = deaths
    elif name.startswith("x-") and name.isascii() and name not in _OWN_HEADERS | _OWN_ANNOTATIONS:
        message.annotations[Symbol(name)] = value
    elif not name.startswith("x-") and not isinstance(value, (list, dict, Described)):
        message.application_properties[name] = value
    else:
        message.headers[name] = value


def _take_body(message: CanonicalMessage, kept: Preserved, kind: str | None, body: bytes) -> None:
    message.footer = kept.footer
    if kind == SECTIONS_TYPE and holds_sections(body):
        message.body_kind = OTHER_SECTIONS
        message.sections = body
        message.type = kept.type
        return
    message.type = kept.type if kind is None else kind
    message.body_kind = DATA
    message.data = [body]
    sizes = kept.data_sizes
    if sizes is not None and sum(sizes) == len(body):
        message.data = []
        start = 0
        for size in sizes:
            message.data.append(body[start : start + size])
            start += size
        if not message.data:
            message.body_kind = NO_BODY


# --- to 0-10 ---


def write_amqp010(message: CanonicalMessage) -> bytes:
    """Content of 0-10. Values that are nested too deeply to be encoded are dropped."""
    kept = Preserved()
    headers: dict[str, object] = {}
    body = _write_body(message, kept, headers)
    message_id, correlation_id = _write_identifiers(message, kept, headers)
    timestamp = _seconds(kept, "creation-time", message.creation_time)
    seconds = message.foreign.get("timestamp")
    if timestamp is None and isinstance(seconds, ULong):
        timestamp = int(seconds)
    expiration = _seconds(kept, "absolute-expiry-time", message.absolute_expiry_time)
    app_id = message.group_id.encode("utf-8", "surrogateescape") if message.group_id is not None else None
    foreign_id = message.foreign.get("app-id")
    if app_id is None and isinstance(foreign_id, bytes):
        app_id = foreign_id
    if app_id is not None and len(app_id) > _OCTETS_MAX:
        kept.keep("group-id", message.group_id, None)
        app_id = None
    content_type = _short(kept, "content-type", message)
    content_encoding = _short(kept, "content-encoding", message)
    reply_to = _reply_to(kept, message.reply_to)
    if message.subject is not None:
        _write_subject(message, kept, headers)
    if message.to is not None:
        kept.keep("to", message.to, None)
    if message.group_sequence is not None:
        kept.keep("group-sequence", UInt(message.group_sequence), None)
    if message.reply_to_group_id is not None:
        kept.keep("reply-to-group-id", message.reply_to_group_id, None)
    _write_headers(message, kept, headers)
    kept.footer = message.footer
    octets = kept.encode()
    if octets:
        headers[PRESERVED_HEADER] = octets
    properties = MessageProperties(
        content_length=len(body),
        message_id=message_id,
        correlation_id=correlation_id,
        reply_to=reply_to,
        content_type=content_type,
        content_encoding=content_encoding,
        user_id=message.user_id if message.user_id is not None and len(message.user_id) <= _OCTETS_MAX else None,
        app_id=app_id,
        application_headers=headers or None,
    )
    if timestamp is None and expiration is None:
        return packed(encode_header(properties), body)
    delivery = DeliveryProperties(timestamp=timestamp, expiration=expiration)
    return packed(encode_header(delivery, properties), body)


def _write_subject(message: CanonicalMessage, kept: Preserved, headers: dict[str, object]) -> None:
    shown = shown_value(message.subject)[0]
    if SUBJECT_HEADER not in message.application_properties and type(shown) is str:
        headers[SUBJECT_HEADER] = shown
        kept.keep("subject", message.subject, shown)
    elif message.application_properties.get(SUBJECT_HEADER) != message.subject:
        kept.keep("subject", message.subject, None)


def _seconds(kept: Preserved, name: str, milliseconds: int | None) -> int | None:
    if milliseconds is None:
        return None
    seconds = milliseconds // 1000 if milliseconds >= 0 else None
    if seconds is None or milliseconds % 1000:
        kept.keep(name, Timestamp(milliseconds), None if seconds is None else str(seconds))
    return seconds


def _short(kept: Preserved, name: str, message: CanonicalMessage) -> str | None:
    text = message.content_type if name == "content-type" else message.content_encoding
    foreign = message.foreign.get(name)
    if text is None and type(foreign) is str:
        text = foreign
    if text is None or len(text.encode("utf-8", "surrogateescape")) <= _NAME_MAX:
        return text
    kept.keep(name, text, None)
    return None


def _write_identifiers(
    message: CanonicalMessage, kept: Preserved, headers: dict[str, object]
) -> tuple[Uuid | None, bytes | None]:
    message_id: Uuid | None = None
    identifier = message.message_id
    if isinstance(identifier, Uuid):
        message_id = identifier
    elif identifier is not None:
        headers[MESSAGE_ID] = identifier
    identifier = message.correlation_id
    if identifier is None:
        return message_id, None
    if isinstance(identifier, bytes) and not isinstance(identifier, Uuid):
        octets: bytes = identifier
        if _text(octets) is not None:
            headers[CORRELATION_TYPE] = BINARY
    else:
        text, kind = text_of(identifier)
        if text is None:
            text = str(identifier)
        octets = text.encode()
        if kind is not None:
            headers[CORRELATION_TYPE] = kind
        elif type(identifier) is str and isinstance(identifier_of(text, None), Uuid):
            kept.keep("correlation-id", identifier, text)
    if len(octets) > _OCTETS_MAX:
        headers.pop(CORRELATION_TYPE, None)
        headers[CORRELATION_ID] = identifier
        return message_id, None
    return message_id, octets


def _reply_to(kept: Preserved, address: str | None) -> ReplyTo | None:
    """The node of an address. An address that names neither a queue nor an exchange counts as the name of a queue."""
    if address is None:
        return None
    found: ReplyTo | None = None
    try:
        parsed = parse_address(address)
        if parsed.kind == QUEUE:
            found = ReplyTo("", parsed.name)
        elif parsed.kind == EXCHANGE:
            found = ReplyTo(parsed.name, parsed.key)
    except InvalidAddress:
        pass
    if found is not None and not _is_text(found):
        found = None
    elif found is None and len(address.encode("utf-8", "surrogateescape")) <= _NAME_MAX:
        found = ReplyTo("", address)
    if _address_of(found) == address:
        return found
    kept.keep("reply-to", address, _address_of(found))
    return found


def _is_text(reply_to: ReplyTo) -> bool:
    """Whether its names can be encoded: those of 0-9-1 are any octets."""
    try:
        encode_map({"": reply_to.exchange, "key": reply_to.routing_key})
    except EncodeError:
        return False
    return True


def _write_headers(message: CanonicalMessage, kept: Preserved, headers: dict[str, object]) -> None:
    foreign: dict[str, object] = {
        name: value
        for name, value in message.foreign.items()
        if name not in _NATIVE or type(value) is not _NATIVE[name]
    }
    named: list[object] = []
    for key, value in message.headers.items():
        shown = shown_value(value)[0]
        if not isinstance(key, str) or key in _OWN_HEADERS:
            named += [key, shown]
        else:
            _add(headers, key, shown)
    if named:
        foreign["headers"] = named
    if foreign:
        _add(headers, FOREIGN_HEADER, foreign)
    for name, value in message.application_properties.items():
        shown, is_exact = shown_value(value)
        if name in _OWN_HEADERS or name in headers or not _add(headers, name, shown):
            kept.unshown_application_properties[name] = value
        elif not is_exact or name.startswith("x-") or isinstance(shown, (list, dict)):
            kept.application_properties[name] = value
    for annotation, value in message.annotations.items():
        _write_annotation(kept, headers, annotation, value)


def _add(headers: dict[str, object], name: str, value: object) -> bool:
    """Whether the application-header can be encoded, and is added."""
    try:
        encode_map({name: value})
    except EncodeError:
        return False
    headers[name] = value
    return True


def _write_annotation(kept: Preserved, headers: dict[str, object], key: object, value: object) -> None:
    if not isinstance(key, Symbol) or not key.startswith("x-") or len(key) > _NAME_MAX:
        kept.unshown_annotations[key] = value
        return
    name = str(key)
    shown_as = value
    is_natural = name not in _OWN_ANNOTATIONS
    # Names are compared as plain strings: mypyc 2.4 compares two symbols by identity.
    if name == str(COPIES_ANNOTATION) and isinstance(value, (list, Array)):
        name = COPIES_HEADER
        is_natural = isinstance(value, list) and all(type(item) is str for item in value)
    elif name == str(DEATHS_ANNOTATION):
        deaths = deaths_of(value)
        if deaths is not None:
            name = DEATHS_HEADER
            shown_as = deaths
            is_natural = is_same(annotation_of(deaths), value)
    elif name == DEATHS_HEADER:
        is_natural = annotation_of(value) is None
    shown, is_exact = shown_value(shown_as)
    if name in headers or name in _OWN_HEADERS or not _add(headers, name, shown):
        kept.unshown_annotations[key] = value
    elif not is_exact or not is_natural:
        kept.annotations[key] = value


def _write_body(message: CanonicalMessage, kept: Preserved, headers: dict[str, object]) -> bytes:
    if message.body_kind == OTHER_SECTIONS:
        headers[TYPE_HEADER] = SECTIONS_TYPE
        kept.type = message.type
        return message.sections
    body = message.data[0] if len(message.data) == 1 else b"".join(message.data)
    if message.body_kind == NO_BODY or len(message.data) != 1:
        kept.data_sizes = [len(octets) for octets in message.data]
    if message.type is not None:
        if (message.type == SECTIONS_TYPE and holds_sections(body)) or len(message.type) > _NAME_MAX:
            # Otherwise it would be read as something else.
            kept.type = message.type
        else:
            headers[TYPE_HEADER] = message.type
    return body
