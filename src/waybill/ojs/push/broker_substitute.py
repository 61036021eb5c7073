"""Takes jobs in place of a broker: a server over HTTP, or a store for tests of programs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from waybill.ojs.control.control import Control
from waybill.ojs.errors import PushFailed
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.results.inbox import Inbox
from waybill.ojs.spec.envelope import Envelope

T = TypeVar("T")


class BrokerSubstitute:
    """Takes the jobs of one `Jobs` object, and answers its requests."""

    is_remote = False
    """Whether the URI selects it: another event loop has its own."""
    no_broker = "this test has no broker: use waybill.testing.TestBroker for operations that need one"
    """The error text for operations that need a broker."""

    async def enqueue(self, jobs: list[Outgoing]) -> list[Envelope | PushFailed]:
        """Enqueue valid jobs that have passed the enqueue middleware."""
        raise NotImplementedError

    def control(self) -> Control:
        """Return the replacement for a coordinator."""
        raise NotImplementedError

    def inbox(self) -> Inbox:
        """Return the inbox of job outcomes."""
        raise NotImplementedError

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` for a thread without an event loop."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Close what is open; it reopens when needed."""
