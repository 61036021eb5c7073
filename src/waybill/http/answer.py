"""An answer of a server."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ANSWER_SECONDS: Final = 30.0
"""How long a server may take for one."""
_SECONDS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")


class Answer(NamedTuple):
    """The answer of a server. `retry_after` is in seconds, None if it is missing."""

    status: int
    body: bytes
    retry_after: float | None = None


def read_seconds(text: str | None) -> float | None:
    """Return the value of a header Retry-After in seconds, None if it is missing, or a date."""
    return float(text) if text is not None and _SECONDS.fullmatch(text) else None
