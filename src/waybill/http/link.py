"""Replaces the broker of a `Jobs` object over HTTP: pushes, requests, results."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from waybill.client import ReconnectPolicy
from waybill.http.control import HttpControl
from waybill.http.exchange import open_exchange
from waybill.http.inbox import HttpInbox
from waybill.http.push import HttpPush
from waybill.ojs.errors import PushFailed
from waybill.ojs.push.broker_substitute import BrokerSubstitute
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.results.inbox import Inbox
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.sync.background import background

T = TypeVar("T")


class HttpLink(BrokerSubstitute):
    """The jobs of one server."""

    is_remote = True
    no_broker = "this works over AMQP only: use the broker's amqp:// URL instead of the server's"

    def __init__(self, url: str, push_timeout_seconds: float, again: ReconnectPolicy | None) -> None:
        """Nothing is sent before the first request."""
        self.exchange = open_exchange(url)
        self._push_timeout_seconds = push_timeout_seconds
        self._again = again
        self._control = HttpControl(self.exchange)

    async def enqueue(self, jobs: list[Outgoing]) -> list[Envelope | PushFailed]:
        if not jobs:
            return []
        return await HttpPush(self.exchange, self._push_timeout_seconds, self._again).run(jobs)

    def control(self) -> HttpControl:
        return self._control

    def inbox(self) -> Inbox:
        return HttpInbox(self._control)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop of this process."""
        return background().call(work)

    async def disconnect(self) -> None:
        """Close the connections."""
        await self.exchange.close()
