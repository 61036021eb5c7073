"""Each protocol's format knows the properties by which a consistent-hash exchange may route."""

from uuid import UUID

import pytest

from waybill.engine.amqp010.message_format import AMQP010, packed
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.model.message import MessageFormat
from waybill.wire.amqp010.class_message import DeliveryProperties, MessageProperties
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import encode_data
from waybill.wire.amqp10.types import Timestamp, Uuid

TEXT = "0190f7a0-0000-7000-8000-000000000001"
ID = Uuid(UUID(TEXT).bytes)
SECONDS = 1_700_000_000
CONTENTS = {
    AMQP091: content_frames(1, BasicProperties(message_id=TEXT, correlation_id="c", timestamp=SECONDS), b"body", 4096),
    AMQP10: encode_value(Properties(message_id=ID, correlation_id="c", creation_time=Timestamp(SECONDS * 1000)))
    + encode_data(b"body"),
    AMQP010: packed(
        encode_header(DeliveryProperties(timestamp=SECONDS), MessageProperties(message_id=ID, correlation_id=b"c")),
        b"body",
    ),
}
EMPTY = {
    AMQP091: content_frames(1, BasicProperties(), b"body", 4096),
    AMQP10: encode_data(b"body"),
    AMQP010: packed(b"", b"body"),
}


@pytest.mark.parametrize("form", CONTENTS, ids=lambda form: form.name)
def test_equal_properties_have_equal_texts(form: MessageFormat) -> None:
    names = "message_id", "correlation_id", "timestamp"
    assert [form.property_text(CONTENTS[form], name) for name in names] == [TEXT, "c", str(SECONDS)]
    assert [form.property_text(EMPTY[form], name) for name in names] == ["", "", ""]
