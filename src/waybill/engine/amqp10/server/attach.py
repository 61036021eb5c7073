"""Attaching links: what was asked for is put in force or refused, and the answer says which (1.0, 2.6.3).

A refused link is attached without its terminus and detached at once with the reason, as 2.6.3 has it.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import LINK, Fault, fault_of, link_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.amqp10.server.source import SourceNode
from waybill.engine.amqp10.server.target import TargetNode
from waybill.model.errors import ModelError
from waybill.model.stream import Stream
from waybill.wire.amqp10.composite import COMPOSITE
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_IMPLEMENTED
from waybill.wire.amqp10.messaging import Source, Target
from waybill.wire.amqp10.performatives import (
    RECEIVER_FIRST,
    RECEIVER_SECOND,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SENDER_MIXED,
    SENDER_SETTLED,
    Attach,
    Detach,
)

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.session import Session

EXACTLY_ONCE: Final = "exactly-once"


def attach_link(session: "Session", attach: Attach) -> None:
    """Answer an attach whose handle is free. Raises faults of the session only."""
    handle = session.free_handle(attach.handle)
    try:
        if attach.snd_settle_mode > SENDER_MIXED or attach.rcv_settle_mode > RECEIVER_SECOND:
            raise link_fault(INVALID_FIELD, "an unknown settlement mode")
        if attach.role == ROLE_SENDER:
            _attach_incoming(session, attach, handle)
        else:
            _attach_outgoing(session, attach, handle)
    except ModelError as error:
        _refuse(session, attach, handle, fault_of(error))
    except Fault as fault:
        if fault.scope != LINK:
            raise
        _refuse(session, attach, handle, fault)


def _refuse(session: "Session", attach: Attach, handle: i64, fault: Fault) -> None:
    is_incoming = attach.role == ROLE_SENDER
    session.send(
        Attach(
            name=attach.name,
            handle=int(handle),
            role=not attach.role,
            snd_settle_mode=min(attach.snd_settle_mode, SENDER_MIXED),
            rcv_settle_mode=min(attach.rcv_settle_mode, RECEIVER_SECOND),
            source=attach.source if is_incoming else None,
            target=None if is_incoming else attach.target,
            initial_delivery_count=None if is_incoming else 0,
        )
    )
    session.detaching.add(attach.handle)
    session.send(Detach(handle=int(handle), closed=True, error=fault.error))


def _attach_incoming(session: "Session", attach: Attach, handle: i64) -> None:
    target = attach.target
    if target is None:
        raise link_fault(INVALID_FIELD, "a link needs a target")
    if not (isinstance(target, COMPOSITE) and isinstance(target, Target)):
        raise link_fault(NOT_IMPLEMENTED, "a target of that kind")
    if attach.initial_delivery_count is None:
        raise link_fault(INVALID_FIELD, "a sender needs an initial-delivery-count")
    if target.dynamic:
        raise link_fault(NOT_IMPLEMENTED, "dynamic nodes")
    if target.dynamic_node_properties:
        raise link_fault(INVALID_FIELD, "dynamic-node-properties are for dynamic nodes")
    node = TargetNode(session.connection, target.address or None)
    node.check()
    link = IncomingLink(session, attach, handle, node)
    session.incoming[link.peer_handle] = link
    session.send(
        Attach(
            name=attach.name,
            handle=int(handle),
            role=ROLE_RECEIVER,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=attach.source,
            target=Target(
                address=target.address,
                durable=target.durable,
                expiry_policy=target.expiry_policy,
                timeout=target.timeout,
            ),
            max_message_size=int(link.max_message_size),
        )
    )
    link.grant()


def _attach_outgoing(session: "Session", attach: Attach, handle: i64) -> None:
    source = attach.source
    if source is None:
        raise link_fault(INVALID_FIELD, "a link needs a source")
    if not (isinstance(source, COMPOSITE) and isinstance(source, Source)):
        raise link_fault(NOT_IMPLEMENTED, "a source of that kind")
    node = SourceNode(session, source, attach.properties or {})
    is_settled = attach.snd_settle_mode == SENDER_SETTLED
    link = OutgoingLink(session, attach, handle, node, is_settled=is_settled)
    if isinstance(node.queue, Stream):
        node.queue.subscribe(link, None)
    else:
        node.queue.add_consumer(link)
    session.outgoing[link.peer_handle] = link
    session.send(
        Attach(
            name=attach.name,
            handle=int(handle),
            role=ROLE_SENDER,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=node.answer(),
            target=attach.target,
            initial_delivery_count=0,
            max_message_size=session.connection.host.limits.message_size_max,
        )
    )


__all__ = ["EXACTLY_ONCE", "RECEIVER_FIRST", "attach_link"]
