"""Other people's programs on the management API: RabbitMQ's rabbitmqadmin, and Flower."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from waybill.broker import Broker
from waybill.management.serving import ManagementServer


def rabbitmqadmin() -> str:
    """Debian's rabbitmqadmin."""
    found = shutil.which("rabbitmqadmin")
    if found is None:
        pytest.skip("rabbitmqadmin is not installed: apt install rabbitmq-server")
    return found


async def run(url: str, *arguments: str, text: str = "") -> str:
    """Run rabbitmqadmin. Returns what it prints."""
    port = str(urlsplit(url).port)
    command = [sys.executable, rabbitmqadmin(), "--host=127.0.0.1", f"--port={port}", *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


async def test_rabbitmqadmin(tmp_path: Path) -> None:
    async with Broker(port=0) as broker, ManagementServer(broker, port=0) as server:
        url = server.url

        async def listed(what: str, *columns: str) -> list[dict[str, object]]:
            found: list[dict[str, object]] = json.loads(await run(url, "--format=raw_json", "list", what, *columns))
            return found

        assert "rabbitmq_version" in await run(url, "show", "overview")
        await run(url, "declare", "exchange", "name=x", "type=topic")
        await run(url, "declare", "queue", "name=q", "durable=true", 'arguments={"x-max-length": 9}')
        assert (
            await run(url, "declare", "binding", "source=x", "destination=q", "routing_key=a.#") == "binding declared\n"
        )
        published = await run(
            url, "publish", "exchange=x", "routing_key=a.b", "payload=hello", 'properties={"priority": 1}'
        )
        assert published == "Message published\n"
        assert "hello" in await run(url, "get", "queue=q", "ackmode=ack_requeue_false")
        assert [one["name"] for one in await listed("queues", "name", "messages")] == ["q"]
        assert len(await listed("bindings")) == 2
        await run(url, "declare", "user", "name=ada", "password=p", "tags=monitoring")
        await run(url, "declare", "permission", "vhost=/", "user=ada", "configure=.*", "write=.*", "read=.*")
        await run(url, "declare", "policy", "name=p", "pattern=^q", 'definition={"max-length": 3}', "apply-to=queues")
        await run(url, "declare", "vhost_limit", "vhost=/", "name=max-queues", "value=50")
        await run(url, "declare", "vhost", "name=v")
        for what in ("users", "permissions", "policies", "vhosts", "vhost_limits", "nodes"):
            assert await listed(what)
        for what in ("connections", "channels", "consumers", "parameters"):
            await listed(what)
        await run(url, "export", str(tmp_path / "definitions.json"))
        await run(url, "purge", "queue", "name=q")
        await run(
            url, "delete", "binding", "source=x", "destination=q", "destination_type=queue", "properties_key=a.%23"
        )
        for kind, name in (("queue", "q"), ("exchange", "x"), ("user", "ada"), ("policy", "p"), ("vhost", "v")):
            await run(url, "delete", kind, f"name={name}")
        await run(url, "import", str(tmp_path / "definitions.json"))
        assert [one["name"] for one in await listed("queues", "name")] == ["q"]


async def test_flower_reads_queues() -> None:
    broker_of_flower = pytest.importorskip("flower.utils.broker", reason="pip install flower")
    async with Broker(port=0) as broker, ManagementServer(broker, port=0) as server:
        await run(server.url, "declare", "queue", "name=celery")
        await run(server.url, "publish", "routing_key=celery", "payload=x")
        http_api = f"http://guest:guest@127.0.0.1:{urlsplit(server.url).port}/api/"
        flower = broker_of_flower.Broker(f"amqp://guest:guest@127.0.0.1:{broker.port}//", http_api=http_api)
        (found,) = await flower.queues(["celery"])
        assert (found["name"], found["messages"]) == ("celery", 1)
