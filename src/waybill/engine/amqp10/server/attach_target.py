"""Attaches links by which the peer sends: to a node, to the coordinator, or to the management node."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.address import MANAGEMENT_ADDRESSES
from waybill.engine.amqp10.server.attach_checks import mode_in_force
from waybill.engine.amqp10.server.attach_frame import send_attach
from waybill.engine.amqp10.server.claim import Claim
from waybill.engine.amqp10.server.coordinator import CAPABILITIES, CoordinatorLink
from waybill.engine.amqp10.server.dynamic import DynamicNode, join_lifetime, node_capabilities
from waybill.engine.amqp10.server.faults import Fault, link_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.links import Links
from waybill.engine.amqp10.server.management_link import PAIRED, ManagementLink
from waybill.engine.amqp10.server.target import TargetNode
from waybill.engine.amqp10.server.unsettled_map import States, settling_states
from waybill.engine.amqp10.termini import Terminus
from waybill.model.errors import ModelError
from waybill.wire.amqp10.composite import COMPOSITE
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_IMPLEMENTED
from waybill.wire.amqp10.messaging import DURABLE_NONE, EXPIRE_ON_SESSION_END, Target
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, Attach
from waybill.wire.amqp10.transactions import Coordinator

PASSING: Final = (DURABLE_NONE, EXPIRE_ON_SESSION_END, 0)
"""Durability, expiry policy and timeout of a terminus that does not outlive its session."""


def attach_target(session: LinkHost, links: Links, attach: Attach, handle: i64) -> Terminus:
    """Attach a link and answer. Raises a link fault, or an error of the model."""
    target = attach.target
    if target is None:
        raise link_fault(INVALID_FIELD, "a link needs a target")
    if isinstance(target, COMPOSITE) and isinstance(target, Coordinator):
        return _attach_coordinator(session, links, attach, handle)
    if not (isinstance(target, COMPOSITE) and isinstance(target, Target)):
        raise link_fault(NOT_IMPLEMENTED, "a target of that kind is not supported")
    if attach.initial_delivery_count is None:
        raise link_fault(INVALID_FIELD, "a sender needs an initial-delivery-count")
    address = target.address or None
    if address in MANAGEMENT_ADDRESSES and not target.dynamic:
        return _attach_management(session, links, attach, handle, target)
    if target.dynamic and address is not None:
        raise link_fault(INVALID_FIELD, "the peer must not choose the address of a dynamic node")
    if target.dynamic_node_properties and not target.dynamic:
        raise link_fault(INVALID_FIELD, "dynamic-node-properties are for dynamic nodes")
    return _attach_node(session, links, attach, handle, target)


def _attach_node(session: LinkHost, links: Links, attach: Attach, handle: i64, target: Target) -> Terminus:
    connection = session.connection
    address = target.address or None
    made = DynamicNode(connection, attach.name, target.dynamic_node_properties) if target.dynamic else None
    if made is None:
        node = _checked_node(session, address)
    asked = (target.durable, target.expiry_policy, target.timeout)
    claim = Claim(connection, attach, asked, address or "", is_new=target.dynamic)
    terminus = claim.terminus
    try:
        if made is not None:
            address = made.address
            made.make(terminus, target.capabilities)
            node = _checked_node(session, address)
    except (Fault, ModelError):
        claim.give_up()
        raise
    claim.take()
    if node.queue is not None:
        join_lifetime(connection, terminus, node.queue)
    terminus.address = address or ""
    unsettled = settling_states(terminus, attach.unsettled, is_complete=not attach.incomplete_unsettled)
    link = IncomingLink(session, attach, handle, node, terminus)
    _register(links, link)
    connection.host.termini.save(terminus)
    in_force = Target(
        address=address,
        durable=terminus.durable,
        expiry_policy=terminus.expiry_policy,
        timeout=terminus.timeout_s,
        dynamic=target.dynamic,
        dynamic_node_properties=None if made is None else made.properties,
        capabilities=node_capabilities(connection, target.capabilities, node.node_kind, node.queue),
    )
    answer = _answer(link, attach, in_force, mode_in_force(attach), unsettled or None)
    link.delivery.resumes_only = send_attach(session, answer)
    link.credit.grant()
    return terminus


def _checked_node(session: LinkHost, address: str | None) -> TargetNode:
    node = TargetNode(session.connection, address)
    node.check()
    return node


def _attach_coordinator(session: LinkHost, links: Links, attach: Attach, handle: i64) -> Terminus:
    """A link that declares and discharges transactions. It may lack a source (4.3)."""
    terminus = _passing_terminus(session, attach)
    link = CoordinatorLink(session, attach, handle, terminus)
    _register(links, link)
    session.send(_answer(link, attach, Coordinator(CAPABILITIES)))
    link.credit.grant()
    return terminus


def _attach_management(session: LinkHost, links: Links, attach: Attach, handle: i64, target: Target) -> Terminus:
    """A link for requests to the management node."""
    terminus = _passing_terminus(session, attach)
    terminus.address = target.address or ""
    link = ManagementLink(session, attach, handle, terminus)
    _register(links, link)
    session.send(_answer(link, attach, Target(address=target.address), {PAIRED: True}))
    link.credit.grant()
    return terminus


def _passing_terminus(session: LinkHost, attach: Attach) -> Terminus:
    claim = Claim(session.connection, attach, PASSING, None, is_new=True)
    claim.take()
    return claim.terminus


def _register(links: Links, link: IncomingLink) -> None:
    links.incoming[link.peer_handle] = link
    link.terminus.take(link)


def _answer(
    link: IncomingLink,
    attach: Attach,
    target: Target | Coordinator,
    properties: dict[str, object] | None = None,
    unsettled: States | None = None,
) -> Attach:
    return Attach(
        name=attach.name,
        handle=int(link.handle),
        role=ROLE_RECEIVER,
        snd_settle_mode=attach.snd_settle_mode,
        rcv_settle_mode=attach.rcv_settle_mode,
        source=attach.source,
        target=target,
        unsettled=unsettled,
        properties=properties,
        max_message_size=int(link.max_message_size),
    )
