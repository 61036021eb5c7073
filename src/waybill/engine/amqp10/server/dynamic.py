"""Queues that are created for a link: dynamic nodes (1.0, 3.5.3), subscriptions to an exchange, responses."""

from typing import Final

from waybill.engine.amqp10.address import queue_address
from waybill.engine.amqp10.lifetime import DYNAMIC_PREFIX, Lifetime
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.engine.amqp10.termini import Terminus
from waybill.model.errors import ResourceLocked
from waybill.model.queue import Queue
from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.error import INVALID_FIELD
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.messaging import LIFETIME_POLICY, SUPPORTED_DISTRIBUTION_MODES, DeleteOnClose, lifetime_policy
from waybill.wire.amqp10.types import Array, Symbol

QUEUE: Final = "queue"
TOPIC: Final = "topic"
TEMPORARY_QUEUE: Final = "temporary-queue"
TEMPORARY_TOPIC: Final = "temporary-topic"
MANAGEMENT_QUEUE_PREFIX: Final = "amq.management-"
NAME_LIMIT: Final = 80
"""Characters of the peer's names in a generated name, which has at most 255."""


class DynamicNode:
    """A dynamic node. It is created in two steps, so that everything is checked before anything is created.

    Raises a link fault for invalid properties, and `AccessRefused`.
    """

    def __init__(self, connection: SessionHost, name: str, asked: dict[str, object] | None) -> None:
        try:
            self._policy = lifetime_policy(asked) or DeleteOnClose()
        except DecodeError as error:
            raise link_fault(INVALID_FIELD, str(error)) from None
        self._connection = connection
        # The name contains the names of the peer's container and link (3.5.3). Nobody can guess the rest.
        prefix = f"{DYNAMIC_PREFIX}{self._connection.container_id[:NAME_LIMIT]}.{name[:NAME_LIMIT]}."
        self.name = self._connection.host.random_name(prefix)
        self.address = queue_address(self.name)
        self._connection.check_permission("configure", "queue", self.name)

    def make(self, terminus: Terminus, capabilities: tuple[str, ...]) -> Queue:
        """Create the queue for a terminus. Raises an error of the model."""
        connection = self._connection
        virtual_host = connection.virtual_host
        queue = virtual_host.declare_queue(
            self.name, durable=False, auto_delete=False, exclusive_to=None, connection=connection, arguments={}
        )
        lifetime = Lifetime(virtual_host, queue, self._policy)
        if TEMPORARY_QUEUE in capabilities or TEMPORARY_TOPIC in capabilities:
            lifetime.owner = connection
        connection.host.termini.lifetimes[queue] = lifetime
        terminus.lifetime = lifetime
        terminus.is_creator = True
        return queue

    @property
    def properties(self) -> dict[str, object]:
        """The dynamic-node-properties for the answer."""
        # A field with several values is an array (1.4): strictly typed clients read nothing else.
        modes = Array(codes.SYMBOL_8, (Symbol("move"), Symbol("copy")))
        return {LIFETIME_POLICY: self._policy, SUPPORTED_DISTRIBUTION_MODES: modes}


def check_consumer(connection: SessionHost, queue: Queue) -> None:
    """Raises `ResourceLocked` for a temporary queue of another connection: others may only send to it."""
    lifetime = connection.host.termini.lifetimes.get(queue)
    if lifetime is not None and not queue.is_deleted and lifetime.is_locked_for(connection):
        raise ResourceLocked(f"queue '{queue.name}' is a temporary queue of another connection")


def node_capabilities(
    connection: SessionHost, asked: tuple[str, ...], kind: str, queue: Queue | None
) -> tuple[Symbol, ...]:
    """The capabilities of a node (JMS mapping, 5.2), as requested and as far as true; none without a node."""
    if queue is None:
        return (Symbol(TOPIC),) if kind else ()
    is_temporary = queue in connection.host.termini.lifetimes
    return (Symbol(TEMPORARY_QUEUE if is_temporary and QUEUE not in asked else QUEUE),)


def join_lifetime(connection: SessionHost, terminus: Terminus, queue: Queue) -> None:
    """Count the link among those that keep an existing dynamic node."""
    termini = connection.host.termini
    lifetime = termini.lifetimes.get(queue)
    if lifetime is not None and queue.is_deleted:
        del termini.lifetimes[queue]
    elif lifetime is not None and terminus.lifetime is None:
        terminus.lifetime = lifetime


def response_queue(connection: SessionHost) -> Queue:
    """A queue for the responses of the management node to one link; it is deleted with the link."""
    return connection.virtual_host.declare_queue(
        connection.host.random_name(MANAGEMENT_QUEUE_PREFIX),
        durable=False,
        auto_delete=True,
        exclusive_to=connection,
        connection=connection,
        arguments={},
    )


def subscription_queue(connection: SessionHost, terminus: Terminus, *, durable: bool) -> Queue:
    """The queue of a link whose source is an exchange."""
    if terminus.queue is not None and not terminus.queue.is_deleted:
        return terminus.queue
    queue = connection.virtual_host.declare_queue(
        connection.host.random_name("amqp10.subscription."),
        durable=durable,
        auto_delete=False,
        exclusive_to=None,
        connection=connection,
        arguments={},
    )
    terminus.queue = queue
    return queue
