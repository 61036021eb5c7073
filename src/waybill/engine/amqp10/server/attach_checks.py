"""Checks of an attach that need neither queue nor terminus: delivery modes, outcomes, node properties."""

from typing import Final

from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.outcomes import ACCEPTED, REJECTED
from waybill.engine.amqp10.server.outcomes import ALL as OUTCOMES
from waybill.wire.amqp10.composite import COMPOSITE
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_IMPLEMENTED
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.messaging import (
    DURABLE_UNSETTLED_STATE,
    EXPIRE_NEVER,
    Source,
    Target,
    check_node_properties,
)
from waybill.wire.amqp10.performatives import (
    RECEIVER_SECOND,
    ROLE_SENDER,
    SENDER_MIXED,
    SENDER_SETTLED,
    SENDER_UNSETTLED,
    Attach,
)
from waybill.wire.amqp10.transactions import Coordinator

DELIVERY_MODE: Final = "delivery-mode"
AT_MOST_ONCE: Final = "at-most-once"
EXACTLY_ONCE: Final = "exactly-once"
DELIVERY_MODES: Final = frozenset({AT_MOST_ONCE, "at-least-once", EXACTLY_ONCE})
CONTROL_OUTCOMES: Final = frozenset({*OUTCOMES, "amqp:declared:list", "amqp:transactional-state:list"})
"""The outcomes of messages to a coordinator."""


def check_delivery_mode(attach: Attach) -> None:
    """Raises a link fault for a delivery mode that the link cannot guarantee."""
    mode = (attach.properties or {}).get(DELIVERY_MODE)
    if mode is None:
        return
    if mode not in DELIVERY_MODES:
        raise link_fault(NOT_IMPLEMENTED, f"{DELIVERY_MODE} {mode!r}")
    unfit = ""
    if mode == AT_MOST_ONCE:
        if attach.snd_settle_mode == SENDER_UNSETTLED:
            unfit = "settled transfers"
    elif attach.snd_settle_mode == SENDER_SETTLED:
        unfit = "unsettled transfers"
    elif mode == EXACTLY_ONCE and attach.role != ROLE_SENDER:
        unfit = "a link by which the peer sends"
    elif mode == EXACTLY_ONCE and not (attach.rcv_settle_mode == RECEIVER_SECOND and _is_durable(attach.target)):
        # Otherwise the record that detects a repeated transfer is lost with the link, or with the node.
        unfit = "rcv-settle-mode second and a target with durable unsettled-state that never expires"
    if unfit:
        raise link_fault(NOT_IMPLEMENTED, f"{DELIVERY_MODE} {mode} needs {unfit}")


def _is_durable(target: object) -> bool:
    return (
        isinstance(target, COMPOSITE)
        and isinstance(target, Target)
        and target.durable == DURABLE_UNSETTLED_STATE
        and target.expiry_policy == EXPIRE_NEVER
    )


def mode_in_force(attach: Attach) -> dict[str, object] | None:
    """The link property for the answer: the delivery mode that was asked for."""
    mode = (attach.properties or {}).get(DELIVERY_MODE)
    return None if mode is None else {DELIVERY_MODE: mode}


def sends_settled(attach: Attach) -> bool:
    """Whether deliveries to the peer are sent settled."""
    mode = (attach.properties or {}).get(DELIVERY_MODE)
    return attach.snd_settle_mode == SENDER_SETTLED or (attach.snd_settle_mode == SENDER_MIXED and mode == AT_MOST_ONCE)


def check_nodes(attach: Attach) -> None:
    """Raises a link fault for invalid node properties, and for unknown outcomes of a sender's source."""
    for node in (attach.source, attach.target):
        if isinstance(node, COMPOSITE) and isinstance(node, (Source, Target)):
            try:
                check_node_properties(node.dynamic_node_properties)
            except DecodeError as error:
                raise link_fault(DecodeError.condition, str(error)) from None
    source = attach.source
    if attach.role != ROLE_SENDER or not (isinstance(source, COMPOSITE) and isinstance(source, Source)):
        return
    is_control = isinstance(attach.target, COMPOSITE) and isinstance(attach.target, Coordinator)
    for name in source.outcomes:
        if name not in (CONTROL_OUTCOMES if is_control else OUTCOMES):
            raise link_fault(INVALID_FIELD, f"'{name}' is not an outcome that messages can have here")
    if source.outcomes and not is_control and ACCEPTED not in source.outcomes and REJECTED not in source.outcomes:
        raise link_fault(NOT_IMPLEMENTED, "a source that allows neither accepted nor rejected")
