"""A broker that is given definitions, running or at its start."""

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
