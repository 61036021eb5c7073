"""Content of AMQP 1.0 as a canonical message, and a canonical message as such content.

Content has neither header nor delivery annotations: the values of the header are fields of the model's message. Three
message annotations carry values from 0-9-1 that have no other place: `x-basic-type` the type, `x-opt-headers` headers
that cannot be application properties, `x-opt-properties` properties that 1.0 lacks.
"""

from typing import Final

from librt.strings import BytesWriter

from waybill.engine.amqp10.message_format import annotations_in, application_properties_in
from waybill.engine.conversion.canonical import DATA, NO_BODY, OTHER_SECTIONS, CanonicalMessage
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.descriptors import write_descriptor
from waybill.wire.amqp10.encode import encode_value, write_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.scan import ABSENT
from waybill.wire.amqp10.sections import (
    MessageFacts,
    decode_body,
    decode_properties,
    encode_annotations,
    encode_data,
    scan_message,
)
from waybill.wire.amqp10.types import Symbol

TYPE_ANNOTATION: Final = Symbol("x-basic-type")
HEADERS_ANNOTATION: Final = Symbol("x-opt-headers")
PROPERTIES_ANNOTATION: Final = Symbol("x-opt-properties")
NO_PROPERTIES: Final = encode_value(Properties())


def read_amqp10(content: bytes) -> CanonicalMessage:
    """The canonical message of `content`. A section that cannot be decoded is skipped."""
    facts = MessageFacts()
    scan_message(content, 0, len(content), facts)
    message = CanonicalMessage()
    if facts.properties != ABSENT:
        _take_properties(message, _properties_in(content, facts))
    message.application_properties = application_properties_in(content, facts)
    message.annotations = annotations_in(content, facts)
    _take_foreign(message)
    if facts.body_kind == descriptors.DATA:
        message.body_kind = DATA
        message.data = [value for value in decode_body(content, facts.body, facts.body_end) if isinstance(value, bytes)]
    elif facts.body_kind != ABSENT:
        message.body_kind = OTHER_SECTIONS
        message.sections = content[facts.body : facts.body_end]
    if facts.footer != ABSENT:
        message.footer = content[facts.footer : facts.footer_end]
    return message


def _properties_in(content: bytes, facts: MessageFacts) -> Properties:
    try:
        return decode_properties(content, facts.properties, facts.properties_end)
    except DecodeError:
        return Properties()


def _take_properties(message: CanonicalMessage, properties: Properties) -> None:
    message.message_id = properties.message_id
    message.user_id = properties.user_id
    message.to = properties.to
    message.subject = properties.subject
    message.reply_to = properties.reply_to
    message.correlation_id = properties.correlation_id
    message.content_type = properties.content_type
    message.content_encoding = properties.content_encoding
    message.absolute_expiry_time = properties.absolute_expiry_time
    message.creation_time = properties.creation_time
    message.group_id = properties.group_id
    message.group_sequence = properties.group_sequence
    message.reply_to_group_id = properties.reply_to_group_id


def _take_foreign(message: CanonicalMessage) -> None:
    annotations = message.annotations
    kind = annotations.get(TYPE_ANNOTATION)
    if type(kind) is str:
        message.type = kind
        del annotations[TYPE_ANNOTATION]
    headers = annotations.get(HEADERS_ANNOTATION)
    if isinstance(headers, dict) and all(type(name) is str or type(name) is bytes for name in headers):
        message.headers = headers
        del annotations[HEADERS_ANNOTATION]
    foreign = annotations.get(PROPERTIES_ANNOTATION)
    if isinstance(foreign, dict) and all(type(name) is str for name in foreign):
        message.foreign = foreign
        del annotations[PROPERTIES_ANNOTATION]


def write_amqp10(message: CanonicalMessage) -> bytes:
    """Content of 1.0. Values that are nested too deeply to be encoded are dropped."""
    out = BytesWriter()
    annotations = dict(message.annotations)
    if message.type is not None:
        annotations[TYPE_ANNOTATION] = message.type
    if message.headers:
        annotations[HEADERS_ANNOTATION] = message.headers
    if message.foreign:
        annotations[PROPERTIES_ANNOTATION] = message.foreign
    if annotations:
        out.write(_annotations(annotations))
    properties = encode_value(_properties(message))
    if properties != NO_PROPERTIES:
        out.write(properties)
    if message.application_properties:
        # Values that are not simple were sent so: the broker does not refuse them.
        write_descriptor(out, descriptors.APPLICATION_PROPERTIES)
        write_value(out, message.application_properties)
    if message.body_kind == DATA:
        for octets in message.data:
            out.write(encode_data(octets))
    elif message.body_kind == OTHER_SECTIONS:
        out.write(message.sections)
    elif message.body_kind == NO_BODY and len(out) == 0 and not message.footer:
        # A message without any section cannot be told from an aborted one.
        out.write(encode_data(b""))
    out.write(message.footer)
    return out.getvalue()


def _annotations(annotations: dict[object, object]) -> bytes:
    try:
        return encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotations)
    except EncodeError:
        shallow = {key: value for key, value in annotations.items() if not isinstance(value, (dict, list))}
        return encode_annotations(descriptors.MESSAGE_ANNOTATIONS, shallow)


def _properties(message: CanonicalMessage) -> Properties:
    return Properties(
        message_id=message.message_id,
        user_id=message.user_id,
        to=message.to,
        subject=message.subject,
        reply_to=message.reply_to,
        correlation_id=message.correlation_id,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        absolute_expiry_time=message.absolute_expiry_time,
        creation_time=message.creation_time,
        group_id=message.group_id,
        group_sequence=message.group_sequence,
        reply_to_group_id=message.reply_to_group_id,
    )
