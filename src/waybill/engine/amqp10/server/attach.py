"""Attaches links (1.0, 2.6.3): creates what the peer requests, and answers with what is in force.

A refused link is attached without its terminus and immediately detached with the reason. A link that was attached
before gets its terminus back; another connection that still has the link loses it (2.6.1). Permissions and limits are
checked before anything changes, so a refused link leaves all termini and all other links as they were.
"""

from mypy_extensions import i64

from waybill.engine.amqp10.server.attach_checks import check_delivery_mode, check_nodes
from waybill.engine.amqp10.server.attach_source import attach_source
from waybill.engine.amqp10.server.attach_target import attach_target
from waybill.engine.amqp10.server.faults import Fault, link_error, link_fault
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.links import Links
from waybill.engine.amqp10.termini import Terminus
from waybill.model.errors import ModelError
from waybill.model.footprint import LINK_BYTES
from waybill.wire.amqp10.error import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED, Error
from waybill.wire.amqp10.performatives import (
    RECEIVER_SECOND,
    ROLE_SENDER,
    SENDER_MIXED,
    Attach,
    Detach,
)


def attach_link(session: LinkHost, links: Links, attach: Attach) -> Terminus | None:
    """Answer an attach whose handle is free. Returns the terminus of the link, None if the link is refused.

    Raises faults of the session only.
    """
    if attach.unsettled:
        # Its states were decoded.
        session.connection.host.runtime.work_left -= len(attach.unsettled)
    handle = links.our_handle(attach.handle)
    try:
        if attach.snd_settle_mode > SENDER_MIXED or attach.rcv_settle_mode > RECEIVER_SECOND:
            raise link_fault(INVALID_FIELD, "an unknown settlement mode")
        _check_count(session)
        check_delivery_mode(attach)
        check_nodes(attach)
        if attach.role == ROLE_SENDER:
            return attach_target(session, links, attach, handle)
        return attach_source(session, links, attach, handle)
    except (Fault, ModelError) as error:
        _refuse(session, attach, handle, link_error(error))
        links.detaching.add(attach.handle)
        return None


def _check_count(session: LinkHost) -> None:
    connection = session.connection
    limit = connection.host.limits.links_per_connection_max
    if connection.link_count() >= limit:
        raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"a connection may have {limit} links")
    if not connection.held.can_attach(LINK_BYTES):
        raise link_fault(RESOURCE_LIMIT_EXCEEDED, connection.held.no_room())


def _refuse(session: LinkHost, attach: Attach, handle: i64, error: Error) -> None:
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
    session.report_detach(attach.name, error)
    session.send(Detach(handle=int(handle), closed=True, error=error))
