"""Links whose unsettled deliveries do not all fit an attach (1.0, 2.7.3)."""

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from waybill.wire.amqp10.messaging import Accepted, Source, Target
from waybill.wire.amqp10.performatives import Disposition, Flow, Transfer

TARGET = Target("/queues/q", expiry_policy="never")
SOURCE = Source("/queues/q", expiry_policy="never")
COUNT = 40


def connect(bench: NodeBench) -> Session:
    peer = Peer(bench)
    peer.open(container_id="resumer", max_frame_size=512)
    return peer.begin()


@requirement("M10-074")
def test_a_map_that_does_not_fit_is_sent_in_part(bench: NodeBench) -> None:
    queue = declare(bench)
    session = connect(bench)
    sender = session.sender(None, name="link", target=TARGET, rcv_settle_mode=1)
    tags = [b"%032d" % number for number in range(COUNT)]
    for tag in tags:
        sender.send(message(), delivery_tag=tag)
    session.peer.wire.cut()
    session = connect(bench)
    # We have more to say than fits; the peer says nothing of most of its own, and must not be taken to have settled.
    sender = session.sender(
        None, name="link", target=TARGET, rcv_settle_mode=1, unsettled={tags[0]: None}, incomplete_unsettled=True
    )
    assert sender.answer is not None
    assert sender.answer.incomplete_unsettled
    told = sender.answer.unsettled or {}
    assert 0 < len(told) < COUNT
    assert max(session.peer.frame_sizes) <= 512
    for tag in told:
        sender.transfer(b"", delivery_tag=tag, resume=True, state=Accepted(), settled=True)
    session.expect_nothing()
    sender.transfer(message(), delivery_tag=b"new")
    sender.expect_detached("amqp:illegal-state")
    assert queue.message_count == COUNT


def test_a_receiver_that_names_a_part_gets_nothing_new(bench: NodeBench) -> None:
    queue = declare(bench)
    session = connect(bench)
    sender = session.sender("/queues/q")
    for number in range(3):
        sender.send(message(b"%d" % number))
    receiver = session.receiver(None, name="link", source=SOURCE, credit=2)
    tags = [receiver.delivery().transfer.delivery_tag or b"" for _ in range(2)]
    session.peer.wire.cut()
    session = connect(bench)
    receiver = session.receiver(
        None, name="link", source=SOURCE, unsettled={tags[0]: Accepted()}, incomplete_unsettled=True
    )
    receiver.flow(10)
    transfers = [value for _, value, _ in received(session) if isinstance(value, Transfer)]
    assert [(value.delivery_tag, value.resume, value.settled) for value in transfers] == [(tags[0], True, True)]
    assert (queue.ready_count, queue.unsettled_count) == (1, 1)
    receiver.detach(closed=False)
    receiver = session.receiver(None, name="link", source=SOURCE, unsettled={tags[1]: Accepted()}, credit=10)
    transfers = [value for _, value, _ in received(session) if isinstance(value, Transfer)]
    assert [value.resume for value in transfers] == [True, False]
    assert transfers[0].delivery_tag == tags[1]


def received(session: Session) -> list[tuple[int, object, bytes]]:
    """What has come, and is not to come again."""
    session.peer.receive()
    found: list[tuple[int, object, bytes]] = list(session.peer.received)
    session.peer.received.clear()
    assert not any(isinstance(value, Disposition) for _, value, _ in found)
    assert all(isinstance(value, (Flow, Transfer)) for _, value, _ in found)
    return found
