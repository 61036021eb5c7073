"""Finds how deep JSON is nested, and where the elements of an array are, without recursion.

The decoders recurse, and fail at a depth that depends on their caller. Text nested deeper than `DEEPEST` is refused
before decoding, so the same text always has the same result.
"""

import re
from collections.abc import Iterator
from typing import Final

DEEPEST: Final = 256
"""Levels of arrays and objects that an event or a job may have."""
# Shorter texts cannot be nested deeper and be closed again.
_SHORT: Final = 2 * DEEPEST
# A string, closed or not (so that no text is searched twice), or a bracket, or a comma.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))
_CLOSING: Final = frozenset((b"]", b"}"))


def is_too_deep(text: bytes) -> bool:
    """Whether `text` opens more than `DEEPEST` levels. Short texts, which are most, cost no more than their length."""
    if len(text) <= _SHORT or text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in _OPENING:
            depth += 1
            if depth > DEEPEST:
                return True
        elif token in _CLOSING:
            depth -= 1
    return False


def elements(text: bytes) -> Iterator[bytes]:
    """The texts of the elements of an array, split by brackets and commas; nothing else is checked.

    Raises ValueError if the array is not closed, or something comes after it.
    """
    depth = 0
    start = end = -1
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in _OPENING:
            depth += 1
            if depth == 1:
                start = found.end()
        elif token in _CLOSING:
            depth -= 1
            if depth == 0:
                end = found.end()
                yield text[start : found.start()].strip()
                break
        elif token == b"," and depth == 1:
            yield text[start : found.start()].strip()
            start = found.end()
    if end < 0 or text[end:].strip():
        raise ValueError("the array is not closed, or something comes after it")
