"""Whose a link is: its user's. What another user attaches by the same names, and what is refused, changes nothing."""

from collections.abc import Iterator

import pytest

from tests.engine.amqp091.peer import Cut, NodeBench
from tests.engine.amqp10.peer import Peer, Receiver, Session, declare, message
from tests.engine.disk_bench import DiskBench
from waybill.engine.amqp10.termini import TERMINUS
from waybill.wire.amqp10.frames import AMQP_HEADER, frame
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Source, Target
from waybill.wire.amqp10.performatives import Detach, Open
from waybill.wire.amqp10.security import SaslOutcome
from waybill.wire.amqp10.types import Described, Symbol

EXCHANGE = "/exchanges/amq.topic/"
SUBSCRIPTION = Source(EXCHANGE, durable=2, expiry_policy="never")
DURABLE = Header(durable=True)
LIMIT = "amqp:resource-limit-exceeded"


@pytest.fixture
def bench() -> Iterator[DiskBench]:
    bench = DiskBench()
    yield bench
    bench.close()


def user(bench: NodeBench, name: str, *, read: str = ".*", write: str = ".*", configure: str = ".*") -> None:
    bench.node.administration.put_user(name, name)
    bench.node.administration.set_permission(name, "/", configure, write, read)


def connect(bench: NodeBench, name: str = "guest", container_id: str = "app") -> Session:
    peer = Peer(bench)
    outcome = peer.log_in("PLAIN", f"\0{name}\0{name}".encode())
    assert isinstance(outcome, SaslOutcome), outcome
    peer.write(AMQP_HEADER + frame(0, Open(container_id).encode()))
    peer.take_header(AMQP_HEADER)
    peer.expect(Open)
    return peer.begin()


def subscribe(session: Session, *, credit: int = 0) -> Receiver:
    return session.receiver(None, name="sub", source=SUBSCRIPTION, credit=credit)


def subscriptions(bench: NodeBench) -> list[str]:
    return [name for name in bench.node.virtual_hosts["/"].queues if name.startswith("amqp10.subscription.")]


def publish(bench: NodeBench, body: bytes = b"body") -> None:
    outcome = connect(bench, container_id="publisher").sender(EXCHANGE).send(message(body, header=DURABLE))
    assert outcome.state == Accepted()


def test_another_user_has_links_of_their_own_by_the_same_names(bench: DiskBench) -> None:
    user(bench, "mallory")
    subscribe(connect(bench)).detach(closed=False)
    publish(bench)
    other = subscribe(connect(bench, "mallory"), credit=10)
    other.expect_nothing()
    assert len(subscriptions(bench)) == 2
    other.detach(closed=True)
    assert len(subscriptions(bench)) == 1
    assert subscribe(connect(bench), credit=1).delivery().bare == message()


def test_another_user_steals_no_link(bench: DiskBench) -> None:
    user(bench, "mallory")
    victim = subscribe(connect(bench), credit=10)
    subscribe(connect(bench, "mallory"))
    publish(bench)
    assert victim.delivery().bare == message()


def test_names_do_not_run_into_one_another(bench: DiskBench) -> None:
    first = connect(bench, container_id="a\0b")
    kept = first.receiver(None, name="c", source=SUBSCRIPTION)
    second = connect(bench, container_id="a")
    second.receiver(None, name="b\0c", source=SUBSCRIPTION)
    assert len(subscriptions(bench)) == 2
    kept.expect_nothing()


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_refused_attach_leaves_the_subscription_as_it_was(bench: DiskBench, is_attached: bool) -> None:
    user(bench, "alice")
    held = subscribe(connect(bench, "alice"), credit=10)
    if not is_attached:
        held.detach(closed=False)
    # The right is gone, then the address is nonsense, then the policy.
    bench.node.administration.set_permission("alice", "/", "", "", "")
    session = connect(bench, "alice")
    for source, condition in (
        (SUBSCRIPTION, "amqp:unauthorized-access"),
        (Source("/queues/none"), "amqp:not-found"),
        (Source("/queues/%zz"), "amqp:invalid-field"),
        (Source(EXCHANGE, expiry_policy="whenever"), "amqp:unauthorized-access"),
        (Source(EXCHANGE, distribution_mode="move"), "amqp:not-implemented"),
        (Source(dynamic=True), "amqp:unauthorized-access"),
    ):
        session.expect_refused(session.receiver_attach(None, name="sub", source=source), condition)
    publish(bench)
    bench.node.administration.set_permission("alice", "/", ".*", ".*", ".*")
    if not is_attached:
        held = subscribe(connect(bench, "alice"), credit=1)
    assert held.delivery().bare == message()
    assert len(subscriptions(bench)) == 1


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_refused_sender_leaves_its_unsettled_deliveries(bench: DiskBench, is_attached: bool) -> None:
    user(bench, "alice")
    declare(bench)
    target = Target("/queues/q", durable=2, expiry_policy="never")
    kept = connect(bench, "alice").sender(None, name="out", target=target, rcv_settle_mode=1)
    kept.send(message())
    if not is_attached:
        kept.detach(closed=False)
    bench.node.administration.set_permission("alice", "/", "", "", "")
    session = connect(bench, "alice")
    for wanted in (target, Target("/queues/other"), Target(dynamic=True), Target("/exchanges/none/x")):
        attach = session.sender_attach(None, name="out", target=wanted)
        assert session.attach(attach).target is None
        session.send(Detach(attach.handle, closed=True))
        session.expect(Detach)
    (link,) = bench.node.administration.links(user="alice")
    assert len(link.settling) == 1
    assert (link.link is not None) == is_attached


def test_the_same_user_takes_a_link_over(bench: DiskBench) -> None:
    loser = subscribe(connect(bench))
    winner = subscribe(connect(bench), credit=1)
    loser.expect_detached("amqp:link:stolen", closed=False)
    publish(bench)
    assert winner.delivery().bare == message()


def test_other_filters_replace_the_bindings(bench: DiskBench) -> None:
    session = connect(bench)
    for key in ("a", "b"):
        wanted: dict[str, object] = {"f": Described(Symbol("apache.org:legacy-amqp-topic-binding:string"), key)}
        source = Source("/exchanges/amq.topic", durable=2, expiry_policy="never", filter=wanted)
        session.receiver(None, name="sub", source=source).detach(closed=False)
    (name,) = subscriptions(bench)
    queue = bench.node.virtual_hosts["/"].queues[name]
    assert [binding.routing_key for binding in queue.bindings.values()] == ["b"]


# --- how many a user may keep ---


def test_links_that_are_kept_are_limited_by_user(bench: DiskBench) -> None:
    user(bench, "mallory")
    declare(bench)
    bench.node.termini.kept_per_user_max = 2
    bench.node.termini.durable_per_user_max = 1
    session = connect(bench, "mallory")
    lasting = Source("/queues/q", expiry_policy="never")
    session.receiver(None, name="1", source=SUBSCRIPTION)
    text = session.expect_refused(session.receiver_attach(None, name="2", source=SUBSCRIPTION), LIMIT)
    assert text == "user 'mallory' has 1 durable links already"
    session.receiver(None, name="2", source=lasting)
    session.expect_refused(session.receiver_attach(None, name="3", source=lasting), LIMIT)
    timed = Target("/queues/q", timeout=10)
    session.expect_refused(session.sender_attach(None, name="3", target=timed), LIMIT)
    assert len(subscriptions(bench)) == 1
    # Another user, links that last no longer than their connection, and those that have a place, are not concerned.
    connect(bench).receiver(None, name="1", source=SUBSCRIPTION)
    session.receiver("/queues/q", name="passing")
    connect(bench, "mallory").receiver(None, name="1", source=SUBSCRIPTION)


def test_a_link_that_promised_little_is_forgotten_when_there_is_no_place(bench: DiskBench) -> None:
    declare(bench)
    bench.node.termini.kept_per_user_max = 3
    session = connect(bench)
    for number in range(10):
        session.receiver("/queues/q", name=f"passing-{number}").detach(closed=False)
    assert len(bench.node.administration.links(user="guest")) == 3
    session.end()
    assert bench.node.administration.links(user="guest") == []


def test_a_lost_connection_keeps_what_was_promised_and_no_more(bench: DiskBench) -> None:
    bench.node.termini.kept_per_user_max = 2
    session = connect(bench)
    for number in range(2):
        session.receiver(None, name=f"{number}", source=SUBSCRIPTION)
    session.peer.wire.cut()
    assert len(bench.node.administration.links(user="guest")) == 2
    again = connect(bench)
    again.expect_refused(again.receiver_attach(None, name="2", source=SUBSCRIPTION), LIMIT)
    again.receiver(None, name="1", source=SUBSCRIPTION).detach(closed=True)
    again.receiver(None, name="2", source=SUBSCRIPTION)


def test_a_restart_counts_what_it_finds(bench: DiskBench) -> None:
    session = connect(bench)
    for number in range(3):
        session.receiver(None, name=f"{number}", source=SUBSCRIPTION)
    bench.restart("kill")
    bench.node.termini.kept_per_user_max = 2
    assert [link.name for link in bench.node.administration.links(user="guest")] == ["0", "1", "2"]
    session = connect(bench)
    session.expect_refused(session.receiver_attach(None, name="3", source=SUBSCRIPTION), LIMIT)
    session.receiver(None, name="2", source=SUBSCRIPTION)


# --- administration ---


def test_an_administrator_removes_links(bench: DiskBench) -> None:
    session = connect(bench)
    attached = session.receiver(None, name="attached", source=SUBSCRIPTION)
    session.receiver(None, name="detached", source=SUBSCRIPTION).detach(closed=False)
    administration = bench.node.administration
    found = {link.name: link for link in administration.links(virtual_host="/")}
    assert [(link.user, link.container_id, link.address) for link in found.values()] == [("guest", "app", EXCHANGE)] * 2
    for link in found.values():
        administration.remove_link(link)
        administration.remove_link(link)
    bench.settle()
    attached.expect_detached("amqp:resource-deleted")
    assert administration.links() == []
    assert subscriptions(bench) == []
    bench.restart("kill")
    assert bench.node.administration.links() == []


def test_a_user_that_is_deleted_leaves_no_links_behind(bench: DiskBench) -> None:
    user(bench, "alice")
    subscribe(connect(bench, "alice")).detach(closed=False)
    bench.node.administration.delete_user("alice")
    user(bench, "alice")
    assert bench.node.administration.links() == []
    assert subscriptions(bench) == []


# --- stores of older versions ---


def as_older_versions_kept_it(bench: DiskBench) -> None:
    """A durable subscription without a user: its names are in its key only."""
    subscribe(connect(bench)).detach(closed=False)
    store = bench.node.runtime.store
    ((key, value),) = store.definitions(TERMINUS)
    store.undefine(TERMINUS, key)
    kept = ("virtual_host", "address", "durable", "expiry_policy", "timeout_s", "queue", "queue_id", "records")
    store.define(TERMINUS, "/\0app\0sub\0source", {name: value[name] for name in kept})
    bench.settle()
    bench.restart("kill")


def test_who_may_read_it_first_has_a_subscription_of_an_older_version(bench: DiskBench) -> None:
    as_older_versions_kept_it(bench)
    (link,) = bench.node.administration.links(user="")
    assert (link.container_id, link.name, link.is_source) == ("app", "sub", True)
    user(bench, "mallory", read="")
    publish(bench)
    session = connect(bench, "mallory")
    session.expect_refused(session.receiver_attach(None, name="sub", source=SUBSCRIPTION), "amqp:unauthorized-access")
    held = subscribe(connect(bench), credit=1)
    assert held.delivery().bare == message()
    assert [link.user for link in bench.node.administration.links() if link.name == "sub"] == ["guest"]
    assert [key.startswith("/\0source\0") for key, _ in bench.node.runtime.store.definitions(TERMINUS)] == [True]
    bench.restart("kill")
    user(bench, "eve")
    subscribe(connect(bench, "eve"), credit=1).expect_nothing()
    assert subscribe(connect(bench), credit=1).delivery().bare == message()


def test_memory_nodes_have_owners_too() -> None:
    bench = NodeBench(Cut.WHOLE)
    user(bench, "mallory")
    victim = subscribe(connect(bench), credit=1)
    subscribe(connect(bench, "mallory"))
    publish(bench)
    assert victim.delivery().bare == message()
