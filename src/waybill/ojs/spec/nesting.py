"""How deep JSON is nested, found out without going into it, and texts that JSON and databases have a place for.

A decoder recurses, and how deep it gets depends on what called it: what one program reads, another one cannot write
again. So there is one limit for jobs, events and requests, far below what any of them could take.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterator
from itertools import accumulate
from operator import add
from typing import Final

MAX_NESTING: Final = 256
"""Arrays and objects within each other; a push allows 64 within its arguments."""
MAX_CARRIED_NESTING: Final = MAX_NESTING // 2
"""Of what travels inside of jobs, events and records, which have a limit as well."""

MAX_WEIGHT: Final = 500_000
"""Of a message: an array or an object counts for 4, what it holds for 1. An object of Python takes 64 octets and more,
where it took two of the text, and nobody else is served while it is decoded."""
MAX_CARRIED_WEIGHT: Final = 400_000
"""Of a job that is pushed: it grows by the errors and the checkpoint of its attempts."""

# Closed or not, so that no text is searched twice: not every one that is looked at is JSON.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_AS_BITS: Final = bytes.maketrans(b"[{]}", b"1100")
_NO_BRACKETS: Final = bytes(octet for octet in range(256) if octet not in b"[]{}")
_FEW: Final = 4096
_WINDOW: Final = 64 * 1024
_WORD: Final = 16
"""Brackets that are looked at together."""


def is_nested_deeper(text: bytes, limit: int = MAX_NESTING) -> bool:
    """Return whether JSON nests more than `limit` arrays and objects; for invalid JSON, the result is arbitrary."""
    # Each takes two octets: a short text needs no look.
    if len(text) <= 2 * limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    bits = _STRING.sub(b"", text).translate(_AS_BITS, _NO_BRACKETS)
    # Counting brackets one by one, or level by level, would be too slow for texts with many.
    whole = len(bits) - len(bits) % _WORD if len(bits) > _FEW else 0
    depth = 0
    if whole:
        steps, peaks = _words()
        words = array("H", int(bits[:whole], 2).to_bytes(whole // 8)).tolist()
        depths = list(accumulate(map(steps.__getitem__, words), initial=0))
        if max(map(add, depths, map(peaks.__getitem__, words))) > limit:
            return True
        depth = depths[-1]
    return max(accumulate((1 if bit == 0x31 else -1 for bit in bits[whole:]), initial=depth)) > limit


def is_too_heavy(text: bytes, limit: int = MAX_WEIGHT) -> bool:
    """Return whether JSON, or invalid JSON, would take too many Python objects to decode."""
    if 2 * len(text) <= limit:
        return False
    return _is_heavier(_windows(text), limit) and _is_heavier(_without_strings(text), limit)


def _is_heavier(pieces: Iterator[bytes], limit: int) -> bool:
    """Return whether the pieces of a text weigh more, looking at no more of them than necessary."""
    weight = 0
    for piece in pieces:
        weight += 4 * (piece.count(b"[") + piece.count(b"{")) + piece.count(b",")
        if weight > limit:
            return True
    return False


def count_values(text: bytes) -> int:
    """Return how many values JSON has, or a few more."""
    return 1 + sum(piece.count(b"[") + piece.count(b"{") + piece.count(b",") for piece in _without_strings(text))


def _windows(text: bytes) -> Iterator[bytes]:
    for start in range(0, len(text), _WINDOW):
        yield text[start : start + _WINDOW]


def _without_strings(text: bytes) -> Iterator[bytes]:
    """Yield the parts outside of the strings of JSON, a window at a time: each match of a string creates an object."""
    start, opened = 0, b""
    while start < len(text):
        end = start + _WINDOW
        while text[end - 1 : end] == b"\\":
            end += 1
        piece = opened + text[start:end]
        yield _STRING.sub(b"", piece)
        is_open = piece.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') % 2
        start, opened = end, b'"' if is_open else b""


@functools.cache
def _words() -> tuple[list[int], list[int]]:
    """Return by how much each word of brackets goes deeper, and how deep it goes on the way."""
    steps, peaks = [0] * (1 << _WORD), [0] * (1 << _WORD)
    for word in range(1 << _WORD):
        depth = peak = 0
        for octet in array("H", [word]).tobytes():
            for bit in range(7, -1, -1):
                depth += 1 if octet >> bit & 1 else -1
                peak = max(peak, depth)
        steps[word], peaks[word] = depth, peak
    return steps, peaks


def clean_text(text: str, limit: int) -> str:
    """Return a text with at most `limit` characters and without characters that UTF-8 or PostgreSQL refuse."""
    text = text[:limit].replace("\0", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def shown(text: str) -> str:
    """Return a name of a peer's for a line of a log: on one line, and short."""
    return text if len(text) <= 200 and text.isprintable() else ascii(text[:200])
