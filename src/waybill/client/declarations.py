"""The declarations of a connection, to be repeated after a reconnect.

The broker then gives a server-named queue a new name. The first name stays valid for calls on this connection:
`current_name` maps it to the new one.
"""

from collections.abc import Callable

from waybill.wire.amqp091.methods_exchange import ExchangeBind, ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare

Binding = QueueBind | ExchangeBind


class Declarations:
    """Exchanges, queues and bindings in the order of their declaration."""

    def __init__(self) -> None:
        self._exchanges: dict[str, ExchangeDeclare] = {}
        self._queues: dict[str, QueueDeclare] = {}
        # By their encoding, since arguments are not hashable.
        self._bindings: dict[bytes, Binding] = {}
        self._server_named: dict[str, str] = {}

    def exchange_declared(self, method: ExchangeDeclare) -> None:
        if not method.passive:
            self._exchanges[method.exchange] = method

    def exchange_deleted(self, name: str) -> None:
        self._exchanges.pop(name, None)
        self._remove_bindings(
            lambda binding: (
                binding.exchange == name
                if isinstance(binding, QueueBind)
                else name in {binding.source, binding.destination}
            )
        )

    def queue_declared(self, method: QueueDeclare, name: str) -> None:
        """Record a queue. `name`: from the server's reply, which names the queue if the method does not."""
        if method.passive:
            return
        if not method.queue:
            self._server_named[name] = name
        self._queues[name] = method

    def queue_renamed(self, first_name: str, name: str) -> None:
        """Record the new name of a server-named queue."""
        self._server_named[first_name] = name

    def queue_deleted(self, name: str) -> None:
        first_name = self.first_name(name)
        self._queues.pop(first_name, None)
        self._server_named.pop(first_name, None)
        self._remove_bindings(
            lambda binding: isinstance(binding, QueueBind) and self.first_name(binding.queue) == first_name
        )

    def bound(self, method: Binding) -> None:
        binding = self._by_first_name(method)
        self._bindings.setdefault(binding.encode(), binding)

    def unbound(self, method: Binding) -> None:
        self._bindings.pop(self._by_first_name(method).encode(), None)

    def current_name(self, queue: str) -> str:
        """The present name of the queue at the broker."""
        return self._server_named.get(queue, queue)

    def first_name(self, queue: str) -> str:
        """The name that the program knows the queue by."""
        for first_name, name in self._server_named.items():
            if name == queue:
                return first_name
        return queue

    def exchanges(self) -> list[ExchangeDeclare]:
        return list(self._exchanges.values())

    def queues(self) -> list[tuple[str, QueueDeclare]]:
        """First names, and the methods that declare the queues."""
        return list(self._queues.items())

    def bindings(self) -> list[Binding]:
        """The methods that bind, with current names."""
        return [_of_queue(binding, self.current_name) for binding in self._bindings.values()]

    def _by_first_name(self, binding: Binding) -> Binding:
        return _of_queue(binding, self.first_name)

    def _remove_bindings(self, is_gone: Callable[[Binding], bool]) -> None:
        self._bindings = {key: binding for key, binding in self._bindings.items() if not is_gone(binding)}


def _of_queue(binding: Binding, name: Callable[[str], str]) -> Binding:
    """The binding with another name for its queue."""
    if not isinstance(binding, QueueBind):
        return binding
    return QueueBind(name(binding.queue), binding.exchange, binding.routing_key, arguments=binding.arguments)
