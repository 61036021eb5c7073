"""Routing through exchanges and bindings: the queues that a message reaches."""

from typing import Final

from mypy_extensions import i64

from waybill.model.binding import QUEUE
from waybill.model.delay import delay_ms_of
from waybill.model.errors import too_many_steps
from waybill.model.exchange import Exchange
from waybill.model.message import Address, Message
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime

ADDRESS_LIMIT: Final = 4096
# This many steps of routing are a unit of work. A message that needs more than STEPS_MAX is refused: it would delay
# all other peers.
STEPS_PER_UNIT: Final = 8
STEPS_MAX: Final = 32_768
EXCHANGE_STEPS: Final = 4


class Route:
    """The queues of one exchange and routing key. Valid while `epoch` is the virtual host's.

    `by_headers`: they depend on headers, so `queues` is empty and each message is matched separately.
    """

    def __init__(self, address: Address, exchange: Exchange, epoch: i64) -> None:
        self.address = address
        self.exchange = exchange
        self.epoch: i64 = epoch
        self.queues: list[Queue] = []
        self.by_headers = False

    def is_outrunning(self, limit: i64) -> bool:
        """Whether a queue has consumers, and a backlog of more than `limit` messages: they do not keep up with it."""
        return any(queue.ready_count > limit and queue.consumers for queue in self.queues)


class Router:
    """Routes by the exchanges and queues of one virtual host, which it shares with it."""

    def __init__(
        self, runtime: Runtime, exchanges: dict[str, Exchange], queues: dict[str, Queue], default: Exchange
    ) -> None:
        self._runtime = runtime
        self._exchanges = exchanges
        self._queues = queues
        self._default = default
        self._addresses: dict[tuple[str, str], Address] = {}

    def address(self, exchange_name: str, routing_key: str) -> Address:
        """A shared object for equal addresses, so that engines can cache by identity."""
        key = (exchange_name, routing_key)
        address = self._addresses.get(key)
        if address is None:
            if len(self._addresses) >= ADDRESS_LIMIT:
                self._addresses.clear()
            address = Address(exchange_name, routing_key)
            self._addresses[key] = address
        return address

    def match(
        self,
        exchange: Exchange,
        routing_keys: list[str],
        headers: dict[str, object],
        message: Message | None = None,
    ) -> list[Queue]:
        """The queues that a message reaches through an exchange, each once.

        Without `message`, its properties are taken to be empty: they matter where `depends_on_headers` says so. Raises
        `PreconditionFailed` if that takes more than `STEPS_MAX` steps.
        """
        steps = 0
        found: dict[str, Queue] = {}
        seen: set[str] = {exchange.name}
        pending = [exchange]
        while pending:
            current = pending.pop()
            if current.waiting is not None and delay_ms_of(headers):
                found[current.waiting.name] = current.waiting
                continue
            is_matched = False
            for routing_key in routing_keys if not current.hashed_property else [_hashed(current, message)]:
                if current is self._default:
                    queue = self._queues.get(routing_key)
                    if queue is not None:
                        is_matched = True
                        found[queue.name] = queue
                    continue
                matched = current.match(routing_key, headers, STEPS_MAX)
                steps += EXCHANGE_STEPS + current.steps + (len(matched) >> 3)
                if steps > STEPS_MAX:
                    self._runtime.work_left -= steps // STEPS_PER_UNIT
                    raise too_many_steps(STEPS_MAX)
                for binding in matched:
                    is_matched = True
                    if binding.destination_kind == QUEUE:
                        found[binding.destination] = self._queues[binding.destination]
                    elif binding.destination not in seen:
                        seen.add(binding.destination)
                        pending.append(self._exchanges[binding.destination])
            if not is_matched and current.alternate is not None and current.alternate not in seen:
                seen.add(current.alternate)
                alternate = self._exchanges.get(current.alternate)
                if alternate is not None:
                    pending.append(alternate)
        self._runtime.work_left -= steps // STEPS_PER_UNIT
        return list(found.values())

    def depends_on_headers(self, exchange: Exchange) -> bool:
        """Whether the queues that a message reaches through an exchange depend on its headers."""
        seen: set[str] = set()
        pending: list[str | None] = [exchange.name]
        while pending:
            name = pending.pop()
            if name is None or name in seen or name not in self._exchanges:
                continue
            seen.add(name)
            self._runtime.work_left -= len(self._exchanges[name].onward) // STEPS_PER_UNIT
            if len(seen) + len(pending) > STEPS_MAX:
                raise too_many_steps(STEPS_MAX)
            current = self._exchanges[name]
            if current.routes_by_headers:
                return True
            pending.append(current.alternate)
            pending.extend(binding.destination for binding in current.onward.values())
        return False


def _hashed(exchange: Exchange, message: Message | None) -> str:
    return "" if message is None else message.format.property_text(message.content, exchange.hashed_property)
