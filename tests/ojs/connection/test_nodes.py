"""Programs that are given several nodes go on when the one that they are connected to ends.

The nodes of a cluster have the same queues: here they are two ways to one broker.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from click.testing import CliRunner

from tests.backend.conftest import Client
from tests.client.breaking import until
from tests.ojs.proxy import Proxy
from waybill.backend.backend import Backend
from waybill.broker import Broker
from waybill.cli.queue import command as queue_command
from waybill.client import ReconnectPolicy
from waybill.ojs import Coordinator, Jobs, Worker

QUICK = ReconnectPolicy(first_delay_s=0.01, max_delay_s=0.1)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Proxy, Proxy]]:
    async with Broker(port=0) as broker:
        uri = f"amqp://guest:guest@127.0.0.1:{broker.port}/%2Fojs"
        async with Proxy(uri) as one, Proxy(uri) as other:
            yield one, other


def kill(node: Proxy) -> None:
    node.refusing = True
    node.cut()


async def lose_node(nodes: tuple[Proxy, Proxy], jobs: Jobs) -> None:
    """Kill the node that `jobs` is connected to, and wait until it is connected to the other one."""
    connection = (await jobs.broker_connection()).connection
    before = connection.node
    kill(next(node for node in nodes if f":{before.port}/" in node.uri))
    await until(lambda: connection.is_open and connection.node != before)


async def test_jobs_worker_and_coordinator_go_on(nodes: tuple[Proxy, Proxy]) -> None:
    async with Jobs([node.uri for node in nodes], reconnect=QUICK) as jobs:

        @jobs.handler("add.numbers", queue="adding")
        async def add(left: int, right: int) -> int:
            return left + right

        async with Coordinator(jobs, queues=["adding"]), Worker(jobs, queues=["adding"]):
            assert await (await add.push(1, 2)).result(timeout=20) == 3
            await lose_node(nodes, jobs)
            job = await add.push(3, 4)
            assert await job.result(timeout=20) == 7
            info = await jobs.info(job.id, "adding", timeout=20)
            assert info is not None


async def test_the_sync_client_goes_on(nodes: tuple[Proxy, Proxy]) -> None:
    jobs = Jobs(",".join(node.uri for node in nodes), reconnect=QUICK)
    for node, other in (nodes, nodes[::-1]):
        job = await asyncio.to_thread(jobs.sync.push, "email.send", ["a"], queue="mail")
        kill(node)
        assert (await asyncio.to_thread(jobs.sync.push, "email.send", ["b"], queue="mail")).id != job.id
        node.refusing = other.refusing = False
    await asyncio.to_thread(jobs.sync.close)


async def test_the_backend_goes_on(nodes: tuple[Proxy, Proxy]) -> None:
    jobs = Jobs([node.uri for node in nodes], results=False, reconnect=QUICK)
    async with Backend(jobs) as backend:
        client = Client(backend)
        pushed = [await client.push()]
        await lose_node(nodes, jobs)
        pushed.append(await client.push())
        fetched = [(await client.fetch())[0]["id"] for _ in pushed]
        assert sorted(fetched) == sorted(pushed)


async def test_commands_find_the_node_that_is_there(
    nodes: tuple[Proxy, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(nodes[0])
    uri = ",".join(node.uri for node in nodes)
    monkeypatch.setenv("WAYBILL_URL", uri)
    made = await asyncio.to_thread(CliRunner().invoke, queue_command, ["declare", "mail"])
    assert made.output.endswith("declared mail\n")
    listed = await asyncio.to_thread(CliRunner().invoke, queue_command, ["list", "mail", "--json", "--url", uri])
    assert json.loads(listed.stdout)[0]["ready"] == 0
