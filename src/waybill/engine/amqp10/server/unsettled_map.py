"""The unsettled maps that both ends exchange when a link is attached again (1.0, 3.4.6).

We are the sender. We have each unsettled delivery whole and without an outcome, so our state of it is null. What we do
depends on the peer's state (numbered as in the example of 3.4.6):

    the peer has no record of it        1   send the message as a new delivery
    the peer has a part of it           2   resume the delivery from the beginning of the message
    the peer has an outcome             3   apply the outcome, and settle by a resumed transfer
    the peer has it without a state     4   resume the delivery

We are the receiver. We have a part of a delivery, or its outcome, or nothing:

    we have a part           2, 6, 7, 9, 11   the peer goes on from within that part, or aborts
    we have the outcome      3, 8, 12, 13     the peer resumes to settle it; if its outcome differs, that one counts
    we have nothing          1, 5, 10         the peer sends it as a new delivery, or not at all
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry
from waybill.model.queue import Queue
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.disposition import decode_state
from waybill.wire.amqp10.messaging import Accepted, Received
from waybill.wire.amqp10.sections import section_starts
from waybill.wire.amqp10.types import Described

WRAP: Final = 0xFFFFFFFF
TAG_SIZE: Final = 8
NOTHING_HELD: Final = -1

States = dict[bytes, Composite | Described | None]


def tag_of(entry: Entry) -> bytes:
    """The delivery-tag of a message that was sent: its place in the queue, which no other message ever has."""
    return int(entry.sequence).to_bytes(TAG_SIZE, "big")


def _is_sequence(tag: bytes) -> bool:
    """Whether `tag_of` could have made it: a peer may send any octets."""
    return len(tag) == TAG_SIZE and tag[0] < 0x80


class Resumed:
    """A delivery to resume. `is_known`: the peer has it in its unsettled map, with `state`.

    `is_gone`: the peer has settled it by its former delivery-id.
    """

    def __init__(self, tag: bytes, entry: Entry, state: Composite | Described | None, *, is_known: bool) -> None:
        self.tag = tag
        self.entry = entry
        self.state = state
        self.is_known = is_known
        self.is_gone = False


def resumed_deliveries(terminus: Terminus, queue: Queue, theirs: States | None, *, is_complete: bool) -> list[Resumed]:
    """The deliveries that a source's terminus holds, in order, with their states in the peer's map.

    If that map is incomplete, the terminus keeps the deliveries that it does not name.
    """
    said: States = theirs or {}
    held = terminus.held
    terminus.held = {}
    if terminus.queue_id != queue.id:
        # The address names another queue now, whose messages this link has never delivered.
        for left in held.values():
            left.queue.release(left, failed=False)
        held = {}
        said = {}
        terminus.queue_id = queue.id
    for tag in said:
        # After a restart the queue has the message; the tag tells which one it is.
        if tag not in held and _is_sequence(tag) and terminus.durable and queue.is_persistent:
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
    """Our unsettled map: each delivery is whole and without an outcome."""
    return {delivery.tag: None for delivery in resumed}


def settling_states(terminus: Terminus, theirs: States | None, *, is_complete: bool) -> States:
    """Our unsettled map of a target's terminus. The peer has settled what its own map does not name."""
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


def settling_among(terminus: Terminus, first: i64, last: i64) -> list[bytes]:
    """The tags of the deliveries `first` to `last` that came by the present link and have their outcome."""
    count = (last - first) & WRAP
    return [tag for tag, number in terminus.settling.items() if number >= 0 and (number - first) & WRAP <= count]


def forget_settling(terminus: Terminus, tag: bytes) -> None:
    """Forget the outcome of a delivery that the peer has settled."""
    if terminus.settling.pop(tag, None) is not None:
        terminus.outcomes.pop(tag, None)
        terminus.termini.forget_delivery(terminus, tag)


def _outcome_of(terminus: Terminus, tag: bytes) -> Composite | Described | None:
    outcome = terminus.outcomes.get(tag)
    return Accepted() if outcome is None else decode_state(outcome, 0, len(outcome))


def received_of(partial: bytes) -> Received:
    """The state of a message of which we have the first part (3.4.1)."""
    starts = section_starts(partial, 0, len(partial))
    return Received(len(starts) - 1, len(partial) - starts[-1])


def position_in(partial: bytes, state: Composite | Described | None) -> i64:
    """Where in `partial` the peer continues; `NOTHING_HELD` if that is beyond its end. Raises DecodeError."""
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
