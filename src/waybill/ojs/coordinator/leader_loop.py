"""The loop of a feature that acts while its coordinator leads."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.leader import Leader
from waybill.ojs.recurring_error import RecurringError

POLL_SECONDS: Final = 1.0

_log = logging.getLogger("waybill.ojs.coordinator")


class LeaderLoop:
    """Calls `look` after each change of the coordinator's state, and at least once a second, while it leads."""

    def __init__(self, view: JobView, leader: Leader) -> None:
        self._view = view
        self._leader = leader
        self._wake = asyncio.Event()
        self._trouble = RecurringError(_log, f"{type(self).__name__} cannot read the state of jobs")
        view.on_feature.append(self._wake.set)
        leader.on_change.append(self._wake.set)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if not self._leader.leads:
                self.forget()
                continue
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - a database may raise anything
                self._trouble.failed(error)
            else:
                self._trouble.worked()

    async def look(self) -> None:
        """Act on the current state."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forget started work. Called while another coordinator leads."""
        raise NotImplementedError
