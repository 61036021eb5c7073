"""The management node: requests and responses as messages, without a connection around them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.amqp091.peer import Cut, NodeBench
from tests.wire.amqp10.strategies import values
from waybill.engine.amqp10.management import Management
from waybill.engine.host import User
from waybill.model.permission import Permission
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import (
    MessageFacts,
    decode_body,
    decode_properties,
    encode_amqp_value,
    encode_data,
    scan_message,
)
from waybill.wire.amqp10.types import Array, Int, Symbol, ULong


class Client:
    def __init__(self, bench: NodeBench, user: User | None = None) -> None:
        everything = User("somebody", {"/": Permission(".*", ".*", ".*")})
        self.virtual_host = bench.node.virtual_hosts["/"]
        self.node = Management(bench.node, user or everything, self.virtual_host, self)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        request = Properties(message_id=ULong(7), to=path, subject=method, reply_to="$me")
        properties, answer = self.send(encode_value(request) + encode_amqp_value(body))
        assert properties.correlation_id == 7
        assert type(properties.correlation_id) is ULong
        assert properties.to == "$me"
        return int(properties.subject or 0), answer

    def send(self, request: bytes) -> tuple[Properties, Any]:
        response = self.node.handle(request)
        facts = MessageFacts()
        scan_message(response, 0, len(response), facts)
        assert facts.body_kind == descriptors.AMQP_VALUE
        (body,) = decode_body(response, facts.body, facts.body_end)
        return decode_properties(response, facts.properties, facts.properties_end), body


@pytest.fixture(name="node_bench")
def make_bench() -> NodeBench:
    return NodeBench(Cut.WHOLE)


@pytest.fixture
def client(node_bench: NodeBench) -> Client:
    return Client(node_bench)


def test_a_queue_is_declared_told_purged_and_deleted(client: Client, node_bench: NodeBench) -> None:
    fields = {"durable": True, "arguments": {"x-queue-type": "quorum", "x-max-length": Int(5)}}
    status, told = client.ask("PUT", "/queues/a%2Fb", fields)
    assert status == 201
    assert told["name"] == "a/b"
    assert told["type"] == "quorum"
    assert told["durable"] is True
    assert told["exclusive"] is told["auto_delete"] is False
    assert told["arguments"] == {"x-queue-type": "quorum", "x-max-length": 5}
    assert isinstance(told["replicas"], Array)
    assert told["replicas"].items == (told["leader"],)
    assert client.ask("PUT", "/queues/a%2Fb", fields)[0] == 200
    channel = node_bench.channel()
    channel.publish(b"1", "a/b")
    channel.publish(b"2", "a/b")
    status, told = client.ask("GET", "/queues/a%2Fb")
    assert (status, told["message_count"], told["consumer_count"]) == (200, 2, 0)
    assert client.ask("DELETE", "/queues/a%2Fb/messages") == (200, {"message_count": 2})
    channel.publish(b"3", "a/b")
    assert client.ask("DELETE", "/queues/a%2Fb") == (200, {"message_count": 1})
    assert client.ask("GET", "/queues/a%2Fb")[0] == 404
    assert client.ask("DELETE", "/queues/a%2Fb") == (200, {"message_count": 0})


def test_a_queue_is_durable_unless_the_client_says_no(client: Client) -> None:
    assert client.ask("PUT", "/queues/q")[1]["durable"] is True
    assert client.ask("PUT", "/queues/stream", {"arguments": {"x-queue-type": "stream"}})[1]["type"] == "stream"


def test_a_different_declaration_is_a_conflict(client: Client) -> None:
    client.ask("PUT", "/queues/q", {"durable": True})
    status, reason = client.ask("PUT", "/queues/q", {"durable": False})
    assert status == 409
    assert "inequivalent arg 'durable'" in reason
    client.ask("PUT", "/exchanges/e", {"type": "topic"})
    assert client.ask("PUT", "/exchanges/e", {"type": "fanout"})[0] == 409


def test_an_exclusive_queue_belongs_to_its_connection(client: Client, node_bench: NodeBench) -> None:
    assert client.ask("PUT", "/queues/mine", {"exclusive": True, "durable": False})[1]["exclusive"] is True
    assert Client(node_bench).ask("GET", "/queues/mine")[0] == 409
    assert client.ask("GET", "/queues/mine")[0] == 200


def test_exchanges_are_declared_told_and_deleted(client: Client) -> None:
    assert client.ask("PUT", "/exchanges/e", {"type": "topic", "internal": False, "arguments": {}}) == (204, None)
    assert client.ask("GET", "/exchanges/e")[1]["type"] == "topic"
    assert client.ask("DELETE", "/exchanges/e") == (204, None)
    assert client.ask("GET", "/exchanges/e")[0] == 404
    assert client.ask("PUT", "/exchanges/e", {"type": "no-such"})[0] == 400


def test_lists_of_bindings_are_limited_and_charged(node_bench: NodeBench, client: Client) -> None:
    """Two hundred requests for a list of 5,000, in one read of 16 KB, kept others waiting for 3.4 seconds."""
    runtime = node_bench.node.runtime
    client.ask("PUT", "/queues/q")
    fields: dict[str, object] = {"source": "amq.headers", "binding_key": "", "destination_queue": "q"}
    for number in range(1001):
        runtime.work_left = 1 << 20
        assert client.ask("POST", "/bindings", {**fields, "arguments": {"a": Int(number)}})[0] == 204
    before = runtime.work_left
    status, text = client.ask("GET", "/bindings?src=amq.headers&dstq=q&key=")
    assert (status, "at most 1000 bindings" in text) == (400, True)
    assert before - runtime.work_left >= 1001 // 16
    client.ask("DELETE", "/queues/q/messages")
    queue = client.virtual_host.queues["q"]
    client.virtual_host.unbind("queue", queue.name, "amq.headers", "", {"a": 0})
    before = runtime.work_left
    status, found = client.ask("GET", "/bindings?src=amq.headers&dstq=q&key=")
    assert (status, len(found)) == (200, 1000)
    assert before - runtime.work_left >= 4000


def test_an_explanation_is_short(client: Client) -> None:
    status, text = client.ask("GET", "\U000e0001" * 50_000)
    assert (status, len(text)) == (400, 1000)


def test_bindings_are_made_listed_and_removed(client: Client) -> None:
    client.ask("PUT", "/exchanges/e%3B", {"type": "headers"})
    client.ask("PUT", "/queues/q")
    for arguments in ({}, {"x-match": "any", "a": Int(1)}, {"x-match": "any", "a": Int(2)}):
        fields = {"source": "e;", "destination_queue": "q", "binding_key": "k/1", "arguments": arguments}
        assert client.ask("POST", "/bindings", fields) == (204, None)
    status, bindings = client.ask("GET", "/bindings?src=e%3B&dstq=q&key=k%2F1")
    assert (status, len(bindings)) == (200, 3)
    plain = next(binding for binding in bindings if not binding["arguments"])
    assert plain["location"] == "/bindings/src=e%3B;dstq=q;key=k%2F1;args="
    second = next(binding for binding in bindings if binding["arguments"].get("a") == 2)
    assert client.ask("DELETE", second["location"]) == (204, None)
    assert client.ask("DELETE", plain["location"]) == (204, None)
    (left,) = client.ask("GET", "/bindings?src=e%3B&dstq=q&key=k%2F1")[1]
    assert left["arguments"] == {"x-match": "any", "a": 1}
    assert client.ask("DELETE", "/bindings/src=e%3B;dstq=q;key=none;args=") == (204, None)


def test_exchanges_are_bound_to_exchanges(client: Client) -> None:
    client.ask("PUT", "/exchanges/from", {"type": "fanout"})
    client.ask("PUT", "/exchanges/to", {"type": "fanout"})
    fields = {"source": "from", "destination_exchange": "to", "binding_key": ""}
    assert client.ask("POST", "/bindings", fields)[0] == 204
    (binding,) = client.ask("GET", "/bindings?src=from&dste=to&key=")[1]
    assert binding["destination_exchange"] == "to"
    assert client.ask("DELETE", binding["location"])[0] == 204
    assert client.ask("GET", "/bindings?src=from&dste=to&key=") == (200, [])


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", "nowhere", None, 400),
        ("PATCH", "/queues/q", None, 405),
        ("POST", "/queues/q", None, 405),
        ("GET", "/queues/q/messages", None, 405),
        ("PUT", "/queues/", None, 400),
        ("PUT", "/queues/%zz", None, 400),
        ("PUT", "/queues/amq.mine", None, 403),
        ("PUT", "/queues/" + "x" * 300, None, 400),
        ("PUT", "/queues/q", "text", 400),
        ("PUT", "/queues/q", {"durable": "yes"}, 400),
        ("PUT", "/queues/q", {"arguments": {5: 5}}, 400),
        ("PUT", "/queues/q", {"arguments": {"x-max-length": "many"}}, 409),
        ("PUT", "/exchanges/amq.mine", None, 403),
        ("PUT", "/exchanges/e", {"type": 5}, 400),
        ("DELETE", "/exchanges/amq.topic", None, 403),
        ("POST", "/bindings", {"source": "amq.topic", "binding_key": "k"}, 400),
        ("POST", "/bindings", {"source": "amq.topic", "binding_key": "k", "destination_queue": "none"}, 404),
        ("POST", "/bindings", {"source": "none", "binding_key": "k", "destination_exchange": "amq.topic"}, 404),
        ("GET", "/bindings", None, 400),
        ("GET", "/bindings?src=a&src=a", None, 400),
        ("DELETE", "/bindings/nonsense", None, 400),
        ("PUT", "/auth/tokens", b"token", 404),
    ],
)
def test_what_cannot_be_done_is_told(client: Client, method: str, path: str, body: object, status: int) -> None:
    answered, reason = client.ask(method, path, body)
    assert answered == status
    assert isinstance(reason, str)
    assert reason


def test_permissions_are_those_of_the_user(node_bench: NodeBench) -> None:
    client = Client(node_bench, User("somebody", {"/": Permission("^mine", "^mine", "^mine")}))
    assert client.ask("PUT", "/queues/mine")[0] == 201
    assert client.ask("PUT", "/queues/other")[0] == 403
    assert client.ask("PUT", "/exchanges/other")[0] == 403
    fields = {"source": "amq.topic", "binding_key": "k", "destination_queue": "mine"}
    assert client.ask("POST", "/bindings", fields)[0] == 403


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\x00",
        b"\xff" * 20,
        encode_data(b"x"),
        encode_value(Properties()),
        encode_value(Properties(to="/queues/q")),
        encode_value(Properties(subject="GET")),
        b"\x00\x53\x73\xc0\x03\x01\x40\xff",
    ],
)
def test_what_is_no_request_is_answered_as_such(client: Client, request_: bytes) -> None:
    properties, reason = client.send(request_)
    assert properties.subject == "400"
    assert reason


def test_the_sections_of_a_request_may_stand_in_any_order(client: Client) -> None:
    request = encode_amqp_value(None) + encode_value(Properties(to="/queues/q", subject="PUT"))
    assert client.send(request)[0].subject == "201"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_body_makes_it_raise(data: st.DataObject) -> None:
    bench = NodeBench(Cut.WHOLE)
    body = data.draw(values | st.fixed_dictionaries({"arguments": values}).map(lambda m: {Symbol("x"): 1, **m}))
    path = data.draw(st.sampled_from(["/queues/q", "/exchanges/e", "/bindings", "/bindings/src=a;dstq=b;key=c;args="]))
    status, _ = Client(bench).ask(data.draw(st.sampled_from(["PUT", "POST", "DELETE", "GET"])), path, body)
    assert 200 <= status < 500
