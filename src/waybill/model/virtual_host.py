"""A virtual host: a namespace of exchanges, queues and bindings."""

from mypy_extensions import i64

from waybill.model.alternate_queue import AlternateQueue
from waybill.model.alternates import Alternates
from waybill.model.binding import EXCHANGE, QUEUE, Binding, binding_key
from waybill.model.dead_lettering import DeadLettering
from waybill.model.declaration_limits import check_arguments, check_growth, check_queue_name, check_streams
from waybill.model.default_queue_type import with_default_type
from waybill.model.delay import DelayQueue
from waybill.model.delayed_publish import publish_due
from waybill.model.deletion import Deletion, DeletionHost
from waybill.model.equivalence import check_same_exchange, check_same_queue
from waybill.model.errors import AccessRefused, ModelError, NotFound, PreconditionFailed, ResourceLocked
from waybill.model.exchange import DirectExchange, Exchange
from waybill.model.exchange_types import PREDECLARED, make_exchange
from waybill.model.footprint import binding_size, check_footprint, exchange_size, queue_size
from waybill.model.message import Message
from waybill.model.message_queue import MessageQueue
from waybill.model.owners import Owners
from waybill.model.policy import Policies
from waybill.model.policy_application import PolicyApplication
from waybill.model.queue import Queue
from waybill.model.queue_arguments import CLASSIC, NO_LIMIT, STREAM
from waybill.model.routing import Route, Router
from waybill.model.runtime import Runtime
from waybill.model.stream import Stream
from waybill.model.watch import Watchers


class VirtualHost(DeletionHost):
    """A virtual host of one node. `epoch` grows with each change that may alter a route."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.runtime = runtime
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.epoch: i64 = 1
        self.policies = Policies()
        self.max_queues = NO_LIMIT
        self.default_queue_type = ""
        self.watchers = Watchers(runtime)
        self.owners = Owners()
        self.default_exchange = DirectExchange("", True, False, False, {})  # noqa: FBT003
        self.exchanges[""] = self.default_exchange
        self.router = Router(runtime, self.exchanges, self.queues, self.default_exchange)
        self.alternates = Alternates(name, runtime, self.exchanges, self.router)
        self._dead_lettering = DeadLettering(name, runtime, self.exchanges, self.router)
        self._applying: PolicyApplication | None = None
        # It is being deleted: it refuses new connections.
        self.is_ending = False
        for exchange_name, type_name, internal in PREDECLARED:
            self.exchanges[exchange_name] = make_exchange(exchange_name, type_name, True, False, internal, {})  # noqa: FBT003

    # --- exchanges ---

    def exchange(self, name: str) -> Exchange:
        """Raises `NotFound`."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def declare_exchange(
        self,
        name: str,
        type_name: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> Exchange:
        """Declare an exchange, or check that the existing one is the same (`PreconditionFailed` if it is not)."""
        existing = self.exchanges.get(name)
        if existing is not None:
            check_same_exchange(self.name, existing, type_name, durable, auto_delete, internal, arguments)
            return existing
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        what = f"exchange '{name}' in vhost '{self.name}'"
        check_arguments(what, arguments)
        footprint = exchange_size(name, type_name, arguments, is_durable=durable)
        check_footprint(self.runtime, what, footprint)
        if durable:
            check_growth(self.runtime, what)
        exchange = make_exchange(name, type_name, durable, auto_delete, internal, arguments)
        delay_id = 0
        if exchange.delays:
            delay_id = int(self.runtime.store.new_id())
            exchange.waiting = DelayQueue(self, self.runtime, exchange, delay_id)
        exchange.alternate = self.policies.alternate_of(name, arguments)
        exchange.footprint = footprint
        self.runtime.add_footprint(footprint)
        self.exchanges[name] = exchange
        self.alternates.exchange_added(exchange)
        self.epoch += 1
        if durable:
            self.runtime.store.define(
                EXCHANGE,
                self._key(name),
                {
                    "virtual_host": self.name,
                    "name": name,
                    "type": type_name,
                    "auto_delete": auto_delete,
                    "internal": internal,
                    "arguments": arguments,
                    "delay_id": delay_id,
                },
            )
        return exchange

    def delete_exchange(self, name: str, *, if_unused: bool) -> Deletion | None:
        """Remove an exchange and its bindings; a missing one is no error. Returns the chore that does so."""
        if name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return None
        if if_unused and exchange.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        self.alternates.check_unused(name, by_exchanges=False)
        return Deletion(self, None, [exchange])

    def drop_exchange(self, exchange: Exchange) -> None:
        if self.exchanges.get(exchange.name) is not exchange:
            return
        del self.exchanges[exchange.name]
        self.alternates.exchange_removed(exchange)
        self.epoch += 1
        self.runtime.counters.exchange_gone(exchange.published_in, exchange.published_out)
        self.runtime.add_footprint(-exchange.footprint)
        if exchange.waiting is not None:
            exchange.waiting.discard()
            self.runtime.add_footprint(-exchange.waiting.footprint)
        if exchange.durable:
            self.runtime.store.undefine(EXCHANGE, self._key(exchange.name))

    # --- queues ---

    def queue(self, name: str, connection: object) -> Queue:
        """The queue for a use by `connection`. Raises `NotFound`, `ResourceLocked`."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if queue.owner is not None and queue.owner is not connection:
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be "
                "originally declared on another connection or the exclusive property value does not match that of the "
                "original declaration."
            )
        return queue

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        exclusive_to: object | None,
        connection: object,
        arguments: dict[str, object],
    ) -> Queue:
        """Declare a queue, or check that the existing one is the same (`PreconditionFailed` if it is not)."""
        self.runtime.counters.queues_declared += 1
        is_plain = durable and not auto_delete and exclusive_to is None
        arguments = with_default_type(self.default_queue_type, arguments, self.queues.get(name), is_plain)
        if name in self.queues:
            queue = self.queue(name, connection)
            check_same_queue(self.name, queue, durable, auto_delete, exclusive_to, arguments)
            queue.touch()
            return queue
        if self.max_queues != NO_LIMIT and len(self.queues) >= self.max_queues:
            raise PreconditionFailed(
                f"cannot declare queue '{name}' in vhost '{self.name}': queue limit in vhost '{self.name}' "
                f"({self.max_queues}) is reached"
            )
        runtime = self.runtime
        what = f"queue '{name}' in vhost '{self.name}'"
        check_queue_name(name)
        check_arguments(what, arguments)
        check_footprint(runtime, what, queue_size(name, arguments, is_persistent=durable and exclusive_to is None))
        if durable and exclusive_to is None:
            check_growth(runtime, what)
        if arguments.get("x-queue-type") == STREAM:
            check_streams(runtime, what)
        self.runtime.counters.queues_created += 1
        queue = self._make_queue(name, self.runtime.store.new_id(), durable, auto_delete, exclusive_to, arguments)
        if queue.is_persistent:
            self.runtime.store.define(
                QUEUE,
                self._key(name),
                {
                    "virtual_host": self.name,
                    "name": name,
                    "id": int(queue.id),
                    "auto_delete": auto_delete,
                    "arguments": arguments,
                },
            )
        return queue

    def _make_queue(
        self,
        name: str,
        queue_id: i64,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: dict[str, object],
    ) -> Queue:
        queue_type = arguments.get("x-queue-type", CLASSIC)
        if queue_type != CLASSIC and (not durable or auto_delete or owner is not None):
            raise PreconditionFailed(
                f"invalid property for {queue_type} queue '{name}' in vhost '{self.name}': it must be durable, and "
                "neither exclusive nor auto-delete"
            )
        queue: Queue
        if queue_type == STREAM:
            queue = Stream(self, self.runtime, name, queue_id, arguments)
        else:
            kind = AlternateQueue if "x-alternate-exchange" in arguments else MessageQueue
            queue = kind(
                self,
                self.runtime,
                name,
                queue_id,
                durable=durable,
                auto_delete=auto_delete,
                owner=owner,
                arguments=arguments,
            )
        if self.policies.policies or self.policies.operator_policies:
            queue.set_policy(self.policies.queue_settings(queue.policy.type, name, arguments))
        self.queues[name] = queue
        self.alternates.queue_added(queue)
        footprint = queue_size(name, arguments, is_persistent=queue.is_persistent)
        queue.footprint += footprint
        self.runtime.add_footprint(footprint)
        if owner is not None:
            self.owners.add(queue, owner)
        self.epoch += 1
        return queue

    def delete_queue(self, name: str, connection: object, *, if_unused: bool, if_empty: bool) -> Deletion | None:
        """Remove a queue with its messages and bindings. Returns the chore that does so; None if there is no queue."""
        if name not in self.queues:
            return None
        queue = self.queue(name, connection)
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{name}' in vhost '{self.name}' in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailed(f"queue '{name}' in vhost '{self.name}' not empty")
        return Deletion(self, queue, [])

    def remove_queue(self, queue: Queue) -> None:
        """Delete a queue in as many turns as that takes."""
        self.runtime.begin(Deletion(self, queue, []))

    def drop_queue(self, queue: Queue) -> int:
        if queue.is_deleted:
            return 0
        del self.queues[queue.name]
        self.alternates.queue_removed(queue)
        self.owners.take_back(queue)
        self.epoch += 1
        if queue.is_persistent:
            self.runtime.store.undefine(QUEUE, self._key(queue.name))
        self.runtime.counters.queue_gone(queue.counts())
        count = queue.discard()
        self.runtime.add_footprint(-queue.footprint)
        self.watchers.gone("queue", queue.name)
        return count

    def queue_unused(self, queue: Queue) -> None:
        if not queue.is_deleted:
            self.remove_queue(queue)

    def queues_of(self, connection: object) -> list[Queue]:
        """The exclusive queues of a connection."""
        return self.owners.queues_of(connection)

    # --- bindings ---

    def bind_queue(self, queue: Queue, exchange_name: str, routing_key: str, arguments: dict[str, object]) -> None:
        """Bind a queue. Repeating a binding has no effect."""
        source = self._bindable(exchange_name)
        binding = Binding(source.name, queue.name, QUEUE, routing_key, arguments)
        if binding.key in source.bindings:
            return
        self._add_binding(source, binding, durable=queue.is_persistent)

    def bind_exchange(
        self, destination_name: str, source_name: str, routing_key: str, arguments: dict[str, object]
    ) -> None:
        source = self._bindable(source_name)
        destination = self._bindable(destination_name)
        binding = Binding(source.name, destination.name, EXCHANGE, routing_key, arguments)
        if binding.key in source.bindings:
            return
        self._add_binding(source, binding, durable=destination.durable)

    def unbind(
        self, kind: str, destination: str, source_name: str, routing_key: str, arguments: dict[str, object]
    ) -> None:
        """Remove a binding; a missing binding, source or destination is no error."""
        if source_name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        source = self.exchanges.get(source_name)
        if source is None:
            return
        binding = source.bindings.get(binding_key(source.name, destination, kind, routing_key, arguments))
        if binding is not None:
            self._remove_binding(binding)

    def _remove_binding(self, binding: Binding) -> None:
        deletion = Deletion(self, None, [])
        deletion.unbind(binding)
        self.runtime.begin(deletion)

    def _bindable(self, name: str) -> Exchange:
        if name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        return self.exchange(name)

    def _add_binding(self, source: Exchange, binding: Binding, *, durable: bool) -> None:
        what = f"a binding of '{binding.destination}' to '{source.name}' in vhost '{self.name}'"
        check_arguments(what, binding.arguments)
        check_footprint(self.runtime, what, _binding_size(source, binding, is_durable=durable))
        source.check(binding)
        if durable and source.durable:
            check_growth(self.runtime, what)
        self._link(source, binding)
        if durable and source.durable:
            self.runtime.store.define(
                "binding",
                self._key(binding.key),
                {
                    "virtual_host": self.name,
                    "source": binding.source,
                    "destination": binding.destination,
                    "destination_kind": binding.destination_kind,
                    "routing_key": binding.routing_key,
                    "arguments": binding.arguments,
                },
            )
            binding.is_persistent = True

    def _link(self, source: Exchange, binding: Binding) -> None:
        source.add(binding)
        binding.footprint = _binding_size(source, binding, is_durable=source.durable)
        self.runtime.add_footprint(binding.footprint)
        if binding.destination_kind == QUEUE:
            self.queues[binding.destination].bindings[binding.key] = binding
        else:
            self.exchanges[binding.destination].incoming[binding.key] = binding
            source.onward[binding.key] = binding
        self.epoch += 1

    def drop_binding(self, binding: Binding) -> Exchange | None:
        source = self.exchanges.get(binding.source)
        if source is None or source.bindings.get(binding.key) is not binding:
            return None
        self.epoch += 1
        self.runtime.add_footprint(-binding.footprint)
        if binding.is_persistent:
            self.runtime.store.undefine("binding", self._key(binding.key))
        if binding.destination_kind == QUEUE:
            queue = self.queues.get(binding.destination)
            if queue is not None:
                queue.bindings.pop(binding.key, None)
        else:
            destination = self.exchanges.get(binding.destination)
            if destination is not None:
                destination.incoming.pop(binding.key, None)
        source.remove(binding)
        source.onward.pop(binding.key, None)
        is_orphan = source.auto_delete and not source.bindings and not self.alternates.is_kept(source.name)
        return source if is_orphan else None

    # --- administration ---

    def apply_policies(self) -> None:
        """Apply changed policies to every entity, to many of them in later turns."""
        if self._applying is not None:
            self._applying.stop()
        applying = PolicyApplication(
            self.runtime,
            self.policies,
            list(self.queues.values()),
            list(self.exchanges.values()),
            self.rights_changed,
        )
        self._applying = applying
        self.runtime.begin_read()
        self.runtime.begin(applying)

    def rights_changed(self) -> None:
        """Drop cached routes, so that permissions and routes of publishers are checked again."""
        self.epoch += 1

    def _key(self, name: str) -> str:
        return f"{self.name}\0{name}"

    # --- recovery ---

    def restore_exchange(self, definition: dict[str, object]) -> Exchange:
        """Restore a durable exchange, without its delayed messages, from the definition by `declare_exchange`."""
        exchange = make_exchange(
            str(definition["name"]),
            str(definition["type"]),
            True,  # noqa: FBT003
            bool(definition["auto_delete"]),
            bool(definition["internal"]),
            arguments_of(definition),
        )
        delay_id = definition["delay_id"]
        if exchange.delays and isinstance(delay_id, int):
            exchange.waiting = DelayQueue(self, self.runtime, exchange, delay_id)
        exchange.alternate = self.policies.alternate_of(exchange.name, exchange.arguments)
        exchange.footprint = exchange_size(exchange.name, exchange.type, exchange.arguments, is_durable=True)
        self.runtime.add_footprint(exchange.footprint)
        self.exchanges[exchange.name] = exchange
        self.alternates.exchange_added(exchange)
        return exchange

    def restore_queue(self, definition: dict[str, object]) -> Queue:
        """Restore a durable queue, without its messages, from the definition by `declare_queue`."""
        queue_id = definition["id"]
        assert isinstance(queue_id, int)  # noqa: S101 - we wrote it
        return self._make_queue(
            str(definition["name"]),
            queue_id,
            True,  # noqa: FBT003 - as in its signature
            bool(definition["auto_delete"]),
            None,
            arguments_of(definition),
        )

    def restore_binding(self, definition: dict[str, object]) -> None:
        """Restore a binding. Without its source and destination it was not durable, and is dropped."""
        source = self.exchanges.get(str(definition["source"]))
        destination = str(definition["destination"])
        kind = str(definition["destination_kind"])
        there = destination in (self.queues if kind == QUEUE else self.exchanges)
        if source is not None and there:
            binding = Binding(source.name, destination, kind, str(definition["routing_key"]), arguments_of(definition))
            self._link(source, binding)
            binding.is_persistent = True

    # --- routing ---

    def resolve(self, exchange_name: str, routing_key: str) -> Route:
        """The route of a message, valid until `epoch` changes. Raises `NotFound`, `AccessRefused`."""
        exchange = self.exchange(exchange_name)
        if exchange.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange_name}' in vhost '{self.name}'")
        route = Route(self.router.address(exchange_name, routing_key), exchange, self.epoch)
        if self.router.depends_on_headers(exchange):
            route.by_headers = True
        else:
            route.queues = self.router.match(exchange, [routing_key], {})
        return route

    def route_due(self, exchange: Exchange, message: Message) -> None:
        try:
            publish_due(self.router, exchange, message, self.runtime.now)
        except (ValueError, OverflowError, RecursionError, ModelError) as error:
            # It must not block the messages that are due after it.
            self.runtime.operator_log.warning(
                "delayed message dropped",
                f"a message that waited in exchange '{exchange.name}' of vhost '{self.name}' is due and cannot be "
                f"written: {error}",
            )

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        self._dead_lettering.dead_letter(queue, message, reason)

    def send_to_alternate(self, queue: Queue, message: Message) -> None:
        self.alternates.send(queue, message)

    def move_to_alternate(self, queue: Queue, count: i64) -> i64:
        return self.alternates.move(queue, count)


def _binding_size(source: Exchange, binding: Binding, *, is_durable: bool) -> int:
    return binding_size(source.type, binding.key, binding.routing_key, binding.arguments, is_durable=is_durable)


def arguments_of(definition: dict[str, object]) -> dict[str, object]:
    """The arguments in a definition that the store kept."""
    arguments = definition["arguments"]
    return arguments if isinstance(arguments, dict) else {}
