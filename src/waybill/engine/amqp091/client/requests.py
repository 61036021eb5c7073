"""Requests that wait for their answer.

Requests are pipelined: the server processes a channel in order. Answers of one kind come in
that order too, but not those of all kinds: RabbitMQ's queues answer basic.consume and basic.cancel themselves, and then
a later request may be answered first. So an answer belongs to the first request of its kind, for those two with the
same consumer tag.
"""

from collections import deque
from collections.abc import Callable

from waybill.engine.amqp091.client.delivery import Delivery
from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.events import CloseReason
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk, BasicConsume, BasicConsumeOk
from waybill.wire.amqp091.reply_codes import COMMAND_INVALID

Reply = Method | Delivery | CloseReason
"""The result of a request: the server's reply, the delivery of a basic.get, or the error."""


class Request:
    """A method that waits for its answer. `reply` is called once, with the answer or the error."""

    def __init__(self, method: Method, reply: Callable[[Reply], None]) -> None:
        self.method = method
        self.reply = reply


class PendingRequests:
    """The pending requests of one channel."""

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()

    def add(self, method: Method, reply: Callable[[Reply], None]) -> None:
        self._waiting.append(Request(method, reply))

    def take(self, answer: Method) -> Request:
        """Remove and return the request that `answer` is for. Raises ProtocolViolation if there is none."""
        for request in self._waiting:
            method = request.method
            if not answer.NAME.startswith(method.NAME + "-") or _consumer_tag(answer) != _consumer_tag(method):
                continue
            self._waiting.remove(request)
            return request
        raise ProtocolViolation(COMMAND_INVALID, f"unexpected {answer.NAME}: no request waits for it")

    def fail(self, reason: CloseReason) -> None:
        """Fail all requests: no answers will come."""
        waiting = list(self._waiting)
        self._waiting.clear()
        for request in waiting:
            request.reply(reason)


def _consumer_tag(method: Method) -> str:
    """The consumer that a request or its answer is about, empty for all others."""
    if isinstance(method, (BasicConsume, BasicConsumeOk, BasicCancel, BasicCancelOk)):
        return method.consumer_tag
    return ""
