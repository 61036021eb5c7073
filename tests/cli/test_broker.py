"""`waybill broker list|show|close|user|policy|vhost`: a running broker, operated over its management API."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from click.testing import CliRunner, Result

from waybill.broker import Broker
from waybill.cli.main import main
from waybill.client import connect
from waybill.management.serving import ManagementServer

Ask = Callable[..., Awaitable[Result]]


def asking(url: str, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setenv("WAYBILL_MANAGEMENT", url.replace("http://", "http://guest:guest@"))

    async def ask(*arguments: str, text: str | None = None) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, ["broker", *arguments], input=text)

    return ask


async def test_a_running_broker_is_operated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(port=0) as broker, ManagementServer(broker, port=0) as server:
        ask = asking(server.url, monkeypatch)
        assert (
            "added user ada" in (await ask("user", "add", "ada", "--password", "-", "--vhost", "/", text="s\n")).output
        )
        assert (await ask("user", "tags", "ada", "monitoring")).exit_code == 0
        assert (await ask("user", "password", "ada", "--password", "t")).exit_code == 0
        shown = await ask("user", "permissions", "ada", "--write", "^a", "--json")
        assert json.loads(shown.output) == {"user": "ada", "vhost": "/", "configure": "", "write": "^a", "read": ""}
        assert (await ask("user", "permissions", "ada", "--clear")).exit_code == 0
        users = json.loads((await ask("list", "users", "--json")).output)
        assert [(one["name"], one["tags"]) for one in users] == [("ada", ["monitoring"]), ("guest", ["administrator"])]
        assert (await ask("policy", "set", "p", "^q", '{"max-length": 3}', "--apply-to", "queues")).exit_code == 0
        assert "max-length" in (await ask("list", "policies")).output
        assert (await ask("policy", "clear", "p")).exit_code == 0
        assert (await ask("vhost", "add", "v", "--description", "of tests")).exit_code == 0
        assert (await ask("vhost", "delete", "v", "--yes")).exit_code == 0
        assert (await ask("user", "delete", "ada")).exit_code == 0
        async with connect(broker.uri()) as connection:
            await connection.channel()
            (found,) = json.loads((await ask("list", "connections", "--json")).output)
            assert "connections  1" in (await ask("show")).output
            for kind in ("queues", "exchanges", "bindings", "channels", "consumers", "permissions", "vhosts", "nodes"):
                assert (await ask("list", kind)).exit_code == 0
            assert (await ask("close", found["name"], "--reason", "enough")).output == f"closed {found['name']}\n"


async def test_what_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(port=0) as broker, ManagementServer(broker, port=0) as server:
        ask = asking(server.url, monkeypatch)
        for arguments, text in (
            (("close", "nobody"), "not found"),
            (("policy", "set", "p", "(", "{}"), "400: Validation failed"),
            (("policy", "set", "p", "", "{"), "not JSON"),
            (("list", "users", "--vhost", "/"), "do not belong to a virtual host"),
            (
                ("list", "users", "--management-url", server.url.replace("//", "//guest:wrong@")),
                "refused: Login failed",
            ),
            (("list", "users", "--management-url", "http://127.0.0.1:1"), "no management API"),
            (("list", "users", "--management-url", "ftp://x"), "http://user:password@host:port"),
        ):
            result = await ask(*arguments)
            assert result.exit_code in {1, 2}
            assert text in result.output, result.output
