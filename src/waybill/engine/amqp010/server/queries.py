"""The commands of classes exchange and queue that only query. Their results are structs."""

from typing import Final

from waybill.engine.amqp010.server.session_view import SessionView
from waybill.engine.amqp010.server.topology import ALTERNATE, QUEUE_ALTERNATE
from waybill.model.binding import QUEUE, Binding
from waybill.model.queue import Queue
from waybill.wire.amqp010.class_exchange import ExchangeBound, ExchangeBoundResult, ExchangeQuery, ExchangeQueryResult
from waybill.wire.amqp010.class_queue import QueueQuery, QueueQueryResult
from waybill.wire.amqp010.struct import Struct

COUNT_MAX: Final = 0xFFFFFFFF


def exchange_query(session: SessionView, command: ExchangeQuery) -> Struct:
    exchange = session.virtual_host.exchanges.get(command.name or "")
    if exchange is None:
        return ExchangeQueryResult(not_found=True)
    arguments = {name: value for name, value in exchange.arguments.items() if name != ALTERNATE}
    return ExchangeQueryResult(type=exchange.type, durable=exchange.durable, arguments=arguments)


def queue_query(session: SessionView, command: QueueQuery) -> Struct:
    queue = session.virtual_host.queues.get(command.queue)
    if queue is None:
        return QueueQueryResult()
    arguments = {name: value for name, value in queue.arguments.items() if name != QUEUE_ALTERNATE}
    return QueueQueryResult(
        queue=queue.name,
        alternate_exchange=queue.policy.alternate_exchange,
        durable=queue.durable,
        exclusive=queue.owner is not None,
        auto_delete=queue.auto_delete,
        arguments=arguments,
        message_count=min(queue.message_count, COUNT_MAX),
        subscriber_count=len(queue.consumers),
    )


def exchange_bound(session: SessionView, command: ExchangeBound) -> Struct:
    """Whether a binding matches all given fields; if none does, which fields match none alone."""
    virtual_host = session.virtual_host
    exchange_name = command.exchange or ""
    exchange = virtual_host.exchanges.get(exchange_name)
    queue = virtual_host.queues.get(command.queue) if command.queue else None
    is_queue_missing = bool(command.queue) and queue is None
    if exchange is None or is_queue_missing:
        return ExchangeBoundResult(exchange_not_found=exchange is None, queue_not_found=is_queue_missing)
    key = command.binding_key
    arguments = command.arguments or None
    if exchange is virtual_host.default_exchange:
        return _bound_to_default(session, queue, key)
    of_queue = list(queue.bindings.values()) if queue is not None else list(exchange.bindings.values())
    session.runtime.work_left -= len(of_queue) >> 3
    bindings = [one for one in of_queue if one.source == exchange_name and one.destination_kind == QUEUE]
    if any(_matches(one, key, arguments) for one in bindings):
        return ExchangeBoundResult()
    every = list(exchange.bindings.values())
    session.runtime.work_left -= len(every) >> 2
    return ExchangeBoundResult(
        queue_not_matched=queue is not None and not bindings,
        key_not_matched=bool(key) and not any(_matches(one, key, None) for one in every),
        args_not_matched=arguments is not None and not any(_matches(one, None, arguments) for one in every),
    )


def _matches(binding: Binding, key: str | None, arguments: dict[str, object] | None) -> bool:
    return (not key or binding.routing_key == key) and (arguments is None or binding.arguments == arguments)


def _bound_to_default(session: SessionView, queue: Queue | None, key: str | None) -> Struct:
    """Every queue is bound to the default exchange by its name."""
    is_key_there = not key or key in session.virtual_host.queues
    is_bound = queue is None or not key or key == queue.name
    return ExchangeBoundResult(key_not_matched=not is_key_there or not is_bound)
