"""The meaning of identifiers: fields of a section of the message, or application properties.

| selector of JMS | SQL filter expression | |
|---|---|---|
| `amqp.subject`, `JMSType` ... | `properties.subject`, `p.subject` | properties |
| `amqp.priority`, `JMSPriority` ... | `header.priority`, `h.priority` | header |
| | `message_annotations.x`, `m.x` | message annotations |
| any other | any other, `application_properties.x`, `a.x` | application properties |
"""

from typing import Final

from waybill.engine.amqp10.selector.tokens import SelectorError
from waybill.engine.amqp10.view import ANNOTATIONS, APPLICATION, HEADER, HEADER_FIELDS, PROPERTIES, PROPERTY_FIELDS

_JMS_HEADERS: Final[dict[str, tuple[str, str]]] = {
    "JMSCorrelationID": (PROPERTIES, "correlation_id"),
    "JMSDeliveryMode": (HEADER, "delivery_mode"),
    "JMSDestination": (PROPERTIES, "to"),
    "JMSExpiration": (PROPERTIES, "absolute_expiry_time"),
    "JMSMessageID": (PROPERTIES, "message_id"),
    "JMSPriority": (HEADER, "priority"),
    "JMSReplyTo": (PROPERTIES, "reply_to"),
    "JMSTimestamp": (PROPERTIES, "creation_time"),
    "JMSType": (PROPERTIES, "subject"),
}

_SECTIONS: Final[dict[str, str]] = {
    "header": HEADER,
    "h": HEADER,
    "properties": PROPERTIES,
    "p": PROPERTIES,
    "application_properties": APPLICATION,
    "application-properties": APPLICATION,
    "a": APPLICATION,
    "message_annotations": ANNOTATIONS,
    "message-annotations": ANNOTATIONS,
    "m": ANNOTATIONS,
}


def jms_identifier(text: str) -> tuple[str, str]:
    """Section and name. Raises SelectorError for a field that does not exist."""
    if text in _JMS_HEADERS:
        return _JMS_HEADERS[text]
    if text.startswith("amqp."):
        name = text[len("amqp.") :].replace("-", "_")
        if name in PROPERTY_FIELDS:
            return PROPERTIES, name
        if name in HEADER_FIELDS:
            return HEADER, name
        if name == "jms_type":
            return ANNOTATIONS, "jms-type"
        raise SelectorError(f"there is no field {text}")
    return APPLICATION, text


def sql_identifier(text: str) -> tuple[str, str]:
    """Section and name. Raises SelectorError for a field that does not exist."""
    prefix, dot, name = text.partition(".")
    section = _SECTIONS.get(prefix) if dot else None
    if section is None:
        return APPLICATION, text
    if section in {HEADER, PROPERTIES}:
        name = name.replace("-", "_")
        if name not in (HEADER_FIELDS if section == HEADER else PROPERTY_FIELDS):
            raise SelectorError(f"there is no field {text}")
    return section, name
