"""What is recognized as one more accepted delivery is what the full scan says of it, whichever octet differs."""

import pytest

from waybill.engine.amqp10.server.shape import DIFFERENT, AcceptedShape
from waybill.wire.amqp10.descriptors import ACCEPTED
from waybill.wire.amqp10.disposition import DispositionFacts, scan_disposition
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.messaging import Accepted
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, Disposition

FORMS = [
    Disposition(ROLE_RECEIVER, first, last, settled=True, state=Accepted(), batchable=batchable)
    for first in (5, 500)
    for last in (None, first)
    for batchable in (False, True)
]


def meaning(data: bytes) -> int:
    """The delivery that a disposition settles as accepted, if it does that and nothing else; else `DIFFERENT`."""
    facts = DispositionFacts()
    try:
        scan_disposition(data, 0, len(data), facts)
    except DecodeError:
        return DIFFERENT
    plain = facts.receiver and facts.settled and facts.state == ACCEPTED and facts.first == facts.last
    return facts.first if plain else DIFFERENT


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_any_other_octet_has_its_meaning(form: Disposition) -> None:
    data = encode_value(form)
    facts = DispositionFacts()
    scan_disposition(data, 0, len(data), facts)
    shape = AcceptedShape()
    shape.learn(data, 0, len(data), facts)
    assert shape.match(data, 0, len(data)) == form.first
    for place in range(len(data)):
        for octet in range(256):
            other = data[:place] + bytes([octet]) + data[place + 1 :]
            matched = shape.match(other, 0, len(other))
            assert matched in {DIFFERENT, meaning(other)}, other.hex(" ")
