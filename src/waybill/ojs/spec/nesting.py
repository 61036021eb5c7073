"""How deep JSON is nested, found out without going into it, and texts that JSON and databases have a place for.

A decoder recurses, and how deep it gets depends on what called it: what one program reads, another one cannot write
again. So there is one limit for jobs, events and requests, far below what any of them could take.
"""

from __future__ import annotations

import re
from typing import Final

MAX_NESTING: Final = 256
"""Arrays and objects within each other; a push allows 64 within its arguments."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_AS_ARRAYS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(octet for octet in range(256) if octet not in b"[]{}")


def is_nested_deeper(text: bytes, limit: int = MAX_NESTING) -> bool:
    """Say whether valid JSON has more than `limit` arrays and objects within each other."""
    # Each takes two octets: a short text needs no look.
    if len(text) <= 2 * limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    brackets = _STRING.sub(b"", text).translate(_AS_ARRAYS, _NO_BRACKETS)
    # Each round takes what is innermost.
    for _ in range(limit):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def clean_text(text: str, limit: int) -> str:
    """Return a text with at most `limit` characters and without those that UTF-8 or PostgreSQL refuse."""
    text = text[:limit].replace("\0", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def shown(text: str) -> str:
    """Return a name of a peer's for a line of a log: on one line, and short."""
    return text if len(text) <= 200 and text.isprintable() else ascii(text[:200])
