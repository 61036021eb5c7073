"""Bodies of 1.0 that are no data sections, in the bodies of other protocols."""

from typing import Final

from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.sections import MessageFacts, scan_message

SECTIONS_TYPE: Final = "amqp-1.0"
"""The type of a message whose body is sections of 1.0 that are no data sections."""


def holds_sections(body: bytes) -> bool:
    """Whether a body consists of body sections of 1.0 other than data sections."""
    facts = MessageFacts()
    try:
        scan_message(body, 0, len(body), facts)
    except DecodeError:
        return False
    return facts.body == 0 and facts.body_end == len(body) and facts.body_kind != descriptors.DATA
