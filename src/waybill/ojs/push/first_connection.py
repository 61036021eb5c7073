"""The first connection of a program that pushes: an unreachable broker is waited for, as after a lost connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, repeat
from typing import Final

from waybill.client import AuthenticationFailed, ConnectFailed
from waybill.ojs.errors import PushFailed
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.push.publisher import BatchFailed

PAUSES_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
LAST_PAUSE_SECONDS: Final = 2.0

_log = logging.getLogger("waybill.ojs.client")


async def connect_for(made: Sequence[Outgoing], connect: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Connect for the push of these jobs, retrying for this many seconds. Raises BatchFailed then.

    Immediately raises errors that a retry cannot fix: AuthenticationFailed, InvalidURI, a missing virtual host.
    """
    reason = await _connect(connect, seconds) if made else None
    if reason is not None:
        raise BatchFailed([PushFailed(one.envelope.id, "BACKEND_UNAVAILABLE", reason) for one in made], [])


async def _connect(connect: Callable[[], Awaitable[object]], seconds: float) -> str | None:
    """Return None when connected, or why no connection was made in time."""
    reason = ""
    try:
        async with asyncio.timeout(seconds):
            for pause in chain(PAUSES_SECONDS, repeat(LAST_PAUSE_SECONDS)):
                try:
                    await connect()
                except AuthenticationFailed:
                    raise
                except ConnectFailed as error:
                    if not reason:
                        _log.warning("a push waits up to %g s for the broker: %s", seconds, error)
                    reason = f": {error}"
                else:
                    return None
                await asyncio.sleep(pause)
    except TimeoutError:
        return f"the broker cannot be reached{reason}"
    return None
