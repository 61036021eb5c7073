"""In 0-9-1 a name is octets, and an address of 1.0 can contain any. Errors that quote such names can be sent."""

import pytest

from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Session
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_FOUND
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import encode_data

NAME = "x\udcff"


@pytest.mark.parametrize("address", ["/queues/x%FF", "/exchanges/x%FF", "/exchanges/x%FF/key"])
def test_a_missing_node_refuses_the_link_only(session: Session, address: str) -> None:
    assert r"'x\xff'" in session.expect_refused(session.sender_attach(address), NOT_FOUND)
    assert r"'x\xff'" in session.expect_refused(session.receiver_attach(address), NOT_FOUND)
    anonymous = session.sender(None)
    anonymous.transfer(Properties(to=address).encode() + encode_data(b""))
    assert r"'x\xff'" in anonymous.expect_detached(NOT_FOUND)


def test_a_deleted_exchange_detaches_its_senders(bench: NodeBench, session: Session) -> None:
    host = bench.node.virtual_hosts["/"]
    host.declare_exchange(NAME, "fanout", durable=True, auto_delete=False, internal=False, arguments={})
    sender = session.sender("/exchanges/x%FF/key")
    deletion = host.delete_exchange(NAME, if_unused=False)
    assert deletion is not None
    host.runtime.begin(deletion)
    bench.settle()
    sender.transfer(encode_data(b""))
    assert r"'x\xff'" in sender.expect_detached(NOT_FOUND)


def test_an_address_makes_no_such_queue(bench: NodeBench, session: Session) -> None:
    bench.node.limits.auto_creates_queues = True
    assert "UTF-8" in session.expect_refused(session.sender_attach("/queues/x%FF"), INVALID_FIELD)
    assert NAME not in bench.node.virtual_hosts["/"].queues
