"""Attaches links by which the peer receives."""

from mypy_extensions import i64

from waybill.engine.amqp10.server.attach_checks import mode_in_force, sends_settled
from waybill.engine.amqp10.server.attach_frame import send_attach
from waybill.engine.amqp10.server.claim import Claim, found_terminus
from waybill.engine.amqp10.server.faults import Fault, link_fault
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.links import Links
from waybill.engine.amqp10.server.management_link import PAIRED
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.amqp10.server.source import SourceNode
from waybill.engine.amqp10.server.unsettled_map import held_states, resumed_deliveries
from waybill.engine.amqp10.termini import Terminus
from waybill.model.errors import ModelError
from waybill.model.footprint import LINK_BYTES
from waybill.wire.amqp10.composite import COMPOSITE
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_IMPLEMENTED
from waybill.wire.amqp10.messaging import Source
from waybill.wire.amqp10.performatives import ROLE_SENDER, Attach


def attach_source(session: LinkHost, links: Links, attach: Attach, handle: i64) -> Terminus:
    """Attach a link and answer. Raises a link fault, or an error of the model."""
    connection = session.connection
    source = _source(session, attach)
    node = SourceNode(connection, attach, source)
    link = _opened_link(session, attach, handle, source, node)
    terminus = link.terminus
    terminus.address = node.address
    resumed = resumed_deliveries(terminus, node.queue, attach.unsettled, is_complete=not attach.incomplete_unsettled)
    link.resumes_only = attach.incomplete_unsettled
    links.outgoing[link.peer_handle] = link
    connection.held.attach(LINK_BYTES)
    connection.spare_output()
    terminus.take(link.end)
    connection.host.termini.save(terminus)
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
            max_message_size=connection.host.limits.message_size_max,
            properties={PAIRED: True} if node.is_management else mode_in_force(attach),
        ),
    )
    link.resuming.extend(resumed)
    link.awaiting = {delivery.tag: delivery for delivery in resumed}
    return terminus


def _source(session: LinkHost, attach: Attach) -> Source:
    source = attach.source
    if source is None:
        # The peer recovers a link of which it has lost all but the name (2.6.3).
        found = found_terminus(session.connection, attach)
        if found is None or not found.address:
            raise link_fault(INVALID_FIELD, "a link needs a source")
        return Source(found.address, found.durable, found.expiry_policy, found.timeout_s)
    if isinstance(source, COMPOSITE) and isinstance(source, Source):
        return source
    raise link_fault(NOT_IMPLEMENTED, "a source of that kind is not supported")


def _opened_link(session: LinkHost, attach: Attach, handle: i64, source: Source, node: SourceNode) -> OutgoingLink:
    """Claim the terminus, open the node and subscribe to its queue. If that is refused, nothing has changed."""
    asked = (source.durable, source.expiry_policy, source.timeout)
    claim = Claim(session.connection, attach, asked, source.address or "", is_new=source.dynamic)
    terminus = claim.terminus
    try:
        node.open(terminus)
        if claim.is_resumed:
            claim.take()
        link = OutgoingLink(session, attach, handle, node, terminus, is_settled=sends_settled(attach))
        node.queue.subscribe(link, node.filters.stream_offset)
        link.continue_copying()
        if not claim.is_resumed:
            claim.take()
    except (Fault, ModelError):
        claim.give_up()
        raise
    return link
