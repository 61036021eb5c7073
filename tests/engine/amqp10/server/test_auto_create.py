"""Addresses that name no queue make one, on a node that is told to; direct reply-to of AMQP 1.0."""

import pytest

from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Session, message
from waybill.model.permission import Permission
from waybill.wire.amqp10.error import NOT_FOUND, RESOURCE_LIMIT_EXCEEDED, UNAUTHORIZED_ACCESS
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.messaging import Accepted, Source
from waybill.wire.amqp10.performatives import SENDER_SETTLED
from waybill.wire.amqp10.types import Symbol

VOLATILE = Symbol("rabbitmq:volatile-queue")


@pytest.fixture
def creating(bench: NodeBench) -> NodeBench:
    bench.node.limits.auto_creates_queues = True
    return bench


@pytest.mark.parametrize("address", ["/queues/new", "new"])
def test_off_by_default(session: Session, address: str) -> None:
    session.expect_refused(session.sender_attach(address), NOT_FOUND)
    session.expect_refused(session.receiver_attach(address), NOT_FOUND)


@pytest.mark.parametrize("address", ["/queues/new", "new"])
def test_a_sender_makes_its_queue(creating: NodeBench, session: Session, address: str) -> None:
    assert session.sender(address).send(message(b"1")).state == Accepted()
    queue = creating.node.virtual_hosts["/"].queues["new"]
    assert (queue.durable, queue.is_persistent, queue.message_count) == (True, True, 1)
    # The next link finds it.
    assert session.sender(address).send(message(b"2")).state == Accepted()
    assert queue.message_count == 2


def test_a_receiver_makes_its_queue(creating: NodeBench, session: Session) -> None:
    receiver = session.receiver("/queues/a%20b", credit=1)
    session.sender("/queues/a%20b").send(message(b"1"))
    assert receiver.delivery().payload.endswith(b"1")


def test_a_message_to_the_anonymous_terminus_makes_its_queue(creating: NodeBench, session: Session) -> None:
    sender = session.sender(None)
    assert sender.send(Properties(to="/queues/new").encode() + message(b"1")).state == Accepted()
    assert creating.node.virtual_hosts["/"].queues["new"].message_count == 1


def test_what_is_no_queue_is_not_made(creating: NodeBench, session: Session) -> None:
    before = set(creating.node.virtual_hosts["/"].queues)
    for address in ("/exchanges/none/key", "/queues/amq.mine", "amq.mine"):
        session.expect_refused(session.sender_attach(address), NOT_FOUND)
    # A plain name is that of an exchange, too.
    session.sender("amq.fanout")
    assert set(creating.node.virtual_hosts["/"].queues) == before


@pytest.mark.parametrize(
    "permission", [Permission("", ".*", ".*"), Permission(".*", "", ".*"), Permission(".*", ".*", "")]
)
def test_it_takes_the_permissions_to_use_and_to_configure(
    creating: NodeBench, session: Session, permission: Permission
) -> None:
    creating.node.administration.accounts.account("guest").user.permissions["/"] = permission
    if permission.patterns["write"] == "" or permission.patterns["configure"] == "":
        session.expect_refused(session.sender_attach("/queues/new"), UNAUTHORIZED_ACCESS)
    if permission.patterns["read"] == "" or permission.patterns["configure"] == "":
        session.expect_refused(session.receiver_attach("/queues/new"), UNAUTHORIZED_ACCESS)
    assert "new" not in creating.node.virtual_hosts["/"].queues


def test_the_limit_of_queues_holds(creating: NodeBench, session: Session) -> None:
    creating.node.limits.queues_per_virtual_host_max = 0
    session.expect_refused(session.sender_attach("/queues/new"), RESOURCE_LIMIT_EXCEEDED)


# --- direct reply-to ---


def reply_source(**fields: object) -> Source:
    asked: dict[str, object] = {"dynamic": True, "expiry_policy": "link-detach", "capabilities": (VOLATILE,)}
    return Source(**(asked | fields))  # type: ignore[arg-type]


def test_answers_come_straight_to_the_link_that_asked(bench: NodeBench, session: Session) -> None:
    bench.node.administration.accounts.account("guest").user.permissions["/"] = Permission("^$", ".*", "^$")
    receiver = session.receiver(None, source=reply_source(), snd_settle_mode=SENDER_SETTLED, credit=10)
    assert receiver.answer is not None
    source = receiver.answer.source
    assert isinstance(source, Source)
    assert VOLATILE in source.capabilities
    address = source.address or ""
    assert address.startswith("/queues/amq.rabbitmq.reply-to.")
    session.sender(address).send(message(b"answer"))
    delivery = receiver.delivery()
    assert delivery.payload.endswith(b"answer")
    session.sender(None).send(Properties(to=address).encode() + message(b"another"))
    assert receiver.delivery().payload.endswith(b"another")
    receiver.detach()
    assert not any(name.startswith("amq.rabbitmq.reply-to.") for name in bench.node.virtual_hosts["/"].queues)


@pytest.mark.parametrize(
    "fields", [{"durable": 1}, {"expiry_policy": "never"}, {"expiry_policy": "session-end"}, {"timeout": 5}]
)
def test_a_source_for_answers_is_nothing_that_lasts(session: Session, fields: dict[str, object]) -> None:
    attach = session.receiver_attach(None, source=reply_source(**fields), snd_settle_mode=SENDER_SETTLED)
    session.expect_refused(attach, "amqp:invalid-field")


def test_answers_are_settled(session: Session) -> None:
    session.expect_refused(session.receiver_attach(None, source=reply_source()), "amqp:invalid-field")
