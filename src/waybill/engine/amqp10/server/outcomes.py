"""What a receiver's state does to a delivery (1.0, 3.4): the outcome, in the terms of the model."""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.message_format import AMQP10, with_annotations
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.strict import rejection
from waybill.model.entry import Entry
from waybill.model.message import Message
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.error import ILLEGAL_STATE, NOT_ALLOWED
from waybill.wire.amqp10.messaging import Accepted, Modified, Received, Rejected, Released
from waybill.wire.amqp10.sections import MessageFacts, scan_message
from waybill.wire.amqp10.types import Described, Symbol

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.outgoing import OutgoingLink
    from waybill.engine.amqp10.server.session import Session

ACCEPTED: Final = "amqp:accepted:list"
REJECTED: Final = "amqp:rejected:list"
RELEASED: Final = "amqp:released:list"
MODIFIED: Final = "amqp:modified:list"
ALL: Final = (ACCEPTED, REJECTED, RELEASED, MODIFIED)


class Outcome:
    """A terminal state. `keeps_order`: a few at once are taken first to last; what goes back goes last to first.

    `changes`: the message may be written anew.
    """

    def __init__(self, state: Composite) -> None:
        self.state = state
        self.name: str = state.NAME
        self.is_accepted = self.name == ACCEPTED
        self.keeps_order = self.name in {ACCEPTED, REJECTED}
        self.changes = isinstance(state, (Rejected, Modified))
        self.encoded = state.encode()

    def apply(self, link: "OutgoingLink", entry: Entry) -> None:
        """Do to the message what the outcome says."""
        state = self.state
        if isinstance(state, Accepted):
            entry.queue.accept(entry)
        elif isinstance(state, Rejected):
            if link.connection.host.limits.is_strict_amqp10:
                entry.queue.amend(entry, _head_of(entry.message, rejection(entry, state)), failed=False)
            entry.queue.reject(entry)
        elif isinstance(state, Modified):
            changes = _changes(entry.message, state.message_annotations or {})
            entry.queue.amend(entry, changes, failed=state.delivery_failed)
            if state.undeliverable_here and not link.shun(entry):
                # As RabbitMQ 4: dead-lettered or dropped, rather than kept where nobody can take it.
                entry.queue.reject(entry)
                return
            entry.queue.release(entry, failed=state.delivery_failed)
        else:
            entry.queue.release(entry, failed=False)


def outcome_of(state: Composite | Described | None) -> Outcome | None:
    """The outcome that a state is; None if it is not terminal."""
    if isinstance(state, COMPOSITE) and isinstance(state, (Accepted, Rejected, Released, Modified)):
        return Outcome(state)
    if state is None or isinstance(state, Received):
        return None
    raise link_fault(ILLEGAL_STATE, "a delivery state that is no outcome of this link")


def _changes(message: Message, changes: dict[str, object]) -> bytes:
    """The annotations of a message, some added and replaced (3.4.5); none for one of another protocol."""
    if not changes or message.format is not AMQP10:
        return b""
    return _head_of(message, {Symbol(name): value for name, value in changes.items()})


def _head_of(message: Message, annotations: dict[object, object]) -> bytes:
    """What stands before the bare message, with these annotations; nothing for a message of another protocol."""
    if message.format is not AMQP10:
        return b""
    content = with_annotations(message.content, annotations)
    facts = MessageFacts()
    scan_message(content, 0, len(content), facts)
    return content[: facts.message_annotations_end]


def settle(
    session: "Session", link: "OutgoingLink", number: i64, entry: Entry, outcome: Outcome | None, *, settled: bool
) -> None:
    """A disposition for one delivery. Raises a link fault for an outcome that was not agreed upon."""
    if outcome is None:
        if not settled:
            return
        # Settled without a terminal state: the default outcome (3.5.3).
        outcome = link.default_outcome
    elif outcome.name not in link.outcomes:
        raise link_fault(NOT_ALLOWED, f"{outcome.name} is not among the outcomes of this link")
    del session.unsettled[number]
    outcome.apply(link, entry)
    if not settled:
        session.settled_by_us(number, outcome.state.encode())
    link.settled_later()
