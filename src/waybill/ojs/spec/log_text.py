"""Texts of log records, which jobs and peers can make long."""

from __future__ import annotations

from typing import Final

MAX_LENGTH: Final = 16 * 1024
END_LENGTH: Final = 2 * 1024
"""How much of the end of a longer text is kept: a traceback ends with the error."""


def shortened(text: str) -> str:
    """Return a text without the middle if it is too long."""
    if len(text) <= MAX_LENGTH:
        return text
    left_out = len(text) - MAX_LENGTH
    return f"{text[: MAX_LENGTH - END_LENGTH]} ... ({left_out:,} characters) ... {text[-END_LENGTH:]}"
