"""What a connection has declared, so that it can be declared again on the next incarnation.

A server-named queue gets a new name there. Its first name stays valid for calls on this connection: `current_name` maps
it to the name of the day.
"""

from waybill.wire.amqp091.methods import ExchangeBind, ExchangeDeclare, Method, QueueBind, QueueDeclare


class Topology:
    """Exchanges, queues and bindings in the order of their declaration."""

    def __init__(self) -> None:
        self._exchanges: dict[str, ExchangeDeclare] = {}
        self._queues: dict[str, QueueDeclare] = {}
        self._bindings: list[QueueBind | ExchangeBind] = []
        self._server_named: dict[str, str] = {}

    def exchange_declared(self, method: ExchangeDeclare) -> None:
        if not method.passive:
            self._exchanges[method.exchange] = method

    def exchange_deleted(self, name: str) -> None:
        self._exchanges.pop(name, None)
        self._bindings = [
            binding
            for binding in self._bindings
            if not (
                (isinstance(binding, QueueBind) and binding.exchange == name)
                or (isinstance(binding, ExchangeBind) and name in {binding.source, binding.destination})
            )
        ]

    def queue_declared(self, method: QueueDeclare, name: str) -> None:
        """`name` is what the server answered; it named the queue itself if the method names none."""
        if method.passive:
            return
        if not method.queue:
            self._server_named[name] = name
        self._queues[name] = method

    def queue_renamed(self, first_name: str, name: str) -> None:
        """A server-named queue is declared anew."""
        self._server_named[first_name] = name

    def queue_deleted(self, name: str) -> None:
        first_name = self.first_name(name)
        self._queues.pop(first_name, None)
        self._server_named.pop(first_name, None)
        self._bindings = [
            binding
            for binding in self._bindings
            if not (isinstance(binding, QueueBind) and self.first_name(binding.queue) == first_name)
        ]

    def bound(self, method: QueueBind | ExchangeBind) -> None:
        if isinstance(method, QueueBind):
            method = QueueBind(
                self.first_name(method.queue), method.exchange, method.routing_key, arguments=method.arguments
            )
        if method not in self._bindings:
            self._bindings.append(method)

    def unbound(self, method: QueueBind | ExchangeBind) -> None:
        if isinstance(method, QueueBind):
            method = QueueBind(
                self.first_name(method.queue), method.exchange, method.routing_key, arguments=method.arguments
            )
        if method in self._bindings:
            self._bindings.remove(method)

    def current_name(self, queue: str) -> str:
        """The name that the broker knows the queue by now."""
        return self._server_named.get(queue, queue)

    def first_name(self, queue: str) -> str:
        """The name that the user knows the queue by."""
        for first_name, name in self._server_named.items():
            if name == queue:
                return first_name
        return queue

    def exchanges(self) -> list[ExchangeDeclare]:
        return list(self._exchanges.values())

    def queues(self) -> list[tuple[str, QueueDeclare]]:
        """First names, and the methods that declare the queues."""
        return list(self._queues.items())

    def bindings(self) -> list[Method]:
        """The methods that make the bindings, with current names."""
        return [
            QueueBind(
                self.current_name(binding.queue), binding.exchange, binding.routing_key, arguments=binding.arguments
            )
            if isinstance(binding, QueueBind)
            else binding
            for binding in self._bindings
        ]
