"""What the own suites of management clients in Go, Rust, Java and Python expect, beyond what rabbitmqadmin needs."""

from tests.management.api import running


async def test_an_empty_segment_is_the_default_exchange() -> None:
    async with running() as api:
        await api.queue("q")
        body = {"properties": {}, "routing_key": "q", "payload": "hello", "payload_encoding": "string"}
        reply = await api.ask("POST", "/exchanges/%2F//publish", body)
        assert (reply.status, reply.json) == (200, {"routed": True})
        assert (await api.get("/exchanges/%2F//bindings/source"))[0]["destination"] == "q"
        assert (await api.ask("GET", "/queues//q")).status == 404
        assert [one["name"] for one in await api.get("/queues//")] == ["q"]


async def test_policies_of_mirrors_are_taken() -> None:
    async with running() as api:
        policy = {"pattern": ".*", "definition": {"ha-mode": "all"}, "priority": 1, "apply-to": "all"}
        assert await api.put("/policies/%2F/ha", policy) == 201
        assert (await api.get("/policies/%2F/ha"))["definition"] == {"ha-mode": "all"}
        reply = await api.ask("PUT", "/policies/%2F/p", {**policy, "definition": {"foo": "bar"}})
        assert reply.status == 400
        assert "foo are not recognised policy settings" in reply.json["reason"]


async def test_parameters_are_of_all_components() -> None:
    async with running() as api:
        assert await api.put("/vhost-limits/%2F/max-queues", {"value": 5}) == 204
        assert await api.put("/operator-policies/%2F/o", {"pattern": "q", "definition": {"max-length": 5}}) == 201
        found = {one["component"] for one in await api.get("/parameters")}
        assert found == {"vhost-limits", "operator_policy"}


async def test_versions_and_tags_of_the_node() -> None:
    async with running() as api:
        (node,) = await api.get("/nodes")
        versions = {one["name"]: one["version"] for one in node["applications"]}
        overview = await api.get("/overview")
        assert versions["rabbit"] == overview["rabbitmq_version"]
        assert (overview["cluster_tags"], overview["node_tags"]) == ({}, {})


async def test_virtual_hosts_have_a_history() -> None:
    async with running() as api:
        host = (await api.get("/vhosts?lengths_age=60&lengths_incr=5"))[0]
        assert len(host["messages_details"]["samples"]) == 13


async def test_what_is_not_there_has_no_bindings() -> None:
    async with running() as api:
        await api.queue("q")
        for path in (
            *("/exchanges/%2F/no/bindings/source", "/exchanges/%2F/no/bindings/destination"),
            *("/queues/%2F/no/bindings", "/bindings/%2F/e/no/q/q"),
            *("/bindings/%2F/e/amq.direct/q/no", "/bindings/%2F/e/amq.direct/e/no"),
        ):
            assert await api.get(path) == [], path
        for path in ("/bindings/%2F/e/amq.direct/x/q", "/exchanges/no/x/bindings/source"):
            assert (await api.ask("GET", path)).status == 404, path


async def test_features_that_rabbitmq_deprecates() -> None:
    async with running() as api:
        found = await api.get("/deprecated-features")
        assert {one["deprecation_phase"] for one in found} == {"permitted_by_default"}
        assert await api.get("/deprecated-features/used") == []
        assert await api.put("/queues/%2F/passing", {"durable": False}) == 201
        assert [one["name"] for one in await api.get("/deprecated-features/used")] == ["transient_nonexcl_queues"]
