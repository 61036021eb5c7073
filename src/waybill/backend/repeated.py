"""Work that a server repeats until it is closed."""

from __future__ import annotations

import asyncio
import logging

_log = logging.getLogger("waybill.backend")


class Repeated:
    """A subclass implements `work`. An exception is logged, and the work tried again after the pause."""

    def __init__(self, pause_seconds: float, failed: str) -> None:
        """`failed` says what could not be done. Call this within the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(pause_seconds, failed))

    async def work(self) -> None:
        """Do it once."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, pause_seconds: float, failed: str) -> None:
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                await self.work()
            except Exception:  # noqa: BLE001 - a database may raise anything
                _log.warning("%s, trying again", failed, exc_info=True)
