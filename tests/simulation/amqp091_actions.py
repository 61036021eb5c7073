"""What a 0-9-1 client does of its own accord, one function an action. The habits of an actor say how often."""

from typing import Final

from tests.simulation.actor import FANOUT, Actor
from tests.simulation.amqp091_channel import ACK, REJECT, REQUEUE
from tests.simulation.amqp091_client import Action, Client, Conversation
from tests.simulation.amqp091_frames import Content
from tests.simulation.message import Message
from tests.simulation.queues import FOREVER, QueueSpec
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverOk,
    BasicReject,
)
from waybill.wire.amqp091.methods_queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk
from waybill.wire.amqp091.properties import BasicProperties

POLLED_MAX: Final = 20
# What an actor does no more once the run calms down.
RESTLESS: Final = frozenset({"cancel", "reopen", "close", "purge", "delete", "rebind", "roll_back"})


def make_client(actor: Actor, name: str) -> Client:
    return Client(actor, name, ACTIONS, RESTLESS)


# --- publishing ---


def publish(client: Client) -> None:
    """A burst of messages, as far as the window of unconfirmed ones goes."""
    actor, habits, channel = client.actor, client.actor.habits, client.channel
    if client.is_blocked and habits.heeds_blocked:
        return
    for _ in range(client.random.randint(1, habits.burst)):
        is_full = channel.pending_count >= habits.window
        if is_full or not channel.may_publish or actor.published >= actor.publish_limit:
            return
        actor.published += 1
        _publish_one(client)


def _publish_one(client: Client) -> None:
    actor, habits, channel, ledger = client.actor, client.actor.habits, client.channel, client.ledger
    random = client.random
    targets = list(habits.targets) if channel.private is None else [*habits.targets, channel.private.name]
    target = random.choice(targets)
    exchange, routing_key, queues = "", target, [target]
    if target == FANOUT:
        exchange, routing_key = FANOUT, ""
        queues = [queue.name for queue in ledger.public_queues() if not queue.is_dead_end]
    key = f"{actor.name}#{actor.published}"
    size = random.randrange(habits.body_bytes)
    body = f"{key} ".encode() + random.randbytes(4) * (size // 4)
    message = Message(
        key,
        channel.name,
        actor.published,
        body,
        persistent=random.random() < 0.85,
        priority=random.randrange(4),
        sent_at=client.now,
        routed_after=client.now,
        published_in=ledger.life,
    )
    ledger.publish(message, queues, habits.ttl_s, is_bound=target == FANOUT)
    channel.published(message, awaits_confirm=habits.confirms)
    is_routable = any(ledger.queues[name].is_steady for name in queues)
    properties = BasicProperties(
        delivery_mode=2 if message.persistent else 1,
        message_id=key,
        priority=message.priority,
        expiration=None if habits.ttl_s == FOREVER else str(round(habits.ttl_s * 1000)),
    )
    method = BasicPublish(exchange, routing_key, mandatory=is_routable and random.random() < 0.5)
    client.send_content(method, Content(method, properties, body=bytearray(body)))


# --- settling ---


def ack(client: Client) -> None:
    """Settle one delivery or many, in any order."""
    channel, random = client.channel, client.random
    tags = channel.settleable(once_only=False)
    if not tags:
        return
    if random.random() < 0.3:
        tag = random.choice(tags)
        client.send(BasicAck(tag, multiple=True))
        tags = [other for other in tags if other <= tag]
    else:
        tags = random.sample(tags, random.randint(1, len(tags)))
        for tag in tags:
            client.send(BasicAck(tag))
    for tag in tags:
        channel.settle(tag, ACK)


def ack_all(client: Client) -> None:
    for tag in client.channel.settleable(once_only=False):
        client.send(BasicAck(tag))
        client.channel.settle(tag, ACK)


def nack(client: Client) -> None:
    """Give one delivery or many back."""
    channel, random = client.channel, client.random
    tags = channel.settleable(once_only=True)
    if not tags:
        return
    tag = random.choice(tags)
    if random.random() < 0.3 and len(tags) == len(channel.settleable(once_only=False)):
        client.send(BasicNack(tag, multiple=True, requeue=True))
        for other in [other for other in tags if other <= tag]:
            channel.settle(other, REQUEUE)
        return
    client.send(BasicReject(tag, requeue=True) if random.random() < 0.5 else BasicNack(tag))
    channel.settle(tag, REQUEUE)


def reject(client: Client) -> None:
    """Refuse one delivery for good."""
    tags = client.channel.settleable(once_only=True)
    if tags:
        tag = client.random.choice(tags)
        client.send(BasicReject(tag, requeue=False))
        client.channel.settle(tag, REJECT)


def get(client: Client) -> None:
    if not client.is_talking and client.outstanding_count < POLLED_MAX:
        queues = [queue for queue in client.ledger.public_queues() if not queue.is_stream]
        if queues:
            client.converse(_get(client, client.random.choice(queues)))


def _get(client: Client, queue: QueueSpec) -> Conversation:
    client.send(BasicGet(queue.name))
    answer = yield (BasicGetOk, BasicGetEmpty)
    if isinstance(answer, Content) and isinstance(answer.method, BasicGetOk):
        client.took(answer, queue, None, answer.method.delivery_tag, redelivered=answer.method.redelivered)


def recover(client: Client) -> None:
    if not client.is_talking and client.channel.transaction is None:
        client.converse(_recover(client))


def _recover(client: Client) -> Conversation:
    # All that comes before the answer was sent before the broker took it back.
    channel = client.channel
    channel.may_settle = False
    client.send(BasicRecover(requeue=True))
    yield BasicRecoverOk
    client.ledger.departed()
    for tag in list(channel.outstanding):
        channel.forget(tag)
    channel.may_settle = True


# --- transactions ---


def commit(client: Client) -> None:
    if not client.is_talking and client.channel.transaction is not None:
        client.converse(_commit(client))


def _commit(client: Client) -> Conversation:
    channel, ledger = client.channel, client.ledger
    transaction = channel.transaction
    if transaction is None:
        return
    channel.may_publish = channel.may_settle = False
    channel.commit_staged()
    ledger.committing(transaction, client.now)
    yield client.ask(TxCommit(), TxCommitOk)
    ledger.committed(transaction, client.now)
    channel.transaction = ledger.begin()
    channel.may_publish = channel.may_settle = True


def roll_back(client: Client) -> None:
    if not client.is_talking and client.channel.transaction is not None:
        client.converse(_roll_back(client))


def _roll_back(client: Client) -> Conversation:
    channel, ledger = client.channel, client.ledger
    if channel.transaction is None:
        return
    channel.may_publish = channel.may_settle = False
    ledger.rolled_back(channel.transaction)
    yield client.ask(TxRollback(), TxRollbackOk)
    channel.staged.clear()
    channel.transaction = ledger.begin()
    channel.may_publish = channel.may_settle = True


# --- consumers and channels ---


def ask(client: Client) -> None:
    """Ask for nothing: the answer tells what was sent before and what after it."""
    if not client.is_talking:
        client.converse(_ask(client))


def _ask(client: Client) -> Conversation:
    limited = [queue for queue in client.ledger.public_queues() if queue.max_length is not None]
    if limited and client.random.random() < 0.5:
        queue = client.random.choice(limited)
        answer = yield client.ask(QueueDeclare(queue.name, passive=True), QueueDeclareOk)
        client.ledger.check_count(queue.name, answer.message_count)
    else:
        yield client.ask(BasicQos(client.actor.habits.prefetch_octets, client.actor.habits.prefetch), BasicQosOk)


def cancel(client: Client) -> None:
    if not client.is_talking and client.channel.subscriptions:
        client.converse(_cancel(client))


def _cancel(client: Client) -> Conversation:
    channel = client.channel
    for tag, subscription in list(channel.subscriptions.items()):
        if tag not in channel.subscriptions:
            continue  # Its queue was deleted meanwhile.
        if subscription.queue is channel.private:
            channel.private_ended()
        yield client.ask(BasicCancel(tag), BasicCancelOk)
        if tag in channel.subscriptions:
            channel.unsubscribed(tag)
    yield from client.subscribe(client.actor.habits.consumes)


def reopen(client: Client) -> None:
    if not client.is_talking and not client.unconfirmed_count:
        client.converse(client.reopen())


def close(client: Client) -> None:
    if not client.is_talking and not client.unconfirmed_count:
        client.begin_close()


def pause(client: Client) -> None:
    del client


# --- queues and bindings ---


def _tended(client: Client, *, is_volatile: bool) -> list[QueueSpec]:
    return [queue for queue in client.actor.habits.tends if queue.is_volatile == is_volatile]


def redeclare(client: Client) -> None:
    """Declare again what is there."""
    if not client.is_talking:
        client.converse(client.declare(client.ledger.public_queues()))


def purge(client: Client) -> None:
    queues = _tended(client, is_volatile=True)
    if queues and not client.is_talking:
        client.converse(_remove(client, client.random.choice(queues), deletes=False))


def delete(client: Client) -> None:
    queues = _tended(client, is_volatile=True)
    if queues and not client.is_talking:
        client.converse(_remove(client, client.random.choice(queues), deletes=True))


def _remove(client: Client, queue: QueueSpec, *, deletes: bool) -> Conversation:
    """Purge or delete a queue; one that was deleted is declared again."""
    removals, copies = client.ledger.removals, client.ledger.contents[queue.name].copies
    removal = client.removal = removals.begin(queue, copies, client.now, deletes=deletes)
    if deletes:
        yield client.ask(QueueDelete(queue.name), QueueDeleteOk)
    else:
        yield client.ask(QueuePurge(queue.name), QueuePurgeOk)
    removals.carried_out(removal, copies, client.now)
    if deletes:
        yield from client.declare([queue])
    removals.end(removal, client.now)
    client.removal = None


def rebind(client: Client) -> None:
    queues = _tended(client, is_volatile=False)
    if queues and not client.is_talking:
        client.converse(_rebind(client, client.random.choice(queues)))


def _rebind(client: Client, queue: QueueSpec) -> Conversation:
    binding = client.ledger.binding
    was_bound = binding.is_bound
    binding.changes()
    if was_bound:
        yield client.ask(QueueUnbind(queue.name, FANOUT), QueueUnbindOk)
    else:
        yield client.ask(QueueBind(queue.name, FANOUT), QueueBindOk)
    binding.changed(is_bound=not was_bound)


ACTIONS: Final[dict[str, Action]] = {
    action.__name__: action
    for action in (
        publish,
        ack,
        ack_all,
        nack,
        reject,
        get,
        recover,
        commit,
        roll_back,
        ask,
        cancel,
        reopen,
        close,
        pause,
        redeclare,
        purge,
        delete,
        rebind,
    )
}
