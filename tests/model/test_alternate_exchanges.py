"""The alternate exchange of a queue gets what is rejected and what a deleted queue has left, in every protocol."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Channel
from waybill.wire.amqp091.methods_exchange import ExchangeDelete, ExchangeDeleteOk
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.reply_codes import PRECONDITION_FAILED

pytestmark = pytest.mark.ours


@pytest.fixture
def queue(channel: Channel) -> str:
    """A queue whose alternate exchange leads to the queue `others`."""
    channel.exchange("alternate", "fanout")
    channel.declare("others")
    channel.bind("alternate", "others")
    channel.declare("q", {"x-alternate-exchange": "alternate"})
    return "q"


def test_a_rejected_message_goes_to_the_alternate_exchange_as_it_is(channel: Channel, queue: str) -> None:
    channel.publish(b"body", queue, headers={"own": 1})
    held = channel.get(no_ack=False)
    assert held is not None
    channel.reject(held.tag, requeue=False)
    moved = channel.take("others")
    assert (moved.body, moved.headers) == (b"body", {"own": 1})
    assert channel.depth(queue) == 0


def test_messages_of_a_deleted_queue_go_to_the_alternate_exchange(channel: Channel, queue: str) -> None:
    for number in range(40):
        channel.publish(b"%d" % number, queue)
    deleted = channel.call(QueueDelete(queue), QueueDeleteOk)
    assert deleted.message_count == 40
    assert channel.take_all("others") == [b"%d" % number for number in range(40)]


@pytest.mark.parametrize("outcome", ["accept", "requeue", "reject"])
def test_what_a_deleted_queue_has_delivered_goes_there_at_once(channel: Channel, queue: str, outcome: str) -> None:
    """And once: what its consumers say of it later means nothing."""
    for number in range(6):
        channel.publish(b"%d" % number, queue)
    other = channel.peer.open_channel(2)
    polled = other.get(queue, no_ack=False)
    assert polled is not None
    other.qos(3)
    other.consume(queue)
    held = [polled.tag, *(one.tag for one in other.deliveries(3))]
    channel.call(QueueDelete(queue), QueueDeleteOk)
    assert channel.take_all("others") == [b"%d" % number for number in range(6)]
    for tag in held:
        if outcome == "accept":
            other.ack(tag)
        else:
            other.reject(tag, requeue=outcome == "requeue")
    assert channel.depth("others") == 0


def test_what_was_settled_does_not_go_there(channel: Channel, queue: str) -> None:
    for number in range(4):
        channel.publish(b"%d" % number, queue)
    other = channel.peer.open_channel(2)
    other.consume(queue)
    other.ack(other.deliveries(4)[1].tag, multiple=True)
    other.sync()
    channel.call(QueueDelete(queue), QueueDeleteOk)
    assert channel.take_all("others") == [b"2", b"3"]


@requirement("X010-041")
def test_an_exchange_is_not_deleted_while_queues_have_it_as_alternate(channel: Channel, queue: str) -> None:
    other = channel.peer.open_channel(2)
    other.send(ExchangeDelete("alternate"))
    other.expect_refused(PRECONDITION_FAILED)
    channel.call(QueueDelete(queue), QueueDeleteOk)
    channel.call(ExchangeDelete("alternate"), ExchangeDeleteOk)


def test_a_queue_whose_alternate_leads_back_to_it_is_deleted_all_the_same(channel: Channel, queue: str) -> None:
    channel.bind("alternate", queue)
    channel.publish(b"body", queue)
    channel.call(QueueDelete(queue), QueueDeleteOk)
    assert channel.take_all("others") == [b"body"]
