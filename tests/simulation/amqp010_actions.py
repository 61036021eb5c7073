"""What a 0-10 client does of its own accord, one function an action. The habits of an actor say how often."""

from typing import Final

from tests.simulation.actor import FANOUT, Actor
from tests.simulation.amqp010_branches import decide, end_branch, leave_branches, start_branch, take_up_branches
from tests.simulation.amqp010_client import Action, Client
from tests.simulation.amqp010_frames import ranges_of, unwrapped, write_header
from tests.simulation.amqp010_session import UNLIMITED, Conversation, Receiving, Session, Taken
from tests.simulation.branches import Branch
from tests.simulation.message import Message
from tests.simulation.queues import FOREVER, QueueSpec
from tests.simulation.subscription import Subscription
from waybill.wire.amqp010.class_dtx import DtxSelect
from waybill.wire.amqp010.class_exchange import ExchangeBind, ExchangeDeclare
from waybill.wire.amqp010.class_execution import ExecutionSync
from waybill.wire.amqp010.class_message import (
    Acquired,
    DeliveryProperties,
    MessageAccept,
    MessageAcquire,
    MessageCancel,
    MessageFlow,
    MessageFlush,
    MessageReject,
    MessageRelease,
    MessageSetFlowMode,
    MessageStop,
    MessageSubscribe,
    MessageTransfer,
)
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueQuery, QueueQueryResult
from waybill.wire.amqp010.class_session import SessionFlush
from waybill.wire.amqp010.class_tx import TxCommit, TxRollback, TxSelect
from waybill.wire.amqp010.constants import FLOW_CREDIT, FLOW_WINDOW, UNIT_BYTE, UNIT_MESSAGE

# What an actor does no more once the run calms down.
RESTLESS: Final = frozenset({"cancel", "stop", "look", "reattach", "close", "roll_back", "release"})
DEFAULT_CREDIT: Final = 10
OCTETS: Final = 12_000
"""More than any message takes."""


def make_client(actor: Actor, name: str) -> Client:
    return Client(actor, name, ACTIONS, RESTLESS, open_session, leave)


# --- the beginning and the end ---


def open_session(session: Session) -> Conversation:
    """What a new session begins with. Branches that an earlier one has left in doubt come first."""
    habits = session.actor.habits
    yield from take_up_branches(session)
    _declare(session)
    yield session.ask(ExecutionSync())
    if habits.transacts:
        yield session.ask(TxSelect())
        session.transaction = session.ledger.begin()
    elif habits.distributes:
        yield session.ask(DtxSelect())
    for name in habits.consumes:
        yield from _subscribe(session, session.ledger.queues[name])
    session.may_publish = session.may_settle = True


def leave(session: Session) -> Conversation:
    """Leave nothing behind."""
    session.may_publish = session.may_settle = False
    yield from leave_branches(session)


def _declare(session: Session) -> None:
    session.send(ExchangeDeclare(FANOUT, "fanout", durable=True))
    for queue in session.ledger.public_queues():
        session.send(QueueDeclare(queue.name, durable=queue.durable, arguments=dict(queue.arguments) or None))
        if not (queue.is_dead_end or queue.is_roaming):
            session.send(ExchangeBind(queue.name, FANOUT, ""))


def _subscribe(session: Session, queue: QueueSpec) -> Conversation:
    habits, random, ledger = session.actor.habits, session.random, session.ledger
    session.destinations_made += 1
    destination = f"{queue.name}.{session.destinations_made}"
    no_ack = habits.no_ack
    if no_ack:
        ledger.lossy.add(queue.name)
    subscription = Subscription(queue, 0, no_ack, f"{session.name}.{destination}", priority=habits.priority)
    receiving = Receiving(subscription, random.random() < 0.5, no_ack)
    session.receiving[destination] = receiving
    arguments: dict[str, object] | None = {"x-priority": habits.priority} if habits.priority else None
    session.send(MessageSubscribe(queue.name, destination, int(no_ack), 0, arguments=arguments))
    session.send(MessageSetFlowMode(destination, FLOW_WINDOW if receiving.is_window else FLOW_CREDIT))
    _grant(session, destination, habits.prefetch or DEFAULT_CREDIT, random.choice((UNLIMITED, OCTETS, 2 * OCTETS)))
    yield session.ask(ExecutionSync())
    if session.receiving.get(destination) is receiving:
        ledger.subscribed(subscription, session.now)


def _grant(session: Session, destination: str, messages: int, octets: int) -> None:
    receiving = session.receiving[destination]
    receiving.grant(messages=messages, octets=octets)
    if octets:
        session.send(MessageFlow(destination, UNIT_BYTE, octets))
    if messages:
        session.send(MessageFlow(destination, UNIT_MESSAGE, messages))


# --- publishing ---


def publish(client: Client) -> None:
    """A burst of messages, as far as the window of unconfirmed ones goes."""
    actor, habits, session = client.actor, client.actor.habits, client.session
    for _ in range(client.random.randint(1, habits.burst)):
        is_full = not habits.targets or session.pending_count >= habits.window
        if is_full or not session.may_publish or actor.published >= actor.publish_limit:
            return
        actor.published += 1
        _publish_one(session)


def _publish_one(session: Session) -> None:
    actor, habits, ledger, random = session.actor, session.actor.habits, session.ledger, session.random
    target = random.choice(habits.targets)
    exchange, routing_key, queues = None, target, [target]
    if target == FANOUT:
        exchange, routing_key = FANOUT, ""
        queues = [queue.name for queue in ledger.public_queues() if not queue.is_dead_end]
    key = f"{actor.name}#{actor.published}"
    size = random.randrange(habits.body_bytes)
    body = f"{key} ".encode() + random.randbytes(4) * (size // 4)
    branch = session.branch
    message = Message(
        key,
        session.name if branch is None else f"{session.name}.{branch.xid!r}",
        actor.published,
        body,
        persistent=random.random() < 0.85,
        priority=random.randrange(2, 8),
        sent_at=session.now,
        routed_after=session.now,
        published_in=ledger.life,
        has_ten_priorities=True,
        is_once=True,
    )
    ledger.publish(message, queues, habits.ttl_s, is_bound=target == FANOUT)
    if session.transaction is not None:
        session.transaction.messages.append(message)
        message.transaction = session.transaction
    properties = DeliveryProperties(
        routing_key=routing_key,
        priority=message.priority,
        delivery_mode=2 if message.persistent else 1,
        ttl=None if habits.ttl_s == FOREVER else round(habits.ttl_s * 1000),
    )
    is_explicit = random.random() < 0.5
    transfer = MessageTransfer(exchange, int(not is_explicit), 0)
    sent = session.send(transfer, write_header(key, properties), body, sync=random.random() < 0.1, message=message)
    sent.is_explicit = is_explicit


# --- consuming ---


def grant(client: Client) -> None:
    """Give credit again where half of it is used, or where it was taken back."""
    session = client.session
    messages = client.actor.habits.prefetch or DEFAULT_CREDIT
    for destination, receiving in session.receiving.items():
        is_low = receiving.messages <= messages // 2
        needs_octets = receiving.counts_octets and receiving.octets < OCTETS
        if receiving.is_window:
            is_low = needs_octets = receiving.messages == 0 and not receiving.in_window
        if session.may_settle and not receiving.is_cancelled and (is_low or needs_octets):
            _grant(session, destination, messages if is_low else 0, OCTETS if needs_octets else 0)


def _settleable(session: Session) -> list[Taken]:
    """What may be settled now, oldest first."""
    if not session.may_settle:
        return []
    return [taken for taken in session.taken.values() if not taken.is_staged]


def accept(client: Client) -> None:
    """Accept some, or all; in a transaction that counts once it is committed."""
    session, random = client.session, client.random
    settleable = _settleable(session)
    if settleable and random.random() < 0.5:
        settleable = random.sample(settleable, random.randint(1, len(settleable)))
        settleable.sort(key=lambda taken: taken.count)
    if not settleable:
        return
    transaction = session.transaction
    for taken in settleable:
        if transaction is None:
            session.settled(taken.copy)
        if isinstance(transaction, Branch):
            transaction.settled.append(taken.copy)
        if transaction is None or isinstance(transaction, Branch):
            del session.taken[taken.count]
        else:
            taken.is_staged = True
    counts = [taken.count for taken in settleable]
    if random.random() < 0.3:
        for count in counts:
            session.send(MessageAccept(ranges_of([count])))
    else:
        session.send(MessageAccept(ranges_of(counts)), sync=random.random() < 0.5)


def release(client: Client) -> None:
    """Give one delivery back, as delivered or as if it had never been."""
    session = client.session
    settleable = _settleable(session)
    if not settleable:
        return
    taken = client.random.choice(settleable)
    del session.taken[taken.count]
    is_marked = client.random.random() < 0.6
    if not is_marked and not taken.redelivered:
        taken.copy.came_back = True
        taken.copy.unflagged = max(taken.copy.unflagged - 1, 0)
    session.send(MessageRelease(ranges_of([taken.count]), set_redelivered=is_marked))


def reject(client: Client) -> None:
    """Refuse one delivery for good."""
    session = client.session
    settleable = _settleable(session)
    if not settleable:
        return
    taken = client.random.choice(settleable)
    del session.taken[taken.count]
    if taken.copy.queue.dead_letter_to is None:
        session.settled(taken.copy)
    else:
        taken.copy.reject_sent = True
    session.send(MessageReject(ranges_of([taken.count]), 0, ""))


def look(client: Client) -> None:
    """Look at what is in a queue, and acquire some of it."""
    session = client.session
    queues = [session.ledger.queues[name] for name in client.actor.habits.consumes]
    queues = [queue for queue in queues if queue.is_steady]
    if queues and session.may_settle and not client.is_talking:
        session.converse(_look(session, client.random.choice(queues)))


def _look(session: Session, queue: QueueSpec) -> Conversation:
    session.destinations_made += 1
    destination = f"look.{session.destinations_made}"
    subscription = Subscription(queue, 0, no_ack=False, name=destination)
    # It is cancelled soon, and gets no other credit.
    session.receiving[destination] = Receiving(subscription, is_window=False, no_ack=False, is_cancelled=True)
    session.send(MessageSubscribe(queue.name, destination, 0, 1))
    session.send(MessageSetFlowMode(destination, FLOW_CREDIT))
    _grant(session, destination, session.random.randint(1, 10), UNLIMITED)
    yield session.ask(MessageFlush(destination))
    if session.seen:
        counts = sorted(session.random.sample(list(session.seen), session.random.randint(1, len(session.seen))))
        sent_after = session.sent_after
        acquired = yield session.ask(MessageAcquire(ranges_of(counts)))
        if isinstance(acquired, Acquired):
            for first, last in acquired.transfers:
                for number in range(unwrapped(first, session.next_in), unwrapped(last, session.next_in) + 1):
                    copy = session.seen[number]
                    comes_again = session.ledger.acquire(copy, sent_after)
                    session.taken[number] = Taken(copy, number, comes_again)
    yield session.ask(MessageCancel(destination))
    session.seen.clear()
    session.receiving.pop(destination, None)


def stop(client: Client) -> None:
    """Take all credit back, or have it used up as far as there are messages."""
    session = client.session
    destinations = [name for name, receiving in session.receiving.items() if not receiving.is_cancelled]
    if destinations and session.may_settle and not client.is_talking:
        session.converse(_stop(session, client.random.choice(destinations)))


def _stop(session: Session, destination: str) -> Conversation:
    session.may_settle = False
    command = MessageStop(destination) if session.random.random() < 0.5 else MessageFlush(destination)
    yield session.ask(command)
    if destination in session.receiving:
        session.receiving[destination].stopped()
    session.may_settle = True


def cancel(client: Client) -> None:
    """End a subscription, and subscribe again."""
    session = client.session
    destinations = [name for name, receiving in session.receiving.items() if not receiving.is_cancelled]
    if destinations and session.may_settle and not client.is_talking:
        session.converse(_cancel(session, client.random.choice(destinations)))


def _cancel(session: Session, destination: str) -> Conversation:
    receiving = session.receiving[destination]
    receiving.is_cancelled = True
    session.ledger.consumers.remove(receiving.subscription)
    yield session.ask(MessageCancel(destination))
    del session.receiving[destination]
    yield from _subscribe(session, receiving.subscription.queue)


# --- transactions ---


def commit(client: Client) -> None:
    session = client.session
    if not client.is_talking and session.transaction is not None and session.may_publish:
        session.converse(_commit(session))


def _commit(session: Session) -> Conversation:
    transaction, ledger = session.transaction, session.ledger
    if transaction is None:
        return
    session.may_publish = session.may_settle = False
    for taken in [taken for taken in session.taken.values() if taken.is_staged]:
        transaction.settled.append(taken.copy)
        del session.taken[taken.count]
    ledger.committing(transaction, session.now)
    yield session.ask(TxCommit())
    ledger.committed(transaction, session.now)
    session.transaction = ledger.begin()
    session.may_publish = session.may_settle = True


def roll_back(client: Client) -> None:
    session = client.session
    if not client.is_talking and session.transaction is not None and session.may_publish:
        session.converse(_roll_back(session))


def _roll_back(session: Session) -> Conversation:
    if session.transaction is None:
        return
    session.may_publish = session.may_settle = False
    session.ledger.rolled_back(session.transaction)
    yield session.ask(TxRollback())
    # What was accepted in it is held as before.
    for taken in session.taken.values():
        taken.is_staged = False
    session.transaction = session.ledger.begin()
    session.may_publish = session.may_settle = True


def begin_branch(client: Client) -> None:
    """Work in a branch of a distributed transaction from now on."""
    session = client.session
    if not client.is_talking and session.may_publish and session.transaction is None:
        session.converse(start_branch(session))


def finish_branch(client: Client) -> None:
    """Prepare the branch, or end it in one phase."""
    session = client.session
    if not client.is_talking and session.may_publish and session.branch is not None:
        session.converse(end_branch(session))


def decide_branch(client: Client) -> None:
    """Commit or roll back a branch that is prepared."""
    session = client.session
    if not client.is_talking and session.may_publish and session.prepared:
        session.converse(decide(session, client.random.choice(session.prepared)))


# --- sessions and connections ---


def ask(client: Client) -> None:
    """Ask how far the broker is, or how many messages wait in a queue."""
    session = client.session
    if client.is_talking:
        return
    if client.random.random() < 0.3:
        client.control(SessionFlush(expected=True, confirmed=True, completed=True))
        return
    session.converse(_ask(session))


def _ask(session: Session) -> Conversation:
    limited = [queue for queue in session.ledger.public_queues() if queue.max_length is not None]
    if limited and session.random.random() < 0.5:
        queue = session.random.choice(limited)
        answer = yield session.ask(QueueQuery(queue.name))
        if isinstance(answer, QueueQueryResult):
            session.ledger.check_count(queue.name, answer.message_count)
    else:
        yield session.ask(ExecutionSync())


def reattach(client: Client) -> None:
    if not client.is_talking and client.actor.habits.outlives_s:
        client.reattach()


def close(client: Client) -> None:
    if not client.is_talking:
        client.begin_close()


def pause(client: Client) -> None:
    del client


ACTIONS: Final[dict[str, Action]] = {
    action.__name__: action
    for action in (
        publish,
        grant,
        accept,
        release,
        reject,
        look,
        stop,
        cancel,
        commit,
        roll_back,
        begin_branch,
        finish_branch,
        decide_branch,
        ask,
        reattach,
        close,
        pause,
    )
}
