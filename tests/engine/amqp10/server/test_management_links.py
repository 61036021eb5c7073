"""Links to the management node: how a request comes by its response."""

from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Receiver, Sender, Session, declare
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.error import MESSAGE_SIZE_EXCEEDED, PRECONDITION_FAILED
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.messaging import Accepted
from waybill.wire.amqp10.sections import MessageFacts, decode_properties, encode_amqp_value, scan_message

NODE = "/management"


def request(method: str, path: str, identifier: str = "1", body: object = None) -> bytes:
    properties = Properties(message_id=identifier, to=path, subject=method, reply_to="$me")
    return encode_value(properties) + encode_amqp_value(body)


def pair(session: Session, name: str) -> tuple[Sender, Receiver]:
    return session.sender(NODE, name=name), session.receiver(NODE, name=name, credit=10, snd_settle_mode=1)


def response(receiver: Receiver) -> Properties:
    delivery = receiver.delivery()
    facts = MessageFacts()
    scan_message(delivery.payload, 0, len(delivery.payload), facts)
    return decode_properties(delivery.payload, facts.properties, facts.properties_end)


def test_a_response_comes_by_the_link_of_the_same_name(session: Session) -> None:
    first, first_responses = pair(session, "first")
    second, second_responses = pair(session, "second")
    first.transfer(request("PUT", "/queues/a", "of first"), settled=True)
    second.transfer(request("PUT", "/queues/b", "of second"), settled=True)
    assert response(first_responses).correlation_id == "of first"
    assert response(second_responses).correlation_id == "of second"


def test_a_request_is_accepted_and_answered(bench: NodeBench, session: Session) -> None:
    declare(bench)
    requests, responses = pair(session, "pair")
    assert isinstance(requests.send(request("GET", "/queues/q")).state, Accepted)
    assert response(responses).subject == "200"


def test_a_response_is_told_when_it_is_durable(bench: NodeBench, session: Session) -> None:
    requests, responses = pair(session, "pair")
    bench.is_stuck = True
    requests.transfer(request("PUT", "/queues/q"), settled=True)
    responses.expect_nothing()
    bench.is_stuck = False
    bench.settle()
    assert response(responses).subject == "201"


def test_a_request_that_nobody_could_be_answered_is_refused(session: Session) -> None:
    requests = session.sender(NODE)
    requests.transfer(request("PUT", "/queues/q"), settled=True)
    requests.expect_detached(PRECONDITION_FAILED)


def test_the_queue_of_responses_goes_with_its_link(bench: NodeBench, session: Session) -> None:
    requests, responses = pair(session, "pair")
    assert len(bench.node.virtual_hosts["/"].queues) == 1
    responses.detach()
    assert not bench.node.virtual_hosts["/"].queues
    requests.detach()


def test_a_request_has_a_size(session: Session) -> None:
    """Five paths of 16 MB took the broker to 396 MB, and raised the alarm."""
    requests, _ = pair(session, "pair")
    large = request("GET", "/" + "x" * (256 << 10))
    requests.transfer(large[: 100 << 10], settled=True, more=True)
    requests.more(large[100 << 10 : 200 << 10], more=True)
    requests.more(large[200 << 10 :])
    requests.expect_detached(MESSAGE_SIZE_EXCEEDED)
