"""What users may do: patterns over names, and over routing keys at topic exchanges."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Channel, NodeBench, Peer
from waybill.model.errors import InvalidArgument, NotFound
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicPublish
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionOpenOk, ConnectionTune, ConnectionTuneOk
from waybill.wire.amqp091.methods_exchange import ExchangeBind, ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDelete, QueuePurge
from waybill.wire.amqp091.properties import BasicProperties

pytestmark = pytest.mark.ours


def connect(bench: NodeBench, user: str) -> Channel:
    peer: Peer = bench.plug()
    peer.start()
    peer.log_in(user, "secret")
    peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(2047, 131_072, 0))
    peer.connection.call(ConnectionOpen("/"), ConnectionOpenOk)
    return peer.open_channel(1)


@pytest.fixture
def bob(node_bench: NodeBench) -> Channel:
    """Bob has his own names, reads what is shared, and may write to one exchange of others."""
    administration = node_bench.node.administration
    administration.put_user("bob", "secret")
    administration.set_permission("bob", "/", "^bob", "^(bob|inbox$|amq\\.topic$)", "^(bob|shared|amq\\.topic$)")
    alice = node_bench.channel()
    for name in ("shared", "secret"):
        alice.declare(name)
    for name in ("inbox", "outbox"):
        alice.exchange(name, "fanout")
    return connect(node_bench, "bob")


@pytest.mark.parametrize(
    "method",
    [
        QueueDeclare("other"),
        QueueDelete("shared"),
        ExchangeDeclare("other", "fanout"),
        QueuePurge("secret"),
        BasicConsume("secret"),
        QueueBind("shared", "amq.topic", "x"),
        QueueBind("bob", "outbox", "x"),
        ExchangeBind("inbox", "outbox", "x"),
        QueueDeclare("bob.new", arguments={"x-dead-letter-exchange": "outbox"}),
        QueueDeclare("bob.new", arguments={"x-alternate-exchange": "outbox"}),
        ExchangeDeclare("bob.new", "fanout", arguments={"alternate-exchange": "outbox"}),
    ],
    ids=str,
)
@requirement("M010-099")
def test_what_is_not_allowed_closes_the_channel(bob: Channel, bystander: Channel, method: Method) -> None:
    bob.declare("bob")
    assert "refused for user 'bob'" in bob.refuses(method, 403).reply_text


@pytest.mark.parametrize("exchange", ["outbox", ""])
def test_publishing_needs_write(bob: Channel, bystander: Channel, exchange: str) -> None:
    bob.publish(b"", "bob", exchange)
    assert bob.expect_refused(403).method_id == BasicPublish.METHOD_ID


def test_what_is_allowed(bob: Channel) -> None:
    bob.declare("bob")
    bob.exchange("bob.exchange", "fanout", {"alternate-exchange": "inbox"})
    bob.bind("bob.exchange", "bob")
    bob.publish(b"1", "", "bob.exchange")
    bob.publish(b"2", "", "inbox")
    assert bob.take("bob").body == b"1"
    bob.consume("shared")


def test_rights_that_are_taken_away_are_gone_at_once(node_bench: NodeBench, bob: Channel) -> None:
    bob.declare("bob")
    bob.exchange("bob.exchange", "fanout")
    bob.publish(b"1", "", "bob.exchange")
    bob.sync()
    node_bench.node.administration.set_permission("bob", "/", "^bob", "", "^bob")
    bob.publish(b"2", "", "bob.exchange")
    bob.expect_refused(403)
    bob.reopen()
    node_bench.node.administration.clear_permission("bob", "/")
    bob.refuses(QueueDeclare("bob.2"), 403)


def test_topic_permissions(node_bench: NodeBench, bob: Channel, bystander: Channel) -> None:
    administration = node_bench.node.administration
    administration.set_topic_permission("bob", "/", "amq.topic", r"^{username}\.", r"^public\.")
    bob.declare("bob")
    bob.bind("amq.topic", "bob", "public.#")
    assert "topic 'alice.#'" in bob.refuses(QueueBind("bob", "amq.topic", "alice.#"), 403).reply_text
    bob.reopen()
    bob.publish(b"1", "bob.1", "amq.topic")
    bob.sync()
    bob.publish(b"2", "alice.1", "amq.topic")
    bob.expect_refused(403)
    bob.reopen()
    bob.publish(b"3", "bob.1", "amq.topic", properties=BasicProperties(headers={"CC": ["alice.1"]}))
    bob.expect_refused(403)
    bob.reopen()
    administration.clear_topic_permission("bob", "/", "amq.topic")
    bob.publish(b"4", "alice.1", "amq.topic")
    bob.sync()


def test_a_name_in_a_topic_pattern_is_taken_literally(node_bench: NodeBench) -> None:
    administration = node_bench.node.administration
    administration.put_user(".*", "secret")
    administration.set_topic_permission(".*", "/", "amq.topic", "^{username}$", "")
    permission = administration.accounts.account(".*").user.topic_permissions["/", "amq.topic"]
    permission.check("write", ".*", "amq.topic", "/", ".*")
    with pytest.raises(Exception, match="refused"):
        permission.check("write", "anything", "amq.topic", "/", ".*")


def test_acting_for_others_needs_a_tag(node_bench: NodeBench, bob: Channel) -> None:
    bob.publish(b"", "", "inbox", properties=BasicProperties(user_id="bob"))
    bob.sync()
    bob.publish(b"", "", "inbox", properties=BasicProperties(user_id="alice"))
    bob.expect_refused(406)
    bob.reopen()
    node_bench.node.administration.put_user("bob", "secret", ("impersonator",))
    bob.publish(b"", "", "inbox", properties=BasicProperties(user_id="alice"))
    bob.sync()


@requirement("M010-076")
def test_a_virtual_host_goes_with_everything_in_it(node_bench: NodeBench, bystander: Channel) -> None:
    administration = node_bench.node.administration
    administration.add_virtual_host("tenant")
    administration.set_permission("guest", "tenant", ".*", ".*", ".*")
    administration.set_policy("tenant", "p", ".*", {"max-length": 1})
    channel = node_bench.connect("tenant").open_channel(1)
    channel.exchange("x", durable=True)
    channel.declare("q", durable=True)
    channel.bind("x", "q", "k")
    administration.delete_virtual_host("tenant")
    node_bench.settle()
    channel.peer.expect_refused(320)
    for kind in ("queue", "exchange", "binding", "policy"):
        assert list(node_bench.store.definitions(kind)) == []
    administration.add_virtual_host("tenant")
    assert "tenant" not in administration.accounts.account("guest").user.permissions


def test_nonsense_is_refused(node_bench: NodeBench) -> None:
    administration = node_bench.node.administration
    with pytest.raises(InvalidArgument):
        administration.set_permission("guest", "/", "(", "", "")
    with pytest.raises(NotFound):
        administration.set_permission("nobody", "/", "", "", "")
    with pytest.raises(NotFound):
        administration.set_permission("guest", "/nowhere", "", "", "")
    with pytest.raises(InvalidArgument):
        administration.add_virtual_host("")
