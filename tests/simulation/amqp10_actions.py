"""What a 1.0 client does of its own accord, one function an action. The habits of an actor say how often."""

from typing import Final

from tests.simulation.actor import Actor
from tests.simulation.amqp10_client import Action, Client, Conversation
from tests.simulation.amqp10_coordinator import declare, request
from tests.simulation.amqp10_links import AnyLink, ReceivingLink, SendingLink, Sent, Staged, Taken
from tests.simulation.message import Message, Transaction
from tests.simulation.queues import FOREVER
from tests.simulation.violation import Violation
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Released
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, ROLE_SENDER, Disposition, Flow, Transfer
from waybill.wire.amqp10.sections import encode_data
from waybill.wire.amqp10.transactions import TXN_ID, Discharge, TransactionalState

# What an actor does no more once the run calms down.
RESTLESS: Final = frozenset({"detach", "restart_session", "close", "roll_back", "modify", "drain"})
DEFAULT_CREDIT: Final = 10


def make_client(actor: Actor, name: str) -> Client:
    return Client(actor, name, ACTIONS, RESTLESS)


# --- publishing ---


def publish(client: Client) -> None:
    """A burst of messages, as far as the window of unconfirmed ones, credit and the session's window go."""
    actor, habits = client.actor, client.actor.habits
    links = [link for link in client.senders.values() if link.is_attached]
    if not links:
        return
    for _ in range(client.random.randint(1, habits.burst)):
        is_full = client.pending_count >= habits.window
        if is_full or not client.may_publish or actor.published >= actor.publish_limit:
            return
        link = client.random.choice(links)
        client.push(link)
        if link.partial is None and not link.resuming and link.credit > 0 and client.window > 0:
            actor.published += 1
            _publish_one(client, link)


def _publish_one(client: Client, link: SendingLink) -> None:
    actor, habits, ledger, random = client.actor, client.actor.habits, client.ledger, client.random
    key = f"{actor.name}#{actor.published}"
    size = random.randrange(habits.body_bytes)
    body = f"{key} ".encode() + random.randbytes(4) * (size // 4)
    message = Message(
        key,
        f"{client.name}.{link.name}.{link.handle}",
        actor.published,
        body,
        persistent=random.random() < 0.85,
        priority=random.randrange(2, 8),
        sent_at=client.now,
        routed_after=client.now,
        published_in=ledger.life,
        has_ten_priorities=True,
        is_once=link.resumes,
    )
    ledger.publish(message, [link.queue.name], habits.ttl_s, is_bound=False)
    header = Header(
        message.persistent, message.priority, None if habits.ttl_s == FOREVER else round(habits.ttl_s * 1000)
    )
    sent = Sent(message, key.encode(), header.encode() + Properties(message_id=key).encode() + encode_data(body))
    if client.transaction is not None:
        client.transaction.messages.append(message)
        message.transaction = client.transaction
        client.begin_delivery(link, sent, state=TransactionalState(client.transaction_id))
    else:
        client.begin_delivery(link, sent, settled=None if habits.confirms or link.resumes else True)
    if habits.confirms or link.resumes:
        link.sending.unsettled[sent.tag] = sent
        client.sent[sent.number] = link, sent
    client.push(link)


def go_on(client: Client) -> None:
    """Send the next pieces of what was begun; sometimes think better of it."""
    for link in client.senders.values():
        sent = link.partial
        is_begun = sent is not None and link.opening is None and sent.message.transaction is None
        may_abort = is_begun and link.is_attached and client.window > 0
        if sent is not None and may_abort and client.random.random() < 0.2:
            client.send_transfer(Transfer(link.handle, aborted=True), b"")
            client.ledger.abandon(sent.message)
            link.partial = None
            client.sent.pop(sent.number, None)
            link.sending.unsettled.pop(sent.tag, None)
        client.push(link)


def settle_sent(client: Client) -> None:
    """Settle what the broker has given an outcome, on links where it waits for that."""
    for link in client.senders.values():
        # One of an earlier connection that waits to be resumed has a number that means another delivery on this one.
        decided = [
            sent
            for sent in link.sending.unsettled.values()
            if sent.outcome is not None and client.sent.get(sent.number) == (link, sent)
        ]
        for sent in decided:
            client.send(Disposition(ROLE_SENDER, sent.number, settled=True, state=sent.outcome))
            del client.sent[sent.number]
            del link.sending.unsettled[sent.tag]


# --- consuming ---


def grant(client: Client) -> None:
    """Give credit again to whoever has used most of it; in a transaction, sometimes to acquire in it."""
    credit = client.actor.habits.prefetch or DEFAULT_CREDIT
    for link in client.receivers.values():
        if link.is_attached and link is not client.asked and link.credit <= credit // 2:
            link.credit = credit
            properties = None
            if client.transaction is not None and client.may_settle and client.random.random() < 0.5:
                properties = {TXN_ID: client.transaction_id}
            client.send_flow(
                handle=link.handle, delivery_count=link.delivery_count, link_credit=credit, properties=properties
            )


def _settleable(client: Client) -> list[tuple[ReceivingLink, Taken]]:
    """What may get an outcome now, oldest first."""
    if not client.may_settle:
        return []
    return [
        (link, taken)
        for link, taken in client.taken.values()
        if link.is_attached and taken.state is None and not taken.is_staged
    ]


def _dispose(client: Client, link: ReceivingLink, taken: Taken, outcome: Composite) -> None:
    """Send an outcome, and note what may come of it."""
    is_settled = client.random.random() < 0.8
    if client.transaction is not None:
        taken.is_staged = True
        client.staged.append((link, taken, outcome, is_settled))
        state = TransactionalState(client.transaction_id, outcome)
        client.send(Disposition(ROLE_RECEIVER, taken.number, settled=is_settled, state=state))
        return
    client.send(Disposition(ROLE_RECEIVER, taken.number, settled=is_settled, state=outcome))
    taken.state = outcome
    if is_settled or not link.resumes:
        del link.holding.unsettled[taken.tag]
        del client.taken[taken.number]
    copy = taken.copy
    if isinstance(outcome, Accepted) or (isinstance(outcome, Rejected) and copy.queue.dead_letter_to is None):
        client.settles.sent(copy)
    else:
        _note_return(link, taken, outcome)


def _note_return(link: ReceivingLink, taken: Taken, outcome: Composite) -> None:
    copy = taken.copy
    if isinstance(outcome, Rejected):
        copy.reject_sent = True
    elif isinstance(outcome, Modified):
        copy.free_deliveries -= outcome.delivery_failed
        if outcome.undeliverable_here:
            link.shunned.add(copy)
            # Where no other consumer is there to take it, that is a rejection.
            copy.reject_sent = True


def accept(client: Client) -> None:
    """Accept some, or all."""
    settleable = _settleable(client)
    if settleable and client.random.random() < 0.5:
        settleable = client.random.sample(settleable, client.random.randint(1, len(settleable)))
    for link, taken in settleable:
        _dispose(client, link, taken, Accepted())


def release(client: Client) -> None:
    _dispose_one(client, Released())


def modify(client: Client) -> None:
    settleable = _settleable(client)
    if not settleable:
        return
    random = client.random
    link, taken = random.choice(settleable)
    failed, undeliverable_here = random.random() < 0.7, random.random() < 0.2
    # Undeliverable here may be undeliverable at all: then it is dropped where nothing takes dead letters.
    has_way_out = taken.copy.queue.dead_letter_to is not None
    _dispose(client, link, taken, Modified(failed, undeliverable_here and has_way_out))


def reject(client: Client) -> None:
    _dispose_one(client, Rejected())


def _dispose_one(client: Client, outcome: Composite) -> None:
    settleable = _settleable(client)
    if settleable:
        link, taken = client.random.choice(settleable)
        _dispose(client, link, taken, outcome)


# --- transactions ---


def commit(client: Client) -> None:
    if not client.is_talking and client.transaction is not None and client.window > 1 and not _is_sending(client):
        client.converse(_commit(client))


def _is_sending(client: Client) -> bool:
    return any(link.partial is not None for link in client.senders.values())


def _commit(client: Client) -> Conversation:
    transaction, ledger = client.transaction, client.ledger
    if transaction is None:
        return
    client.may_publish = client.may_settle = False
    staged, client.staged = client.staged, []
    acquired = [(link, taken) for link, taken in client.taken.values() if taken.is_acquired]
    for link, taken, outcome, _ in staged:
        copy = taken.copy
        if isinstance(outcome, Accepted) or (isinstance(outcome, Rejected) and copy.queue.dead_letter_to is None):
            transaction.settled.append(copy)
        else:
            _note_return(link, taken, outcome)
        # What goes back may come again before the answer does.
        _forget(client, link, taken)
    for _, taken in acquired:
        taken.is_acquired = False
    ledger.committing(transaction, client.now)
    answer = yield from request(client, Discharge(client.transaction_id))
    if isinstance(answer.state, Accepted):
        ledger.committed(transaction, client.now)
    elif isinstance(answer.state, Rejected) and transaction.could_fail():
        _commit_failed(client, transaction, staged, acquired)
    else:
        raise Violation("a correct client gets no error", f"{client.name}: {answer}")
    yield from declare(client)
    client.may_publish = client.may_settle = True


def _commit_failed(
    client: Client, transaction: Transaction, staged: list[Staged], acquired: list[tuple[ReceivingLink, Taken]]
) -> None:
    """The broker has rolled it back: what was not settled with its outcome is held as before."""
    client.ledger.rolled_back(transaction)
    client.ledger.departed()
    for copy in transaction.settled:
        copy.settle_sent = False
    for link, taken, _, is_settled in staged:
        link.shunned.discard(taken.copy)
        if not is_settled:
            taken.is_staged = False
            link.holding.unsettled[taken.tag] = taken
            client.taken[taken.number] = link, taken
    for link, taken in acquired:
        _forget(client, link, taken)


def _forget(client: Client, link: ReceivingLink, taken: Taken) -> None:
    """The client does not hold a delivery any more."""
    link.holding.unsettled.pop(taken.tag, None)
    client.taken.pop(taken.number, None)


def roll_back(client: Client) -> None:
    if not client.is_talking and client.transaction is not None and client.window > 1 and not _is_sending(client):
        client.converse(_roll_back(client))


def _roll_back(client: Client) -> Conversation:
    if client.transaction is None:
        return
    client.may_publish = client.may_settle = False
    staged, client.staged = client.staged, []
    client.ledger.rolled_back(client.transaction)
    gone = [(link, taken) for link, taken, _, is_settled in staged if is_settled]
    client.ledger.departed()
    yield from request(client, Discharge(client.transaction_id, fail=True))
    gone += [(link, taken) for link, taken in client.taken.values() if taken.is_acquired]
    for link, taken in gone:
        _forget(client, link, taken)
    client.ledger.departed()
    for _, taken, _, _ in staged:
        taken.is_staged = False
    yield from declare(client)
    client.may_publish = client.may_settle = True


# --- links and sessions ---


def ask(client: Client) -> None:
    """Ask for a flow: the answer tells what was sent before and what after it, and counts as we do."""
    links = [link for link in client.receivers.values() if link.is_attached]
    if links and not client.is_talking:
        client.converse(_ask(client, client.random.choice(links), drains=False))


def drain(client: Client) -> None:
    """Have the credit used up or given back."""
    links = [link for link in client.receivers.values() if link.is_attached]
    if links and not client.is_talking:
        client.converse(_ask(client, client.random.choice(links), drains=True))


def _ask(client: Client, link: ReceivingLink, *, drains: bool) -> Conversation:
    credit = link.credit + (client.random.randint(0, 5) if drains else 0)
    link.credit = credit
    client.send_flow(
        handle=link.handle, delivery_count=link.delivery_count, link_credit=credit, drain=drains, echo=not drains
    )
    limit = link.delivery_count + credit
    client.asked = link
    answer: Flow | None = (
        yield lambda answer: not link.is_attached or (isinstance(answer, Flow) and answer.handle == link.handle)
    )
    client.asked = None
    if not isinstance(answer, Flow) or not link.is_attached:
        return
    said = answer.delivery_count or 0
    if drains:
        if answer.link_credit != 0 or said != limit:
            raise Violation("a drain leaves no credit", f"{link.name}: {answer} of {limit}")
        link.delivery_count, link.credit = said, 0
    elif link.delivery_count + link.credit == limit and said != link.delivery_count:
        raise Violation("both ends count alike", f"{link.name}: {answer}, not {link.delivery_count}")


def detach(client: Client) -> None:
    """Detach a link, for good or not, and attach it again."""
    links = [link for link in client.links if link.is_attached]
    links = [link for link in links if not (isinstance(link, SendingLink) and (link.pending and not link.resumes))]
    if links and not client.is_talking:
        client.converse(_detach(client, client.random.choice(links)))


def _detach(client: Client, link: AnyLink) -> Conversation:
    is_idle = not (isinstance(link, SendingLink) and link.pending)
    yield from client.detach(link, closed=is_idle and client.random.random() < 0.3)
    yield from client.reattach(link)


def restart_session(client: Client) -> None:
    if not client.is_talking:
        client.converse(client.restart_session())


def close(client: Client) -> None:
    if not client.is_talking:
        client.begin_close()


def pause(client: Client) -> None:
    del client


ACTIONS: Final[dict[str, Action]] = {
    action.__name__: action
    for action in (
        publish,
        go_on,
        settle_sent,
        grant,
        accept,
        release,
        modify,
        reject,
        commit,
        roll_back,
        ask,
        drain,
        detach,
        restart_session,
        close,
        pause,
    )
}
