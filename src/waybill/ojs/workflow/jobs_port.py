"""The part of `Jobs` that workflows use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.handler import AnyHandler, MadeJob, NewJob


class JobsPort(Protocol):
    """The interface; `Jobs` implements it."""

    @property
    def handlers(self) -> Mapping[str, AnyHandler]:
        """The registered handlers, by type."""
        ...

    def make(self, job: NewJob[Any], /) -> MadeJob:
        """Make a valid job."""
        ...

    async def push_many(self, jobs: Iterable[NewJob[Any]], /) -> object:
        """Enqueue jobs."""
        ...

    async def broker_connection(self) -> BrokerConnection:
        """Return the connection that pushes go over."""
        ...

    async def control(self) -> Control:
        """Return what sends requests to coordinators."""
        ...
