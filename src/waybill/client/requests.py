"""Makes an engine's reply callback awaitable. Cancelling is safe."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from waybill.client.errors import RequestTimeout, error_of
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.delivery import Delivery
from waybill.engine.amqp091.client.events import CloseReason
from waybill.engine.amqp091.client.requests import Reply
from waybill.wire.amqp091.method import Method


class Send(Protocol):
    """Sends a request whose reply goes to the callback."""

    def __call__(self, reply: Callable[[Reply], None], /) -> object: ...


class PendingReply:
    """The reply of one request.

    Cancelling the caller does not cancel the request: the broker executes it. So `on_success` always gets the reply,
    and `on_orphan` undoes what nobody awaits any more.
    """

    def __init__(
        self,
        on_success: Callable[[Reply], None] | None = None,
        on_orphan: Callable[[Reply], None] | None = None,
    ) -> None:
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._on_success = on_success
        self._on_orphan = on_orphan

    def __call__(self, reply: Reply) -> None:
        """Take the reply."""
        future = self.future
        if isinstance(reply, CloseReason):
            if not future.done():
                future.set_exception(error_of(reply))
            return
        if self._on_success is not None:
            self._on_success(reply)
        if not future.done():
            future.set_result(reply)
        elif self._on_orphan is not None:
            self._on_orphan(reply)


class PendingReplies:
    """The replies of several requests, which arrive in order; only deliveries are kept.

    The caller gets all of them or none: replies that nobody gets are passed to `on_orphan`.
    """

    def __init__(self, count: int, on_orphan: Callable[[Reply], None]) -> None:
        self.future: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self._missing = count
        self._on_orphan = on_orphan
        self._found: list[Delivery] = []
        self._is_wanted = True

    def __call__(self, reply: Reply) -> None:
        """Take the next reply."""
        self._missing -= 1
        if isinstance(reply, CloseReason):
            if not self.future.done():
                self.future.set_exception(error_of(reply))
            return
        if not self._is_wanted:
            self._on_orphan(reply)
            return
        if isinstance(reply, Delivery):
            self._found.append(reply)
        if not self._missing and not self.future.done():
            self.future.set_result(self._found)

    def give_up(self) -> None:
        """Stop waiting."""
        self._is_wanted = False
        found, self._found = self._found, []
        for one in found:
            self._on_orphan(one)


async def ask(
    send: Send,
    timeout_s: float | None,
    on_success: Callable[[Reply], None] | None = None,
    on_orphan: Callable[[Reply], None] | None = None,
) -> Reply:
    """Send a request and wait for its reply. Raises `error_of(close)` if it is closed, or RequestTimeout."""
    pending = PendingReply(on_success, on_orphan)
    send(pending)
    try:
        async with asyncio.timeout(timeout_s):
            return await _reply_of(pending.future, on_orphan)
    except TimeoutError:
        raise RequestTimeout(f"the broker did not answer within {timeout_s} s") from None


async def ask_many(
    send: Send, count: int, timeout_s: float | None, on_orphan: Callable[[Reply], None]
) -> list[Delivery]:
    """Send a request `count` times, and wait for all replies, which arrive in order; return the deliveries among them.

    Raises the errors of `ask`. A cancelled caller gets none of them.
    """
    pending = PendingReplies(count, on_orphan)
    for _ in range(count):
        send(pending)
    try:
        async with asyncio.timeout(timeout_s):
            return await pending.future
    except BaseException as error:
        pending.give_up()
        if isinstance(error, TimeoutError):
            raise RequestTimeout(f"the broker did not answer within {timeout_s} s") from None
        raise


async def _reply_of(future: asyncio.Future[Reply], on_orphan: Callable[[Reply], None] | None) -> Reply:
    try:
        return await future
    except asyncio.CancelledError:
        # The reply may have arrived in the iteration of the loop in which the caller was cancelled.
        if future.done() and not future.cancelled() and future.exception() is None and on_orphan is not None:
            on_orphan(future.result())
        raise


def request_of(channel: ClientChannel, method: Method) -> Send:
    """A request that sends `method` on `channel`."""

    def send(reply: Callable[[Reply], None]) -> None:
        channel.request(method, reply)

    return send


def ignore(_reply: Reply) -> None:
    """For requests whose failure closes the channel, which reports the error."""
