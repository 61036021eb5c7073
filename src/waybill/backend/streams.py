"""Streaming responses, such as server-sent events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator

_log = logging.getLogger("waybill.backend")


async def close_stream(stream: AsyncIterator[bytes]) -> None:
    """Close a stream whose reader has disconnected, to release its resources immediately."""
    if isinstance(stream, AsyncGenerator):
        try:
            await stream.aclose()
        except Exception:  # noqa: BLE001 - the generator may raise anything
            _log.exception("a stream could not be closed")
