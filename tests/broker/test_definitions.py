"""A broker that is given definitions, running or at its start."""

import asyncio
import time
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
MOST_SECONDS = 0.05


async def test_others_are_served_while_many_are_imported() -> None:
    """Nobody waits for more than 50 ms of this thread's CPU."""
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
        turns, longest, begin = 0, 0.0, time.thread_time()
        while not importing.done():
            await asyncio.sleep(0)
            now = time.thread_time()
            turns, longest, begin = turns + 1, max(longest, now - begin), now
        assert importing.result().counts == {"users": 3, "queues": MANY, "bindings": MANY}
        assert turns > 50
        assert longest < MOST_SECONDS
