"""What the management API makes, shows and removes: the statuses and fields that clients of RabbitMQ rely on."""

import asyncio
import json
from typing import Final
from urllib.parse import quote

import pytest

from tests.management.api import running
from waybill.client import connect
from waybill.management import consumers, listing


async def test_queue_life() -> None:
    async with running() as api:
        path = "/queues/%2F/a%2Fb"
        body = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 10}}
        assert await api.put(path, body) == 201
        assert await api.put(path, body) == 204
        reply = await api.ask("PUT", path, {"durable": False})
        assert reply.status == 400
        assert reply.json["error"] == "bad_request"
        assert reply.json["reason"].startswith("inequivalent arg 'durable' for queue 'a/b'")
        item = await api.get(path)
        assert item["name"] == "a/b"
        assert item["vhost"] == "/"
        assert item["arguments"] == {"x-max-length": 10}
        assert item["type"] == "classic"
        assert item["state"] == "running"
        assert item["messages"] == item["messages_ready"] == item["messages_unacknowledged"] == 0
        assert item["messages_details"] == {"rate": 0.0}
        assert (await api.ask("DELETE", path)).status == 204
        assert (await api.ask("DELETE", path)).status == 404
        assert (await api.ask("GET", path)).json == {"error": "Object Not Found", "reason": "Not Found"}


async def test_conditions_of_deletion() -> None:
    async with running() as api:
        await api.queue("q")
        await api.publish("q")
        assert (await api.ask("DELETE", "/queues/%2F/q?if-empty=true")).status == 400
        assert (await api.ask("DELETE", "/queues/%2F/q/contents")).status == 204
        assert (await api.ask("DELETE", "/queues/%2F/q?if-empty=true")).status == 204
        assert await api.put("/exchanges/%2F/x", {"type": "fanout"}) == 201
        await api.queue("q")
        assert (await api.ask("POST", "/bindings/%2F/e/x/q/q", {})).status == 201
        assert (await api.ask("DELETE", "/exchanges/%2F/x?if-unused=true")).status == 400
        assert (await api.ask("DELETE", "/exchanges/%2F/x")).status == 204


async def test_exchanges() -> None:
    async with running() as api:
        names = {(one["name"], one["type"]) for one in await api.get("/exchanges/%2F")}
        assert {("", "direct"), ("amq.topic", "topic"), ("amq.match", "headers")} <= names
        assert await api.put("/exchanges/%2F/x", {"type": "topic", "durable": True}) == 201
        assert await api.put("/exchanges/%2F/x", {"type": "topic", "durable": True}) == 204
        assert await api.put("/exchanges/%2F/x", {"type": "fanout"}) == 400
        assert await api.put("/exchanges/%2F/y", {"type": "nothing-known"}) == 400
        assert await api.put("/exchanges/%2F/y", {}) == 201
        item = await api.get("/exchanges/%2F/x")
        assert (item["type"], item["durable"], item["internal"], item["auto_delete"]) == ("topic", True, False, False)
        assert (await api.ask("DELETE", "/exchanges/%2F/amq.direct")).status == 401


async def test_bindings() -> None:
    async with running() as api:
        await api.queue("q")
        await api.put("/exchanges/%2F/x", {"type": "topic"})
        await api.put("/exchanges/%2F/y", {"type": "fanout"})
        ends = "/bindings/%2F/e/x/q/q"
        reply = await api.ask("POST", ends, {"routing_key": "a.#", "arguments": {}})
        assert reply.status == 201
        assert reply.headers["Location"] == "q/a.%2523"
        assert (await api.ask("POST", ends, {"routing_key": "b", "arguments": {"k": 1}})).status == 201
        found = {one["routing_key"]: one for one in await api.get(ends)}
        assert found["a.#"]["properties_key"] == "a.%23"
        assert found["b"]["properties_key"].startswith("b~")
        assert await api.get(f"{ends}/{quote('a.%23', safe='')}") == found["a.#"]
        assert (await api.ask("POST", "/bindings/%2F/e/x/e/y", {"routing_key": "c"})).status == 201
        assert [one["destination"] for one in await api.get("/exchanges/%2F/y/bindings/destination")] == ["y"]
        assert len(await api.get("/exchanges/%2F/x/bindings/source")) == 3
        of_queue = await api.get("/queues/%2F/q/bindings")
        assert [one["source"] for one in of_queue] == ["", "x", "x"]
        assert len(await api.get("/bindings")) == 4
        for one in found.values():
            assert (await api.ask("DELETE", f"{ends}/{quote(one['properties_key'], safe='')}")).status == 204
        assert await api.get(ends) == []
        assert (await api.ask("DELETE", f"{ends}/b")).status == 404
        assert (await api.ask("POST", "/bindings/%2F/e/x/q/absent", {})).status == 404


async def test_very_many_bindings_are_listed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "WHOLE_MAX", 2)
    async with running() as api:
        await api.queue("q")
        ends = "/bindings/%2F/e/amq.direct/q/q"
        for number in range(5):
            assert (await api.ask("POST", ends, {"routing_key": str(number)})).status == 201
        for path in (ends, "/queues/%2F/q/bindings", "/exchanges/%2F/amq.direct/bindings/source", "/bindings"):
            assert (await api.begin("GET", path)).stream is not None, path
            assert [one["routing_key"] for one in await api.get(path) if one["source"]] == list("01234"), path
        assert (await api.ask("DELETE", f"{ends}/3")).status == 204
        assert [one["routing_key"] for one in await api.get(ends)] == list("0124")


async def test_a_queue_and_a_channel_show_few_of_very_many_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "DETAILS_MAX", 2)
    async with running() as api, connect(api.broker.uri()) as connection:
        channel = await connection.channel()
        await api.queue("q")
        for _ in range(3):
            await channel.consume("q")
        (one,) = await api.get("/channels")
        for path in ("/queues/%2F/q", f"/channels/{quote(one['name'], safe='')}"):
            assert len((await api.get(path))["consumer_details"]) == 2
        assert len(await api.get("/consumers")) == 3


async def test_publish_and_get() -> None:
    async with running() as api:
        await api.queue("q")
        body = {
            "properties": {"delivery_mode": 2, "headers": {"k": [1, "a", True]}, "content_type": "text/plain"},
            "routing_key": "q",
            "payload": "aGVsbG8=",
            "payload_encoding": "base64",
        }
        assert (await api.ask("POST", "/exchanges/%2F/amq.default/publish", body)).json == {"routed": True}
        assert not await api.publish("nobody")
        ask = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
        for redelivered in (False, True):
            (found,) = (await api.ask("POST", "/queues/%2F/q/get", ask)).json
            assert found == {
                "exchange": "",
                "message_count": 0,
                "payload": "hello",
                "payload_bytes": 5,
                "payload_encoding": "string",
                "properties": {
                    "content_type": "text/plain",
                    "delivery_mode": 2,
                    "headers": {"k": [1, "a", True]},
                },
                "redelivered": redelivered,
                "routing_key": "q",
            }
        ask |= {"ackmode": "ack_requeue_false", "encoding": "base64", "truncate": 2}
        (found,) = (await api.ask("POST", "/queues/%2F/q/get", ask)).json
        assert (found["payload"], found["payload_encoding"], found["payload_bytes"]) == ("aGU=", "base64", 5)
        assert (await api.ask("POST", "/queues/%2F/q/get", ask)).json == []


NONSENSE: Final[tuple[tuple[str, object], ...]] = (
    ("/exchanges/%2F/amq.default/publish", {"routing_key": "q"}),
    (
        "/exchanges/%2F/amq.default/publish",
        {"properties": 1, "routing_key": "q", "payload": "", "payload_encoding": "string"},
    ),
    (
        "/exchanges/%2F/amq.default/publish",
        {"properties": {}, "routing_key": "q", "payload": "!", "payload_encoding": "base64"},
    ),
    (
        "/exchanges/%2F/amq.default/publish",
        {"properties": {"priority": 900}, "routing_key": "q", "payload": "", "payload_encoding": "string"},
    ),
    (
        "/exchanges/%2F/amq.default/publish",
        {"properties": {"expiration": "x"}, "routing_key": "q", "payload": "", "payload_encoding": "string"},
    ),
    (
        "/exchanges/%2F/amq.default/publish",
        {"properties": {"user_id": "other"}, "routing_key": "q", "payload": "", "payload_encoding": "string"},
    ),
    ("/queues/%2F/q/get", {"count": 1, "encoding": "auto"}),
    ("/queues/%2F/q/get", {"count": -1, "encoding": "auto", "ackmode": "ack_requeue_true"}),
    ("/queues/%2F/q/get", {"count": 1, "encoding": "odd", "ackmode": "ack_requeue_true"}),
    ("/queues/%2F/q/get", {"count": 1, "encoding": "auto", "ackmode": "odd"}),
    ("/queues/%2F/q/get", b"[]"),
    ("/queues/%2F/q/get", b"{"),
    ("/queues/%2F/q/get", {"count": 1, "encoding": "auto", "ackmode": ["ack_requeue_true"]}),
    ("/queues/%2F/q/get", {"count": 1, "encoding": "auto", "requeue": [1]}),
    ("/queues/%2F/q/actions", {"action": "dance"}),
    ("/queues/%2F/q/actions", {"action": {}}),
    ("/definitions", {"global_parameters": 1}),
    ("/definitions", {"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {}, "priority": 1 << 64}]}),
)
NONSENSE_TO_PUT: Final[tuple[tuple[str, object], ...]] = (
    ("/policies/%2F/p", {"pattern": "", "definition": {"max-length": 1}, "priority": 1 << 64}),
    ("/user-limits/guest/max-channels", {"value": 1 << 64}),
    ("/vhost-limits/%2F/max-queues", {"value": -(1 << 64)}),
)


async def test_nonsense_is_a_bad_request() -> None:
    async with running() as api:
        await api.queue("q")
        for path, body in NONSENSE:
            reply = await api.ask("POST", path, body)
            assert (reply.status, reply.json["error"]) == (400, "bad_request"), (path, body)
        for path, body in NONSENSE_TO_PUT:
            reply = await api.ask("PUT", path, body)
            assert (reply.status, reply.json["error"]) == (400, "bad_request"), (path, body)
        # What is refused has no effect.
        assert await api.get("/policies") == []


async def test_users_and_permissions() -> None:
    async with running() as api:
        assert await api.put("/users/u", {"password": "p", "tags": "management,monitoring"}) == 201
        assert await api.put("/users/u", {"password": "p", "tags": ["management"]}) == 204
        assert await api.put("/users/v", {"password": "p"}) == 400
        user = await api.get("/users/u")
        assert (user["name"], user["tags"], user["limits"]) == ("u", ["management"], {})
        assert [one["name"] for one in await api.get("/users/without-permissions")] == ["u"]
        permission = {"configure": "^a", "write": ".*", "read": ""}
        assert await api.put("/permissions/%2F/u", permission) == 201
        assert await api.put("/permissions/%2F/u", permission) == 204
        assert await api.put("/permissions/%2F/u", {"configure": "", "write": ""}) == 400
        assert await api.put("/permissions/%2F/u", permission | {"read": "("}) == 400
        assert await api.get("/permissions/%2F/u") == {"user": "u", "vhost": "/", **permission}
        assert await api.get("/users/u/permissions") == [{"user": "u", "vhost": "/", **permission}]
        topic = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
        assert await api.put("/topic-permissions/%2F/u", topic) == 201
        assert await api.get("/topic-permissions/%2F/u") == [{"user": "u", "vhost": "/", **topic}]
        assert (await api.ask("DELETE", "/topic-permissions/%2F/u")).status == 204
        assert (await api.ask("DELETE", "/permissions/%2F/u")).status == 204
        assert (await api.ask("GET", "/permissions/%2F/u")).status == 404
        assert await api.put("/user-limits/u/max-connections", {"value": 5}) == 204
        assert await api.get("/user-limits/u") == [{"user": "u", "value": {"max-connections": 5}}]
        assert (await api.ask("DELETE", "/user-limits/u/max-connections")).status == 204
        assert await api.get("/user-limits") == []
        assert (await api.ask("POST", "/users/bulk-delete", {"users": ["u", "nobody"]})).status == 204
        assert (await api.ask("GET", "/users/u")).status == 404


async def test_virtual_hosts() -> None:
    async with running() as api:
        assert await api.put("/vhosts/a%2Fb", {"description": "of a", "tags": "x,y"}) == 201
        assert await api.put("/vhosts/a%2Fb") == 204
        item = await api.get("/vhosts/a%2Fb")
        assert (item["name"], item["description"], item["tags"]) == ("a/b", "of a", ["x", "y"])
        assert {one["name"] for one in await api.get("/vhosts")} == {"/", "/ojs", "a/b"}
        assert await api.put("/queues/a%2Fb/q", {}) == 201
        assert await api.put("/vhost-limits/a%2Fb/max-queues", {"value": 1}) == 204
        assert await api.put("/queues/a%2Fb/r", {}) == 400
        assert await api.get("/vhost-limits/a%2Fb") == [{"vhost": "a/b", "value": {"max-queues": 1}}]
        assert await api.get("/parameters/vhost-limits/a%2Fb/limits")
        assert await api.put("/vhost-limits/a%2Fb/max-dances", {"value": 1}) == 400
        assert (await api.ask("DELETE", "/vhosts/a%2Fb")).status == 204
        assert (await api.ask("GET", "/vhosts/a%2Fb")).status == 404
        assert (await api.ask("GET", "/queues/a%2Fb")).status == 404


async def test_policies() -> None:
    for root in ("/policies", "/operator-policies"):
        await policies(root)


async def policies(root: str) -> None:
    async with running() as api:
        body = {"pattern": "^q", "definition": {"max-length": 3}, "priority": 1, "apply-to": "queues"}
        assert await api.put(f"{root}/%2F/p", body) == 201
        assert await api.put(f"{root}/%2F/p", body) == 204
        assert await api.get(f"{root}/%2F/p") == {"name": "p", "vhost": "/", **body}
        assert await api.get(f"{root}/%2F") == [{"name": "p", "vhost": "/", **body}]
        await api.queue("q")
        name = "policy" if root == "/policies" else "operator_policy"
        item = await api.get("/queues/%2F/q")
        assert item[name] == "p"
        assert item["effective_policy_definition"] == {"max-length": 3}
        wrongs: list[dict[str, object]] = [
            {"pattern": "("},
            {"definition": {"odd": 1}},
            {"definition": {}},
            {"apply-to": "cats"},
        ]
        for wrong in wrongs:
            assert await api.put(f"{root}/%2F/p", body | wrong) == 400
        assert await api.put(f"{root}/%2F/p", {"pattern": ""}) == 400
        assert (await api.ask("DELETE", f"{root}/%2F/p")).status == 204
        assert (await api.ask("DELETE", f"{root}/%2F/p")).status == 404


async def test_parameters() -> None:
    async with running() as api:
        assert await api.get("/parameters") == []
        assert await api.put("/parameters/shovel/%2F/s", {"value": {}}) == 400
        assert await api.put("/parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 7}}) == 201
        assert await api.get("/vhost-limits") == [{"vhost": "/", "value": {"max-queues": 7}}]
        assert (await api.ask("DELETE", "/parameters/vhost-limits/%2F/limits")).status == 204
        assert await api.put("/global-parameters/p", {"name": "p", "value": {"a": [1.5, None]}}) == 201
        assert await api.get("/global-parameters/p") == {"name": "p", "value": {"a": [1.5, None]}}
        assert (await api.ask("DELETE", "/global-parameters/p")).status == 204
        assert {one["name"] for one in await api.get("/global-parameters")} == {"cluster_name", "internal_cluster_id"}
        assert await api.put("/cluster-name", {"name": "ours"}) == 204
        assert await api.get("/cluster-name") == {"name": "ours"}


async def test_definitions_come_and_go() -> None:
    async with running() as api:
        await api.queue("q", arguments={"x-max-length": 5})
        await api.put("/exchanges/%2F/x", {"type": "fanout"})
        await api.ask("POST", "/bindings/%2F/e/x/q/q", {})
        await api.put("/cluster-name", {"name": "ours"})
        document = await api.get("/definitions")
        one = await api.get("/definitions/%2F")
        assert [queue["name"] for queue in document["queues"]] == ["q"]
        assert "vhost" not in one["queues"][0]
    async with running() as api:
        assert (await api.ask("POST", "/definitions", document)).status == 204
        assert (await api.get("/queues/%2F/q"))["arguments"] == {"x-max-length": 5}
        assert await api.get("/cluster-name") == {"name": "ours"}
        assert await api.put("/vhosts/other") == 201
        assert (await api.ask("POST", "/definitions/other", one)).status == 204
        assert len(await api.get("/queues/other/q/bindings")) == 2
        form = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="d"\r\n\r\n' + json.dumps(document).encode()
        )
        headers = {"content-type": "multipart/form-data; boundary=b"}
        assert (await api.ask("POST", "/definitions", form + b"\r\n--b--\r\n", headers=headers)).status == 204
        assert (await api.ask("POST", "/definitions", {"queues": [{"vhost": "/"}]})).status == 400


async def test_connections_channels_consumers() -> None:
    async with running() as api, connect(api.broker.uri(), name="me") as connection:
        channel = await connection.channel(prefetch_count=7)
        await api.queue("q")
        consumer = await channel.consume("q")
        (found,) = await api.get("/connections")
        assert found["name"].endswith(f"-> 127.0.0.1:{api.broker.port}")
        assert found["user_provided_name"] == "me"
        assert (found["user"], found["vhost"], found["state"]) == ("guest", "/", "running")
        assert (found["protocol"], found["type"], found["ssl"]) == ("AMQP 0-9-1", "network", False)
        assert found["channels"] == 1
        assert found["recv_oct"] > 0
        assert found["client_properties"]["capabilities"]
        path = f"/connections/{quote(found['name'], safe='')}"
        assert (await api.get(path))["name"] == found["name"]
        (one,) = await api.get(f"{path}/channels")
        assert one["name"] == f"{found['name']} ({one['number']})"
        assert (one["prefetch_count"], one["consumer_count"]) == (7, 1)
        assert (await api.get(f"/channels/{quote(one['name'], safe='')}"))["consumer_details"]
        (told,) = await api.get("/consumers/%2F")
        assert told["queue"] == {"name": "q", "vhost": "/"}
        assert told["channel_details"]["name"] == one["name"]
        assert (told["prefetch_count"], told["ack_required"], told["active"]) == (7, True, True)
        assert (await api.get("/queues/%2F/q"))["consumer_details"] == [told]
        await api.publish("q")
        delivery = await anext(consumer)
        assert (await api.get("/queues/%2F/q"))["messages_unacknowledged"] == 1
        delivery.ack()
        assert (await api.ask("DELETE", path, headers={"x-reason": "enough"})).status == 204
        while (await api.ask("GET", path)).status != 404:
            await asyncio.sleep(0.001)
        assert (await api.ask("DELETE", path)).status == 404
