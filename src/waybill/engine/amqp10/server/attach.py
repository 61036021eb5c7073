"""Attaching links: what was asked for is put in force or refused, and the answer says which (1.0, 2.6.3).

A refused link is attached without its terminus and detached at once with the reason, as 2.6.3 has it. A link that was
attached before finds its terminus; if another connection has it still, that one loses it (2.6.1). Rights and limits
are asked before anything changes: a refused link leaves all termini, and all links, as they were.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.address import MANAGEMENT_ADDRESSES
from waybill.engine.amqp10.server.asked import check_delivery_mode, check_nodes, mode_in_force, sends_settled
from waybill.engine.amqp10.server.claim import Claim, found_terminus
from waybill.engine.amqp10.server.coordinator import CAPABILITIES, CoordinatorLink
from waybill.engine.amqp10.server.dynamic import DynamicNode, join_lifetime, node_capabilities
from waybill.engine.amqp10.server.faults import LINK, Fault, fault_of, link_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.management_link import PAIRED, ManagementLink
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.amqp10.server.resume import held_states, resumed_deliveries, send_attach, settling_states
from waybill.engine.amqp10.server.source import SourceNode
from waybill.engine.amqp10.server.target import TargetNode
from waybill.engine.amqp10.termini import Terminus
from waybill.model.errors import ModelError
from waybill.model.footprint import LINK_BYTES
from waybill.model.growth import check_growth
from waybill.wire.amqp10.composite import COMPOSITE
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_IMPLEMENTED, RESOURCE_LIMIT_EXCEEDED
from waybill.wire.amqp10.messaging import DURABLE_NONE, EXPIRE_ON_SESSION_END, Source, Target
from waybill.wire.amqp10.performatives import (
    RECEIVER_SECOND,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SENDER_MIXED,
    Attach,
    Detach,
)
from waybill.wire.amqp10.transactions import Coordinator

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.session import Session


def attach_link(session: "Session", attach: Attach) -> None:
    """Answer an attach whose handle is free. Raises faults of the session only."""
    handle = session.free_handle(attach.handle)
    try:
        if attach.snd_settle_mode > SENDER_MIXED or attach.rcv_settle_mode > RECEIVER_SECOND:
            raise link_fault(INVALID_FIELD, "an unknown settlement mode")
        _check_count(session)
        check_delivery_mode(attach)
        check_nodes(attach)
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


def _check_count(session: "Session") -> None:
    connection = session.connection
    limit = connection.host.limits.links_per_connection_max
    count = sum(len(other.incoming) + len(other.outgoing) for other in connection.sessions.values())
    if count >= limit:
        raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"a connection may have {limit} links")
    if not connection.held.can_attach(LINK_BYTES):
        raise link_fault(RESOURCE_LIMIT_EXCEEDED, connection.held.no_room())


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


def _asked(node: Source | Target) -> tuple[int, str, int]:
    return node.durable, node.expiry_policy, node.timeout


PASSING: Final = (DURABLE_NONE, EXPIRE_ON_SESSION_END, 0)
"""Nothing of the link outlives its session."""


def _attach_incoming(session: "Session", attach: Attach, handle: i64) -> None:
    target = attach.target
    if target is None:
        raise link_fault(INVALID_FIELD, "a link needs a target")
    if isinstance(target, COMPOSITE) and isinstance(target, Coordinator):
        _attach_coordinator(session, attach, handle)
        return
    if not (isinstance(target, COMPOSITE) and isinstance(target, Target)):
        raise link_fault(NOT_IMPLEMENTED, "a target of that kind")
    if attach.initial_delivery_count is None:
        raise link_fault(INVALID_FIELD, "a sender needs an initial-delivery-count")
    address = target.address or None
    if address in MANAGEMENT_ADDRESSES and not target.dynamic:
        _attach_management(session, attach, handle, target)
        return
    if target.dynamic and address is not None:
        raise link_fault(INVALID_FIELD, "the address of a dynamic node is not for the peer to choose")
    if target.dynamic_node_properties and not target.dynamic:
        raise link_fault(INVALID_FIELD, "dynamic-node-properties are for dynamic nodes")
    made = DynamicNode(session, attach.name, target.dynamic_node_properties) if target.dynamic else None
    if made is None:
        node = TargetNode(session.connection, address)
        node.check()
    claim = Claim(session.connection, attach, _asked(target), address or "", is_new=target.dynamic)
    terminus = claim.terminus
    try:
        _check_room(session, terminus)
        if made is not None:
            address = made.address
            made.make(terminus, target.capabilities)
            node = TargetNode(session.connection, address)
            node.check()
    except (Fault, ModelError):
        claim.give_up()
        raise
    claim.take()
    if node.queue is not None:
        join_lifetime(session, terminus, node.queue)
    terminus.address = address or ""
    unsettled = settling_states(terminus, attach.unsettled, is_complete=not attach.incomplete_unsettled)
    link = IncomingLink(session, attach, handle, node, terminus)
    session.incoming[link.peer_handle] = link
    terminus.take(link.end)
    session.connection.host.termini.save(terminus)
    link.resumes_only = send_attach(
        session,
        Attach(
            name=attach.name,
            handle=int(handle),
            role=ROLE_RECEIVER,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=attach.source,
            target=Target(
                address=address,
                durable=terminus.durable,
                expiry_policy=terminus.expiry_policy,
                timeout=terminus.timeout_s,
                dynamic=target.dynamic,
                dynamic_node_properties=None if made is None else made.properties,
                capabilities=node_capabilities(session, target.capabilities, node.node_kind, node.queue),
            ),
            unsettled=unsettled or None,
            max_message_size=int(link.max_message_size),
            properties=mode_in_force(attach),
        ),
    )
    link.grant()


def _attach_coordinator(session: "Session", attach: Attach, handle: i64) -> None:
    """A link that declares and discharges transactions; it may do without a source (4.3)."""
    claim = Claim(session.connection, attach, PASSING, None, is_new=True)
    claim.take()
    terminus = claim.terminus
    link = CoordinatorLink(session, attach, handle, terminus)
    session.incoming[link.peer_handle] = link
    terminus.take(link.end)
    session.send(
        Attach(
            name=attach.name,
            handle=int(handle),
            role=ROLE_RECEIVER,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=attach.source,
            target=Coordinator(CAPABILITIES),
            max_message_size=int(link.max_message_size),
        )
    )
    link.grant()


def _attach_management(session: "Session", attach: Attach, handle: i64, target: Target) -> None:
    """A link that brings requests to the management node. Nothing of it outlives the link."""
    claim = Claim(session.connection, attach, PASSING, None, is_new=True)
    claim.take()
    terminus = claim.terminus
    terminus.address = target.address or ""
    link = ManagementLink(session, attach, handle, terminus)
    session.incoming[link.peer_handle] = link
    terminus.take(link.end)
    session.send(
        Attach(
            name=attach.name,
            handle=int(handle),
            role=ROLE_RECEIVER,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=attach.source,
            target=Target(address=target.address),
            max_message_size=int(link.max_message_size),
            properties={PAIRED: True},
        )
    )
    link.grant()


def _attach_outgoing(session: "Session", attach: Attach, handle: i64) -> None:
    source = attach.source
    if source is None:
        # Recovering a link of which the peer has lost all but its name (2.6.3).
        found = found_terminus(session.connection, attach)
        if found is None or not found.address:
            raise link_fault(INVALID_FIELD, "a link needs a source")
        source = Source(found.address, found.durable, found.expiry_policy, found.timeout_s)
    elif not (isinstance(source, COMPOSITE) and isinstance(source, Source)):
        raise link_fault(NOT_IMPLEMENTED, "a source of that kind")
    node = SourceNode(session, attach.name, source, attach.properties or {})
    claim = Claim(session.connection, attach, _asked(source), source.address or "", is_new=source.dynamic)
    terminus = claim.terminus
    try:
        _check_room(session, terminus)
        node.open(terminus)
        if claim.is_resumed:
            claim.take()
        link = OutgoingLink(session, attach, handle, node, terminus, is_settled=sends_settled(attach))
        node.queue.subscribe(link, node.filters.stream_offset)
        link.go_on_copying()
        if not claim.is_resumed:
            claim.take()
    except (Fault, ModelError):
        claim.give_up()
        raise
    terminus.address = node.address
    resumed = resumed_deliveries(terminus, node.queue, attach.unsettled, is_complete=not attach.incomplete_unsettled)
    link.resumes_only = attach.incomplete_unsettled
    session.outgoing[link.peer_handle] = link
    connection = link.connection
    connection.held.attach(LINK_BYTES)
    connection.output_high_water = connection.held.spare_output(connection.output, connection.output_high_water)
    terminus.take(link.end)
    session.connection.host.termini.save(terminus)
    send_attach(
        session,
        Attach(
            name=attach.name,
            handle=int(handle),
            role=ROLE_SENDER,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=node.answer(),
            target=attach.target,
            unsettled=held_states(resumed) or None,
            initial_delivery_count=0,
            max_message_size=session.connection.host.limits.message_size_max,
            properties={PAIRED: True} if node.is_management else mode_in_force(attach),
        ),
    )
    link.resuming.extend(resumed)
    link.awaiting = {delivery.tag: delivery for delivery in resumed}


def _check_room(session: "Session", terminus: Terminus) -> None:
    """A durable terminus that is new is something more on the disk."""
    if terminus.durable and not terminus.is_saved:
        check_growth(session.connection.host.runtime, "a durable terminus")
