"""What takes jobs in the place of a broker: a server over HTTP, or what keeps them in tests of programs."""

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
    """Takes the jobs of one `Jobs` object, and answers its questions."""

    is_remote = False
    """Whether it follows from the URI: another loop has one of its own."""
    no_broker = "this test has no broker: use waybill.testing.TestBroker for operations that need one"
    """What is said to whoever needs a broker."""

    async def enqueue(self, jobs: list[Outgoing]) -> list[Envelope | PushFailed]:
        """Take valid jobs that have come through the enqueue middleware."""
        raise NotImplementedError

    def control(self) -> Control:
        """Return what is asked instead of a coordinator."""
        raise NotImplementedError

    def inbox(self) -> Inbox:
        """Return what knows how jobs have ended."""
        raise NotImplementedError

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` for a thread without an event loop."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Close what is open; it opens again when it is needed."""
