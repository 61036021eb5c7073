"""Large messages of events are cut between events, and small ones are left as they are."""

import msgspec
import pytest

from waybill.ojs.spec.event_pieces import PIECE_BYTES, event_pieces
from waybill.ojs.spec.events import read_events

EVENT = (
    '{{"specversion":"1.0","id":"evt_{}","type":"job.started","source":"/t","time":"2026-01-01T00:00:00Z",'
    '"subject":"j","data":{{"text":"{}"}}}}'
)


def test_all_events_are_in_the_pieces_in_their_order() -> None:
    events = [EVENT.format(number, "x" * (number % 7) * 40_000) for number in range(60)]
    body = f"[{','.join(events)}]".encode()
    pieces = list(event_pieces(body))
    assert len(pieces) > 5
    assert max(map(len, pieces)) <= PIECE_BYTES + 1000
    found = [event.id for piece in pieces for event in read_events(piece)[0]]
    assert found == [f"evt_{number}" for number in range(60)]


@pytest.mark.parametrize("body", [b"", b"[]", b"[{}]", b"{}", b"not JSON", b"{" + b" " * PIECE_BYTES + b"}"])
def test_what_is_small_or_one_event_stays(body: bytes) -> None:
    assert list(event_pieces(body)) == [body]


@pytest.mark.parametrize(
    "text", [b"[" * PIECE_BYTES + b"[", b"[1," + b" " * PIECE_BYTES, b"[" + b"1," * 1_000_000 + b"1]"]
)
def test_what_cannot_be_read_is_one_invalid_event(text: bytes) -> None:
    assert list(event_pieces(text)) == [b""]
    assert read_events(b"") == ([], 1)


def test_one_large_event_may_have_many_values() -> None:
    body = b"[%b]" % msgspec.json.encode({"data": {"args": [0] * 900_000}})
    assert list(event_pieces(body)) == [body]
