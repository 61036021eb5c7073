"""Answers that go on: server-sent events, for example."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator

_log = logging.getLogger("waybill.backend")


async def close_stream(stream: AsyncIterator[bytes]) -> None:
    """End a stream whose reader has gone, so that what it holds is let go of at once."""
    if isinstance(stream, AsyncGenerator):
        try:
            await stream.aclose()
        except Exception:  # noqa: BLE001 - whatever the application's generator raises
            _log.exception("a stream could not be closed")
