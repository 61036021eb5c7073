"""A broker that is given definitions, running or at its start."""

import asyncio
import itertools
from pathlib import Path

from waybill.broker import Broker
from waybill.client import connect

DOCUMENT: dict[str, object] = {
    "users": [{"name": "worker", "password": "secret", "tags": ""}],
    "permissions": [{"user": "worker", "vhost": "/", "configure": "", "write": "", "read": "^jobs$"}],
    "queues": [{"name": "jobs", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
}


async def test_imported_while_it_runs_and_kept(tmp_path: Path) -> None:
    async with Broker(port=0, data_dir=tmp_path) as broker:
        report = await broker.import_definitions(DOCUMENT)
        assert report.errors == []
        exported = broker.export_definitions()
    async with Broker(port=0, data_dir=tmp_path) as broker:
        assert broker.export_definitions() == exported
        async with connect(broker.uri().replace("guest:guest", "worker:secret")) as connection:
            channel = await connection.channel()
            assert await channel.get("jobs") is None


async def test_imported_before_anybody_can_connect_and_there_is_no_guest() -> None:
    async with Broker(port=0, definitions=DOCUMENT) as broker:
        assert list(broker.administration.accounts.by_name) == ["worker"]
        assert broker.import_report is not None
        assert broker.import_report.counts == {"users": 1, "permissions": 1, "queues": 1}
        async with connect(broker.uri().replace("guest:guest", "worker:secret")) as connection:
            channel = await connection.channel()
            assert await channel.get("jobs") is None


MANY = 2000
MOST_ITEMS = 100


async def test_others_are_served_while_many_are_imported() -> None:
    """Between two turns of the loop there is one password, or a few queues and bindings."""
    names = [f"q{number}" for number in range(MANY)]
    document: dict[str, object] = {
        "users": [{"name": f"user{number}", "password": "secret", "tags": ""} for number in range(3)],
        "queues": [{"name": name, "vhost": "/", "durable": True} for name in names],
        "bindings": [
            {"vhost": "/", "source": "amq.topic", "destination": name, "destination_type": "queue", "routing_key": name}
            for name in names
        ],
    }
    async with Broker(port=0) as broker:
        importing = asyncio.ensure_future(broker.import_definitions(document))
        host, users = broker._node.virtual_hosts["/"], broker.administration.accounts.by_name
        counts = []
        while not importing.done():
            await asyncio.sleep(0)
            counts.append((len(users), len(host.queues)))
        assert importing.result().counts == {"users": 3, "queues": MANY, "bindings": MANY}
        for (users_before, queues_before), (users_after, queues_after) in itertools.pairwise(counts):
            assert users_after - users_before <= 1
            assert queues_after - queues_before <= MOST_ITEMS
        assert len(counts) > 2 * MANY / MOST_ITEMS
