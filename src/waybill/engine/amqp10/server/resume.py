"""What both ends say of their unsettled deliveries when a link is attached again (1.0, 3.4.6).

We send. All that we have not settled is whole here and without an outcome, so our state of it is null, and the peer's
rules what is done (the numbers are those of the example in 3.4.6):

    the peer has no record of it        1   the message again, as a new delivery
    the peer has a part of it           2   the message again from its beginning, resumed
    the peer has an outcome             3   the outcome is applied, a resumed transfer settles the delivery
    the peer has it without a state     4   the message again, resumed

We receive. Of a delivery we have a part, or its outcome, or nothing:

    we have a part           2, 6, 7, 9, 11   the peer goes on from within that part, or aborts
    we have the outcome      3, 8, 12, 13     the peer resumes to settle it; if its outcome differs, it is the one
    we have nothing          1, 5, 10         the peer sends it as new, or nothing
"""

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from mypy_extensions import i64

from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry
from waybill.model.queue import Queue
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.disposition import decode_state
from waybill.wire.amqp10.messaging import Accepted, Received
from waybill.wire.amqp10.performatives import Attach
from waybill.wire.amqp10.sections import section_starts
from waybill.wire.amqp10.types import Described

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.session import Session

FRAME_HEAD_SIZE = 8
TAG_SIZE = 8
NOTHING_HELD = -1
STATE_SIZE_MIN = 3
STATES_PER_UNIT_BITS = 4

States = dict[bytes, Composite | Described | None]


class Resumed:
    """One delivery that a link goes on with. `is_known`: the peer has a record of it, and `state` is what that says."""

    def __init__(self, tag: bytes, entry: Entry, state: Composite | Described | None, *, is_known: bool) -> None:
        self.tag = tag
        self.entry = entry
        self.state = state
        self.is_known = is_known
        # The peer settled it by its former number before it was resumed.
        self.is_gone = False


def send_attach(session: "Session", attach: Attach) -> bool:
    """Send an attach; if it does not fit a frame, with as many unsettled deliveries as fit (2.7.3). True if not all."""
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
    """How many of these, at most, a frame can have: what is never sent is not encoded."""
    count = 0
    for tag in states:
        limit -= len(tag) + STATE_SIZE_MIN
        if limit < 0:
            break
        count += 1
    return count


def resumed_deliveries(terminus: Terminus, queue: Queue, theirs: States | None, *, is_complete: bool) -> list[Resumed]:
    """The deliveries that a source's terminus has, in order, with what the peer says of them.

    If the peer has not named all of its own, nothing is known of the others: the terminus goes on holding them.
    """
    said: States = theirs or {}
    held = terminus.held
    terminus.held = {}
    if terminus.queue_id != queue.id:
        # Another queue has the name now: its messages were never delivered by this link.
        for left in held.values():
            left.queue.release(left, failed=False)
        held = {}
        said = {}
        terminus.queue_id = queue.id
    for tag in said:
        # After a restart the queue has them: the tag tells which of its messages it was.
        if tag not in held and len(tag) == TAG_SIZE and terminus.durable and queue.is_persistent:
            entry = queue.claim(int.from_bytes(tag, "big"))
            if entry is not None:
                held[tag] = entry
    if not is_complete:
        terminus.held = {tag: entry for tag, entry in held.items() if tag not in said}
    return [
        Resumed(tag, entry, said.get(tag), is_known=tag in said)
        for tag, entry in sorted(held.items())
        if is_complete or tag in said
    ]


def held_states(resumed: list[Resumed]) -> States:
    """What we say of them: not settled, and whole."""
    return {delivery.tag: None for delivery in resumed}


def settling_states(terminus: Terminus, theirs: States | None, *, is_complete: bool) -> States:
    """What a target's terminus says of its deliveries. What the peer does not name any more is settled by it."""
    said: States = theirs or {}
    if is_complete:
        for tag in [tag for tag in terminus.settling if tag not in said]:
            forget_settling(terminus, tag)
    states: States = {tag: _outcome_of(terminus, tag) for tag in terminus.settling}
    if terminus.partial_tag not in said and is_complete:
        terminus.keep_partial(b"", b"")
    elif terminus.partial:
        states[terminus.partial_tag] = received_of(terminus.partial)
    return states


def forget_settling(terminus: Terminus, tag: bytes) -> None:
    """The peer has settled a delivery: nobody will ask for it any more."""
    if terminus.settling.pop(tag, None) is not None:
        terminus.outcomes.pop(tag, None)
        terminus.termini.forget_delivery(terminus, tag)


def _outcome_of(terminus: Terminus, tag: bytes) -> Composite | Described | None:
    outcome = terminus.outcomes.get(tag)
    return Accepted() if outcome is None else decode_state(outcome, 0, len(outcome))


def received_of(partial: bytes) -> Received:
    """How far a message has come, of which `partial` is there (3.4.1)."""
    starts = section_starts(partial, 0, len(partial))
    return Received(len(starts) - 1, len(partial) - starts[-1])


def position_in(partial: bytes, state: Composite | Described | None) -> i64:
    """Where in `partial` the peer goes on; `NOTHING_HELD` if that is beyond it. Raises DecodeError."""
    if not (isinstance(state, COMPOSITE) and isinstance(state, Received)):
        return 0
    if state.section_number == 0 and state.section_offset == 0:
        return 0
    starts = section_starts(partial, 0, len(partial))
    if state.section_number > len(starts):
        return NOTHING_HELD
    if state.section_number == len(starts):
        return len(partial) if state.section_offset == 0 else NOTHING_HELD
    position = starts[state.section_number] + state.section_offset
    return position if position <= len(partial) else NOTHING_HELD
