"""Waiters for events, notified once these are folded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from waybill.ojs.coordinator.job_record import JobRecord

Key = tuple[str, str]
"""The type of an event with the job that it is about, or with its own id."""
Tell = Callable[[JobRecord | None], None]
"""Called with the job after the event if it is loaded; the job must not be changed. The callback must be quick."""

_log: Final = logging.getLogger("waybill.ojs.coordinator")


class Expectations:
    """The waiters of one view."""

    def __init__(self) -> None:
        self.waiting: dict[Key, list[Tell]] = {}
        """Callbacks by key; waiters with a future are not in these lists."""
        self._futures: dict[Key, asyncio.Future[None]] = {}

    def tell(self, key: Key, tell: Tell) -> None:
        """Call `tell` once the next such event is folded."""
        self.waiting.setdefault(key, []).append(tell)

    def tell_no_more(self, key: Key, tell: Tell) -> None:
        """Stop calling `tell`."""
        tells = self.waiting.get(key)
        if tells is not None and tell in tells:
            tells.remove(tell)
            self._clean(key, tells)

    def expect(self, key: Key) -> asyncio.Future[None]:
        """Return a future that completes once the next such event is folded."""
        found = self._futures.get(key)
        if found is None or found.done():
            found = self._futures[key] = asyncio.get_running_loop().create_future()
            self.waiting.setdefault(key, [])
        return found

    def forget(self, key: Key) -> None:
        """Cancel a future of `expect`."""
        found = self._futures.pop(key, None)
        if found is not None:
            found.cancel()
        self._clean(key, self.waiting.get(key))

    def arrived(self, key: Key, job: JobRecord | None = None) -> None:
        """Notify the waiters of an event that it is folded."""
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
