"""The format of messages that came over AMQP 1.0: their headers are annotations and application properties.

The content is the message without its header and delivery annotations, and is never changed:

    | message-annotations | properties | application-properties | body | footer |

The broker only adds message annotations; the bare message and its footer are not changed.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.conversion.deaths import DEATHS_ANNOTATION, DEATHS_HEADER, annotation_of, deaths_of, moment
from waybill.model.message import MessageFormat
from waybill.wire.amqp091.field_table import EPOCH
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.scan import ABSENT
from waybill.wire.amqp10.sections import (
    MessageFacts,
    data_of,
    decode_annotations,
    decode_application_properties,
    decode_properties,
    encode_annotations,
    scan_message,
)
from waybill.wire.amqp10.types import Array, Symbol, Timestamp

FORMAT_CODE: Final = 2
PRIORITIES: Final = 10
COPIES_HEADER: Final = "CC"
BLIND_COPIES_HEADER: Final = "BCC"
COPIES_ANNOTATION: Final = Symbol("x-cc")
"""RabbitMQ 4's counterpart of the header CC: more routing keys, a list of strings."""


class Amqp10Format(MessageFormat):
    """See `wire.amqp10.sections`."""

    def __init__(self) -> None:
        super().__init__(FORMAT_CODE, "AMQP 1.0")

    def headers(self, content: bytes) -> dict[str, object]:
        """The application properties, and the annotations that begin with `x-`, which override them.

        Sections that cannot be decoded are skipped, so that the message is not lost.
        """
        facts = MessageFacts()
        try:
            scan_message(content, 0, len(content), facts)
        except DecodeError:
            return {}
        return _headers(application_properties_in(content, facts), annotations_in(content, facts))

    def checked_headers(self, content: bytes) -> dict[str, object]:
        """As `headers`, for a message that has just come in. Raises DecodeError for invalid annotations (3.2.10)."""
        facts = MessageFacts()
        scan_message(content, 0, len(content), facts)
        annotations: dict[object, object] = {}
        if facts.message_annotations != ABSENT:
            annotations = decode_annotations(content, facts.message_annotations, facts.message_annotations_end)
        return _headers(application_properties_in(content, facts), annotations)

    def property_text(self, content: bytes, name: str) -> str:
        """See the base class. A section that cannot be decoded has no properties."""
        facts = MessageFacts()
        try:
            scan_message(content, 0, len(content), facts)
            if facts.properties == ABSENT:
                return ""
            properties = decode_properties(content, facts.properties, facts.properties_end)
        except DecodeError:
            return ""
        if name == "timestamp":
            return "" if properties.creation_time is None else str(int(properties.creation_time) // 1000)
        value = properties.message_id if name == "message_id" else properties.correlation_id
        return "" if value is None else str(value)

    def body_size(self, content: bytes) -> i64:
        """The octets of the data sections, or of another body; of the whole content if it is not a message."""
        facts = MessageFacts()
        try:
            scan_message(content, 0, len(content), facts)
        except DecodeError:
            return len(content)
        if facts.body_kind == descriptors.DATA:
            return len(data_of(content, facts))
        return 0 if facts.body_kind == ABSENT else facts.body_end - facts.body

    def with_headers(
        self, content: bytes, changes: dict[str, object], removed: list[str], *, keep_expiration: bool
    ) -> bytes:
        """See the base class. The changes are message annotations; the time to live is not part of the content."""
        annotations: dict[object, object] = {}
        for name, value in changes.items():
            deaths = annotation_of(value) if name == DEATHS_HEADER else None
            if deaths is not None:
                annotations[DEATHS_ANNOTATION] = deaths
            else:
                annotations[Symbol(name)] = _as_annotation(value)
        gone = [COPIES_ANNOTATION if name == COPIES_HEADER else Symbol(name) for name in removed]
        return with_annotations(content, annotations, gone)

    def amended(self, content: bytes, changes: bytes) -> bytes:
        """See the base class. `changes` is the new section of message annotations."""
        facts = MessageFacts()
        scan_message(content, 0, len(content), facts)
        start: i64 = facts.message_annotations_end if facts.message_annotations != ABSENT else 0
        return changes + content[start:]

    def level(self, priority: i64, levels: i64) -> i64:
        """The priority level of a message in a queue with `levels` levels; 0 is the lowest (3.2.1)."""
        level = priority
        if levels < PRIORITIES:
            level -= 5 - (levels + 1) // 2
        return max(min(level, levels - 1), 0)


AMQP10: Final = Amqp10Format()


def annotations_in(content: bytes, facts: MessageFacts) -> dict[object, object]:
    """The message annotations that `facts` locates; empty if they cannot be decoded."""
    if facts.message_annotations == ABSENT:
        return {}
    try:
        return decode_annotations(content, facts.message_annotations, facts.message_annotations_end)
    except DecodeError:
        return {}


def application_properties_in(content: bytes, facts: MessageFacts) -> dict[str, object]:
    """The application properties that `facts` locates; empty if they cannot be decoded."""
    if facts.application_properties == ABSENT:
        return {}
    try:
        return decode_application_properties(content, facts.application_properties, facts.application_properties_end)
    except DecodeError:
        return {}


def with_annotations(content: bytes, changes: Mapping[object, object], removed: list[Symbol] | None = None) -> bytes:
    """Set and remove message annotations of `content`, and nothing else. Raises EncodeError, DecodeError."""
    facts = MessageFacts()
    scan_message(content, 0, len(content), facts)
    annotations: dict[object, object] = {}
    start: i64 = 0
    if facts.message_annotations != ABSENT:
        annotations = decode_annotations(content, facts.message_annotations, facts.message_annotations_end)
        start = facts.message_annotations_end
    for key in removed or []:
        annotations.pop(key, None)
    annotations.update(changes)
    out = BytesWriter()
    if annotations:
        out.write(encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotations))
    out.write(content[start:])
    return out.getvalue()


def _headers(application: dict[str, object], annotations: dict[object, object]) -> dict[str, object]:
    headers: dict[str, object] = {}
    for name, value in application.items():
        if name not in {COPIES_HEADER, BLIND_COPIES_HEADER} or isinstance(value, str):
            headers[name] = _as_header(value)
    for key, value in annotations.items():
        if isinstance(key, str) and key.startswith("x-"):
            _add_annotation(headers, str(key), value)
    return headers


def _add_annotation(headers: dict[str, object], name: str, value: object) -> None:
    if name == DEATHS_ANNOTATION:
        deaths = deaths_of(value)
        if deaths is not None:
            headers[DEATHS_HEADER] = _as_header(deaths)
            return
    elif name == COPIES_ANNOTATION and isinstance(value, (list, Array)):
        keys = value.items if isinstance(value, Array) else value
        headers[COPIES_HEADER] = [str(key) for key in keys if isinstance(key, str)]
        return
    headers[name] = _as_header(value)


def _as_header(value: object) -> object:
    """A value in the form in which bindings compare it."""
    if isinstance(value, Timestamp):
        return moment(int(value))
    if isinstance(value, list):
        return [_as_header(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_header(item) for key, item in value.items()}
    return value


def _as_annotation(value: object) -> object:
    """A header that the model sets as a value of 1.0."""
    if isinstance(value, datetime):
        return Timestamp((value - EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, list):
        return [_as_annotation(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_annotation(item) for key, item in value.items()}
    return value
