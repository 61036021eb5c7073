"""Sends an attach whose unsettled map may be larger than a frame."""

from dataclasses import replace
from itertools import islice
from typing import Final

from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.unsettled_map import States
from waybill.wire.amqp10.performatives import Attach

FRAME_HEAD_SIZE: Final = 8
STATE_SIZE_MIN: Final = 3
STATES_PER_UNIT_BITS: Final = 4


def send_attach(session: LinkHost, attach: Attach) -> bool:
    """Send an attach with as many unsettled deliveries as fit into a frame. True if some are missing (2.7.3)."""
    limit = session.connection.peer_max_frame_size
    states = attach.unsettled or {}
    whole = attach
    count = _fitting(states, limit)
    if count < len(states):
        some = {tag: states[tag] for tag in islice(states, count)}
        attach = replace(whole, unsettled=some, incomplete_unsettled=True)
    session.connection.host.runtime.work_left -= count >> STATES_PER_UNIT_BITS
    while count > 0 and len(attach.encode()) + FRAME_HEAD_SIZE > limit:
        count //= 2
        some = {tag: states[tag] for tag in list(states)[:count]}
        attach = replace(whole, unsettled=some, incomplete_unsettled=True)
    session.send(attach)
    return attach is not whole


def _fitting(states: States, limit: int) -> int:
    """The maximum number of these that fit into a frame, so that no others are encoded."""
    count = 0
    for tag in states:
        limit -= len(tag) + STATE_SIZE_MIN
        if limit < 0:
            break
        count += 1
    return count
