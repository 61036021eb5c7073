"""The commands of classes exchange and queue that make changes."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.arguments import plain_arguments, queue_arguments
from waybill.engine.amqp010.server.faults import session_fault
from waybill.engine.amqp010.server.session_view import SessionView
from waybill.engine.amqp010.server.tasks import Removing
from waybill.model.binding import EXCHANGE, QUEUE
from waybill.model.errors import NotFound, ResourceLocked
from waybill.model.exchange import Exchange
from waybill.model.queue import Queue
from waybill.wire.amqp010.class_exchange import ExchangeBind, ExchangeDeclare, ExchangeDelete, ExchangeUnbind
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueDelete, QueuePurge
from waybill.wire.amqp010.constants import (
    ERROR_ILLEGAL_ARGUMENT,
    ERROR_INTERNAL_ERROR,
    ERROR_INVALID_ARGUMENT,
    ERROR_NOT_ALLOWED,
    ERROR_RESOURCE_LIMIT_EXCEEDED,
)

ALTERNATE: Final = "alternate-exchange"
QUEUE_ALTERNATE: Final = "x-alternate-exchange"
RESERVED: Final = "amq."


def need_exchange_name(name: str) -> str:
    """The name of an exchange that a command may change: the default one has none."""
    if name == "":
        raise session_fault(ERROR_INVALID_ARGUMENT, "the name of an exchange is required")
    return name


def need_queue_name(name: str) -> str:
    if name == "":
        raise session_fault(ERROR_INVALID_ARGUMENT, "the name of a queue is required")
    return name


def exchange_declare(session: SessionView, command: ExchangeDeclare) -> None:
    name = need_exchange_name(command.exchange)
    virtual_host = session.virtual_host
    existing = virtual_host.exchanges.get(name)
    alternate = command.alternate_exchange or ""
    if command.passive and existing is None:
        raise NotFound(f"no exchange '{name}' in vhost '{virtual_host.name}'")
    if existing is not None:
        _check_same_exchange(existing, command, alternate)
        return
    if name.startswith(RESERVED):
        raise session_fault(ERROR_NOT_ALLOWED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
    connection = session.attached
    connection.check_permission("configure", EXCHANGE, name)
    arguments = plain_arguments(command.arguments or {})
    if alternate:
        virtual_host.exchange(alternate)
        connection.check_permission("read", EXCHANGE, name)
        connection.check_permission("write", EXCHANGE, alternate)
        arguments[ALTERNATE] = alternate
    limit = session.host.limits.exchanges_per_virtual_host_max
    if len(virtual_host.exchanges) >= limit:
        raise session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, f"too many exchanges: {limit} in this vhost")
    virtual_host.declare_exchange(
        name,
        command.type,
        durable=command.durable,
        auto_delete=command.auto_delete,
        internal=False,
        arguments=arguments,
    )
    if command.durable:
        session.needs_commit()


def _check_same_exchange(existing: Exchange, command: ExchangeDeclare, alternate: str) -> None:
    """The rule "typed", and that of alternates: both are said once. Durability is sticky."""
    if command.type not in {"", existing.type}:
        raise session_fault(
            ERROR_NOT_ALLOWED, f"exchange '{existing.name}' is of type {existing.type}, not {command.type}"
        )
    if alternate and alternate != (existing.alternate or ""):
        raise session_fault(
            ERROR_NOT_ALLOWED, f"exchange '{existing.name}' has the alternate exchange '{existing.alternate or ''}'"
        )


def exchange_delete(session: SessionView, number: i64, command: ExchangeDelete) -> None:
    name = need_exchange_name(command.exchange)
    connection = session.attached
    connection.check_permission("configure", EXCHANGE, name)
    virtual_host = session.virtual_host
    virtual_host.exchange(name)
    if name.startswith(RESERVED):
        raise session_fault(ERROR_NOT_ALLOWED, f"exchange '{name}' cannot be deleted")
    virtual_host.alternates.check_unused(name, by_exchanges=True)
    deletion = virtual_host.delete_exchange(name, if_unused=command.if_unused)
    connection.begin(Removing(session, number, deletion))


def exchange_bind(session: SessionView, command: ExchangeBind) -> None:
    name = need_queue_name(command.queue)
    exchange = need_exchange_name(command.exchange)
    connection = session.attached
    virtual_host = session.virtual_host
    queue = virtual_host.queue(name, session)
    found = virtual_host.exchange(exchange)
    connection.check_permission("write", QUEUE, name)
    connection.check_permission("read", EXCHANGE, exchange)
    connection.check_topic("read", exchange, command.binding_key)
    arguments = plain_arguments(command.arguments or {})
    if found.routes_by_headers and "x-match" not in arguments:
        # As in Qpid, whose clients rely on it.
        raise session_fault(ERROR_INTERNAL_ERROR, "a binding to an exchange of type headers needs the argument x-match")
    virtual_host.bind_queue(queue, exchange, command.binding_key, arguments)
    if queue.is_persistent:
        session.needs_commit()


def exchange_unbind(session: SessionView, command: ExchangeUnbind) -> None:
    name = need_queue_name(command.queue)
    exchange = need_exchange_name(command.exchange)
    connection = session.attached
    virtual_host = session.virtual_host
    queue = virtual_host.queue(name, session)
    virtual_host.exchange(exchange)
    connection.check_permission("write", QUEUE, name)
    connection.check_permission("read", EXCHANGE, exchange)
    session.runtime.work_left -= len(queue.bindings) >> 3
    # The arguments do not matter: the key identifies the binding.
    found = [
        binding
        for binding in queue.bindings.values()
        if binding.source == exchange and binding.routing_key == command.binding_key
    ]
    if not found:
        raise NotFound(f"queue '{name}' has no binding '{command.binding_key}' to exchange '{exchange}'")
    for binding in found:
        virtual_host.unbind(QUEUE, name, exchange, binding.routing_key, binding.arguments)
    session.needs_commit()


def queue_declare(session: SessionView, command: QueueDeclare) -> None:
    name = need_queue_name(command.queue)
    virtual_host = session.virtual_host
    alternate = command.alternate_exchange or ""
    if name in virtual_host.queues:
        if command.passive and not command.exclusive:
            # Any user may create a reply queue.
            return
        _use_queue(session, virtual_host.queue(name, session), command, alternate)
        return
    if command.passive:
        raise NotFound(f"no queue '{name}' in vhost '{virtual_host.name}'")
    if name.startswith(RESERVED):
        raise session_fault(ERROR_NOT_ALLOWED, f"queue name '{name}' contains reserved prefix 'amq.*'")
    connection = session.attached
    connection.check_permission("configure", QUEUE, name)
    arguments = queue_arguments(command.arguments or {})
    targets = [target for target in (arguments.get("x-dead-letter-exchange"), alternate) if isinstance(target, str)]
    if alternate:
        virtual_host.exchange(alternate)
        arguments[QUEUE_ALTERNATE] = alternate
    for target in targets:
        if target:
            connection.check_permission("read", QUEUE, name)
            connection.check_permission("write", EXCHANGE, target)
    limit = session.host.limits.queues_per_virtual_host_max
    if len(virtual_host.queues) >= limit:
        raise session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, f"too many queues: {limit} in this vhost")
    queue = virtual_host.declare_queue(
        name,
        durable=command.durable,
        auto_delete=command.auto_delete,
        exclusive_to=None,
        connection=session,
        arguments=arguments,
    )
    if command.exclusive:
        virtual_host.owners.give(queue, session)
    if queue.is_persistent:
        session.needs_commit()


def _use_queue(session: SessionView, queue: Queue, command: QueueDeclare, alternate: str) -> None:
    """Declare an existing queue. Its durability and auto-deletion do not change ("pre-existence")."""
    if alternate and alternate != (queue.policy.alternate_exchange or ""):
        raise session_fault(ERROR_NOT_ALLOWED, f"queue '{queue.name}' has another alternate exchange")
    if command.exclusive and command.passive and queue.owner is None:
        raise ResourceLocked(f"queue '{queue.name}' is not exclusive")
    if command.exclusive and queue.owner is None:
        if queue.consumers:
            raise ResourceLocked(f"queue '{queue.name}' is in use by others")
        session.attached.check_permission("configure", QUEUE, queue.name)
        session.virtual_host.owners.give(queue, session)
    queue.touch()


def queue_delete(session: SessionView, number: i64, command: QueueDelete) -> None:
    name = need_queue_name(command.queue)
    connection = session.attached
    virtual_host = session.virtual_host
    virtual_host.queue(name, session)
    connection.check_permission("configure", QUEUE, name)
    deletion = virtual_host.delete_queue(name, session, if_unused=command.if_unused, if_empty=command.if_empty)
    connection.begin(Removing(session, number, deletion))


def queue_purge(session: SessionView, number: i64, command: QueuePurge) -> None:
    name = command.queue
    if name == "":
        # "empty-name" says invalid-argument; Qpid's broker and its suite have this one.
        raise session_fault(ERROR_ILLEGAL_ARGUMENT, "the name of a queue is required")
    connection = session.attached
    queue = session.virtual_host.queue(name, session)
    connection.check_permission("read", QUEUE, name)
    connection.begin(Removing(session, number, queue.begin_purge()))
