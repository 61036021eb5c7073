"""The events that somebody waits for, and who is told once they are folded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from waybill.ojs.coordinator.job_fold import JobRecord

Key = tuple[str, str]
"""The type of an event, with the job that it is about or with its own id."""
Tell = Callable[[JobRecord | None], None]
"""Called with the job after the event if that is at hand, and not to be changed. It should be quick."""

_log: Final = logging.getLogger("waybill.ojs.coordinator")


class Expectations:
    """Those of one view."""

    def __init__(self) -> None:
        """Nobody waits."""
        self.waiting: dict[Key, list[Tell]] = {}
        """The events that are waited for. Who waits with a future is in no list."""
        self._futures: dict[Key, asyncio.Future[None]] = {}

    def tell(self, key: Key, tell: Tell) -> None:
        """Call `tell` once the next such event is folded."""
        self.waiting.setdefault(key, []).append(tell)

    def tell_no_more(self, key: Key, tell: Tell) -> None:
        """Do not call `tell` any more, if it was not called."""
        tells = self.waiting.get(key)
        if tells is not None and tell in tells:
            tells.remove(tell)
            self._clean(key, tells)

    def expect(self, key: Key) -> asyncio.Future[None]:
        """Return what is done once the next such event is folded."""
        found = self._futures.get(key)
        if found is None or found.done():
            found = self._futures[key] = asyncio.get_running_loop().create_future()
            self.waiting.setdefault(key, [])
        return found

    def forget(self, key: Key) -> None:
        """Cancel what `expect` has returned."""
        found = self._futures.pop(key, None)
        if found is not None:
            found.cancel()
        self._clean(key, self.waiting.get(key))

    def arrived(self, key: Key, job: JobRecord | None = None) -> None:
        """Tell those who wait for an event that it is folded."""
        tells = self.waiting.pop(key, None)
        found = self._futures.pop(key, None)
        if found is not None and not found.done():
            found.set_result(None)
        for tell in tells or ():
            try:
                tell(job)
            except Exception:  # noqa: BLE001 - the others are told, and the events go on
                _log.exception("who waited for %s has failed", key[0])

    def _clean(self, key: Key, tells: list[Tell] | None) -> None:
        if tells is not None and not tells and key not in self._futures:
            del self.waiting[key]
