"""Metrics for Prometheus, health and readiness."""

import re

from tests.management.api import running

LINE = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\]|\\.)*"(,|(?=\})))*\})? -?[0-9.e+-]+')


async def test_metrics_are_open_and_well_formed() -> None:
    async with running() as api:
        await api.queue('odd"\\name')
        await api.publish('odd"\\name')
        await api.management.sampler.sample()
        for path in ("//metrics", "//metrics/per-object", "//metrics/detailed?family=queue_coarse_metrics&vhost=/"):
            reply = await api.ask("GET", f"/{path}"[1:], login=None)
            assert reply.status == 200
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = reply.octets.decode().splitlines()
            assert all(line.startswith("# ") or LINE.fullmatch(line) for line in lines), lines
            names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
            assert len(names) == len(set(names))


async def test_names_of_the_overview_dashboard_are_there() -> None:
    async with running() as api:
        await api.queue("q")
        await api.publish("q")
        await api.management.sampler.sample()
        text = (await api.ask("GET", "//metrics", login=None)).octets.decode()
        for name in (
            "rabbitmq_build_info{",
            "rabbitmq_identity_info{",
            "rabbitmq_queue_messages_ready 1",
            "rabbitmq_queue_messages_unacked 0",
            "rabbitmq_queues 1",
            "rabbitmq_global_messages_received_total 1",
            "rabbitmq_global_messages_routed_total 1",
            "rabbitmq_connections 0",
            "rabbitmq_channels_opened_total 0",
            "rabbitmq_disk_space_available_bytes ",
            "rabbitmq_process_resident_memory_bytes ",
            "rabbitmq_alarms_memory_used_watermark 0",
        ):
            assert name in text
        per_object = (await api.ask("GET", "//metrics/per-object", login=None)).octets.decode()
        assert 'rabbitmq_queue_messages_ready{vhost="/",queue="q"} 1' in per_object
        detailed = await api.ask(
            "GET", "//metrics/detailed?family=queue_consumer_count&family=vhost_status", login=None
        )
        assert 'rabbitmq_detailed_queue_consumers{vhost="/",queue="q"} 0' in detailed.octets.decode()
        assert 'rabbitmq_cluster_vhost_status{vhost="/"} 1' in detailed.octets.decode()
        assert (await api.ask("GET", "//metrics/detailed?family=odd", login=None)).status == 400


async def test_health() -> None:
    async with running() as api:
        assert (await api.ask("GET", "//health/live", login=None)).status == 200
        assert (await api.ask("GET", "//health/ready", login=None)).octets == b"ready\n"
        for path in (
            "/health/checks/alarms",
            "/health/checks/local-alarms",
            "/health/checks/virtual-hosts",
            "/health/checks/node-is-quorum-critical",
            f"/health/checks/port-listener/{api.broker.port}",
            "/health/checks/protocol-listener/amqp",
            "/health/checks/certificate-expiration/1/months",
            "/aliveness-test/%2F",
            "/healthchecks/node",
        ):
            assert (await api.get(path))["status"] == "ok"
        assert (await api.ask("GET", "/health/checks/port-listener/1")).status == 503
        assert (await api.ask("GET", "/health/checks/port-listener/x")).status == 400
        assert (await api.ask("GET", "/health/checks/protocol-listener/mqtt")).json["status"] == "failed"
        assert (await api.ask("GET", "/aliveness-test/absent")).status == 404
        api.broker.node.alarm = "low on memory"
        assert (await api.ask("GET", "/health/checks/alarms")).status == 503
        assert b"publishers wait" in (await api.ask("GET", "//health/ready", login=None)).octets


async def test_overview_nodes_and_the_rest() -> None:
    async with running() as api:
        overview = await api.get("/overview")
        assert overview["rabbitmq_version"] == overview["management_version"]
        assert overview["product_name"] == "Waybill"
        assert {one["protocol"] for one in overview["listeners"]} == {"amqp"}
        (node,) = await api.get("/nodes")
        assert node["running"]
        assert node["name"] == overview["node"]
        assert node["mem_used"] > 0
        assert node["message_bytes_in_memory"] == 0
        await api.put("/queues/%2F/held", {})
        message = {"properties": {}, "routing_key": "held", "payload": "x" * 1000, "payload_encoding": "string"}
        await api.ask("POST", "/exchanges/%2F/amq.default/publish", message)
        assert 1000 <= (await api.get("/nodes"))[0]["message_bytes_in_memory"] < 3000
        assert await api.get(f"/nodes/{node['name']}/memory")
        assert (await api.ask("GET", "/nodes/other")).status == 404
        assert (await api.get("/whoami")) == {"name": "guest", "tags": ["administrator"]}
        assert (await api.ask("GET", "/auth", login=None)).json["oauth_enabled"] is False
        assert await api.get("/extensions")
        assert all(one["state"] == "enabled" for one in await api.get("/feature-flags"))
        assert await api.put("/feature-flags/quorum_queue/enable") == 204
        assert (await api.ask("POST", "/rebalance/queues")).status == 204
