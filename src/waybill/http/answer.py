"""An answer of a server."""

from __future__ import annotations

from typing import Final, NamedTuple

ANSWER_SECONDS: Final = 30.0
"""How long a server may take for one."""


class Answer(NamedTuple):
    """The answer of a server. `retry_after` is in seconds, None if it is missing."""

    status: int
    body: bytes
    retry_after: float | None = None
