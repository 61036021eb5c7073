"""Finds the properties that the broker uses without decoding the section (1.0, 3.2.4)."""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.descriptors import read_descriptor, read_list
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.scan import ABSENT, binary_at
from waybill.wire.amqp10.skip import skip_value

USER_ID: Final = 1
TO: Final = 2
SUBJECT: Final = 3
ABSOLUTE_EXPIRY_TIME: Final = 8
FIELD_COUNT: Final = 13
TIMESTAMP_SIZE: Final = 9


class PropertyFacts:
    """The offsets of user-id, to and subject, and the value of absolute-expiry-time; -1 if absent.

    `is_special`: there is a user-id or an absolute-expiry-time.
    """

    def __init__(self) -> None:
        self.is_special = False
        self.user_id: i64 = ABSENT
        self.user_id_end: i64 = ABSENT
        self.to: i64 = ABSENT
        self.to_end: i64 = ABSENT
        self.subject: i64 = ABSENT
        self.subject_end: i64 = ABSENT
        self.expiry_ms: i64 = ABSENT

    def clear(self) -> None:
        """Reset all fields."""
        self.is_special = False
        self.user_id = ABSENT
        self.to = ABSENT
        self.subject = ABSENT
        self.expiry_ms = ABSENT


def scan_properties(data: bytes, start: i64, end: i64, facts: PropertyFacts) -> None:
    """Fill `facts` from the properties section `data[start:end]`. Raises DecodeError."""
    facts.clear()
    _, value = read_descriptor(data, start, end)
    count, o, stop = read_list(data, value, end)
    if count > FIELD_COUNT:
        raise DecodeError(f"{count} values for the {FIELD_COUNT} fields of properties")
    index: i64 = 0
    while index < count and index <= ABSOLUTE_EXPIRY_TIME:
        if o >= stop:
            raise DecodeError("properties are cut off")
        after = skip_value(data, o, stop)
        if data[o] != codes.NULL:
            if index == USER_ID:
                facts.user_id, facts.user_id_end = binary_at(data, o, stop)
                facts.is_special = True
            elif index == TO:
                facts.to, facts.to_end = _string(data, o, after)
            elif index == SUBJECT:
                facts.subject, facts.subject_end = _string(data, o, after)
            elif index == ABSOLUTE_EXPIRY_TIME:
                if data[o] != codes.TIMESTAMP or after - o != TIMESTAMP_SIZE:
                    raise DecodeError("absolute-expiry-time is a timestamp")
                facts.is_special = True
                facts.expiry_ms = max(read_i64_be(data, o + 1), 0)
        o = after
        index += 1


def _string(data: bytes, o: i64, after: i64) -> tuple[i64, i64]:
    if data[o] == codes.STRING_8:
        return o + 2, after
    if data[o] == codes.STRING_32:
        return o + 5, after
    raise DecodeError("a string is needed")


def text_at(data: bytes, start: i64, end: i64) -> str:
    """The string whose octets are `data[start:end]`. Raises DecodeError."""
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise DecodeError("a string that is not UTF-8") from None
