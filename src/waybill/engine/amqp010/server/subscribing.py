"""The commands of class message that concern subscriptions, and credit."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.faults import session_fault
from waybill.engine.amqp010.server.session import Session
from waybill.engine.amqp010.server.subscription import ALL, Subscription
from waybill.model.errors import InvalidArgument, NotFound, ResourceLocked, ResourceRefused
from waybill.model.footprint import consumer_size
from waybill.model.queue import Queue
from waybill.model.stream_filter import stream_filter
from waybill.wire.amqp010.class_message import (
    MessageCancel,
    MessageFlow,
    MessageFlush,
    MessageResume,
    MessageSetFlowMode,
    MessageStop,
    MessageSubscribe,
)
from waybill.wire.amqp010.constants import (
    ACCEPT_EXPLICIT,
    ACQUIRE_NOT_ACQUIRED,
    ERROR_ILLEGAL_ARGUMENT,
    ERROR_NOT_ALLOWED,
    ERROR_RESOURCE_LIMIT_EXCEEDED,
    FLOW_WINDOW,
    UNIT_BYTE,
)

PRIORITY_MAX: Final = 2**31 - 1


def subscribe(session: Session, command: MessageSubscribe) -> None:
    connection = session.attached
    if command.queue == "":
        raise session_fault(ERROR_ILLEGAL_ARGUMENT, "the name of a queue is required")
    queue = session.virtual_host.queue(command.queue, session)
    connection.check_permission("read", "queue", queue.name)
    destination = command.destination or ""
    known = session.subscriptions.get(destination)
    if known is not None and not known.is_cancelled:
        raise session_fault(ERROR_NOT_ALLOWED, f"there is a subscription '{destination}' already")
    if len(session.subscriptions) >= session.host.limits.consumers_per_channel_max:
        raise session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, "too many subscriptions in this session")
    if not connection.held.can_attach(consumer_size(destination)):
        raise ResourceRefused(f"cannot add a subscription: {connection.held.no_room()}")
    _check_exclusive(queue, exclusive=command.exclusive)
    connection.spare_output()
    arguments = command.arguments or {}
    is_stream = queue.is_append_only
    subscription = Subscription(
        session,
        queue,
        destination,
        accepts=command.accept_mode == ACCEPT_EXPLICIT,
        is_browser=command.acquire_mode == ACQUIRE_NOT_ACQUIRED and not is_stream,
        exclusive=command.exclusive,
        priority=_priority(arguments),
    )
    wanted = stream_filter(arguments) if is_stream else None
    queue.subscribe(subscription, arguments.get("x-stream-offset"), wanted)
    session.subscriptions[destination] = subscription
    if known is None:
        session.attach_memory(consumer_size(destination))


def _check_exclusive(queue: Queue, *, exclusive: bool) -> None:
    """The rule "in-use"."""
    if queue.exclusive_consumer is not None or (exclusive and queue.consumers):
        raise ResourceLocked(f"queue '{queue.name}' in exclusive use")


def _priority(arguments: dict[str, object]) -> int:
    priority = arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise InvalidArgument(f"invalid arg 'x-priority': {priority!r} is not a 32-bit integer")
    return int(priority)


def _named(session: Session, destination: str | None) -> Subscription:
    subscription = session.subscriptions.get(destination or "")
    if subscription is None:
        raise NotFound(f"no subscription '{destination or ''}'")
    return subscription


def cancel(session: Session, command: MessageCancel) -> None:
    """No further transfers; the peer keeps earlier ones ("post-cancel-transfer-resolution")."""
    subscription = _named(session, command.destination)
    del session.subscriptions[command.destination]
    session.detach_memory(consumer_size(command.destination))
    if not subscription.is_cancelled:
        subscription.is_cancelled = True
        subscription.queue.remove_consumer(subscription)


def set_flow_mode(session: Session, command: MessageSetFlowMode) -> None:
    _named(session, command.destination).is_window = command.flow_mode == FLOW_WINDOW


def flow(session: Session, command: MessageFlow) -> None:
    """Give credit. An absent value and the largest one mean unlimited credit."""
    value = ALL if command.value is None else command.value
    _named(session, command.destination).add_credit(value, is_octets=command.unit == UNIT_BYTE)


def stop(session: Session, command: MessageStop) -> None:
    _named(session, command.destination).stop()


def flush(session: Session, number: i64, command: MessageFlush) -> None:
    """Deliver as much as the credit allows, and revoke the rest of it."""
    session.begin_flush(_named(session, command.destination), number)


def resume(_session: Session, command: MessageResume) -> None:
    """message.resume: nothing of an interrupted message is kept, so no id is known ("unknown-resume-id")."""
    raise NotFound(f"no message with the resume-id '{command.resume_id}'")
