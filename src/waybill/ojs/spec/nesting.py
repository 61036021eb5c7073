"""How deep JSON is nested, found out without going into it, and texts that JSON and databases have a place for.

A decoder recurses, and how deep it gets depends on what called it: what one program reads, another one cannot write
again. So there is one limit for jobs, events and requests, far below what any of them could take.
"""

from __future__ import annotations

import functools
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
    pieces = [outside.translate(_AS_BITS, _NO_BRACKETS) for outside, _ in _without_strings(text)]
    bits = b"".join(pieces)
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
    """Return whether JSON, or invalid JSON, would take too many Python objects to decode.

    It looks at no more of the text than necessary.
    """
    if 2 * len(text) <= limit:
        return False
    weight = string_count = 0
    for outside, strings in _without_strings(text):
        weight += 4 * (outside.count(b"[") + outside.count(b"{")) + outside.count(b",")
        string_count += strings
        # Each string is a value or a name: without so many commas and brackets, this is not JSON.
        if weight > limit or string_count > 2 * limit:
            return True
    return False


def count_values(text: bytes) -> int:
    """Return how many values JSON has, or a few more."""
    count = 1
    for outside, _ in _without_strings(text):
        count += outside.count(b"[") + outside.count(b"{") + outside.count(b",")
    return count


def _without_strings(text: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the parts outside of the strings of JSON, a window at a time, and how many strings each window has.

    Dividing a window at its quotes takes a fifth of the time of a regular expression.
    """
    start, is_open = 0, 0
    while start < len(text):
        piece = text[start : start + _WINDOW]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = text[start : start + len(piece) + 1]
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        quotes = len(parts) - 1
        yield b"".join(parts[is_open::2]), (quotes + is_open) // 2
        is_open = (is_open + quotes) % 2


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
