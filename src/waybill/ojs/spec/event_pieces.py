"""Cuts large messages of many events into smaller ones: decoded at once, events take up to twenty times as much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from waybill.ojs.spec.nesting import is_too_heavy

PIECE_BYTES: Final = 1024 * 1024
MAX_BATCH_WEIGHT: Final = 1_000_000
"""Of the values in a message of several events that is larger than a piece; see `nesting.is_too_heavy`."""

_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


def event_pieces(body: bytes) -> Iterator[bytes]:
    """Yield a message of events as messages of about PIECE_BYTES, or of one event; b"" if it has too many values."""
    if len(body) <= PIECE_BYTES or body[:1] != b"[":
        yield body
        return
    try:
        events = [] if is_too_heavy(body, MAX_BATCH_WEIGHT) else _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        events = []
    if not events:
        yield b""
        return
    piece: list[bytes] = []
    size = 0
    for event in events:
        text = bytes(event)
        if piece and size + len(text) > PIECE_BYTES:
            yield _joined(piece)
            piece, size = [], 0
        piece.append(text)
        size += len(text)
    yield _joined(piece)


def _joined(events: list[bytes]) -> bytes:
    return b"[%b]" % b",".join(events)
