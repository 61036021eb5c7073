"""Alternate exchanges of queues (0-10): they get rejected messages, and the messages of a deleted queue.

An exchange that is the alternate of a queue cannot be deleted. For the alternate of an exchange, which gets what that
one cannot route, the protocols differ: 0-10 refuses to delete it, RabbitMQ does not (`UsedAsAlternate`).
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.errors import ModelError, UsedAsAlternate
from waybill.model.exchange import Exchange
from waybill.model.fan_out import publish_to
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.routing import Router
from waybill.model.runtime import Runtime

MOVE_UNITS: Final = 2
TARGETS_MAX: Final = 4096


class Alternates:
    """The alternate exchanges of one virtual host, given its name, exchanges and router."""

    def __init__(self, name: str, runtime: Runtime, exchanges: dict[str, Exchange], router: Router) -> None:
        self._name = name
        self._runtime = runtime
        self._exchanges = exchanges
        self._router = router
        self._of_queues: dict[str, int] = {}
        self._of_exchanges: dict[str, int] = {}

    def queue_added(self, queue: Queue) -> None:
        _count(self._of_queues, queue.policy.alternate_exchange, 1)

    def queue_removed(self, queue: Queue) -> None:
        _count(self._of_queues, queue.policy.alternate_exchange, -1)

    def exchange_added(self, exchange: Exchange) -> None:
        _count(self._of_exchanges, _declared_alternate(exchange), 1)

    def exchange_removed(self, exchange: Exchange) -> None:
        _count(self._of_exchanges, _declared_alternate(exchange), -1)

    def is_kept(self, exchange_name: str) -> bool:
        """Whether queues have this alternate."""
        return exchange_name in self._of_queues

    def check_unused(self, exchange_name: str, *, by_exchanges: bool) -> None:
        """Raises `UsedAsAlternate` if queues, or with `by_exchanges` exchanges too, have this alternate."""
        if exchange_name in self._of_queues or (by_exchanges and exchange_name in self._of_exchanges):
            raise UsedAsAlternate(f"exchange '{exchange_name}' in vhost '{self._name}' is in use as alternate exchange")

    def send(self, queue: Queue, message: Message) -> None:
        """Publish a message to the alternate exchange of a queue, if there is one.

        The message is not changed. It is dropped if it cannot be routed.
        """
        name = queue.policy.alternate_exchange
        exchange = self._exchanges.get(name) if name is not None else None
        if exchange is None:
            return
        headers: dict[str, object] = {}
        try:
            if self._router.depends_on_headers(exchange):
                self._runtime.work_left -= message.header_units()
                headers = message.format.headers(message.content)
            targets = self._router.match(exchange, [message.address.routing_key], headers, message)
        except (ValueError, OverflowError, RecursionError, ModelError) as error:
            self._drop(queue, 1, f"cannot be routed by exchange '{exchange.name}': {error}")
            return
        targets = [target for target in targets if not target.is_deleted and target is not queue]
        if len(targets) > TARGETS_MAX:
            self._drop(queue, 1, f"would go to {len(targets)} queues at once, more than {TARGETS_MAX}")
            return
        self._runtime.work_left -= MOVE_UNITS + len(targets)
        with self._runtime.messages.atomic():
            publish_to(targets, message)

    def move(self, queue: Queue, count: i64) -> i64:
        """Send up to `count` of the first messages of a queue that is being deleted to its alternate exchange.

        Returns the number of messages left for the next turn.
        """
        runtime = self._runtime
        while count > 0 and queue.ready_count > 0:
            if runtime.work_left <= 0:
                return count
            count -= 1
            entry = queue.take(False)  # noqa: FBT003 - as in its signature
            if entry is None:
                if runtime.work_left <= 0 or queue.ready_count == 0:
                    continue
                self._drop(queue, int(queue.ready_count), "cannot be read from the disk now")
                return 0
            with runtime.messages.atomic():
                self.send(queue, entry.message)
                queue.accept(entry)
        return 0

    def _drop(self, queue: Queue, count: int, why: str) -> None:
        self._runtime.operator_log.warning(
            "message for an alternate exchange dropped",
            f"{count} of queue '{queue.name}' in vhost '{self._name}': {why}",
        )


def _declared_alternate(exchange: Exchange) -> str | None:
    alternate = exchange.arguments.get("alternate-exchange")
    return alternate if isinstance(alternate, str) else None


def _count(uses: dict[str, int], name: str | None, change: int) -> None:
    if name is None:
        return
    count = uses.get(name, 0) + change
    if count > 0:
        uses[name] = count
    else:
        uses.pop(name, None)
